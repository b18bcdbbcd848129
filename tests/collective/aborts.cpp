// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support.hpp"

namespace aborts_tests {

// One rank gives a communicator up. The others learn from it, in the call in which they wait, who
// did and why. The communicator from which it was made goes on.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

constexpr const char* reason = "it called abort(): the loss is not a number";

template <class Comm>
void check_refused(Comm& doomed, int by) {
    CHECK(doomed.is_given_up());
    if (const auto e = thrown<hvd::peer_error>([&] { doomed.barrier(); })) {
        CHECK(contains(e->what(), "this communicator was given up"));
        CHECK(contains(e->what(), reason));
        CHECK(e->peers() == std::vector{by});
    }
}

// The last rank aborts by `abort(doomed)`, while the others wait by `wait(doomed)`.
template <class Abort, class Wait>
void check_abort(Abort abort, Wait wait, const hvd::communicator_options& options = {}) {
    on_every_transport_from(
        2,
        [&](auto& comm) {
            auto doomed = comm.duplicate();
            const int last = comm.size() - 1;
            CHECK(!doomed.is_given_up());
            doomed.barrier();
            if (comm.rank() == last) {
                abort(doomed);
            } else if (const auto e = thrown<hvd::peer_error>([&] { wait(doomed); })) {
                CHECK(contains(e->what(), "rank " + std::to_string(last) + " left ("));
                CHECK(contains(e->what(), reason));
                CHECK(e->peers() == std::vector{last});
            }
            check_refused(doomed, last);
            CHECK(!comm.is_given_up());
            check_that_it_works(comm);
        },
        options);
}

// A rank that has shown its part of a small tensor before it aborts does not keep the others from
// their result.
std::vector<float> large() { return std::vector<float>(std::size_t(1) << 20, 1); }

template <class Comm>
void sum(Comm& comm) {
    auto x = large();
    comm.allreduce(x, hvd::sum);
}

}  // namespace

TEST_CASE("a rank that aborts a communicator between calls is named to all, with its reason") {
    check_abort([](auto& doomed) { doomed.abort("the loss is not a number"); },
                [](auto& doomed) { sum(doomed); });
}

TEST_CASE("an asynchronous call under way ends when its rank aborts, and when another one does") {
    check_abort(
        [](auto& doomed) {
            auto x = large();
            auto first = doomed.allreduce_async(x, hvd::sum);
            auto second = doomed.barrier_async();
            doomed.abort("the loss is not a number");
            if (const auto e = thrown<hvd::peer_error>([&] { first.wait(); }))
                CHECK(contains(e->what(), reason));
            thrown<hvd::peer_error>([&] { second.wait(); });
        },
        [](auto& doomed) {
            std::this_thread::sleep_for(100ms);
            auto x = large();
            doomed.allreduce_async(x, hvd::sum).wait();
        });
}

TEST_CASE("another thread aborts a communicator while its thread is inside a call") {
    check_abort(
        [](auto& doomed) {
            std::jthread beside([&] {
                std::this_thread::sleep_for(100ms);
                doomed.abort("the loss is not a number");
            });
            if (const auto e = thrown<hvd::peer_error>([&] { sum(doomed); })) {
                CHECK(contains(e->what(), reason));
                CHECK(e->peers() == std::vector{doomed.rank()});
            }
        },
        [](auto& doomed) {
            std::this_thread::sleep_for(300ms);
            sum(doomed);
        });
}

TEST_CASE("a second abort, and one of a communicator that was given up, change nothing") {
    check_abort(
        [](auto& doomed) {
            doomed.abort("the loss is not a number");
            doomed.abort("another reason");
        },
        [](auto& doomed) {
            try {
                sum(doomed);
            } catch (...) {
                doomed.abort("another reason");
                throw;
            }
        });
}

TEST_CASE(
    "an abort does not wait for ever for a callable, and leaves the communicator to its call") {
    on_ranks_from(2, [](auto& comm) {
        if (comm.size() > 2) return;  // it takes some seconds
        auto doomed = comm.duplicate();
        std::atomic<bool> is_inside = false, may_return = false;
        std::jthread beside;
        if (comm.rank() == 1)
            beside = std::jthread([&] {
                is_inside.wait(false);
                doomed.abort("the loss is not a number");
                CHECK(!doomed.is_given_up());
                if (const auto e = thrown<hvd::usage_error>([&] { doomed.barrier(); }))
                    CHECK(contains(e->what(), "another thread is inside a call"));
                may_return = true;
                may_return.notify_all();
            });
        auto x = large();
        try {
            doomed.allreduce(x, [&](float a, float b) {
                if (comm.rank() == 1 && !is_inside.exchange(true)) {
                    is_inside.notify_all();
                    may_return.wait(false);
                }
                return a + b;
            });
        } catch (const hvd::peer_error& e) {
            CHECK(contains(e.what(), reason));
        }
        if (beside.joinable()) beside.join();
        check_that_it_works(comm);
    });
}

TEST_CASE("a rank alone aborts its communicator") {
    on_every_transport([](auto& comm) {
        auto own = comm.split(comm.rank());
        own.abort();
        CHECK(own.is_given_up());
        if (const auto e = thrown<hvd::peer_error>([&] { sum(own); }))
            CHECK(contains(e->what(), "it called abort()"));
        check_that_it_works(comm);
    });
}

TEST_CASE("abort is refused in a callable of a call, and on an empty communicator") {
    on_every_transport_from(2, [](auto& comm) {
        int x = comm.rank();
        thrown<hvd::error>([&] {
            comm.allreduce(x, [&](int a, int b) {
                comm.abort();
                return a + b;
            });
        });
        check_that_it_works(comm);
        std::remove_cvref_t<decltype(comm)> empty;
        CHECK(!empty.is_given_up());
        thrown<hvd::usage_error>([&] { empty.abort(); });
    });
}

}  // namespace aborts_tests
