// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "engine_test.hpp"

namespace errors_tests {

// Ranks that disagree, refuse, fail, leave or do not come.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

void reduce_some(engine& e, int steps) {
    for (int step = 0; step < steps; ++step) {
        std::vector<float> good(10, 1);
        e.allreduce("good", good, hvd::sum).wait();
        REQUIRE(good[0] == e.size());
    }
}

// Runs what ranks disagree on, three times: when it is new, again, and once other steps have been
// predicted. Each time all ranks throw, and the next good tensor works.
template <class F>
void disagree(F call, std::string_view field) {
    on_ranks_from(2, [&](auto& comm) {
        engine e{comm};
        for (int time = 0; time < 3; ++time) {
            try {
                call(e);
                FAIL("no error");
            } catch (const hvd::mismatch_error& error) {
                CHECK(error.field() == field);
                CHECK(error.table().size() == std::size_t(comm.size()));
                CHECK(std::string(error.what()).find("'odd one'") != std::string::npos);
            }
            reduce_some(e, time == 1 ? 6 : 1);
        }
    });
}

// A tensor of a user's that may have no view.
struct moody {
    std::vector<float> cells;
    bool throws = false;
};

}  // namespace

}  // namespace errors_tests

template <>
struct hvd::view_traits<errors_tests::moody> {
    static constexpr bool borrowed = false;
    static auto view(auto& t) {
        if (t.throws) throw std::domain_error("no view today");
        return hvd::view(t.cells.data(), t.cells.size());
    }
};

namespace errors_tests {

TEST_CASE("ranks that disagree get every rank's value, and other tensors go on") {
    SUBCASE("element type") {
        disagree(
            [](engine& e) {
                std::vector<float> f(4);
                std::vector<int> i(4);
                if (e.rank() == 0) e.allreduce("odd one", i, hvd::sum).wait();
                else e.allreduce("odd one", f, hvd::sum).wait();
            },
            "element type");
    }
    SUBCASE("shape") {
        disagree(
            [](engine& e) {
                std::vector<float> x(std::size_t(17 + e.rank()));
                e.allreduce("odd one", x, hvd::sum).wait();
            },
            "shape");
    }
    SUBCASE("operation") {
        disagree(
            [](engine& e) {
                std::vector<float> x(3);
                if (e.rank() == e.size() - 1) e.allreduce("odd one", x, hvd::max).wait();
                else e.allreduce("odd one", x, hvd::sum).wait();
            },
            "operation");
    }
    SUBCASE("collective") {
        disagree(
            [](engine& e) {
                std::vector<float> x(3);
                if (e.rank() == 1) e.broadcast("odd one", x).wait();
                else e.allreduce("odd one", x, hvd::sum).wait();
            },
            "collective");
    }
    SUBCASE("root") {
        disagree(
            [](engine& e) {
                std::vector<float> x(3);
                e.broadcast("odd one", x, hvd::root{e.rank()}).wait();
            },
            "root");
    }
    SUBCASE("prescale") {
        disagree(
            [](engine& e) {
                std::vector<float> x(3);
                e.allreduce("odd one", x, hvd::sum, {.prescale = 1.0 + e.rank()}).wait();
            },
            "prescale");
    }
    SUBCASE("columns of an allgather") {
        disagree(
            [](engine& e) {
                std::vector<float> x(12);
                const std::size_t columns = e.rank() == 0 ? 2 : 3;
                e.allgather("odd one", hvd::view(x.data(), hvd::shape(4, columns))).wait();
            },
            "shape");
    }
    SUBCASE("operation of a reduce_scatter") {
        disagree(
            [](engine& e) {
                std::vector<float> x(12);
                if (e.rank() == 0) e.reduce_scatter("odd one", x, hvd::max).wait();
                else e.reduce_scatter("odd one", x, hvd::sum).wait();
            },
            "operation");
    }
}

TEST_CASE("a disagreement in a predicted step is told like any other") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> a(10, 1), b(20, 1);
        for (int step = 0; step < 8; ++step) {
            auto first = e.allreduce("a", a, hvd::max);
            auto second = e.allreduce("b", b, hvd::max);
            first.wait();
            second.wait();
        }
        std::vector<float> changed(std::size_t(20 + e.rank()));
        auto good = e.allreduce("a", a, hvd::max);
        auto bad = e.allreduce("b", changed, hvd::max);
        CHECK_THROWS_AS(bad.wait(), hvd::mismatch_error);
        good.wait();
        reduce_some(e, 6);
    });
}

TEST_CASE("a rank that gives a bad value is named with the tensor, and other tensors go on") {
    on_ranks_from(1, {.check_finite = true}, [](auto& comm) {
        engine e{comm};
        const int last = comm.size() - 1;
        const float inf = std::numeric_limits<float>::infinity();
        for (int time = 0; time < 3; ++time) {  // when it is new, again, and in predicted steps
            std::vector<float> x(100, 1), y(3, 1), z(5, 1);
            if (e.rank() == last) x[17] = y[1] = -inf;
            const auto expect = [&](auto pending, std::string_view tensor, std::size_t index) {
                try {
                    pending.wait();
                    FAIL("no error");
                } catch (const hvd::not_finite_error& error) {
                    CHECK(error.source() == last);
                    CHECK(error.tensor() == tensor);
                    CHECK(error.index() == index);
                    CHECK(error.value() == -inf);
                }
            };
            expect(e.allreduce("odd one", x, hvd::sum), "'odd one'", 17);
            expect(e.allreduce("list", hvd::fuse(z, y), hvd::sum), "tensor 1 of 'list'", 1);
            expect(e.reduce_scatter("odd scatter", x, hvd::sum), "", 17);
            reduce_some(e, time == 1 ? 6 : 1);
        }
    });
}

TEST_CASE("what a rank gives that has joined is no input of its own") {
    on_ranks_from(2, {.check_finite = true}, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(10, float(comm.rank()));
        e.allreduce("x", x, hvd::max).wait();
        if (comm.rank() == 0) {  // the others join: they give the least float, an infinity
            x.assign(10, -7);
            e.allreduce("x", x, hvd::max).wait();
            CHECK(x[9] == -7);
        }
        e.join().wait();
    });
}

TEST_CASE("a name in flight is refused, and the first tensor of that name still completes") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4, 1), y(4, 1);
        hvd::request first;
        if (comm.rank() == 0) {
            first = e.allreduce("x", x, hvd::sum);
            CHECK(text_of<hvd::usage_error>([&] {
                      (void)e.allreduce("x", y, hvd::sum);
                  }).find("'x' is in flight already") != std::string::npos);
            CHECK_THROWS_AS((void)e.allreduce("", y, hvd::sum), hvd::usage_error);
        }
        comm.barrier();
        if (comm.rank() != 0) first = e.allreduce("x", x, hvd::sum);
        first.wait();
        CHECK(x[0] == comm.size());
        CHECK(y[0] == 1);
    });
}

TEST_CASE("a call that is wrong by itself is told to the others") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (int time = 0; time < 2; ++time) {
            std::vector<float> x(4);
            float* const none = nullptr;
            if (comm.rank() == 0) {
                CHECK_THROWS_AS((void)e.allreduce("x", hvd::view(none, 4), hvd::sum),
                                hvd::usage_error);
            } else {
                auto r = e.allreduce("x", x, hvd::sum);
                const std::string text = text_of<hvd::peer_error>([&] { r.wait(); });
                INFO(text);
                CHECK(text.find("null pointer") != std::string::npos);
                CHECK(text.find("rank 0 refused it") != std::string::npos);
            }
            reduce_some(e, 6);
        }
    });
}

TEST_CASE("a tensor whose view throws is refused, and other tensors go on") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        moody x{std::vector<float>(4, 1), comm.rank() == 1};
        const auto check = [&](auto call) {
            if (x.throws) CHECK_THROWS_AS(call(), std::domain_error);
            else CHECK(text_of<hvd::peer_error>(call).find("no view today") != std::string::npos);
            reduce_some(e, 1);
        };
        check([&] { e.allreduce("x", x, hvd::sum).wait(); });
        check([&] { e.broadcast("x", x).wait(); });
        check([&] { e.reduce("x", x, hvd::sum).wait(); });
        check([&] { e.allgather("x", x).wait(); });
    });
}

TEST_CASE("a root that is no rank is refused on all ranks, and other tensors go on") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (const int root : {77, -1, -3}) {
            std::vector<float> x(4);
            const int mine = comm.rank() == 1 ? root : 0;
            const auto call = [&] { e.broadcast("x", x, hvd::root{mine}).wait(); };
            if (comm.rank() == 1) CHECK_THROWS_AS(call(), hvd::usage_error);
            else CHECK(text_of<hvd::peer_error>(call).find("is not a rank") != std::string::npos);
        }
        reduce_some(e, 2);
    });
}

TEST_CASE("a name is free once the peers have submitted what this rank refused") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (int step = 0; step < 20; ++step) {
            std::vector<float> x(4, 1);
            const bool wrong = comm.rank() == 1 && step % 2 == 0;
            if (comm.rank() == 0 && step % 4 == 0) std::this_thread::sleep_for(2ms);
            const auto call = [&] { e.broadcast("x", x, hvd::root{wrong ? 99 : 0}).wait(); };
            if (step % 2 == 1) call();
            else if (wrong) CHECK_THROWS_AS(call(), hvd::usage_error);
            else CHECK_THROWS_AS(call(), hvd::peer_error);
        }
    });
}

TEST_CASE("from one tensor to another: strided, and wrong in all ways") {
    on_ranks([](auto& comm) {
        engine e{comm};
        const int n = comm.size();
        std::vector<float> all(16), out(8), to(16, -1);
        for (std::size_t i = 0; i < 16; ++i) all[i] = float(i) * float(comm.rank() + 1);
        const auto every_second = [](std::vector<float>& v) {
            return hvd::view(v.data(), hvd::shape(8), hvd::strides(2));
        };
        e.allreduce("strided", every_second(all), out, hvd::sum).wait();
        e.allreduce("to strided", out, every_second(to), hvd::sum).wait();
        for (std::size_t i = 0; i < 8; ++i) {
            CHECK(out[i] == float(2 * i) * float(n * (n + 1) / 2));
            CHECK(to[2 * i] == out[i] * float(n));
            CHECK(to[2 * i + 1] == -1);
        }
        const std::vector<float> in(8, 1), others(8, 100);
        auto first = e.allreduce("x", in, out, hvd::sum);
        const auto again = [&] { (void)e.allreduce("x", others, out, hvd::sum); };
        if (!first.test()) {
            try {
                again();
                FAIL("the name was in flight");
            } catch (const hvd::usage_error&) {
            }
        }
        first.wait();
        comm.barrier();

        const int last = n - 1;
        std::vector<float> small(comm.rank() == last ? 4 : 8);
        const auto sizes = [&] { e.allreduce("sizes", in, small, hvd::sum).wait(); };
        const auto overlap = [&] {
            e.allreduce("overlap", hvd::view(all.data(), 8), hvd::view(all.data() + 4, 8), hvd::sum)
                .wait();
        };
        const auto null = [&] {
            const float* const nothing = nullptr;
            e.allreduce("null", hvd::view(nothing, comm.rank() == last ? 8 : 0),
                        hvd::view(out.data(), comm.rank() == last ? 8 : 0), hvd::sum)
                .wait();
        };
        CHECK_THROWS_AS(overlap(), hvd::usage_error);
        if (comm.rank() == last) {
            CHECK_THROWS_AS(sizes(), hvd::usage_error);
            CHECK_THROWS_AS(null(), hvd::usage_error);
        } else {
            CHECK_THROWS_AS(sizes(), hvd::peer_error);
            CHECK_THROWS_AS(null(), hvd::peer_error);
        }
        reduce_some(e, 2);
    });
}

TEST_CASE("an error that nobody has looked at takes the place of the next tensor on all ranks") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(comm.rank() == 0 ? 4 : 5);
        auto bad = e.allreduce("bad", x, hvd::sum);
        if (comm.rank() == 0) bad = {};  // it waits, and nobody looks
        else CHECK_THROWS_AS(bad.wait(), hvd::mismatch_error);
        std::vector<float> y(4);
        const auto next = [&] { e.allreduce("next", y, hvd::sum).wait(); };
        if (comm.rank() == 0) CHECK_THROWS_AS(next(), hvd::mismatch_error);
        else
            CHECK(text_of<hvd::peer_error>(next).find("an earlier tensor of this rank failed") !=
                  std::string::npos);
        reduce_some(e, 2);
    });
}

TEST_CASE(
    "of several errors that nobody has looked at the first is told, once, and to a join, too") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        for (const bool joins : {false, true}) {
            const std::size_t count = comm.rank() == 0 ? 4 : 5;
            std::vector<float> x(count), y(count), z(4);
            auto first = e.allreduce("first", x, hvd::sum);
            auto second = e.allreduce("second", y, hvd::sum);
            if (comm.rank() == 0) {
                first = {};  // it waits, and nobody looks
                second = {};
            } else {
                CHECK_THROWS_AS(first.wait(), hvd::mismatch_error);
                CHECK_THROWS_AS(second.wait(), hvd::mismatch_error);
            }
            const auto next = [&] {
                if (joins) (void)e.join().wait();
                else e.allreduce("next", z, hvd::sum).wait();
            };
            if (comm.rank() == 0)
                CHECK(text_of<hvd::mismatch_error>(next).find("'first'") != std::string::npos);
            else if (!joins)
                CHECK(text_of<hvd::peer_error>(next).find("'first'") != std::string::npos);
            reduce_some(e, 2);
            e.join().wait();
        }
    });
}

TEST_CASE("names that can't be told, and a failure without an exception") {
    on_ranks([](auto& comm) {
        engine e{comm};
        std::vector<float> x(4);
        for (const std::string& name :
             {std::string(), std::string(70000, 'n'), std::string("a\0b", 3)}) {
            const auto call = [&] { (void)e.allreduce(name, x, hvd::sum); };
            CHECK_THROWS_AS(call(), hvd::usage_error);
        }
        comm.barrier();
        if (comm.rank() == 0) e.fail(nullptr);
        const auto after = [&] { e.allreduce("x", x, hvd::sum).wait(); };
        if (comm.rank() > 0)
            CHECK(text_of<hvd::peer_error>(after).find("rank 0 failed") != std::string::npos);
    });
}

TEST_CASE("a forked child is refused, and ends at once") {
    on_ranks([](auto& comm) {
        auto e = std::make_unique<engine>(comm);
        std::vector<float> x(4), y(4);
        reduce_some(*e, 1);
        if (comm.rank() == 0) {
            auto* const earlier = new hvd::request(e->allreduce("earlier", x, hvd::sum));
            const pid_t child = fork();
            if (child == 0) {
                int refused = 1;
                try {  // the peers' part comes after the fork; a rank alone may be done before
                    if (!earlier->test() || comm.size() > 1) _exit(2);
                } catch (const hvd::usage_error&) {
                }
                try {  // the call itself throws, not the request, which is not destroyed here
                    (void)new hvd::request(e->allreduce("x", x, hvd::sum));
                    _exit(1);
                } catch (const hvd::usage_error&) {
                    refused = 0;
                }
                e.reset();
                _exit(refused);
            }
            int status = -1;
            waitpid(child, &status, 0);
            CHECK(status == 0);
            e->allreduce("the child has ended", y, hvd::sum).wait();
            earlier->wait();
            delete earlier;
        } else {
            e->allreduce("the child has ended", y, hvd::sum).wait();
            e->allreduce("earlier", x, hvd::sum).wait();
        }
        reduce_some(*e, 1);
    });
}

TEST_CASE("a request that a callback drops ends the engine") {
    on_ranks([](auto& comm) {
        std::vector<float> x(4), y(4);
        engine e{comm};
        auto first =
            e.allreduce("x", x, hvd::sum,
                        {.then = [&](std::exception_ptr) { (void)e.allreduce("y", y, hvd::sum); }});
        first.wait();
        const auto next = [&] { e.allreduce("z", x, hvd::sum).wait(); };
        // A usage_error of the rank itself, if the tensor was submitted when the engine ended.
        CHECK_THROWS_WITH_AS(next(), doctest::Contains("the request of 'y' was destroyed"),
                             std::exception);
    });
}

TEST_CASE("the text and rank of the first exception reach all ranks") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        reduce_some(e, comm.size() % 2 == 0 ? 1 : 8);
        std::vector<float> x(4);
        if (comm.rank() == 1) {
            try {
                throw std::runtime_error("the data is gone");
            } catch (...) {
                e.fail(std::current_exception());
            }
        }
        const auto failed = [&] { e.allreduce("x", x, hvd::sum).wait(); };
        std::string text;
        while (text.empty()) text = text_of<hvd::peer_error>(failed);
        CAPTURE(text);
        CHECK(text.find("rank 1 failed: the data is gone") != std::string::npos);
        CHECK(text_of<hvd::peer_error>(failed).find("the data is gone") != std::string::npos);
        if (comm.rank() != 1) CHECK(peers_of(failed) == std::vector{1});
    });
}

TEST_CASE("of several reasons to end an engine the first is told") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4), y(4);
        hvd::named_options o;
        if (comm.rank() == 1)
            o.then = [&](std::exception_ptr) {  // the engine's thread calls it, and hears both
                for (const char* const why : {"the data is gone", "and so is the network"})
                    e.fail(std::make_exception_ptr(std::runtime_error(why)));
            };
        auto first = e.allreduce("x", x, hvd::sum, o);
        const std::string text = text_of<hvd::peer_error>(
            [&] { e.allreduce("only on " + std::to_string(comm.rank()), y, hvd::sum).wait(); });
        CAPTURE(text);
        CHECK(text.find("rank 1 failed: the data is gone") != std::string::npos);
        CHECK(text.find("network") == std::string::npos);
        first.wait();
    });
}

TEST_CASE("ranks inside a unit name the rank that failed, and not one that heard of it") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        reduce_some(e, 8);
        const int last = comm.size() - 1;
        std::vector<float> x(10, 1);
        const auto failed = [&] { e.allreduce("good", x, hvd::sum).wait(); };
        comm.barrier();
        if (comm.rank() == 0) {  // it does not come to the unit, and hears first
            comm.barrier();
        } else {
            std::thread failing([&] {
                if (comm.rank() != last) return;
                std::this_thread::sleep_for(20ms);
                e.fail(std::make_exception_ptr(std::runtime_error("the data is gone")));
            });
            const std::vector<int> peers = peers_of(failed);
            if (comm.rank() != last) CHECK(peers == std::vector{last});
            failing.join();
            comm.barrier();
        }
        std::vector<int> peers;  // a rank that comes late may still end the unit well
        while (peers.empty() && comm.rank() != last) peers = peers_of(failed);
        if (comm.rank() != last) CHECK(peers == std::vector{last});
    });
}

TEST_CASE("memory that is too small for a result is told with the name of the tensor") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        const bool wrong = comm.rank() == 1;
        std::vector<float> x(4), room(std::size_t(4 * comm.size() - (wrong ? 1 : 0)));
        std::vector<float> slice(std::size_t(wrong ? 5 : 4 / comm.size()));
        const auto names = [&](auto call) {
            const std::string text =
                wrong ? text_of<hvd::usage_error>(call) : text_of<hvd::peer_error>(call);
            CAPTURE(text);
            CHECK(text.find("'rows'") != std::string::npos);
            CHECK(text.find("into() has room for") != std::string::npos);
        };
        names([&] { e.allgather("rows", x, hvd::into(room)).wait(); });
        names([&] { e.allgather("rows", hvd::fuse(x), hvd::into(hvd::fuse(room))).wait(); });
        if (4 % comm.size() == 0)
            names([&] { e.reduce_scatter("rows", x, hvd::sum, hvd::into(slice)).wait(); });
        reduce_some(e, 1);
    });
}

TEST_CASE("a group of several types is no group of bytes") {
    on_ranks_from(2, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4), y(4);
        std::vector<double> z(4);
        const auto differ = [&] {
            if (comm.rank() == 0) e.allreduce("group", hvd::fuse(x, z), hvd::sum).wait();
            else e.allreduce("group", hvd::fuse(x, y), hvd::sum).wait();
        };
        const std::string text = text_of<hvd::mismatch_error>(differ);
        CAPTURE(text);
        CHECK(text.find("rank 0: several types, rank 1: float32") != std::string::npos);
    });
}

TEST_CASE("options that differ between ranks are an error of all ranks") {
    on_ranks_from(2, [](auto& comm) {
        const auto make = [&] {
            const engine e{comm, {.fusion_threshold = comm.rank() == 1 ? 10u : 20u}};
        };
        const std::string text = text_of<hvd::mismatch_error>(make);
        CHECK(text.find("fusion_threshold") != std::string::npos);
        engine good{comm};
        reduce_some(good, 1);
    });
}

TEST_CASE("an engine's thread keeps to the processor of its communicator") {
    const std::vector<int> cpus(8, sched_getcpu());
    on_ranks_from(2, {.cpus = cpus}, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4, 1);
        std::atomic<int> processors{0};
        const auto count = [&](const std::exception_ptr&) {
            cpu_set_t set;
            sched_getaffinity(0, sizeof set, &set);
            processors = CPU_COUNT(&set);
        };
        auto pending = e.allreduce("x", x, hvd::sum, {.then = count});
        while (processors == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(processors == 1);
        pending.wait();
    });
}

TEST_CASE("a rank that leaves is named by those that wait for it") {
    on_ranks_from(2, [](auto& comm) {
        for (const bool predicts : {false, true}) {
            std::vector<float> x(4);
            {
                engine e{comm, {.prediction = predicts}};
                reduce_some(e, 6);
                if (comm.rank() != 0) {
                    const std::string text =
                        text_of<hvd::peer_error>([&] { e.allreduce("x", x, hvd::sum).wait(); });
                    CHECK(text.find("rank 0 has destroyed its engine") != std::string::npos);
                }
            }
            comm.barrier();
        }
    });
}

TEST_CASE("a request that an exception destroys before its tensor is complete ends the engine") {
    on_ranks_from(2, {.destructor_timeout = std::chrono::nanoseconds(200ms)}, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4);
        if (comm.rank() == 0) try {
                const auto dropped = e.allreduce("x", x, hvd::sum);
                throw 1;
            } catch (int) {
            }
        const auto next = [&] { e.allreduce("y", x, hvd::sum).wait(); };
        CHECK_THROWS_AS(next(), hvd::peer_error);
    });
}

TEST_CASE("a request that is dropped waits for its tensor, however late the others are") {
    on_ranks_from(2, {.destructor_timeout = std::chrono::nanoseconds(1ms)}, [](auto& comm) {
        engine e{comm};
        std::vector<float> x(4, 1);
        if (comm.rank() == 0) std::this_thread::sleep_for(100ms);
        (void)e.allreduce("x", x, hvd::sum);
        CHECK(x == std::vector<float>(4, float(comm.size())));
    });
}

}  // namespace errors_tests
