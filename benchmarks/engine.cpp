// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures an engine in its steady state: one small tensor beside the plain call, a model's
// gradients in another random order on each rank and for each step beside the plan, and the
// processor time of an engine that has nothing to do.
#include <sys/resource.h>

#include <memory>
#include <string>

#include <hvd/engine.hpp>

#include "support/gradients.hpp"
#include "support/named_gradients.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

struct engine_options : bench::options {
    std::string set = "resnet50";
    std::size_t bytes = 4096, tensors = 0;
    double idle = 3;
};

// The seconds of processor time that this process has used.
double processor_time() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& t) {
        return double(t.tv_sec) + double(t.tv_usec) / 1e6;
    };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

template <class Comm>
class engine_benchmark {
public:
    engine_benchmark(Comm& comm, const engine_options& o)
        : comm_(comm), o_(o), out_(comm, "engine", o) {}

    void run() {
        out_.print("\n{:>10} {:>10} {:>10} {:>7} {:>7}  {}\n", "time (us)", "p50 (us)", "p99 (us)",
                   "ratio", "#wrong", "job");
        one_tensor();
        steps();
        if (o_.idle > 0) rest();
        out_.write();
    }

private:
    using backend = typename Comm::backend_type;

    void one_tensor() {
        std::vector<float> x(o_.bytes / sizeof(float));
        hvd::engine engine{comm_};
        const auto average = [&](const char* name, std::function<void()> call) {
            return bench::average_in_place(comm_, name, x.data(), x.size(), std::move(call));
        };
        compare("call",
                {average("plain", [&] { comm_.allreduce(x, hvd::average); }),
                 average("engine", [&] { engine.allreduce("x", x, hvd::average).wait(); })});
    }

    void steps() {
        bench::gradients gradients(bench::gradient_counts(o_.set, o_.tensors),
                                   std::pmr::get_default_resource());
        const auto views = gradients.views();
        auto plan = comm_.plan_allreduce(hvd::fuse(views), hvd::average);
        bench::named_gradients<backend> named(comm_, views);
        const auto average = [&](const char* name, std::function<void()> call) {
            return bench::candidate{name, std::move(call), [&] { fill(gradients); },
                                    [&] { return wrong(gradients); }};
        };
        compare(o_.set,
                {average("plan", [&] { plan.run(); }), average("engine", [&] { named.step(); })});
    }

    void fill(bench::gradients& gradients) const {
        for (auto& t : gradients.tensors())
            bench::fill(t.data(), t.size(), comm_.rank(), comm_.size());
    }
    std::size_t wrong(bench::gradients& gradients) const {
        std::size_t all = 0;
        for (const auto& t : gradients.tensors())
            all += bench::count_unequal(t.data(), t.size(), [&](std::size_t i) {
                return bench::expected_average(i, comm_.size());
            });
        return all;
    }

    // The second candidate is the engine.
    void compare(const std::string& job, const std::vector<bench::candidate>& candidates) {
        const auto timings = bench::interleave(comm_, candidates, o_.work);
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            const bench::timing& t = timings[c];
            const double ratio = t.time / timings[0].time;
            out_.print("{:>10.2f} {:>10.2f} {:>10.2f} {:>7.2f} {:>7}  {}: {}\n", t.time * 1e6,
                       t.p50 * 1e6, t.p99 * 1e6, ratio, t.wrong, job, candidates[c].name);
            out_.add({{"job", job},
                      {"path", candidates[c].name},
                      {"time", t.time * 1e6},
                      {"p50", t.p50 * 1e6},
                      {"p99", t.p99 * 1e6},
                      {"ratio", ratio},
                      {"rounds", t.rounds},
                      {"wrong", t.wrong}});
        }
    }

    void rest() {
        out_.print("\n{:>10}  {}\n", "% of core", "ranks at rest");
        add_rest("no engine");
        std::vector<float> x(o_.bytes / sizeof(float));
        hvd::engine engine{comm_};
        for (int i = 0; i < 100; ++i) engine.allreduce("x", x, hvd::average).wait();
        add_rest("engine");
    }

    // All ranks rest for longer than it is measured, so that none waits for another meanwhile.
    void add_rest(const char* name) {
        constexpr double margin = 0.1;
        comm_.barrier();
        sleep(margin);
        const double before = processor_time();
        const auto begin = bench::clock::now();
        sleep(o_.idle);
        const double used = (processor_time() - before) / bench::seconds_since(begin);
        sleep(margin);
        const int ranks_here = bench::on_mpi<Comm> ? 1 : comm_.size();
        const double percent = 100 * bench::slowest(comm_, used) / ranks_here;
        out_.print("{:>10.4f}  {}\n", percent, name);
        out_.add({{"job", "rest"}, {"path", name}, {"percent", percent}, {"seconds", o_.idle}});
    }
    static void sleep(double seconds) {
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    }

    Comm& comm_;
    const engine_options& o_;
    bench::report<Comm> out_;
};

}  // namespace

int main(int argc, char** argv) {
    engine_options o;
    CLI::App app("An engine beside plain calls and a plan, and its use of the processor at rest.",
                 "engine");
    bench::add_options(app, o);
    app.add_option("--bytes", o.bytes, "size of the small tensor (float)")
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(4, 1 << 30));
    app.add_option("--set", o.set, "which gradients")->check(CLI::IsMember(bench::gradient_sets));
    app.add_option("--tensors", o.tensors, "only the first N of the set (0: all)");
    app.add_option("--idle", o.idle, "seconds for which the engine rests (0: leaves it out)")
        ->take_last()
        ->check(CLI::NonNegativeNumber);

    return bench::run_program(app, o, argc, argv,
                              [&](auto& comm) { engine_benchmark(comm, o).run(); });
}
