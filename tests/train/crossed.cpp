// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Options of the optimizer, crossed at random. Each draw trains on all ranks, and is computed again
// by one rank without hvd. Draws take turns: floats whose tables are stepped by rows, doubles, and
// bfloat16 with masters and rows. Some doubles and floats step in the pass of their allreduce.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "adasum_reference.hpp"
#include "model.hpp"
#include "sanitizers.hpp"
#include "shared_folder.hpp"

namespace crossed_tests {

using communicator = hvd_test::communicator;
using hvd::bfloat16;
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
    bool scaled = false;  // the loss has a scale
    bool fused = false;   // steps in the pass of the allreduce
    bool in_arena = false;
    int resumes_at = -1, overflows_at = -1;
    double limit = 0;      // of the norm; 0: gradients are not clipped
    bool adds_up = false;  // more passes, of which ranks have different numbers, in no_sync
    std::vector<std::size_t> group = {};  // the parameters of the second group

    bool adasum() const { return options.op == hvd::adasum; }

    // In an uneven setting a rank may be without samples in a step.
    bool has_samples(int rank, int step) const {
        return !uneven || noise(number * 31 + std::uint64_t(rank * 7 + step)) > -0.4;
    }

    // A rank has an infinity in a gradient. It leaves the step out.
    bool overflows_on(int rank, int size, int step) const {
        return step == overflows_at && std::uint64_t(rank) == number % std::uint64_t(size) &&
               has_samples(rank, step);
    }
    bool leaves_out(int size, int step) const {
        return overflows_on(int(number % std::uint64_t(size)), size, step) &&
               !parameters[0].is_frozen(step);
    }

    // The passes that a rank makes in a step before those that count.
    int quiet_passes(int rank, int step) const { return adds_up ? (rank + 2 * step) % 3 : 0; }
    int passes(int rank, int step) const {
        return quiet_passes(rank, step) + options.backward_passes_per_step;
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

// A plan's step in the pass of its allreduce has these options only.
setting fused_of(const setting& any) {
    dice roll(any.number + 7777);
    setting s{.number = any.number, .options = {}, .parameters = any.parameters, .policy = {}};
    if (roll.often()) s.options.op = hvd::sum;
    s.options.backward_passes_per_step = any.options.backward_passes_per_step;
    for (parameter& p : s.parameters) p = {dense, p.size * (1 + 9 * roll(2)), 0, 0};
    s.uneven = any.uneven;
    s.fused = true;
    s.in_arena = roll.often();
    s.resumes_at = any.resumes_at;
    return s;
}

setting drawn(std::uint64_t number) {
    dice roll(number);
    setting s{.number = number, .options = {}, .parameters = {}, .policy = {}};
    const bool has_masters = number % 3 == 2;
    s.options.op = std::array<hvd::gradient_op, 3>{hvd::average, hvd::sum,
                                                   hvd::adasum}[roll(has_masters ? 2 : 3)];
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
        s.options.codec =
            std::array<hvd::gradient_codec, 3>{hvd::codec::none, hvd::codec::cast<hvd::float16>,
                                               hvd::codec::cast<hvd::bfloat16>}[roll(3)];
        s.options.gradient_predivide_factor =
            s.options.op == hvd::average ? std::array{1.0, 4.0, 0.5}[roll(3)] : 1;
        if (count > 3 && roll.often()) s.options.groups = {{3, 2}};
    }
    s.options.skip_nonfinite = roll(3) == 0;
    s.uneven = roll.often();
    s.reports = has_table || s.uneven || roll.often();
    if (!has_local && roll.often()) s.resumes_at = 1 + int(roll(steps - 1));
    if (s.options.codec != hvd::codec::none && roll.often())
        s.options.codec = hvd::codec::error_feedback(s.options.codec);
    s.in_part = roll.often();
    s.options.order = hvd::bucket_order(roll(3));
    if (roll(4) == 0) s.options.may_be_unreported = {roll(count)};
    for (std::size_t p = 0; p < count; ++p)
        if (roll(3) == 0) s.group.push_back(p);
    s.scaled = s.options.skip_nonfinite && roll.often();
    if (s.options.skip_nonfinite && roll.often()) s.overflows_at = int(roll(steps));
    s.adds_up = roll(3) == 0;
    if (!s.adasum()) s.limit = std::array{0.0, 0.5, 4.0}[roll(3)];
    s.options.scale_local_gradients = roll.often();
    return number % 8 == 7 && !has_masters ? fused_of(s) : s;
}

template <class T>
struct replica {
    std::vector<std::vector<T>> values, gradients;

    explicit replica(const setting& s) {
        for (std::size_t p = 0; p < s.parameters.size(); ++p) {
            auto& v = values.emplace_back(s.parameters[p].size);
            for (std::size_t k = 0; k < v.size(); ++k)  // bfloat16 has these values
                v[k] = T(float(std::round(noise(p * 1000 + k) * 128) / 128));
            gradients.emplace_back(v.size());
        }
    }
};

// The optimizer of elements T: tables of doubles are stepped whole, others by rows.
template <class T>
struct optimizer_for {
    using numbers = hvd::optimizers::sgd<T>;
    using type = hvd::optimizers::grouped<numbers>;
    static constexpr bool by_rows = false;
};
template <>
struct optimizer_for<float> {
    using numbers = hvd::optimizers::lazy_rows<hvd::optimizers::sgd<float>>;
    using type = hvd::optimizers::grouped<numbers>;
    static constexpr bool by_rows = true;
};
template <>
struct optimizer_for<bfloat16> : optimizer_for<float> {
    using type = hvd::optimizers::float_masters<bfloat16, optimizer_for<float>::type>;
};

// A replica and its optimizer, registered as the setting says.
template <class T>
struct trainee {
    replica<T> model;
    hvd::distributed_optimizer<communicator, typename optimizer_for<T>::type> optimizer;
    hvd::loss_scale scale{.value = 4, .interval = 2};

    trainee(communicator& comm, const setting& s) : model(s), optimizer(comm, {}, s.options) {
        typename optimizer_for<T>::numbers of_group;
        of_group.rate = own_rate;
        of_group.momentum = own_factor;
        optimizer.optimizer().rate = rate;
        optimizer.optimizer().momentum = factor;
        if (!s.group.empty()) optimizer.optimizer().add_group(of_group, s.group);
        if (!s.scaled) scale = {.value = 1, .growth = 1};
        for (std::size_t p = 0; p < s.parameters.size(); ++p) {
            const std::string name = "p" + std::to_string(p);
            auto &value = model.values[p], &gradient = model.gradients[p];
            if (s.parameters[p].what == table)
                optimizer.register_sparse(name, value, gradient, columns, s.policy);
            else if (s.parameters[p].what == local) optimizer.register_local(name, value, gradient);
            else optimizer.register_parameter(name, value, gradient);
        }
    }

    void resume(const std::string& path) {
        for (auto& v : model.values) v.assign(v.size(), T(9));
        scale = hvd::load_checkpoint(path, optimizer).scale;
    }

    static T sum(T a, T b) {
        using R = typename hvd::dtype_traits<T>::accumulator;
        return T(R(a) + R(b));
    }

    void pass(const setting& s, int rank, int step, int number) {
        const auto of_loss = [&](std::size_t p, std::size_t k) {
            return hvd::detail::from_double<T>(scale.value * s.gradient(rank, step, number, p, k));
        };
        for (std::size_t p = s.parameters.size(); p-- > 0;) {
            auto& gradient = model.gradients[p];
            if (s.parameters[p].what == table) {
                hvd::sparse_rows<T> mine;
                for (const std::int64_t row : s.rows(rank, step, number, p)) {
                    mine.indices.push_back(row);
                    for (std::size_t c = 0; c < columns; ++c)
                        mine.values.push_back(of_loss(p, std::size_t(row) * columns + c));
                }
                optimizer.gradient_ready(p, mine);
                continue;
            }
            for (std::size_t k = 0; k < gradient.size(); ++k)
                gradient[k] = sum(gradient[k], of_loss(p, k));
            const bool left_out = s.in_part && (p + std::size_t(rank + step)) % 3 == 0;
            if (s.reports && !left_out) optimizer.gradient_ready(p);
        }
    }

    void take(const setting& s, communicator& comm, int step) {
        for (std::size_t p = 0; p < s.parameters.size(); ++p)
            if (s.parameters[p].is_frozen(step)) optimizer.freeze(p);
            else optimizer.unfreeze(p);
        optimizer.zero_gradients();
        if (s.overflows_on(comm.rank(), comm.size(), step))
            model.gradients[0][0] = T(std::numeric_limits<float>::infinity());
        if (s.has_samples(comm.rank(), step)) make_passes(s, comm.rank(), step);
        else optimizer.nothing_ready();
        CHECK(step_of(s) != s.leaves_out(comm.size(), step));
    }
    void make_passes(const setting& s, int rank, int step) {
        const int quiet = s.quiet_passes(rank, step);
        {
            const auto held = optimizer.no_sync();
            for (int n = 0; n < quiet; ++n) pass(s, rank, step, n);
        }
        for (int n = quiet; n < s.passes(rank, step); ++n) pass(s, rank, step, n);
    }
    bool step_of(const setting& s) {
        if (s.limit == 0) return s.scaled ? scale.step(optimizer) : optimizer.step();
        auto gradients = optimizer.synchronize();
        if (s.scaled) scale.unscale(gradients);
        hvd::clip_by_norm(gradients, s.limit);
        const bool stepped = optimizer.apply(std::move(gradients));
        if (s.scaled) scale.update(stepped);
        return stepped;
    }

    // The values, or their masters, which are the values before they are rounded.
    std::vector<std::vector<double>> values() {
        std::vector<std::vector<double>> all;
        for (const auto& v : model.values) {
            auto& of_tensor = all.emplace_back();
            for (const T& x : v) of_tensor.push_back(hvd::detail::as_double(x));
        }
        if constexpr (requires { optimizer.optimizer().master; }) {
            const auto& masters = optimizer.optimizer().master;
            bool rounded = true;
            for (std::size_t p = 0; p < masters.size(); ++p)
                for (std::size_t k = 0; k < masters[p].size(); ++k) {
                    rounded &= float(T(masters[p][k])) == float(model.values[p][k]);
                    all[p][k] = double(masters[p][k]);
                }
            CHECK(rounded);
        }
        return all;
    }
};

template <class T>
std::vector<std::vector<double>> trained(communicator& comm, const setting& s,
                                         const std::string& path) {
    auto now = std::make_unique<trainee<T>>(comm, s);
    for (int step = 0; step < steps; ++step) {
        if (step == s.resumes_at) {
            hvd::save_checkpoint(path, now->optimizer, {.scale = now->scale});
            now = std::make_unique<trainee<T>>(comm, s);
            now->resume(path);
        }
        now->take(s, comm, step);
    }
    return now->values();
}

// The same, by a plan that steps in the pass of its allreduce.
template <class T>
struct fused_trainee {
    using tensors = std::vector<std::pmr::vector<T>>;

    tensors values, gradients;
    std::vector<hvd::tensor_view<T>> value_views, gradient_views;
    hvd::plan<communicator::backend_type> plan;
    hvd::fused_step<hvd::optimizers::sgd<T>> optimizer;

    fused_trainee(communicator& comm, const setting& s, std::pmr::memory_resource* memory)
        : values(made(s, memory)),
          gradients(made(s, memory)),
          value_views(views(values)),
          gradient_views(views(gradients)),
          plan(s.options.op == hvd::sum
                   ? comm.plan_allreduce(hvd::fuse(gradient_views), hvd::sum)
                   : comm.plan_allreduce(hvd::fuse(gradient_views), hvd::average)),
          optimizer(hvd::fuse(value_views), {.rate = rate, .momentum = factor}) {}

    static tensors made(const setting& s, std::pmr::memory_resource* memory) {
        tensors all;
        for (const auto& v : replica<T>(s).values) all.emplace_back(v.begin(), v.end(), memory);
        return all;
    }
    static std::vector<hvd::tensor_view<T>> views(tensors& all) {
        std::vector<hvd::tensor_view<T>> result;
        for (auto& v : all) result.push_back(hvd::view(v.data(), v.size()));
        return result;
    }

    void take(const setting& s, communicator& comm, int step) {
        for (std::size_t p = 0; p < gradients.size(); ++p) {
            std::ranges::fill(gradients[p], T(0));
            for (int n = 0; n < s.options.backward_passes_per_step; ++n)
                if (s.has_samples(comm.rank(), step))
                    for (std::size_t k = 0; k < gradients[p].size(); ++k)
                        gradients[p][k] += T(s.gradient(comm.rank(), step, n, p, k));
        }
        plan.run_and_apply(optimizer);
    }
};

template <class T>
std::vector<std::vector<double>> trained_in_one_pass(communicator& comm, const setting& s,
                                                     const std::string& path) {
    hvd::arena arena{comm, std::size_t(2) << 20};
    std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
    if (s.in_arena) memory = &arena;
    auto now = std::make_unique<fused_trainee<T>>(comm, s, memory);
    for (int step = 0; step < steps; ++step) {
        if (step == s.resumes_at) {
            hvd::save_checkpoint(path, comm, now->optimizer, {});
            now = std::make_unique<fused_trainee<T>>(comm, s, memory);
            for (auto& v : now->values) std::ranges::fill(v, T(9));
            hvd::load_checkpoint(path, comm, now->optimizer);
        }
        now->take(s, comm, step);
    }
    std::vector<std::vector<double>> all;
    for (const auto& v : now->values) all.emplace_back(v.begin(), v.end());
    return all;
}

// All ranks' training, computed by one. `by_rows` says that rows without a gradient stay.
class serial {
public:
    serial(const setting& s, int size, bool by_rows) : s_(s), size_(size), by_rows_(by_rows) {
        models_.assign(std::size_t(size), replica<double>(s));
        velocities_.assign(std::size_t(size), models_[0].gradients);
        for (int step = 0; step < steps; ++step) {
            if (step == s.resumes_at)
                for (auto& v : velocities_) v = velocities_[0];
            if (!s.leaves_out(size, step)) take(step);
        }
    }

    const std::vector<std::vector<double>>& values(int rank) const {
        return models_[std::size_t(rank)].values;
    }

private:
    // The sum that a rank's passes add to gradient p, times the scale of passes.
    std::vector<double> own(int rank, int step, std::size_t p) const {
        std::vector<double> sum(s_.parameters[p].size);
        if (!s_.has_samples(rank, step)) return sum;
        for (int pass = 0; pass < s_.passes(rank, step); ++pass) {
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
        for (double& x : sum)
            x /= s_.options.average_passes ? s_.options.backward_passes_per_step : 1;
        return sum;
    }

    void set_gradients(int step) {
        for (std::size_t p = 0; p < s_.parameters.size(); ++p) {
            std::vector<std::vector<double>> all;
            for (int r = 0; r < size_; ++r) all.push_back(own(r, step, p));
            std::vector<double> total(all[0].size());
            for (const auto& one : all)
                for (std::size_t k = 0; k < total.size(); ++k)
                    total[k] += one[k] / (s_.options.op == hvd::average ? size_ : 1);
            for (std::size_t r = 0; r < all.size(); ++r) {
                const bool alone = s_.adasum() || s_.parameters[p].what == local;
                auto& gradient = models_[r].gradients[p];
                gradient = alone ? all[r] : total;
                if (s_.parameters[p].what == local && s_.options.scale_local_gradients)
                    for (double& x : gradient) x /= size_;
            }
        }
        if (s_.limit > 0) clip(step);
    }
    void clip(int step) {
        double squares = 0;
        const auto counts = [&](std::size_t p) {
            return s_.parameters[p].what != local && !s_.parameters[p].is_frozen(step);
        };
        for (std::size_t p = 0; p < s_.parameters.size(); ++p)
            if (counts(p))
                for (const double x : models_[0].gradients[p]) squares += x * x;
        const double by = std::min(1.0, s_.limit / std::sqrt(squares));
        for (auto& model : models_)
            for (std::size_t p = 0; p < s_.parameters.size(); ++p)
                if (counts(p))
                    for (double& x : model.gradients[p]) x *= by;
    }

    // The elements of a parameter that move in a step.
    std::vector<bool> moving(int step, std::size_t p) const {
        std::vector<bool> all(s_.parameters[p].size, !s_.parameters[p].is_frozen(step));
        if (!by_rows_ || s_.parameters[p].what != table || !all[0]) return all;
        all.assign(all.size(), false);
        for (int rank = 0; rank < size_; ++rank)
            for (int pass = 0; pass < s_.passes(rank, step); ++pass)
                if (s_.has_samples(rank, step))
                    for (const std::int64_t row : s_.rows(rank, step, pass, p))
                        std::fill_n(all.begin() + row * std::int64_t(columns), columns, true);
        return all;
    }

    void move(std::size_t rank, int step) {
        for (std::size_t p = 0; p < s_.parameters.size(); ++p) {
            const bool own = std::ranges::count(s_.group, p) > 0;
            const auto moves = moving(step, p);
            for (std::size_t k = 0; k < moves.size(); ++k) {
                if (!moves[k]) continue;
                double& v = velocities_[rank][p][k];
                v = (own ? own_factor : factor) * v + models_[rank].gradients[p][k];
                models_[rank].values[p][k] -= (own ? own_rate : rate) * v;
            }
        }
    }

    void take(int step) {
        set_gradients(step);
        const auto before = models_;
        for (std::size_t r = 0; r < models_.size(); ++r) move(r, step);
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
    bool by_rows_;
    std::vector<replica<double>> models_;
    std::vector<std::vector<std::vector<double>>> velocities_;
};

// The most that a parameter may be off: each step rounds its gradient a few times, and a gradient
// moves a parameter by its double times the rate.
template <class T>
double tolerance(const setting& s, int size) {
    const double of_number = std::is_same_v<T, double> ? 1e-14 : 1e-6;
    double epsilon = s.options.codec.travels_as<hvd::float16>() ? 1.0 / 2048 : of_number;
    if (std::is_same_v<T, bfloat16> || s.options.codec.travels_as<bfloat16>()) epsilon = 1.0 / 256;
    const double largest = (s.options.op == hvd::sum ? size : 1) *
                           (s.options.average_passes ? 1 : s.options.backward_passes_per_step) *
                           (s.adds_up ? 3 : 1) *
                           (s.parameters.size() > 1 && s.parameters[1].what == table ? 4 : 1);
    return epsilon * largest * steps * 2 * rate * 4 + (s.adasum() ? 100 : 1) * 10 * of_number;
}

template <class T>
void check(communicator& comm, const setting& s, const std::string& path) {
    CAPTURE(s.number);
    std::vector<std::vector<double>> values;
    if constexpr (std::is_same_v<T, bfloat16>) values = trained<T>(comm, s, path);
    else values = s.fused ? trained_in_one_pass<T>(comm, s, path) : trained<T>(comm, s, path);
    const serial alone(s, comm.size(), optimizer_for<T>::by_rows);
    const auto& expected = alone.values(comm.rank());
    double most = 0;
    for (std::size_t p = 0; p < values.size(); ++p)
        for (std::size_t k = 0; k < values[p].size(); ++k) {
            const double off = std::abs(values[p][k] - expected[p][k]);
            if (!(off <= most)) most = off;
        }
    CHECK(most <= tolerance<T>(s, comm.size()));
}

}  // namespace

TEST_CASE("options crossed at random train N ranks as one rank computes it") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd_test::shared_folder folder(comm);
        const std::string path = folder / "checkpoint";
        for (std::uint64_t number = 0; number < draws; ++number)
            if (number % 3 == 0) check<float>(comm, drawn(number), path);
            else if (number % 3 == 1) check<double>(comm, drawn(number), path);
            else check<bfloat16>(comm, drawn(number), path);
    });
}

}  // namespace crossed_tests
