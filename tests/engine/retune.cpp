// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// An engine gets other thresholds between steps, on all ranks or on none.

#include <functional>

#include "engine_test.hpp"

namespace retune_tests {

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

// A step of tensors of many sizes, whose results are exact.
void step(engine& e, int number) {
    std::vector<std::vector<float>> tensors;
    std::vector<hvd::request> requests;
    for (int t = 0; t < 12; ++t)
        tensors.emplace_back(std::size_t(1) << t, float(e.rank() + number + t));
    for (int t = 0; t < 12; ++t) {
        const int i = (t * (e.rank() % 2 == 0 ? 5 : 7) + number) % 12;
        requests.push_back(e.allreduce("t" + std::to_string(i), tensors[std::size_t(i)], hvd::sum));
    }
    for (auto& r : requests) r.wait();
    for (int t = 0; t < 12; ++t) {
        const auto& x = tensors[std::size_t(t)];
        const float sum = sum_from(float(number + t), e.size());
        REQUIRE(std::size_t(std::count(x.begin(), x.end(), sum)) == x.size());
    }
}

hvd::engine_tuning drawn(std::mt19937& random) {
    const auto bytes = [&](int least, int most) {
        return std::size_t(1) << std::uniform_int_distribution(least, most)(random);
    };
    return {.fusion_threshold = random() % 4 == 0 ? 0 : bytes(2, 20),
            .cycle_time = hvd::time_span(std::chrono::microseconds(random() % 3 * 50)),
            .largest_first = random() % 2 == 0,
            .prediction = random() % 3 != 0,
            .tuning = {.chunk_bytes = bytes(6, 16),
                       .unstable = {.least_in_place = bytes(0, 16),
                                    .most_by_all = bytes(0, 16),
                                    .most_by_two = bytes(0, 16),
                                    .exchange_chunk_bytes = bytes(6, 16),
                                    .most_carried = bytes(0, 12),
                                    .most_in_slices = bytes(0, 16),
                                    .streaming_from = bytes(0, 16)}}};
}

// Lets its rank hang inside a retune.
struct hanging {
    std::function<void()> meanwhile;
    void on_begin(const hvd::event& e) const {
        if (meanwhile && e.name == "the retune of an engine") meanwhile();
    }
    void on_end(const hvd::event&, bool) {}
};

}  // namespace

TEST_CASE("an engine is retuned between steps: results stay exact, and the values are in force") {
    on_ranks([](auto& comm) {
        engine e{comm};
        CHECK(e.tuned() == hvd::engine_tuning{});
        std::mt19937 random(7);
        int number = 0;
        for (int round = 0; round < 12; ++round) {
            const hvd::engine_tuning to = drawn(random);
            e.retune(to);
            CHECK(e.tuned() == to);
            for (int n = int(random() % 7); n >= 0; --n) step(e, number++);
        }
    });
}

TEST_CASE("a retune with tensors in flight is refused on all ranks, and nothing is lost") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (int n = 0; n < 5; ++n) step(e, n);  // the step is predicted
        for (int time = 0; time < 3; ++time) {
            std::vector<float> x(5, float(comm.rank()));
            hvd::request early;
            const bool has_early = comm.rank() == comm.size() - 1;
            if (has_early) early = e.allreduce("early bird", x, hvd::sum);
            if (has_early) {
                const auto text = text_of<hvd::usage_error>([&] { e.retune({}); });
                CHECK(text.find("'early bird'") != text.npos);
                CHECK(text.find("between steps") != text.npos);
            } else {
                const auto text = text_of<hvd::peer_error>(
                    [&] { e.retune({.fusion_threshold = 1, .tuning = {.chunk_bytes = 64}}); });
                CHECK(text.find("'early bird'") != text.npos);
                early = e.allreduce("early bird", x, hvd::sum);
            }
            early.wait();
            CHECK(x[0] == sum_from(0, comm.size()));
            CHECK(e.tuned() == hvd::engine_tuning{});
            for (int n = 0; n < 4; ++n) step(e, n);
        }
        e.retune({.fusion_threshold = 100});
        CHECK(e.tuned().fusion_threshold == 100);
        step(e, 1);
    });
}

TEST_CASE("ranks that retune to different values are told each rank's, and keep theirs") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (int n = 0; n < 5; ++n) step(e, n);
        const auto differ = [&](hvd::engine_tuning mine, std::string_view field) {
            try {
                e.retune(mine);
                FAIL("no error");
            } catch (const hvd::mismatch_error& error) {
                CHECK(error.field() == field);
                CHECK(error.table().size() == std::size_t(comm.size()));
            }
            CHECK(e.tuned() == hvd::engine_tuning{});
            step(e, 3);
        };
        const bool odd = comm.rank() == 1;
        differ({.fusion_threshold = odd ? 5u : 6u}, ".fusion_threshold");
        differ({.cycle_time = hvd::time_span(odd ? 1ms : 2ms)}, ".cycle_time");
        differ({.largest_first = odd}, ".largest_first");
        differ({.prediction = odd}, ".prediction");
        differ({.tuning = {.chunk_bytes = odd ? 64u : 128u}}, ".tuning.chunk_bytes");
        differ({.tuning = {.unstable = {.least_in_place = odd ? 5u : 6u}}},
               ".tuning.unstable.least_in_place");
    });
}

TEST_CASE("a rank that hangs inside a retune ends the engine on all ranks after stall_abort") {
    on_ranks_of<hvd::observed<backend, hanging>>([](auto& comm) {
        if (comm.size() == 1 || comm.size() > 3) return;
        hvd::engine e{comm, {.stall_warn = hvd::forever, .stall_abort = lateness}};
        const bool is_last = comm.rank() == comm.size() - 1;
        bool hangs = is_last;
        if (hangs) comm.hand_over();  // the thread that runs the retune makes the barrier
        if (hangs)
            e.observer().meanwhile = [&] {
                if (std::exchange(hangs, false)) comm.barrier();
            };
        const auto text = text_of<hvd::peer_error>([&] { e.retune({.fusion_threshold = 7}); });
        INFO(text);
        if (!is_last) {
            CHECK(text.find("rank " + std::to_string(comm.size() - 1)) != text.npos);
            CHECK(e.tuned() == hvd::engine_tuning{});
        }
        if (!is_last || hangs) comm.barrier();  // it did not come to hang
        // The rank that hung may go on for a moment.
        while (text_of<hvd::peer_error>([&] { e.barrier().wait(); }).empty()) {
        }
    });
}

TEST_CASE("values outside their range are refused on all ranks") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const bool wrong = comm.rank() == 0;
        const hvd::engine_tuning values[] = {
            {.fusion_threshold = wrong ? std::size_t(1) << 60 : 0},
            {.cycle_time = hvd::time_span(wrong ? -1ms : 0ms)},
            {.tuning = {.chunk_bytes = wrong ? 65u : 64u}},
        };
        for (const auto& v : values) {
            if (wrong) CHECK_THROWS_AS(e.retune(v), hvd::usage_error);
            else CHECK_THROWS_AS(e.retune(v), hvd::peer_error);
        }
        CHECK(e.tuned() == hvd::engine_tuning{});
        step(e, 0);
    });
}

TEST_CASE("a rank that has joined is not retuned, and the others are told") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        step(e, 0);
        hvd::result<int> joined;
        if (comm.rank() == 0) {
            joined = e.join();
            CHECK_THROWS_AS(e.retune({}), hvd::usage_error);
        } else {
            const auto text = text_of<hvd::peer_error>([&] { e.retune({}); });
            CHECK(text.find("0 has joined") != text.npos);
        }
        comm.barrier();
        if (comm.rank() != 0) joined = e.join();
        joined.wait();
        e.retune({.fusion_threshold = 77});
        step(e, 1);
    });
}

TEST_CASE(
    "tensors that another thread submits while the engine is retuned are reduced afterwards") {
    on_ranks([](auto& comm) {
        engine e{comm};
        for (int n = 0; n < 4; ++n) step(e, n);
        for (int time = 0; time < 10; ++time) {
            std::vector<float> x(100, float(comm.rank()));
            std::thread other;
            const auto submit = [&] { e.allreduce("x", x, hvd::sum).wait(); };
            // Where the tensor comes first, the retune is refused.
            try {
                other = std::thread(submit);
                e.retune({.fusion_threshold = std::size_t(time)});
            } catch (const hvd::error& refused) {
                CHECK(std::string(refused.what()).find("'x'") != std::string::npos);
            }
            other.join();
            CHECK(x[99] == sum_from(0, comm.size()));
        }
    });
}

TEST_CASE("after a retune the step is predicted again, in units of the new size") {
    hvd::detail::negotiator alone(0, 1, {.fusion_threshold = 1 << 20});
    hvd::detail::signature tensor, retune;
    tensor.bytes = 100;
    tensor.fuses = true;
    retune.call = hvd::detail::agreement_header("");
    // Submits what repeats until it is predicted, and returns the number of units.
    const auto predicted_units = [&] {
        for (int n = 0; n < 5; ++n) {
            alone.submit("a", tensor);
            alone.submit("b", tensor);
            alone.decide();
            for (hvd::detail::decision d; alone.next_decision(d);)
                if (d.kind == hvd::detail::decision::what::predict) return d.units.size();
        }
        return std::size_t(0);
    };
    CHECK(predicted_units() == 1);
    for (const std::size_t units : {2, 1, 2}) {
        alone.restart(1);  // a step, and the rank declines: prediction is put off
        alone.submit("retune", retune);
        alone.decide();
        hvd::detail::decision d;
        REQUIRE(alone.next_decision(d));
        CHECK(d.kind == hvd::detail::decision::what::run);
        alone.retune({.fusion_threshold = units == 2 ? 150u : 200u});
        CHECK(predicted_units() == units);
    }
}

TEST_CASE("a prediction that a retune has switched off is not made until another switches it on") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const auto predicted = [&] {
            const auto before = e.statistics().predicted_steps;
            for (int n = 0; n < 6; ++n) step(e, n);
            return e.statistics().predicted_steps - before;
        };
        CHECK(predicted() > 0);
        for (int time = 0; time < 2; ++time) {
            e.retune({.prediction = false});
            CHECK(predicted() == 0);
            e.retune({.prediction = true});
            CHECK(predicted() > 0);
        }
    });
}

}  // namespace retune_tests
