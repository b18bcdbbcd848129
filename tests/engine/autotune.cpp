// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Engines, communicators and plans whose thresholds are searched for. The times of the steps are
// made up: no clock decides here.

#include <chrono>
#include <cmath>
#include <fstream>

#include <hvd/autotune.hpp>

#include "engine_test.hpp"
#include "temporary_directory.hpp"

namespace autotune_tests {

using namespace hvd_test;

namespace {

// A cost that only depends on the fusion threshold and the chunks.
hvd::time_span cost_of(const hvd::engine_tuning& t) {
    const double fusion = std::log2(double(t.fusion_threshold) + 1),
                 chunk = std::log2(double(t.tuning.chunk_bytes));
    return hvd::time_span::of_nanoseconds(
        std::int64_t(1e6 + 1e5 * std::abs(fusion - 22) + 1e5 * std::abs(chunk - 16)));
}

hvd::autotune_options quick() {
    return {
        .warmup_steps = 0, .steps_per_sample = 1, .max_steps = 1500, .fixed = "engine.cycle_time"};
}

// Reduces tensors of many sizes, whose results are exact.
void reduce_some(engine& e, int number) {
    std::vector<std::vector<float>> tensors;
    std::vector<hvd::request> requests;
    for (int t = 0; t < 8; ++t)
        tensors.emplace_back(std::size_t(1) << t, float(e.rank() + number + t));
    for (int t = 0; t < 8; ++t)
        requests.push_back(e.allreduce("t" + std::to_string(t), tensors[std::size_t(t)], hvd::sum));
    for (auto& r : requests) r.wait();
    for (int t = 0; t < 8; ++t) {
        const auto& x = tensors[std::size_t(t)];
        const float sum = sum_from(float(number + t), e.size());
        REQUIRE(std::size_t(std::count(x.begin(), x.end(), sum)) == x.size());
    }
}

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

}  // namespace

TEST_CASE("an engine finds the good region from a bad start, and its results stay exact") {
    on_ranks([](auto& comm) {
        engine e{comm, {.fusion_threshold = 1024}};
        const hvd::engine_tuning start = e.tuned();
        int changes = 0, ends = 0;
        auto options = quick();
        options.changed = [&](const hvd::engine_tuning&) { ++changes; };
        options.finished = [&](const hvd::autotune_result&) { ++ends; };
        hvd::autotune tuner{e, options};
        int steps = 0;
        for (; !tuner.is_over(); ++steps) {
            REQUIRE(steps <= options.max_steps);
            reduce_some(e, steps);
            // The slowest rank's time counts, which is the last one's.
            const hvd::time_span mine = cost_of(e.tuned());
            tuner.step(comm.rank() == comm.size() - 1 ? mine : hvd::time_span::of_nanoseconds(1));
        }
        CHECK(ends == 1);
        CHECK(changes > 10);
        CHECK(tuner.result().steps == steps);
        CHECK(e.tuned() == tuner.result().chosen);
        CHECK(cost_of(e.tuned()).nanoseconds < cost_of({}).nanoseconds * 4 / 5);
        CHECK(cost_of(e.tuned()).nanoseconds < cost_of(start).nanoseconds * 4 / 5);
        CHECK(tuner.result().seconds == double(cost_of(e.tuned()).nanoseconds) * 1e-9);
        CHECK(tuner.result().seconds_before == double(cost_of(start).nanoseconds) * 1e-9);
        tuner.step();  // does nothing
        reduce_some(e, 1);
        CHECK(tuner.result().steps == steps);
    });
}

TEST_CASE("no step is a sample while new thresholds settle") {
    on_few_ranks([](auto& comm) {
        const auto check = [](auto& tuned, const auto& cost_now, int settling) {
            auto options = quick();
            options.max_steps = 1 + 60 * (1 + settling);
            int since_change = 0;
            options.changed = [&](const hvd::engine_tuning&) { since_change = 0; };
            hvd::autotune tuner{tuned, options};
            for (int steps = 0; !tuner.is_over(); ++steps) {
                REQUIRE(steps <= options.max_steps);
                hvd::time_span time = cost_now();
                if (since_change++ < settling) time.nanoseconds *= 1000;
                tuner.step(time);
            }
            CHECK(tuner.result().seconds == double(cost_now().nanoseconds) * 1e-9);
            CHECK(tuner.result().seconds_before < 0.01);
        };
        engine e{comm, {.fusion_threshold = 1024}};
        check(e, [&] { return cost_of(e.tuned()); }, 4);
        // Large buckets are good for it.
        const auto cost_of_buckets = [&] {
            const double size = std::log2(double(comm.tuning().bucket_bytes));
            return hvd::time_span::of_nanoseconds(std::int64_t(1e5 * (40 - size)));
        };
        check(comm, cost_of_buckets, 1);
    });
}

TEST_CASE("an engine leaves a bad order and a bad way to agree, which may be fixed") {
    on_ranks([](auto& comm) {
        // Each choice that is not the best one costs a millisecond.
        const auto cost = [&](const hvd::engine_tuning& t) {
            return hvd::time_span(std::chrono::milliseconds(1 + !t.prediction + !t.largest_first));
        };
        for (const char* const fixed :
             {"engine.cycle_time", "engine.cycle_time, engine.prediction"}) {
            engine e{comm, {.prediction = false}};
            auto options = quick();
            options.fixed = fixed;
            hvd::autotune tuner{e, options};
            for (int step = 0; !tuner.is_over(); ++step) {
                REQUIRE(step <= options.max_steps);
                reduce_some(e, step);
                tuner.step(cost(e.tuned()));
            }
            const hvd::engine_tuning chosen = tuner.result().chosen;
            CHECK(e.tuned() == chosen);
            CHECK(chosen.largest_first);
            CHECK(chosen.prediction == (options.fixed == "engine.cycle_time"));
            reduce_some(e, 1);
        }
    });
}

TEST_CASE("a function .changed that throws on one rank holds up no other") {
    on_ranks([](auto& comm) {
        engine e{comm};
        int thrown = 0;
        auto options = quick();
        options.changed = [&](const hvd::engine_tuning&) {
            if (comm.rank() == comm.size() - 1) throw std::runtime_error("no buckets");
        };
        hvd::autotune tuner{e, options};
        for (int step = 0; !tuner.is_over(); ++step) {
            REQUIRE(step <= options.max_steps);
            reduce_some(e, step);
            try {
                tuner.step(cost_of(e.tuned()));
            } catch (const std::runtime_error& error) {
                REQUIRE(std::string(error.what()) == "no buckets");
                ++thrown;
            }
        }
        CHECK((thrown > 10) == (comm.rank() == comm.size() - 1));
        CHECK(e.tuned() == tuner.result().chosen);
    });
}

TEST_CASE(
    "thresholds of nodes are tuned where they have several ranks, and keys have their number") {
    const auto check = [](const hvd::detail::tuned_calls& calls, auto& comm, bool of_engine) {
        CHECK(calls.of_engine == of_engine);
        CHECK(calls.cross_nodes == (comm.local_size() < comm.size()));
    };
    for (const int node_size : {1, 2, 4})
        on_ranks_from(1, {.node_size = node_size}, [&](auto& comm) {
            engine e{comm};
            check(hvd::detail::tuned_engine(e).calls(), comm, true);
            check(hvd::detail::tuned_communicator(comm).calls(), comm, false);
            std::vector<float> x(3);
            CHECK(hvd::tuning_key_of(e, x).ranks_per_node == comm.local_size());
            CHECK(hvd::tuning_key_of(comm, x).ranks_per_node == comm.local_size());
            CHECK(hvd::tuning_key_of(comm, x).ranks == comm.size());
        });
}

TEST_CASE("a communicator and its plan are tuned, and their results stay exact") {
    on_ranks_from(1, {.node_size = 2}, [](auto& comm) {
        comm.retune(
            {.chunk_bytes = 64, .unstable = {.exchange_chunk_bytes = 64, .most_in_slices = 0}});
        std::vector<float> a(3000), b(17);
        auto plan = comm.plan_allreduce(hvd::fuse(a, b), hvd::sum);
        hvd::autotune tuner{comm, quick()};
        for (int step = 0; !tuner.is_over(); ++step) {
            REQUIRE(step <= 1500);
            std::fill(a.begin(), a.end(), float(comm.rank() + step));
            std::fill(b.begin(), b.end(), float(comm.rank() - step));
            plan.run();
            REQUIRE(a[2999] == sum_from(float(step), comm.size()));
            REQUIRE(b[16] == sum_from(float(-step), comm.size()));
            tuner.step(cost_of({.tuning = comm.tuning()}));
        }
        CHECK(comm.tuning() == tuner.result().chosen.tuning);
        if (comm.local_size() < comm.size()) CHECK(comm.tuning().chunk_bytes > 4096);
    });
}

TEST_CASE(
    "a step that ends with a tensor in flight is refused on all ranks, and the next one goes on") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm, {.fusion_threshold = 1024}};
        hvd::autotune tuner{e, quick()};
        bool refused = false;
        for (int step = 0; !tuner.is_over(); ++step) {
            reduce_some(e, step);
            std::vector<float> x(3, 1);
            hvd::request late;
            const bool has_late = step % 7 == 3 && comm.rank() == 0;
            if (has_late) late = e.allreduce("late", x, hvd::sum);
            try {
                tuner.step(cost_of(e.tuned()));
            } catch (const hvd::usage_error& error) {
                CHECK(has_late);
                CHECK(std::string(error.what()).find("'late'") != std::string::npos);
                refused = true;
            } catch (const hvd::peer_error& error) {
                CHECK(comm.rank() != 0);
                CHECK(std::string(error.what()).find("'late'") != std::string::npos);
                refused = true;
            }
            if (step % 7 == 3 && !has_late) late = e.allreduce("late", x, hvd::sum);
            if (step % 7 == 3) late.wait();
        }
        CHECK(refused);
        CHECK(cost_of(e.tuned()).nanoseconds < cost_of({}).nanoseconds * 4 / 5);
    });
}

TEST_CASE("ranks whose options differ, or can't work, are told") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const auto differ = [&](auto set, std::string_view field) {
            if (comm.size() == 1) return;
            auto options = quick();
            if (comm.rank() == 1) set(options);
            for (int of_engine = 0; of_engine < 2; ++of_engine) try {
                    if (of_engine) hvd::autotune{e, options};
                    else hvd::autotune{comm, options};
                    FAIL("no error");
                } catch (const hvd::mismatch_error& error) {
                    CHECK(error.field() == field);
                    CHECK(error.table().size() == std::size_t(comm.size()));
                }
        };
        differ([](auto& o) { o.steps_per_sample = 2; }, ".steps_per_sample");
        differ([](auto& o) { o.enabled = false; }, ".enabled");
        differ([](auto& o) { o.fixed = "tuning.chunk_bytes"; }, "a hash of .fixed");
        differ([](auto& o) { o.known.emplace(); }, "a hash of .known");

        const auto wrong = [&](auto set, std::string_view text) {
            auto options = quick();
            const bool mine = comm.rank() == comm.size() - 1;
            if (mine) set(options);
            const std::string said =
                mine ? text_of<hvd::usage_error>([&] { hvd::autotune(e, options); })
                     : text_of<hvd::peer_error>([&] { hvd::autotune(e, options); });
            CHECK(said.find(mine ? text : "refuses") != said.npos);
        };
        wrong([](auto& o) { o.steps_per_sample = 0; }, "autotune.steps_per_sample is 0");
        wrong([](auto& o) { o.warmup_steps = -1; }, "autotune.warmup_steps is -1");
        wrong([](auto& o) { o.max_steps = 20; }, "takes at least 166");
        wrong([](auto& o) { o.fixed = "engine.cycle_time, cycles"; }, "'cycles'");
        wrong([](auto& o) { o.file = "tuned.json"; }, "it takes hvd::autotune_with_file");
        wrong([](auto& o) { o.known.emplace().tuning.chunk_bytes = 65; }, ".chunk_bytes is 65");
        reduce_some(e, 0);
    });
}

TEST_CASE("known thresholds are taken at once, and a tuner that is not enabled changes nothing") {
    on_ranks([](auto& comm) {
        engine e{comm};
        hvd::autotune off{e, {.enabled = false}};
        CHECK(off.is_over());
        CHECK(e.tuned() == hvd::engine_tuning{});
        const hvd::engine_tuning known{.fusion_threshold = 12345};
        int ends = 0;
        hvd::autotune tuner{e, {.known = known, .finished = [&](const hvd::autotune_result& r) {
                                    ++ends;
                                    CHECK(r.chosen == known);
                                    CHECK(r.seconds == 0);
                                }}};
        CHECK(tuner.is_over());
        CHECK(ends == 1);
        CHECK(e.tuned() == known);
        reduce_some(e, 0);
    });
}

TEST_CASE("the log has a line for each sample") {
    on_ranks([](auto& comm) {
        const temporary_directory folder;
        auto options = quick();
        options.log = folder / "log.csv";
        options.changed = [](const hvd::engine_tuning&) {};  // the buckets are searched for
        {
            hvd::autotune tuner{comm, options};
            while (!tuner.is_over()) tuner.step(hvd::time_span::of_nanoseconds(1000));
            if (comm.rank() != 0) return;
        }
        const auto lines = lines_of(options.log);
        REQUIRE(lines.size() > 3);
        CHECK(
            lines[0].starts_with("step,stage,seconds,engine.fusion_threshold,engine.cycle_time,"));
        CHECK(lines[1].find(",heat,1e-06,128MiB,0,false,true,") != std::string::npos);
        CHECK(lines.back().find(",chosen,") != std::string::npos);
    });
}

TEST_CASE("no step of the warm-up is a sample, though the thresholds change in it") {
    on_few_ranks([](auto& comm) {
        for (const std::size_t start : {std::size_t(1024), hvd::engine_options{}.fusion_threshold})
            for (const int warmup : {0, 30}) {
                CAPTURE(start);
                const temporary_directory folder;
                engine e{comm, {.fusion_threshold = start}};
                auto options = quick();
                options.warmup_steps = warmup;
                options.log = folder / "log.csv";
                hvd::autotune tuner{e, options};
                for (int i = 0; i < 60; ++i) tuner.step(cost_of(e.tuned()));
                while (!tuner.is_over()) tuner.step(cost_of(e.tuned()));
                if (comm.rank() != 0) continue;
                const auto lines = lines_of(options.log);
                REQUIRE(lines.size() > 3);
                const int first = std::stoi(lines[1]);
                CHECK(first > warmup);
                CHECK(first <= warmup + 6);
            }
    });
}

// All samples together took no more time than the run. Each is that of the slowest rank.
TEST_CASE("steps that a tuner measures itself count from the step before") {
    on_ranks([](auto& comm) {
        const temporary_directory folder;
        auto options = quick();
        options.log = folder / "log.csv";
        options.changed = [](const hvd::engine_tuning&) {};  // the buckets are searched for
        const auto begin = std::chrono::steady_clock::now();
        {
            hvd::autotune tuner{comm, options};
            while (!tuner.is_over()) {
                comm.barrier();
                tuner.step();
            }
        }
        const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
        if (comm.size() == 1 || comm.rank() != 0) return;
        double samples = 0;
        int number = 0;
        for (const std::string& line : lines_of(options.log)) {
            const std::size_t at = line.find(',', line.find(',') + 1) + 1;
            if (line.starts_with("step,") || line.find(",chosen,") != line.npos) continue;
            samples += std::stod(line.substr(at));
            ++number;
        }
        CHECK(number > 3);
        CHECK(samples <= 3 * whole.count());
    });
}

}  // namespace autotune_tests
