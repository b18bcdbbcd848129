// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <mutex>

#include "engine_test.hpp"

namespace stalls_tests {

// Ranks that do not come: to the submission of a tensor, or in the middle of a unit.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

std::mutex mutex;
std::vector<std::string> lines;

void collect(std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
}

struct collects_lines {
    hvd::message_sink before = hvd::set_message_sink(&collect);
    ~collects_lines() {
        hvd::set_message_sink(before);
        lines.clear();
    }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

bool contains(const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

// Waits for a line of this rank that has all these parts.
void await_line(int rank, const std::vector<std::string>& parts) {
    for (;; std::this_thread::sleep_for(1ms)) {
        const std::lock_guard lock(mutex);
        for (const std::string& line : lines)
            if (line.rfind("hvd: " + rank_text(rank) + " has waited", 0) == 0 &&
                std::all_of(parts.begin(), parts.end(),
                            [&](const std::string& part) { return has(line, part); }))
                return;
    }
}

// A sum whose callable hangs on a rank, until `wake` returns.
template <class F>
struct hanging_sum {
    F* wake;  // null: it does not hang
    float operator()(float a, float b) const {
        if (wake != nullptr) (*wake)();
        return a + b;
    }
};
template <class F>
hanging_sum(F*) -> hanging_sum<F>;

void reduce_some(engine& e, int steps) {
    for (int step = 0; step < steps; ++step) {
        std::vector<float> good(10, 1);
        e.allreduce("good", good, hvd::sum).wait();
        REQUIRE(good[0] == e.size());
    }
}

template <class F>
std::string text_of_end(F call) {
    std::string text;
    while (text.empty()) text = text_of<hvd::peer_error>(call);
    return text;
}

}  // namespace

TEST_CASE("ranks that have not submitted a tensor are named after a while") {
    const collects_lines collected;
    on_few_ranks([](auto& comm) {
        engine e{comm, {.stall_warn = lateness}};
        std::vector<float> x(4, 1);
        const int last = comm.size() - 1;
        hvd::request r;
        if (comm.rank() != last) {
            r = e.allreduce("late", x, hvd::sum);
            await_line(comm.rank(), {"for 'late': rank", " " + std::to_string(last) + " ha",
                                     " not submitted it"});
        }
        comm.barrier();
        if (comm.rank() == last) r = e.allreduce("late", x, hvd::sum);
        r.wait();
        CHECK(x[0] == comm.size());
    });
}

TEST_CASE("an engine that waits too long is given up") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm, {.stall_warn = hvd::forever, .stall_abort = 100ms}};
        std::vector<float> x(4);
        if (comm.rank() == 0) {
            const auto late = [&] { e.allreduce("late", x, hvd::sum).wait(); };
            const std::string text = text_of<hvd::peer_error>(late);
            CHECK(has(text, "'late' was not submitted on all ranks in time"));
            CHECK(has(text, " not submitted it"));
        }
        comm.barrier();
        const auto next = [&] { e.allreduce("y", x, hvd::sum).wait(); };
        CHECK(has(text_of_end(next), "rank 0 gives up"));
    });
}

TEST_CASE("a rank that hangs inside a unit is named with the tensors, and the unit completes") {
    const collects_lines collected;
    on_few_ranks([](auto& comm) {
        engine e{comm, {.stall_warn = lateness}};
        const int last = comm.size() - 1, me = comm.rank();
        bool hangs = me == last;
        if (hangs) comm.hand_over();  // the engine's thread makes the barrier
        const auto until_told = [&] {
            if (std::exchange(hangs, false)) comm.barrier();
        };
        std::vector<float> x(4, 1);
        auto r = e.allreduce("slow", x, hanging_sum{&until_told});
        if (me != last) {
            await_line(me, {" s in the tensor 'slow' for ", rank_text(last)});
            comm.barrier();
        }
        r.wait();
        CHECK(x[0] == comm.size());
        if (me != last) CHECK(e.statistics().stalls_warned >= 1);
        reduce_some(e, 2);
    });
}

TEST_CASE("a rank that does not come to a predicted unit is named with its tensors") {
    const collects_lines collected;
    on_few_ranks([](auto& comm) {
        engine e{comm, {.stall_warn = lateness}};
        const int last = comm.size() - 1, me = comm.rank();
        std::vector<std::vector<float>> values(7, std::vector<float>(5));
        const auto step = [&](auto between) {
            std::vector<hvd::request> requests;
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i].assign(5, 1);
                requests.push_back(e.allreduce("t" + std::to_string(i), values[i], hvd::sum));
            }
            between();
            for (hvd::request& r : requests) r.wait();
            for (const auto& v : values) CHECK(v[4] == comm.size());
        };
        for (std::uint64_t before = 0; e.statistics().predicted_steps == before;) {
            before = e.statistics().predicted_steps;
            step([] {});
        }
        comm.barrier();
        if (me == last) comm.barrier();  // until the others have told
        step([&] {
            if (me == last) return;
            await_line(me, {"in the unit of 't", "' and 2 more for", rank_text(last)});
            comm.barrier();
        });
    });
}

TEST_CASE("a rank that hangs inside a unit ends the engine on all ranks after stall_abort") {
    on_few_ranks([](auto& comm) {
        engine e{comm, {.stall_warn = hvd::forever, .stall_abort = lateness}};
        const int last = comm.size() - 1, me = comm.rank();
        bool hangs = me == last;
        if (hangs) comm.hand_over();  // the engine's thread makes the barrier
        const auto until_given_up = [&] {
            if (std::exchange(hangs, false)) comm.barrier();
        };
        std::vector<float> x(4, 1);
        const std::string text = text_of<hvd::peer_error>(
            [&] { e.allreduce("slow", x, hanging_sum{&until_given_up}).wait(); });
        INFO(text);
        const auto next = [&] { e.allreduce("next", x, hvd::sum).wait(); };
        if (me != last) {
            CHECK(has(text, rank_text(last)));
            CHECK(has(text_of<hvd::peer_error>(next), "this engine has ended"));
        }
        if (me != last || hangs) comm.barrier();  // it did not come to hang
        CHECK(!text_of_end(next).empty());
    });
}

TEST_CASE("the communicator's timeout holds inside a unit, and stall_abort does if it is longer") {
    on_ranks_from(2, {.timeout = std::chrono::nanoseconds(3s)}, [](auto& comm) {
        if (comm.size() > 2) return;
        engine e{comm, {.stall_warn = hvd::forever, .stall_abort = 1h}};
        const bool waits = comm.rank() == 0;
        bool hangs = !waits;
        if (hangs) comm.hand_over();  // the engine's thread makes the barrier
        const auto until_given_up = [&] {
            if (std::exchange(hangs, false)) comm.barrier({.timeout = 1min});
        };
        std::vector<float> x(4, 1);
        const std::string text = text_of<hvd::peer_error>(
            [&] { e.allreduce("slow", x, hanging_sum{&until_given_up}).wait(); });
        INFO(text);
        if (waits) {
            CHECK(has(text, "rank 1 did not come in time"));
            comm.barrier({.timeout = 1min});
        }
    });
}

TEST_CASE("a stall_abort that is shorter than stall_warn holds, and nothing is warned") {
    const collects_lines collected;
    on_ranks_from(2, [](auto& comm) {
        engine e{comm, {.stall_warn = 1h, .stall_abort = 100ms}};
        std::vector<float> x(4);
        if (comm.rank() == 0) {
            const std::string text =
                text_of<hvd::peer_error>([&] { e.allreduce("late", x, hvd::sum).wait(); });
            CHECK(has(text, "'late' was not submitted on all ranks in time: rank"));
            CHECK(has(text, " not submitted it"));
            CHECK(e.statistics().stalls_aborted == 1);
            CHECK(e.statistics().stalls_warned == 0);
        }
        comm.barrier();
        const auto next = [&] { e.allreduce("y", x, hvd::sum).wait(); };
        CHECK(has(text_of_end(next), "rank 0 gives up"));
    });
    CHECK(lines.empty());
}

TEST_CASE("the timeout of a tensor or of a barrier names the ranks that are missing") {
    for (const bool is_barrier : {false, true})
        on_few_ranks([is_barrier](auto& comm) {
            engine e{comm};
            const int last = comm.size() - 1;
            reduce_some(e, 1);
            std::vector<float> x(4);
            const auto call = [&] {
                if (is_barrier) e.barrier("epoch", {.timeout = lateness}).wait();
                else e.allreduce("epoch", x, hvd::sum, {.timeout = lateness}).wait();
            };
            if (comm.rank() != last) {
                const std::string text = text_of<hvd::peer_error>(call);
                INFO(text);
                CHECK(has(text, "'epoch' was not submitted on all ranks in time: "));
                CHECK(has(text, rank_text(last) + " has not submitted it"));
            }
            comm.barrier();
            CHECK(has(text_of_end(call), "gives up"));
            const std::vector<int> peers = peers_of(call);
            if (comm.rank() == last) CHECK(peers.size() == 1);  // the rank that gave up
            CHECK(contains(peers, last) == (comm.rank() != last));
        });
}

TEST_CASE("the timeout of a tensor holds during a prediction") {
    on_few_ranks([](auto& comm) {
        for (const bool is_predicted : {false, true}) {
            engine e{comm};
            const int last = comm.size() - 1;
            reduce_some(e, 8);
            std::vector<float> x(10, 1);
            const auto call = [&] {
                e.allreduce(is_predicted ? "good" : "new", x, hvd::sum, {.timeout = lateness})
                    .wait();
            };
            comm.barrier();
            if (comm.rank() != last) {
                const std::string text = text_of<hvd::peer_error>(call);
                INFO(text);
                CHECK(has(text, rank_text(last)));
            }
            comm.barrier();
            CHECK(!text_of_end(call).empty());
        }
    });
}

TEST_CASE("the timeout of a tensor ends a predicted unit that is under way already") {
    on_few_ranks([](auto& comm) {
        engine e{comm, {.fusion_threshold = 1}};
        const int last = comm.size() - 1;
        std::vector<float> a(10, 1), b(10, 1);
        for (std::uint64_t before = 0; e.statistics().predicted_steps == before;) {
            before = e.statistics().predicted_steps;
            auto first = e.allreduce("a", a, hvd::sum), second = e.allreduce("b", b, hvd::sum);
            first.wait();
            second.wait();
        }
        comm.barrier();
        if (comm.rank() != last) {
            auto first = e.allreduce("a", a, hvd::sum);  // its unit waits for the last rank
            std::thread waits(
                [&] { CHECK(!text_of<hvd::peer_error>([&] { first.wait(); }).empty()); });
            std::this_thread::sleep_for(50ms);
            const std::string text = text_of<hvd::peer_error>(
                [&] { e.allreduce("b", b, hvd::sum, {.timeout = lateness}).wait(); });
            INFO(text);
            CHECK(has(text, rank_text(last)));
            waits.join();
        }
        comm.barrier();
    });
}

TEST_CASE("a timeout that is over while a predicted unit runs declines nothing") {
    on_few_ranks([](auto& comm) {
        engine e{comm};
        const auto core = hvd::detail::engine_access::core_of(e);
        bool is_over = false;
        const auto look = [&] {  // as the engine's thread does meanwhile
            if (is_over) core->expire_prediction();
        };
        std::vector<float> x(10, 1);
        const auto step = [&] { e.allreduce("x", x, hanging_sum{&look}).wait(); };
        for (std::uint64_t before = 0; e.statistics().predicted_steps == before;) {
            before = e.statistics().predicted_steps;
            step();
        }
        const std::uint64_t before = e.statistics().predicted_steps;
        is_over = true;
        step();
        is_over = false;
        step();
        CHECK(e.statistics().declined == 0);
        CHECK(e.statistics().predicted_steps == before + 2);
    });
}

TEST_CASE("the timeout of a tensor ends a unit in which a rank hangs, also one that began before") {
    on_few_ranks([](auto& comm) {
        engine e{comm};
        const int last = comm.size() - 1, me = comm.rank();
        bool hangs = me == last;
        if (hangs) comm.hand_over();  // the engine's thread makes the barrier
        const auto until_told = [&] {
            if (std::exchange(hangs, false)) comm.barrier();
        };
        std::vector<float> a(4, 1), b(4, 1);
        auto slow = e.allreduce("slow", a, hanging_sum{&until_told});
        if (me != last) {
            std::this_thread::sleep_for(50ms);
            const std::string text = text_of<hvd::peer_error>(
                [&] { e.allreduce("b", b, hvd::sum, {.timeout = lateness}).wait(); });
            INFO(text);
            CHECK(has(text, rank_text(last)));
            comm.barrier();
            CHECK_THROWS_AS(slow.wait(), hvd::peer_error);
        } else {
            (void)text_of<hvd::peer_error>([&] { slow.wait(); });  // its own result may be complete
        }
    });
}

TEST_CASE("a timeout that a tensor has kept ends no later unit") {
    on_few_ranks([](auto& comm) {
        engine e{comm, {.fusion_threshold = 1}};
        std::vector<float> a(10, 1), b(10, 1);
        // Rank 0 is inside the unit of the first when it submits the second.
        const auto step = [&](std::chrono::milliseconds late, hvd::time_limit timeout) {
            if (comm.rank() != 0) std::this_thread::sleep_for(late);
            auto first = e.allreduce("a", a, hvd::sum);
            if (comm.rank() == 0) std::this_thread::sleep_for(late / 4);
            auto second = e.allreduce("b", b, hvd::sum, {.timeout = timeout});
            first.wait();
            second.wait();
        };
        for (int i = 0; i < 8; ++i) step(0ms, {});
        step(lateness / 4, 2 * lateness);
        step(3 * lateness, {});
        CHECK(e.statistics().failed == 0);
    });
}

TEST_CASE("a request that an exception drops before its tensor is there ends all engines") {
    on_ranks_from(2, {.destructor_timeout = std::chrono::nanoseconds(50ms)}, [](auto& comm) {
        engine e{comm};
        const bool drops = comm.rank() == 0;
        std::vector<float> x(4, 1);
        if (drops) try {
                const auto dropped = e.allreduce("dropped", x, hvd::sum);
                throw 1;
            } catch (int) {
            }
        const auto other = [&] { e.allreduce("other", x, hvd::sum).wait(); };
        const std::string text = text_of<hvd::peer_error>(other);
        INFO(text);
        CHECK(has(text, "rank 0: the request of 'dropped' was destroyed before all ranks"));
        comm.barrier();  // rank 0 still has its engine
    });
}

TEST_CASE("negative times are refused on all ranks, with name and value") {
    on_ranks_from(2, [](auto& comm) {
        const auto check = [&](const hvd::engine_options& wrong, const std::string& text) {
            const auto make = [&] {
                const engine e{comm, comm.rank() == 1 ? wrong : hvd::engine_options{}};
            };
            INFO(text);
            if (comm.rank() == 1) CHECK(has(text_of<hvd::usage_error>(make), text));
            else CHECK(has(text_of<hvd::peer_error>(make), text));
        };
        check({.cycle_time = -3ns}, ".cycle_time is -3 ns, and must not be negative");
        check({.stall_warn = -1ms}, ".stall_warn is -1000000 ns");
        check({.stall_abort = -5ns}, ".stall_abort is -5 ns");

        engine e{comm};
        std::vector<float> x(4);
        const auto call = [&] {
            const auto timeout = comm.rank() == 1 ? hvd::time_limit(-2ns) : hvd::time_limit();
            e.allreduce("x", x, hvd::sum, {.timeout = timeout}).wait();
        };
        if (comm.rank() == 1) CHECK(has(text_of<hvd::usage_error>(call), ".timeout is -2 ns"));
        else CHECK(has(text_of<hvd::peer_error>(call), ".timeout is -2 ns"));
        reduce_some(e, 2);
    });
}

TEST_CASE("a communicator takes no negative times") {
    const auto make = [](const hvd::communicator_options& wrong) {
#if defined(HVD_TEST_BACKEND_MPI)
        world(wrong);
#else
        hvd_test::run_threads(2, [](hvd_test::communicator&) {}, wrong);
#endif
    };
    CHECK(has(text_of<hvd::usage_error>([&] { make({.timeout = -4ns}); }),
              ".timeout is -4 ns, and must be more than 0, or hvd::forever"));
    CHECK(has(text_of<hvd::usage_error>([&] { make({.destructor_timeout = -4ns}); }),
              ".destructor_timeout is -4 ns"));
}

}  // namespace stalls_tests
