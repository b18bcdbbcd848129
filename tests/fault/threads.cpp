// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hvd/threads.hpp>

// Ranks on threads fail. The others get an error that names the rank, and nobody hangs (the
// watchdog of the main ends a hang).

namespace fault_threads_tests {

namespace {

using namespace std::chrono_literals;
using communicator = hvd::communicator<hvd::threads>;

struct own_exception {
    int code;
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

bool fails(const communicator& comm) { return comm.rank() == comm.size() - 1; }

void work(communicator& comm, int steps) {
    for (int i = 0; i < steps; ++i) {
        std::vector<float> x(1000, 1);
        comm.allreduce(x, hvd::sum);
    }
}

// Runs `failing` on the last rank after some steps. It returns the number of other ranks that get a
// peer_error with its name and `reason`.
template <class F>
int peer_errors(int ranks, const std::string& reason, F failing) {
    std::atomic<int> count{0};
    hvd::run_threads(ranks, [&](communicator& comm) {
        work(comm, 5);
        if (fails(comm)) return failing(comm);
        try {
            work(comm, 1000000);
        } catch (const hvd::peer_error& e) {
            if (e.peers() == std::vector<int>{comm.size() - 1} && contains(e.what(), reason))
                ++count;
            try {
                comm.barrier();
                FAIL_CHECK("threw nothing");
            } catch (const hvd::peer_error& later) {
                CHECK(later.peers() == e.peers());
            }
        }
    });
    return count;
}

const std::vector<int> rank_counts = {2, 3, 4, 7};

}  // namespace

TEST_CASE("a rank that throws: its exception comes out with its rank, the others get its reason") {
    for (const int ranks : rank_counts) {
        std::atomic<int> named{0};
        try {
            hvd::run_threads(ranks, [&](communicator& comm) {
                work(comm, 5);
                if (fails(comm)) throw std::runtime_error("the disk is full");
                try {
                    work(comm, 1000000);
                } catch (const hvd::peer_error& e) {
                    if (contains(e.what(), "the disk is full") &&
                        e.peers() == std::vector<int>{ranks - 1})
                        ++named;
                    throw;
                }
            });
            FAIL_CHECK("nothing was thrown");
        } catch (const std::runtime_error& e) {
            CHECK(e.what() == "rank " + std::to_string(ranks - 1) + ": the disk is full");
        }
        CHECK(named == ranks - 1);
    }
}

TEST_CASE("the first exception comes out as what it is") {
    CHECK_THROWS_AS(hvd::run_threads(3,
                                     [](communicator& comm) {
                                         if (comm.rank() == 1) throw own_exception{7};
                                         comm.barrier();
                                     }),
                    own_exception);
    CHECK_THROWS_AS(hvd::run_threads(3,
                                     [](communicator& comm) {
                                         if (comm.rank() == 1) throw std::out_of_range("x");
                                         comm.barrier();
                                     }),
                    std::out_of_range);
    CHECK_THROWS_AS(hvd::run_threads(2,
                                     [](communicator& comm) {
                                         int x = 0;
                                         comm.broadcast(x, hvd::root{5});
                                     }),
                    hvd::usage_error);
}

TEST_CASE("a rank that returns early is named by all that need it") {
    for (const int ranks : rank_counts)
        CHECK(peer_errors(ranks, "left", [](communicator&) {}) == ranks - 1);
}

TEST_CASE("a rank that drops its communicator is named by all that need it") {
    for (const int ranks : rank_counts)
        CHECK(peer_errors(ranks, "destroyed", [](communicator& comm) { comm = communicator(); }) ==
              ranks - 1);
}

TEST_CASE("a rank that is gone ends the calls of communicators that were split off, too") {
    std::atomic<int> errors{0};
    hvd::run_threads(4, [&](communicator& comm) {
        auto half = comm.split(comm.rank() % 2);
        if (fails(comm)) return;
        try {
            half.barrier();
            half.barrier();
        } catch (const hvd::peer_error&) {
            ++errors;
        }
    });
    CHECK(errors == 1);  // rank 1, since the last rank was in its half
}

TEST_CASE("a rank that is gone ends the making of communicators of a node's ranks, too") {
    for (const bool of_node : {true, false}) {
        std::atomic<int> errors{0};
        hvd::run_threads(3, [&](communicator& comm) {
            if (fails(comm)) return;
            try {
                auto part = of_node ? comm.local() : comm.cross();
                part.barrier();
            } catch (const hvd::peer_error&) {
                ++errors;
            }
        });
        CHECK(errors == 2);
    }
}

TEST_CASE("a rank beyond the timeout is named, and afterwards calls are refused") {
    const auto late = [](const hvd::communicator_options& of_communicator,
                         const hvd::options& of_call) {
        std::atomic<int> named{0}, refused{0};
        hvd::run_threads(
            3,
            [&](communicator& comm) {
                comm.barrier();
                if (comm.rank() == 1) std::this_thread::sleep_for(1s);
                try {
                    comm.barrier(of_call);
                    comm.barrier(of_call);
                } catch (const hvd::peer_error& e) {
                    if (comm.rank() != 1 && e.peers() == std::vector<int>{1} &&
                        contains(e.what(), "barrier 'epoch'"))
                        ++named;
                }
                try {
                    comm.barrier();
                } catch (const hvd::peer_error&) {
                    ++refused;
                }
            },
            of_communicator);
        CHECK(named == 2);
        CHECK(refused == 3);
    };
    late({.timeout = 300ms}, {.name = "epoch"});
    late({}, {.name = "epoch", .timeout = 300ms});
}

TEST_CASE("a request that is dropped waits for its peers no longer than a destructor may") {
    for (const int ranks : rank_counts) {
        std::atomic<int> dropped{0}, refused{0};
        const auto run = [&](communicator& comm) {
            std::vector<float> x(1000, 1);
            comm.allreduce(x, hvd::sum);
            if (!fails(comm)) try {
                    const auto request = comm.allreduce_async(x, hvd::sum);
                    throw 1;
                } catch (int) {
                }
            ++dropped;
            while (dropped < comm.size()) std::this_thread::sleep_for(1ms);
            try {
                if (fails(comm)) comm.allreduce(x, hvd::sum);
                comm.barrier();
            } catch (const hvd::peer_error&) {
                ++refused;
            }
        };
        hvd::run_threads(ranks, run, {.destructor_timeout = 100ms});
        CHECK(refused == ranks);
    }
}

TEST_CASE("ranks that come just when the others give up have come") {
    using namespace hvd::detail;
    const auto memory = shared_memory::of_this_process(shm_region::bytes(2, 4096));
    const shm_region region(memory.data(), 2, 4096, segments::of_this_process());
    region.construct();
    shm_transport first(region, 0), second(region, 1);
    first.exchange_headers(call_header{});
    CHECK(!first.ready());
    second.exchange_headers(call_header{});
    first.fail(verdict::expired);  // a moment too late to name any rank
    CHECK(!first.lost);
    CHECK(first.ready());
}

TEST_CASE("when a call has given up, no other rank writes to its tensor any more") {
    for (const int ranks : rank_counts) {
        CAPTURE(ranks);
        std::atomic<bool> over{false};
        hvd::run_threads(ranks, [&](communicator& comm) {
            std::vector<float> x(100000, 1);
            bool is_first = fails(comm);
            const auto slow_sum = [&](float a, float b) {
                if (std::exchange(is_first, false)) std::this_thread::sleep_for(300ms);
                return a + b;
            };
            if (fails(comm)) {
                CHECK_THROWS_AS(comm.allreduce(x, slow_sum), hvd::peer_error);
                over = true;
                return;
            }
            CHECK_THROWS_AS(comm.allreduce(x, slow_sum, {.timeout = 50ms}), hvd::peer_error);
            x.assign(x.size(), -1);
            while (!over) std::this_thread::yield();
            CHECK(x == std::vector<float>(x.size(), -1));
        });
    }
}

namespace {

// On one rank every allocation larger than a text fails.
thread_local bool memory_is_scarce = false;

}  // namespace
}  // namespace fault_threads_tests

void* operator new(std::size_t bytes) {
    if (fault_threads_tests::memory_is_scarce && bytes > 10000) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fault_threads_tests {
namespace {

auto every_other(std::vector<float>& x) {
    return hvd::view(x.data(), hvd::shape(x.size() / 2), hvd::strides(2));
}

// If the last rank finds no memory for a call, no rank waits for another, and all can go on.
template <class Make>
void expect_no_memory(Make make) {
    for (const int ranks : rank_counts) {
        CAPTURE(ranks);
        hvd::run_threads(ranks, [&](communicator& comm) {
            auto call = make(comm);
            if (fails(comm)) {
                memory_is_scarce = true;
                CHECK_THROWS_AS(call(), std::bad_alloc);
                memory_is_scarce = false;
            } else {
                CHECK_THROWS_AS(call(), hvd::peer_error);
            }
            comm.barrier();
        });
    }
}

}  // namespace

TEST_CASE("a rank without memory for a buffer refuses the call") {
    std::vector<float> shared(10000, 1);
    expect_no_memory([&](communicator& comm) {
        return [&, x = shared]() mutable { comm.allreduce(every_other(x), hvd::sum); };
    });
    expect_no_memory([&](communicator& comm) {
        return [&, x = shared]() mutable {
            auto never_made = comm.plan_broadcast(hvd::fuse(every_other(x), x));
        };
    });
    expect_no_memory([&](communicator& comm) {
        return [&, x = shared]() mutable {
            auto never_made =
                comm.plan_allreduce(hvd::fuse(x), hvd::average, {},
                                    hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>));
        };
    });
    shared.resize(100000);  // large enough for 7 ranks
    expect_no_memory(
        [&](communicator& comm) { return [&, x = shared] { comm.reduce_scatter(x, hvd::sum); }; });
    expect_no_memory([&](communicator& comm) {
        return [&, x = shared] { comm.reduce_scatter_async(x, hvd::sum).wait(); };
    });
    expect_no_memory([&](communicator& comm) {
        return [&, x = shared] { comm.reduce_scatter(hvd::fuse(x), hvd::sum); };
    });
    expect_no_memory(
        [&](communicator& comm) { return [&, x = shared] { comm.allgather(hvd::fuse(x)); }; });
}

TEST_CASE("a rank without memory for an object refuses to take it") {
    const std::string text(50000, 'x');
    expect_no_memory([&](communicator& comm) {
        return [&, object = comm.rank() == 0 ? text : std::string()]() mutable {
            comm.broadcast_object(object);
        };
    });
}

TEST_CASE("a rank without memory for a part of a call refuses the call before data moves") {
    expect_no_memory([&](communicator& comm) {
        return [&, x = std::vector<float>(20000 * std::size_t(comm.size()), 1)]() mutable {
            comm.reduce(x, hvd::sum);
        };
    });
    expect_no_memory([&](communicator& comm) {
        std::vector<float> x(20000 * std::size_t(comm.size()), 1), part(10000);
        // The dense call has the same size. So the only memory that is missing then is the copy of
        // the strided tensor.
        comm.reduce_scatter(hvd::fuse(hvd::view(x.data(), x.size() / 2)), hvd::sum,
                            hvd::into(hvd::fuse(part)));
        return [&, x, part]() mutable {
            comm.reduce_scatter(hvd::fuse(every_other(x)), hvd::sum, hvd::into(hvd::fuse(part)));
        };
    });
}

TEST_CASE("asynchronous calls end with an error when a rank is gone") {
    std::atomic<int> errors{0};
    hvd::run_threads(3, [&](communicator& comm) {
        if (fails(comm)) return;
        std::vector<float> x(100), y(100);
        const auto counts_error = [&](auto&& call) {
            try {
                call();
            } catch (const hvd::peer_error&) {
                ++errors;
            }
        };
        hvd::request first, second;
        counts_error([&] { first = comm.allreduce_async(x, hvd::sum); });
        // The first may have ended by now, and the communicator with it.
        counts_error([&] { second = comm.allreduce_async(y, hvd::sum); });
        for (hvd::request* pending : {&first, &second})
            if (*pending) counts_error([&] { pending->wait(); });
    });
    CHECK(errors == 4);
}

TEST_CASE("a forked child gets usage_error, its parent goes on") {
    hvd::run_threads(1, [](communicator& comm) {
        work(comm, 1);
        if (const pid_t child = fork(); child == 0) {
            int status = 1;
            try {
                work(comm, 1);
            } catch (const hvd::usage_error& e) {
                status = contains(e.what(), "fork") ? 0 : 2;
            }
            _exit(status);
        } else {
            int status = -1;
            waitpid(child, &status, 0);
            CHECK(status == 0);
        }
        work(comm, 1);
    });
}

TEST_CASE("a forked child waits for no call of its parent and ends its communicators") {
    hvd::run_threads(2, [](communicator& comm) {
        if (comm.rank() == 1) {
            std::this_thread::sleep_for(500ms);  // the child is forked while rank 0 waits
            return comm.barrier();
        }
        auto alone = communicator::self();
        alone.barrier_async().wait();  // its progress thread waits for work
        auto pending = comm.barrier_async();
        std::this_thread::sleep_for(50ms);
        if (const pid_t child = fork(); child == 0) {
            alarm(10);
            int status = 0;
            try {
                pending.test();
                status = 1;
            } catch (const hvd::usage_error&) {
            }
            try {
                pending.wait();
                status = 2;
            } catch (const hvd::usage_error&) {
            }
            pending = hvd::request();
            comm = communicator();
            alone = communicator();
            _exit(status);
        } else {
            int status = -1;
            waitpid(child, &status, 0);
            CHECK(status == 0);
        }
        pending.wait();
    });
}

TEST_CASE("no ranks are refused") {
    CHECK_THROWS_AS(hvd::run_threads(0, [](communicator&) {}), hvd::usage_error);
    CHECK_THROWS_AS(hvd::run_threads(-3, [](communicator&) {}), hvd::usage_error);
}

}  // namespace fault_threads_tests
