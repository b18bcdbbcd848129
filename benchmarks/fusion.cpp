// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures the average of many gradients: one call for each, all in one hand-packed buffer (as
// Horovod does it), hvd's fused call and plan, and an engine that gets the gradients by name in a
// random order. It also measures the step of Adam after it. All candidates take turns.
#include <cmath>
#include <cstring>
#include <deque>
#include <string>

#include <hvd/train/fused/fused_step.hpp>

#include "support/bandwidth.hpp"
#include "support/gradients.hpp"
#include "support/memory.hpp"
#include "support/mpi_peer.hpp"
#include "support/named_gradients.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

struct fusion_options : bench::options {
    std::vector<std::string> sets{"resnet50", "1000x1KiB"};
    std::size_t tensors = 0;
    bool step = false;
};

// Parameters of a model and the state of Adam (arXiv:1412.6980). Each rank has all of it.
struct adam {
    std::vector<std::vector<float>> parameters, first, second;
    float correction1 = 1, correction2 = 1;
    int steps = 0;

    explicit adam(const std::vector<std::size_t>& counts) {
        for (const std::size_t n : counts)
            parameters.emplace_back(n, 1.0f), first.emplace_back(n, 0.0f),
                second.emplace_back(n, 0.0f);
    }

    void step(bench::gradients& gradients) {
        ++steps;
        correction1 = 1 - std::pow(0.9f, float(steps)),
        correction2 = 1 - std::pow(0.999f, float(steps));
        for (std::size_t t = 0; t < parameters.size(); ++t)
            update(parameters[t].data(), first[t].data(), second[t].data(),
                   gradients.tensors()[t].data(), parameters[t].size());
    }

    void update(float* p, float* m, float* v, const float* g, std::size_t n) const {
        const float rate = 1e-3f / correction1, root = 1 / std::sqrt(correction2);
        for (std::size_t i = 0; i < n; ++i) {
            m[i] = 0.9f * m[i] + 0.1f * g[i];
            v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            p[i] -= rate * m[i] / (std::sqrt(v[i]) * root + 1e-8f);
        }
    }

    std::size_t state_bytes() const {
        std::size_t bytes = 0;
        for (const auto& t : first) bytes += 2 * t.size() * sizeof(float);
        return bytes;
    }
};

template <class Comm>
class fusion {
public:
    fusion(Comm& comm, const fusion_options& o) : comm_(comm), o_(o), out_(comm, "fusion", o) {}

    void run() {
        limit_ = bench::copy_limit(comm_, o_.tensors > 0 ? 4096 : std::size_t(64) << 20,
                                   std::min(1.0, o_.work.seconds));
        out_.set("copy_bandwidth", limit_ / 1e9);
        out_.print("# all ranks copying at once read and write {:.2f} GB/s together: the limit\n",
                   limit_ / 1e9);
        for (const std::string& set : o_.sets) {
            counts_ = bench::gradient_counts(set, o_.tensors);
            const std::size_t bytes = bench::total(counts_) * sizeof(float);
            out_.print(
                "\n# {}: {} tensors, {} bytes\n{:>10} {:>9} {:>9} {:>10} {:>10} {:>7} {:>9} {:>9} "
                "{:>6}  {}\n",
                set, counts_.size(), bytes, "time (us)", "algbw", "busbw", "p50 (us)", "p99 (us)",
                "#wrong", "x calls", "x packed", "limit%", "path");
            bench::with_memory(comm_, (o_.step ? 2 : 1) * (bytes + 4096 * counts_.size()),
                               [&](const auto& kinds) { measure(set, bytes, kinds); });
        }
        out_.write();
    }

private:
    using views = std::vector<hvd::tensor_view<float>>;

    void measure(const std::string& set, std::size_t bytes,
                 const std::vector<bench::memory_kind>& kinds) {
        std::deque<bench::gradients> gradients;
        for (const auto& kind : kinds) gradients.emplace_back(counts_, kind.memory);
        // bytes of optimizer state on this rank, for each candidate
        std::vector<std::size_t> state;
        std::vector<bench::candidate> candidates;
        if (o_.step) add_steps(candidates, state, gradients, kinds);
        else add_sums(candidates, gradients, kinds);
        const auto timings = bench::interleave(comm_, candidates, o_.work);
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            print(set, bytes, candidates, timings, c, state.empty() ? 0 : state[c]);
            if (!state.empty())
                out_.print("{:>10} bytes of optimizer state on each rank\n", state[c]);
        }
    }

    void add_sums(std::vector<bench::candidate>& to, std::deque<bench::gradients>& gradients,
                  const std::vector<bench::memory_kind>& kinds) {
        add_peers(to, gradients.front());
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            bench::gradients& g = gradients[k];
            const auto list = std::make_shared<views>(g.views());
            const auto plan = std::make_shared<hvd::plan<typename Comm::backend_type>>(
                comm_.plan_allreduce(hvd::fuse(*list), hvd::average));
            to.push_back(verified("hvd calls " + kinds[k].name, g, [this, list] {
                for (const auto& v : *list) comm_.allreduce(v, hvd::average);
            }));
            to.push_back(verified("hvd fuse " + kinds[k].name, g, [this, list] {
                comm_.allreduce(hvd::fuse(*list), hvd::average);
            }));
            to.push_back(verified("hvd plan " + kinds[k].name, g, [plan, list] { plan->run(); }));
            const auto named =
                std::make_shared<bench::named_gradients<typename Comm::backend_type>>(comm_, *list);
            to.push_back(
                verified("hvd engine " + kinds[k].name, g, [named, list] { named->step(); }));
        }
    }

    // The step after the average is the peer of a plan's run_and_apply, which fuses the two.
    void add_steps(std::vector<bench::candidate>& to, std::vector<std::size_t>& state,
                   std::deque<bench::gradients>& gradients,
                   const std::vector<bench::memory_kind>& kinds) {
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            bench::gradients& g = gradients[k];
            const auto list = std::make_shared<views>(g.views());
            const auto plan = std::make_shared<hvd::plan<typename Comm::backend_type>>(
                comm_.plan_allreduce(hvd::fuse(*list), hvd::average));
            const auto optimizer = std::make_shared<adam>(counts_);
            state.push_back(optimizer->state_bytes());
            to.push_back(
                verified("hvd plan and adam " + kinds[k].name, g,
                         [plan, list, optimizer, &g] { plan->run(), optimizer->step(g); }));
            add_joined(to, state, g, kinds[k]);
        }
    }

    // Parameters lie in the same kind of memory as the gradients. The gradients are only read, so
    // nothing can be verified here; the tests do that.
    void add_joined(std::vector<bench::candidate>& to, std::vector<std::size_t>& state,
                    bench::gradients& g, const bench::memory_kind& kind) {
        struct joined {
            bench::gradients parameters;
            views list, parameter_list;
            hvd::plan<typename Comm::backend_type> plan;
            hvd::fused_step<hvd::optimizers::adam<float>> step;

            joined(Comm& comm, bench::gradients& g, const std::vector<std::size_t>& counts,
                   std::pmr::memory_resource* memory)
                : parameters(counts, memory),
                  list(g.views()),
                  parameter_list(parameters.views()),
                  plan(comm.plan_allreduce(hvd::fuse(list), hvd::average)),
                  step(hvd::fuse(parameter_list), {}) {}
        };
        const auto both = std::make_shared<joined>(comm_, g, counts_, kind.memory);
        both->plan.run_and_apply(both->step);
        state.push_back(both->step.state_bytes());
        to.push_back(
            {"hvd run_and_apply " + kind.name, [both] { both->plan.run_and_apply(both->step); }});
    }

    void add_peers([[maybe_unused]] std::vector<bench::candidate>& to,
                   [[maybe_unused]] bench::gradients& g) {
#if HVD_WITH_MPI
        if constexpr (bench::on_mpi<Comm>) {
            const bench::mpi_peer<float, hvd::op::average> mpi{MPI_COMM_WORLD, comm_.size()};
            to.push_back(verified("mpi calls", g, [mpi, &g] {
                for (auto& t : g.tensors()) mpi.allreduce(MPI_IN_PLACE, t.data(), t.size());
            }));
            const auto buffer = std::make_shared<std::vector<float>>(bench::total(counts_));
            to.push_back(
                verified("mpi packed", g, [mpi, &g, buffer] { pack_and_reduce(mpi, g, *buffer); }));
        }
#endif
    }

#if HVD_WITH_MPI
    static void pack_and_reduce(const bench::mpi_peer<float, hvd::op::average>& mpi,
                                bench::gradients& g, std::vector<float>& buffer) {
        float* at = buffer.data();
        for (const auto& t : g.tensors())
            std::memcpy(at, t.data(), t.size() * sizeof(float)), at += t.size();
        mpi.allreduce(MPI_IN_PLACE, buffer.data(), buffer.size());
        at = buffer.data();
        for (auto& t : g.tensors())
            std::memcpy(t.data(), at, t.size() * sizeof(float)), at += t.size();
    }
#endif

    bench::candidate verified(std::string name, bench::gradients& g, std::function<void()> call) {
        return {std::move(name), std::move(call),
                [this, &g] {
                    for (auto& t : g.tensors())
                        bench::fill(t.data(), t.size(), comm_.rank(), comm_.size());
                },
                [this, &g] {
                    std::size_t wrong = 0;
                    for (const auto& t : g.tensors())
                        wrong += bench::count_unequal(t.data(), t.size(), [&](std::size_t i) {
                            return bench::expected_average(i, comm_.size());
                        });
                    return wrong;
                }};
    }

    static double time_of(const std::vector<bench::candidate>& candidates,
                          const std::vector<bench::timing>& timings, const std::string& name) {
        for (std::size_t c = 0; c < candidates.size(); ++c)
            if (candidates[c].name == name) return timings[c].time;
        return 0;
    }

    void print(const std::string& set, std::size_t bytes,
               const std::vector<bench::candidate>& candidates,
               const std::vector<bench::timing>& timings, std::size_t c, std::size_t state) {
        const bench::timing& t = timings[c];
        const double calls = time_of(candidates, timings, "mpi calls") / t.time,
                     packed = time_of(candidates, timings, "mpi packed") / t.time;
        const double algbw = double(bytes) / t.time / 1e9,
                     busbw = algbw * 2 * (comm_.size() - 1) / comm_.size();
        const double share = 2.0 * comm_.size() * double(bytes) / t.time /
                             limit_;  // each rank's tensors are read once and written once
        out_.print(
            "{:>10.1f} {:>9.2f} {:>9.2f} {:>10.1f} {:>10.1f} {:>7} {:>9} {:>9} {:>6.0f}  {}\n",
            t.time * 1e6, algbw, busbw, t.p50 * 1e6, t.p99 * 1e6,
            candidates[c].wrong ? std::to_string(t.wrong) : "-",
            calls > 0 ? fmt::format("{:.2f}", calls) : "-",
            packed > 0 ? fmt::format("{:.2f}", packed) : "-", 100 * share, candidates[c].name);
        bench::json row{
            {"set", set},         {"path", candidates[c].name}, {"tensors", counts_.size()},
            {"size", bytes},      {"time", t.time * 1e6},       {"algbw", algbw},
            {"busbw", busbw},     {"p50", t.p50 * 1e6},         {"p99", t.p99 * 1e6},
            {"rounds", t.rounds}, {"of_limit", share}};
        if (candidates[c].wrong) row["wrong"] = t.wrong;
        if (state > 0) row["state"] = state;  // bytes of optimizer state on this rank
        if (calls > 0) row["ratio_calls"] = calls;
        if (packed > 0) row["ratio_packed"] = packed;
        out_.add(std::move(row));
    }

    Comm& comm_;
    const fusion_options& o_;
    bench::report<Comm> out_;
    std::vector<std::size_t> counts_;
    double limit_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    fusion_options o;
    CLI::App app(
        "The average of many gradients: separate calls, a hand-packed buffer, fused calls and "
        "plans.",
        "fusion");
    bench::add_options(app, o);
    app.add_option("--sets", o.sets, "which gradients")
        ->delimiter(',')
        ->check(CLI::IsMember(bench::gradient_sets));
    app.add_option("--tensors", o.tensors, "only the first N of each set (0: all)");
    app.add_flag("--step", o.step, "with a step of Adam after the average");

    return bench::run_program(app, o, argc, argv, [&](auto& comm) { fusion(comm, o).run(); });
}
