// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Options of the optimizer, crossed at random. Each draw trains on all ranks, and is computed again
// by one rank without hvd's collectives.

#include <hvd/train.hpp>
#include <hvd/train/checkpoint.hpp>

#include "adasum_reference.hpp"
#include "model.hpp"
#include "sanitizers.hpp"
#include "shared_folder.hpp"

using communicator = hvd_test::communicator;
using hvd_test::noise;

namespace {

constexpr int steps = 6, draws = hvd_test::under_asan || hvd_test::under_tsan ? 40 : 200;
constexpr double rate = 0.1, factor = 0.5;
constexpr double own_rate = 0.05, own_factor = 0.25;  // of the second group of parameters
constexpr std::size_t columns = 3;

enum kind : std::uint8_t { dense, local, table };

struct parameter {
    kind what;
    std::size_t size;
    int frozen_from, frozen_to;  // not stepped in [from, to)

    bool is_frozen(int step) const { return step >= frozen_from && step < frozen_to; }
};

struct setting {
    std::uint64_t number;
    hvd::optimizer_options options;
    std::vector<parameter> parameters;
    hvd::sparse_policy policy;
    bool uneven = false, reports = false, in_part = false;
    int resumes_at = -1;
    std::vector<std::size_t> group = {};  // the parameters of the second group

    bool adasum() const { return options.op == hvd::gradient_op::adasum; }

    // In an uneven setting a rank may be without samples in a step.
    bool has_samples(int rank, int step) const {
        return !uneven || noise(number * 31 + std::uint64_t(rank * 7 + step)) > -0.4;
    }

    // Element k of the gradient that a pass adds. All ranks know those of all.
    double gradient(int rank, int step, int pass, std::size_t p, std::size_t k) const {
        const std::uint64_t where[] = {std::uint64_t(rank), std::uint64_t(step),
                                       std::uint64_t(pass), p, k};
        std::uint64_t n = number;
        for (const std::uint64_t part : where) n = n * 1009 + part;
        return noise(n);
    }

    // A pass of a rank has these rows of a table. A row may come twice.
    std::vector<std::int64_t> rows(int rank, int step, int pass, std::size_t p) const {
        std::vector<std::int64_t> all;
        const std::size_t of_table = parameters[p].size / columns;
        for (std::size_t k = 0; k < 4; ++k)
            all.push_back(
                std::int64_t((gradient(rank, step, pass, p, 900 + k) + 1) / 2 * double(of_table)));
        return all;
    }
};

class dice {
public:
    explicit dice(std::uint64_t number) : number_(number) {}
    // Returns one of 0 … n-1.
    std::size_t operator()(std::size_t n) {
        return std::size_t((noise(number_ * 4099 + ++count_) + 1) / 2 * double(n)) % n;
    }
    bool often() { return (*this)(2) == 0; }

private:
    std::uint64_t number_, count_ = 0;
};

setting drawn(std::uint64_t number) {
    dice roll(number);
    setting s{.number = number, .options = {}, .parameters = {}, .policy = {}};
    s.options.op = std::array{hvd::gradient_op::average, hvd::gradient_op::sum,
                              hvd::gradient_op::adasum}[roll(3)];
    const bool has_table = !s.adasum() && roll.often(), has_local = roll(3) == 0;
    const std::size_t count = 2 + roll(3);
    for (std::size_t p = 0; p < count; ++p) {
        const kind what = p == 1 && has_table ? table : p == 0 && has_local ? local : dense;
        const int from = int(roll(2 * std::size_t(steps)));  // half of them are never frozen
        s.parameters.push_back({what, what == table ? columns * (5 + roll(40)) : 1 + roll(90), from,
                                from + 1 + int(roll(3))});
    }
    s.options.backward_passes_per_step = 1 + int(roll(3));
    s.options.average_passes = roll.often();
    s.options.bucket_bytes = std::array<std::size_t, 3>{1, 256, 1 << 20}[roll(3)];
    s.policy = hvd::sparse_policy(roll(3));
    if (!s.adasum()) {
        s.options.codec = hvd::gradient_codec(roll(3));
        s.options.gradient_predivide_factor =
            s.options.op == hvd::gradient_op::average ? std::array{1.0, 4.0, 0.5}[roll(3)] : 1;
        if (count > 3 && roll.often()) s.options.groups = {{3, 2}};
    }
    s.options.skip_nonfinite = roll(3) == 0;
    s.uneven = roll.often();
    s.reports = has_table || s.uneven || roll.often();
    if (!has_local && roll.often()) s.resumes_at = 1 + int(roll(steps - 1));
    s.options.error_feedback = s.options.codec != hvd::gradient_codec::none && roll.often();
    s.in_part = roll.often();
    s.options.order = hvd::bucket_order(roll(3));
    if (roll(4) == 0) s.options.unused = {roll(count)};
    for (std::size_t p = 0; p < count; ++p)
        if (roll(3) == 0) s.group.push_back(p);
    return s;
}

template <class T>
struct replica {
    std::vector<std::vector<T>> values, gradients;

    explicit replica(const setting& s) {
        for (std::size_t p = 0; p < s.parameters.size(); ++p) {
            auto& v = values.emplace_back(s.parameters[p].size);
            for (std::size_t k = 0; k < v.size(); ++k) v[k] = T(noise(p * 1000 + k));
            gradients.emplace_back(v.size());
        }
    }
};

template <class T>
using momentum = hvd::optimizers::momentum<T>;

// A replica and its optimizer, registered as the setting says.
template <class T>
struct trainee {
    replica<T> model;
    hvd::distributed_optimizer<communicator, hvd::optimizers::grouped<momentum<T>>> optimizer;

    trainee(communicator& comm, const setting& s)
        : model(s), optimizer(comm, {{.rate = T(rate), .factor = T(factor)}}, s.options) {
        if (!s.group.empty())
            optimizer.optimizer().add_group({.rate = T(own_rate), .factor = T(own_factor)},
                                            s.group);
        for (std::size_t p = 0; p < s.parameters.size(); ++p) {
            const std::string name = "p" + std::to_string(p);
            auto &value = model.values[p], &gradient = model.gradients[p];
            if (s.parameters[p].what == table)
                optimizer.register_sparse(name, value, gradient, columns, s.policy);
            else if (s.parameters[p].what == local) optimizer.register_local(name, value, gradient);
            else optimizer.register_parameter(name, value, gradient);
        }
    }

    void pass(const setting& s, int rank, int step, int number) {
        for (std::size_t p = s.parameters.size(); p-- > 0;) {
            auto& gradient = model.gradients[p];
            if (s.parameters[p].what == table) {
                hvd::sparse_rows<T> mine;
                for (const std::int64_t row : s.rows(rank, step, number, p)) {
                    mine.indices.push_back(row);
                    for (std::size_t c = 0; c < columns; ++c)
                        mine.values.push_back(
                            T(s.gradient(rank, step, number, p, std::size_t(row) * columns + c)));
                }
                optimizer.gradient_ready(p, mine);
                continue;
            }
            for (std::size_t k = 0; k < gradient.size(); ++k)
                gradient[k] += T(s.gradient(rank, step, number, p, k));
            const bool left_out = s.in_part && (p + std::size_t(rank + step)) % 3 == 0;
            if (s.reports && !left_out) optimizer.gradient_ready(p);
        }
    }
};

template <class T>
std::vector<std::vector<T>> trained(communicator& comm, const setting& s, const std::string& path) {
    auto now = std::make_unique<trainee<T>>(comm, s);
    for (int step = 0; step < steps; ++step) {
        if (step == s.resumes_at) {
            hvd::save_checkpoint(path, now->optimizer, {});
            now = std::make_unique<trainee<T>>(comm, s);
            for (auto& v : now->model.values) v.assign(v.size(), T(9));
            hvd::load_checkpoint(path, now->optimizer);
        }
        for (std::size_t p = 0; p < s.parameters.size(); ++p)
            if (s.parameters[p].is_frozen(step)) now->optimizer.freeze(p);
            else now->optimizer.unfreeze(p);
        now->optimizer.zero_gradients();
        if (s.has_samples(comm.rank(), step))
            for (int pass = 0; pass < s.options.backward_passes_per_step; ++pass)
                now->pass(s, comm.rank(), step, pass);
        else now->optimizer.nothing_ready();
        CHECK(now->optimizer.step());
    }
    return now->model.values;
}

// All ranks' training, computed by one.
class serial {
public:
    serial(const setting& s, int size) : s_(s), size_(size) {
        for (int r = 0; r < size; ++r) {
            models_.emplace_back(s);
            optimizers_.push_back({momentum<double>{.rate = rate, .factor = factor},
                                   momentum<double>{.rate = own_rate, .factor = own_factor}});
        }
        for (int step = 0; step < steps; ++step) take(step);
    }

    const std::vector<std::vector<double>>& values(int rank) const {
        return models_[std::size_t(rank)].values;
    }

private:
    // The sum that a rank's passes add to gradient p, times the scale of passes.
    std::vector<double> own(int rank, int step, std::size_t p) const {
        std::vector<double> sum(s_.parameters[p].size);
        if (!s_.has_samples(rank, step)) return sum;
        const int passes = s_.options.backward_passes_per_step;
        for (int pass = 0; pass < passes; ++pass) {
            if (s_.parameters[p].what == table) {
                for (const std::int64_t row : s_.rows(rank, step, pass, p))
                    for (std::size_t k = std::size_t(row) * columns;
                         k < std::size_t(row + 1) * columns; ++k)
                        sum[k] += s_.gradient(rank, step, pass, p, k);
                continue;
            }
            for (std::size_t k = 0; k < sum.size(); ++k)
                sum[k] += s_.gradient(rank, step, pass, p, k);
        }
        for (double& x : sum) x /= s_.options.average_passes ? passes : 1;
        return sum;
    }

    void set_gradients(int step) {
        for (std::size_t p = 0; p < s_.parameters.size(); ++p) {
            std::vector<std::vector<double>> all;
            for (int r = 0; r < size_; ++r) all.push_back(own(r, step, p));
            std::vector<double> total(all[0].size());
            for (const auto& one : all)
                for (std::size_t k = 0; k < total.size(); ++k)
                    total[k] += one[k] / (s_.options.op == hvd::gradient_op::average ? size_ : 1);
            for (std::size_t r = 0; r < all.size(); ++r) {
                const bool alone = s_.adasum() || s_.parameters[p].what == local;
                auto& gradient = models_[r].gradients[p];
                gradient = alone ? all[r] : total;
                if (s_.parameters[p].what == local)
                    for (double& x : gradient) x /= size_;
            }
        }
    }

    // An empty view stands for a parameter that is frozen or in the other group.
    std::vector<hvd::tensor_view<double>> views(std::vector<std::vector<double>>& all, int step,
                                                std::size_t group) const {
        std::vector<hvd::tensor_view<double>> result;
        const auto group_of = [&](std::size_t p) {
            return std::size_t(std::ranges::count(s_.group, p));
        };
        for (std::size_t p = 0; p < all.size(); ++p)
            result.push_back(s_.parameters[p].is_frozen(step) || group_of(p) != group
                                 ? hvd::tensor_view<double>()
                                 : hvd::view(all[p].data(), all[p].size()));
        return result;
    }

    void take(int step) {
        if (step == s_.resumes_at)
            for (auto& o : optimizers_) o = optimizers_[0];
        set_gradients(step);
        const auto before = models_;
        for (std::size_t r = 0; r < models_.size(); ++r)
            for (std::size_t g = 0; g < 2; ++g)
                optimizers_[r][g].step(views(models_[r].values, step, g),
                                       views(models_[r].gradients, step, g));
        if (s_.adasum()) combine_changes(before, step);
    }

    void combine_changes(const std::vector<replica<double>>& before, int step) {
        for (std::size_t p = 0; p < s_.parameters.size(); ++p) {
            if (s_.parameters[p].what == local || s_.parameters[p].is_frozen(step)) continue;
            std::vector<std::vector<double>> changes;
            for (std::size_t r = 0; r < models_.size(); ++r) {
                changes.push_back(models_[r].values[p]);
                for (std::size_t k = 0; k < changes[r].size(); ++k)
                    changes[r][k] -= before[r].values[p][k];
            }
            const auto change = hvd_test::adasum_of(changes);
            for (std::size_t r = 0; r < models_.size(); ++r)
                for (std::size_t k = 0; k < change.size(); ++k)
                    models_[r].values[p][k] = before[r].values[p][k] + change[k];
        }
    }

    const setting& s_;
    int size_;
    std::vector<replica<double>> models_;
    std::vector<std::array<momentum<double>, 2>> optimizers_;  // one for each group
};

// The most that a parameter may be off: each step rounds its gradient a few times, and a gradient
// moves a parameter by its double times the rate.
template <class T>
double tolerance(const setting& s, int size) {
    const double epsilon = s.options.codec == hvd::gradient_codec::bfloat16  ? 1.0 / 256
                           : s.options.codec == hvd::gradient_codec::float16 ? 1.0 / 2048
                           : std::is_same_v<T, float>                        ? 1e-6
                                                                             : 1e-14;
    const double largest = (s.options.op == hvd::gradient_op::sum ? size : 1) *
                           (s.options.average_passes ? 1 : s.options.backward_passes_per_step) *
                           (s.parameters.size() > 1 && s.parameters[1].what == table ? 4 : 1);
    return epsilon * largest * steps * 2 * rate * 4 + (s.adasum() ? 100 : 1) * 10 * epsilon;
}

template <class T>
void check(communicator& comm, const setting& s, const std::string& path) {
    CAPTURE(s.number);
    const auto values = trained<T>(comm, s, path);
    const serial alone(s, comm.size());
    const auto& expected = alone.values(comm.rank());
    double most = 0;
    for (std::size_t p = 0; p < values.size(); ++p)
        for (std::size_t k = 0; k < values[p].size(); ++k) {
            const double off = std::abs(double(values[p][k]) - expected[p][k]);
            if (!(off <= most)) most = off;
        }
    CHECK(most <= tolerance<T>(s, comm.size()));
}

}  // namespace

TEST_CASE("options crossed at random train N ranks as one rank computes it") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        for (std::uint64_t number = 0; number < draws; ++number)
            if (number % 2 == 0) check<float>(comm, drawn(number), folder / "checkpoint");
            else check<double>(comm, drawn(number), folder / "checkpoint");
    });
}
