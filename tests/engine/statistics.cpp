// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <stdexcept>
#include <thread>

#include "engine_test.hpp"

namespace statistics_tests {

// The counts of an engine.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

struct step_of_tensors {
    std::vector<std::vector<float>> values;

    explicit step_of_tensors(int tensors) : values(std::size_t(tensors), std::vector<float>(10)) {}
    void run(engine& e) {
        std::vector<hvd::request> requests;
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i].assign(10, 1);
            requests.push_back(e.allreduce("t" + std::to_string(i), values[i], hvd::sum));
        }
        for (hvd::request& r : requests) r.wait();
    }
};

}  // namespace

TEST_CASE("tensors, bytes and units are counted") {
    on_ranks([](auto& comm) {
        engine e{comm, {.prediction = false}};
        CHECK(e.statistics().rank == comm.rank());
        CHECK(e.statistics().size == comm.size());
        CHECK(e.statistics().submitted == 0);
        step_of_tensors step(6);
        for (int i = 0; i < 5; ++i) step.run(e);
        const hvd::engine_statistics s = e.statistics();
        CHECK(s.submitted == 30);
        CHECK(s.completed == 30);
        CHECK(s.failed == 0);
        CHECK(s.in_flight() == 0);
        CHECK(s.bytes == 30 * 40);
        CHECK(s.unit_tensors == 30);
        CHECK(s.units >= 5);
        CHECK(s.units <= 30);
        CHECK(s.tensors_per_unit() >= 1);
        CHECK(s.cache_misses == 6);
        CHECK(s.cache_hits == 24);
        CHECK(s.negotiated() == 30);
        CHECK(s.predicted_units == 0);
        CHECK(s.running_seconds >= s.longest_run_seconds);
        CHECK(s.longest_run_seconds > 0);
        CHECK(s.waiting_seconds >= s.longest_wait_seconds);
        CHECK((s.messages_sent > 0) == (comm.size() > 1));
        CHECK((s.messages_received > 0) == (comm.size() > 1));
    });
}

TEST_CASE("every unit waits for its cycle, so that what comes meanwhile travels with it") {
    on_few_ranks([](auto& comm) {
        engine e{comm, {.cycle_time = 500ms, .prediction = false}};
        for (std::uint64_t round = 1; round <= 2; ++round) {
            std::vector<float> x(10, 1), y(10, 1);
            auto first = e.allreduce("first", x, hvd::sum);
            comm.barrier();  // all have submitted it
            std::this_thread::sleep_for(20ms);
            e.allreduce("second", y, hvd::sum).wait();
            first.wait();
            CHECK(e.statistics().units == round);
        }
    });
}

TEST_CASE("without a cache every tensor is negotiated by its name") {
    on_ranks([](auto& comm) {
        engine e{comm, {.cache_capacity = 0}};
        step_of_tensors step(3);
        for (int i = 0; i < 4; ++i) step.run(e);
        CHECK(e.statistics().cache_misses == 12);
        CHECK(e.statistics().cache_hits == 0);
    });
}

TEST_CASE("predicted steps and declined predictions are counted") {
    on_ranks([](auto& comm) {
        engine e{comm};
        step_of_tensors step(4);
        for (int i = 0; i < 20; ++i) step.run(e);
        const hvd::engine_statistics before = e.statistics();
        CHECK(before.predicted_steps > 0);
        CHECK(before.predicted_steps < 20);
        CHECK(before.predicted_units >= before.predicted_steps);
        CHECK(before.negotiated() < 80);
        for (int i = 0; i < 5; ++i) step.run(e);
        const hvd::engine_statistics after = e.statistics();
        if (after.declined == before.declined) {  // a slow machine may decline in between
            CHECK(after.predicted_steps == before.predicted_steps + 5);
            CHECK(after.negotiated() == before.negotiated());
        }
        std::vector<float> x(3, 1);
        e.allreduce("another", x, hvd::sum).wait();
        CHECK(e.statistics().declined > before.declined);
        CHECK(e.statistics().completed == 101);
    });
}

TEST_CASE("a tensor of a predicted unit waits for the last one of it") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        const char* const names[] = {"a", "b"};
        const auto run = [&](int steps) {
            for (int i = 0; i < steps; ++i) {
                std::vector<float> x(10, 1), y(10, 1);
                auto first = e.allreduce(names[comm.rank() % 2], x, hvd::sum);
                std::this_thread::sleep_for(2ms);
                auto last = e.allreduce(names[1 - comm.rank() % 2], y, hvd::sum);
                first.wait();
                last.wait();
            }
            return e.statistics();
        };
        const hvd::engine_statistics before = run(8), after = run(12);
        // Where each step was one unit, the first tensor has waited until the last was there.
        if (after.predicted_steps - before.predicted_steps == 12 &&
            after.units - before.units == 12)
            CHECK(after.waiting_seconds - before.waiting_seconds >= 0.002 * 12);
    });
}

TEST_CASE("tensors that fail are counted apart") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> good(4, 1), ragged(std::size_t(4 + comm.rank()));
        CHECK_THROWS_AS(e.allreduce("x", ragged, hvd::sum).wait(), hvd::mismatch_error);
        e.allreduce("y", good, hvd::sum).wait();
        const hvd::engine_statistics s = e.statistics();
        CHECK(s.submitted == 2);
        CHECK(s.completed == 1);
        CHECK(s.failed == 1);
        CHECK(s.bytes == 16);
        const auto fails =
            hvd::custom([](float, float) -> float { throw std::runtime_error("no"); });
        CHECK_THROWS(e.allreduce("z", good, fails).wait());  // its unit had begun
        CHECK(e.statistics().failed == 2);
        CHECK(e.statistics().bytes == 16);
        auto pending = e.allreduce("late", good, hvd::sum);
        comm.barrier();
        if (comm.rank() == 0) e.fail(nullptr);
        CHECK_THROWS_AS(e.allreduce("never", good, hvd::sum).wait(), hvd::peer_error);
        try {
            pending.wait();
        } catch (const hvd::peer_error&) {
        }
        CHECK(e.statistics().in_flight() == 0);
    });
}

TEST_CASE(
    "a retune is no tensor, and what others reduce after a rank has joined is none of its units") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        hvd::engine_tuning tuned = e.tuned();
        tuned.fusion_threshold = 1000;
        e.retune(tuned);
        tuned.cycle_time = -1ns;
        CHECK_THROWS_AS(e.retune(tuned), hvd::usage_error);
        CHECK(e.statistics().submitted == 0);
        CHECK(e.statistics().failed == 0);
        CHECK(e.statistics().negotiated() == 0);
        CHECK(e.statistics().units == 0);
        const bool works = comm.rank() != 0;
        for (int i = 0; i < 3 && works; ++i) {
            float x = 1;
            e.allreduce("x", x, hvd::sum).wait();
            CHECK(x == comm.size() - 1);
        }
        (void)e.join().wait();
        const hvd::engine_statistics s = e.statistics();
        CHECK(s.units == (works ? 3 : 0));
        CHECK((s.running_seconds > 0) == works);
        CHECK(s.tensors_per_unit() == (works ? 1 : 0));
    });
}

TEST_CASE("statistics are read while other threads submit tensors") {
    on_ranks([](auto& comm) {
        engine e{comm};
        std::atomic<bool> done{false};
        std::thread reader([&] {
            std::uint64_t last = 0;
            while (!done) {
                const hvd::engine_statistics s = e.statistics();
                CHECK(s.submitted >= last);
                CHECK(s.submitted >= s.completed + s.failed);
                last = s.submitted;
                std::this_thread::yield();
            }
        });
        step_of_tensors step(5);
        for (int i = 0; i < 30; ++i) step.run(e);
        done = true;
        reader.join();
        CHECK(e.statistics().completed == 150);
    });
}

}  // namespace statistics_tests
