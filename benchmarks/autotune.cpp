// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures what hvd::autotune gains: from a bad start and from the defaults, for an engine that
// gets gradients by name and for calls on a communicator. Afterwards the thresholds of the start
// and those that were chosen take turns.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <hvd/autotune.hpp>

#include "support/gradients.hpp"
#include "support/pattern.hpp"
#include "support/program.hpp"

namespace {

struct autotune_options : bench::options {
    std::string set = "1000x1KiB";
    std::size_t tensors = 0;
    int steps = 2000;
    std::string log;
};

// The tensors of a step, which every rank fills and checks.
class step_tensors {
public:
    explicit step_tensors(const std::vector<std::size_t>& counts)
        : gradients_(counts, std::pmr::get_default_resource()), views_(gradients_.views()) {
        for (std::size_t i = 0; i < views_.size(); ++i)
            names_.push_back("layer" + std::to_string(i));
    }

    // A tensor is there `pause` after the one before it, as if a device computed it.
    void run(auto& engine, std::chrono::microseconds pause = {}) {
        for (std::size_t i = 0; i < views_.size(); ++i) {
            if (pause.count() > 0) std::this_thread::sleep_for(pause);
            requests_.push_back(engine.allreduce(names_[i], views_[i], hvd::average));
        }
        for (hvd::request& r : requests_) r.wait();
        requests_.clear();
    }
    void run_calls(auto& comm) {
        for (const auto& view : views_) comm.allreduce(view, hvd::average);
    }

    void fill(int rank, int size) {
        for (auto& t : gradients_.tensors()) bench::fill(t.data(), t.size(), rank, size);
    }
    std::size_t wrong(int size) {
        std::size_t all = 0;
        for (const auto& t : gradients_.tensors())
            all += bench::count_unequal(t.data(), t.size(), [&](std::size_t i) {
                return bench::expected_average(i, size);
            });
        return all;
    }

private:
    bench::gradients gradients_;
    std::vector<hvd::tensor_view<float>> views_;
    std::vector<std::string> names_;
    std::vector<hvd::request> requests_;
};

template <class Comm>
class autotune_benchmark {
public:
    autotune_benchmark(Comm& comm, const autotune_options& o)
        : comm_(comm), o_(o), out_(comm, "autotune", o), tensors_(counts(o)) {}

    void run() {
        out_.print("\n{:>11} {:>11} {:>6} {:>6} {:>7}  {}\n", "start (us)", "chosen (us)", "gain",
                   "steps", "#wrong", "case");
        const hvd::tuning_options slow{.chunk_bytes = 64};
        tune_engine("engine, bad start", {.fusion_threshold = 1024, .tuning = slow});
        tune_engine("engine, defaults", {});
        tune_engine("engine, no prediction at the start", {.prediction = false});
        using std::chrono::microseconds;
        const std::size_t small = 4 << 10, large = 4 << 20;
        tune_order("engine, ascending tensors at once", small, false, {});
        tune_order("engine, ascending tensors one by one, largest first at the start", large, true,
                   microseconds(100));
        tune_order("engine, ascending tensors one by one", large, false, microseconds(100));
        tune_communicator("communicator, bad start", slow);
        tune_communicator("communicator, defaults", {});
        out_.write();
    }

private:
    using engine_type = hvd::engine<typename Comm::backend_type>;

    static std::vector<std::size_t> counts(const autotune_options& o) {
        return bench::gradient_counts(o.set, o.tensors);
    }

    // Tensors that fill units badly in their order: several of the small ones travel together, and
    // those of more than half a unit alone.
    static std::vector<std::size_t> ascending(std::size_t unit_bytes) {
        std::vector<std::size_t> counts;
        for (const std::size_t share : {7, 3, 2})
            counts.insert(counts.end(), 12, unit_bytes / sizeof(float) / share + 8);
        return counts;
    }

    hvd::autotune_options options(const std::string& name) const {
        return {.max_steps = o_.steps, .log = o_.log.empty() ? "" : o_.log + name + ".csv"};
    }

    void tune_engine(const std::string& name, const hvd::engine_tuning& start) {
        tune(name, start, options(name), tensors_, {});
    }
    // The units stay as large as they are.
    void tune_order(const std::string& name, std::size_t unit_bytes, bool largest_first,
                    std::chrono::microseconds pause) {
        auto how = options(name);
        how.fixed = "engine.fusion_threshold, engine.cycle_time";
        step_tensors tensors(ascending(unit_bytes));
        tune(name, {.fusion_threshold = unit_bytes, .largest_first = largest_first}, how, tensors,
             pause);
    }
    void tune(const std::string& name, const hvd::engine_tuning& start,
              const hvd::autotune_options& how, step_tensors& tensors,
              std::chrono::microseconds pause) {
        engine_type before{comm_}, tuned{comm_};
        before.retune(start);
        tuned.retune(start);
        hvd::autotune tuner{tuned, how};
        while (!tuner.is_over()) {
            tensors.run(tuned, pause);
            tuner.step();
        }
        compare(
            name, tuner.result(), tensors, [&] { tensors.run(before, pause); },
            [&] { tensors.run(tuned, pause); });
    }

    void tune_communicator(const std::string& name, const hvd::tuning_options& start) {
        Comm before = comm_.split(0, comm_.rank()), tuned = comm_.split(0, comm_.rank());
        before.retune(start);
        tuned.retune(start);
        hvd::autotune tuner{tuned, options(name)};
        while (!tuner.is_over()) {
            tensors_.run_calls(tuned);
            tuner.step();
        }
        compare(
            name, tuner.result(), tensors_, [&] { tensors_.run_calls(before); },
            [&] { tensors_.run_calls(tuned); });
    }

    void compare(const std::string& name, const hvd::autotune_result& result, step_tensors& tensors,
                 std::function<void()> before, std::function<void()> after) {
        std::vector<bench::candidate> candidates;
        for (auto& call : {before, after})
            candidates.push_back({name, call, [&] { tensors.fill(comm_.rank(), comm_.size()); },
                                  [&] { return tensors.wrong(comm_.size()); }});
        const auto timings = bench::interleave(comm_, candidates, o_.work);
        const double start = timings[0].time, chosen = timings[1].time;
        const std::size_t wrong = timings[0].wrong + timings[1].wrong;
        out_.print("{:>11.1f} {:>11.1f} {:>6.2f} {:>6} {:>7}  {}\n", start * 1e6, chosen * 1e6,
                   start / chosen, result.steps, wrong, name);
        bench::json row{{"case", name},           {"start", start * 1e6},  {"chosen", chosen * 1e6},
                        {"gain", start / chosen}, {"steps", result.steps}, {"wrong", wrong}};
        for (const auto& s : hvd::detail::settings_of<hvd::engine_tuning>::table)
            row["thresholds"][s.key] = hvd::detail::value_text(s, &result.chosen);
        out_.add(std::move(row));
    }

    Comm& comm_;
    const autotune_options& o_;
    bench::report<Comm> out_;
    step_tensors tensors_;
};

}  // namespace

int main(int argc, char** argv) {
    autotune_options o;
    CLI::App app("The gain of hvd::autotune from a bad start and from the defaults.", "autotune");
    bench::add_options(app, o);
    app.add_option("--set", o.set, "which gradients")->check(CLI::IsMember(bench::gradient_sets));
    app.add_option("--tensors", o.tensors, "only the first N of them (0: all)");
    app.add_option("--steps", o.steps, "at most so many for each search");
    app.add_option("--log", o.log, "the samples go to files whose names begin so");
    app.add_option_function<int>(
           "--node-size", [&o](int n) { o.communicator.node_size = n; }, "ranks taken as one node")
        ->check(CLI::PositiveNumber);
    return bench::run_program(app, o, argc, argv,
                              [&](auto& comm) { autotune_benchmark(comm, o).run(); });
}
