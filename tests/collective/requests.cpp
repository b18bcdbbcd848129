// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support.hpp"

namespace requests_tests {

// Waits with a time, and waits for several calls.

using namespace hvd_test;
using namespace std::chrono_literals;

namespace {

using tensor = std::vector<int>;

// Begins one allreduce for each tensor, of rank r's elements r.
template <class Comm>
std::vector<hvd::request> sums_of(Comm& comm, std::vector<tensor>& tensors) {
    std::vector<hvd::request> pending;
    for (tensor& x : tensors) {
        x.assign(100, comm.rank());
        pending.push_back(comm.allreduce_async(x, hvd::sum));
    }
    return pending;
}

template <class Comm>
tensor sum_of_ranks(const Comm& comm) {
    return tensor(100, comm.size() * (comm.size() - 1) / 2);
}

}  // namespace

TEST_CASE("a wait with a time returns at its end, and the call goes on") {
    on_every_transport_from(2, [](auto& comm) {
        auto gate = comm.duplicate();
        tensor x(100, comm.rank());
        if (comm.rank() == comm.size() - 1) gate.barrier();
        auto pending = comm.allreduce_async(x, hvd::sum);
        if (comm.rank() != comm.size() - 1) {
            for (const auto time : {0ms, 30ms}) {
                CHECK(!pending.wait_for(time));
                CHECK(bool(pending));
            }
            gate.barrier();
        }
        CHECK(pending.wait_for(60s));
        CHECK(!pending);
        CHECK(pending.wait_for(0s));  // it is complete
        CHECK(x == sum_of_ranks(comm));
        CHECK(!comm.is_given_up());
        check_that_it_works(comm);
    });
}

TEST_CASE("a wait with a time throws what the call throws") {
    on_every_transport_from(2, [](auto& comm) {
        tensor x(std::size_t(10 + comm.rank()), 1);
        auto pending = comm.allreduce_async(x, hvd::sum);
        thrown<hvd::mismatch_error>([&] { pending.wait_for(60s); });
        CHECK(!pending);
        auto gathered = comm.allgather_async(
            x, {.timeout = comm.rank() == 0 ? hvd::time_limit(-1s) : hvd::time_limit()});
        if (comm.rank() != 0) thrown<hvd::peer_error>([&] { gathered.wait_for(60s); });
        else thrown<hvd::usage_error>([&] { gathered.wait_for(60s); });
        CHECK(!gathered);
        check_that_it_works(comm);
    });
}

TEST_CASE("a callback gets the end of its call, before the wait returns") {
    on_every_transport([](auto& comm) {
        for (int repeat = 0; repeat < 20; ++repeat) {
            tensor x(100, comm.rank());
            std::atomic<int> calls = 0;
            const auto count = [&](std::exception_ptr failure) { calls += failure ? 100 : 1; };
            auto pending = comm.allreduce_async(x, hvd::sum);
            pending.then(count);
            pending.wait();
            CHECK(calls == 1);
            CHECK(x == sum_of_ranks(comm));
            pending.then(count);  // it is complete
            CHECK(calls == 2);
            const int mine = comm.rank();
            auto all = comm.allgather_async(mine);
            comm.barrier();
            all.then(count);
            CHECK(calls == 3);
            CHECK(all.wait().values.size() == size_of(comm));
        }
    });
}

TEST_CASE("a callback gets the failure of its call, which no later call throws then") {
    on_every_transport_from(2, [](auto& comm) {
        tensor x(std::size_t(10 + comm.rank()), 1);
        std::string told;
        {
            auto pending = comm.allreduce_async(x, hvd::sum);
            pending.then([&](std::exception_ptr failure) {
                try {
                    if (failure) std::rethrow_exception(failure);
                } catch (const hvd::mismatch_error& e) {
                    told = e.what();
                }
            });
        }
        CHECK(contains(told, "ranks disagree on shape"));
        check_that_it_works(comm);
        auto pending = comm.allreduce_async(x, hvd::sum);
        pending.then([](const std::exception_ptr&) {});
        thrown<hvd::mismatch_error>([&] { pending.wait(); });
    });
}

TEST_CASE("a callback may drop its own request, also of a call that fails and of a plan") {
    on_every_transport_from(2, [](auto& comm) {
        auto gate = comm.duplicate();
        tensor x(std::size_t(10 + comm.rank()), 1), y(100, comm.rank());
        auto plan = comm.plan_allreduce(y, hvd::sum);
        // The callback of the last rank drops the request; the others come when it is there.
        const auto dropped_by_its_callback = [&](auto begin) {
            const bool is_last = comm.rank() == comm.size() - 1;
            if (!is_last) gate.barrier();
            std::optional<hvd::request> own(begin());
            std::atomic<bool> is_over = false;
            std::exception_ptr outcome;
            if (!is_last) return own->wait();
            own->then([&](const std::exception_ptr& failure) {
                own.reset();
                outcome = failure;
                is_over = true;
            });
            gate.barrier();
            while (!is_over) comm.progress();
            if (outcome) std::rethrow_exception(outcome);
        };
        thrown<hvd::mismatch_error>(
            [&] { dropped_by_its_callback([&] { return comm.allreduce_async(x, hvd::sum); }); });
        check_that_it_works(comm);
        dropped_by_its_callback([&] { return plan.run_async(); });
        CHECK(y == sum_of_ranks(comm));
        y.assign(100, comm.rank());
        plan.run();
        CHECK(y == sum_of_ranks(comm));
    });
}

TEST_CASE("a plan whose run is dropped inside another call runs again") {
    on_every_transport_from(2, [](auto& comm) {
        auto gate = comm.duplicate();
        const bool is_last = comm.rank() == comm.size() - 1;
        tensor x(10, 1), y(100, comm.rank());
        auto plan = comm.plan_allreduce(y, hvd::sum);
        if (is_last) {
            auto first = comm.allreduce_async(x, hvd::sum);
            std::optional<hvd::request> later(plan.run_async());
            first.then([&](const std::exception_ptr&) { later.reset(); });
            gate.barrier();
            first.wait();
        } else {
            gate.barrier();
            comm.allreduce(x, hvd::sum);
            const auto e = thrown<hvd::peer_error>([&] { plan.run(); });
            if (e) CHECK(contains(e->what(), "destroyed inside another call"));
        }
        for (int run = 0; run < 2; ++run) {
            y.assign(100, comm.rank());
            plan.run();
            CHECK(y == sum_of_ranks(comm));
        }
    });
}

TEST_CASE("a callback can't call its communicator, what it throws is told, and a call has one") {
    on_every_transport_from(2, [](auto& comm) {
        auto gate = comm.duplicate();
        const bool is_last = comm.rank() == comm.size() - 1;
        std::string refused;
        tensor x(100, comm.rank());
        if (is_last) gate.barrier();
        auto pending = comm.allreduce_async(x, hvd::sum);
        if (!is_last) {  // the last rank waits, so the call is not complete
            pending.then([&](const std::exception_ptr&) {
                try {
                    comm.barrier();
                } catch (const hvd::usage_error& e) {
                    refused = e.what();
                    throw;
                }
            });
            thrown<hvd::usage_error>([&] { pending.then([](const std::exception_ptr&) {}); });
            gate.barrier();
        }
        pending.wait();
        CHECK(x == sum_of_ranks(comm));
        CHECK(refused.empty() == is_last);
        check_that_it_works(comm);
    });
}

TEST_CASE("a result is there until it is taken, also if its call is complete") {
    on_every_transport([](auto& comm) {
        const int mine = comm.rank();
        auto pending = comm.allgather_async(mine);
        CHECK(bool(pending));
        CHECK(pending.wait_for(60s));
        CHECK(bool(pending));
        CHECK(pending.test());
        CHECK(bool(pending));
        const auto all = pending.wait();
        CHECK(!pending);
        CHECK(all.values.size() == size_of(comm));
    });
}

TEST_CASE("all requests of a range, or of a list of arguments, are waited for") {
    on_every_transport([](auto& comm) {
        std::vector<tensor> x(5);
        auto pending = sums_of(comm, x);
        hvd::wait_all(pending);
        for (const auto& call : pending) CHECK(!call);
        for (const tensor& t : x) CHECK(t == sum_of_ranks(comm));
        hvd::wait_all(pending);  // nothing is left to wait for

        auto again = sums_of(comm, x);
        hvd::wait_all(std::span(again).first(2));
        CHECK((!again[0] && !again[1] && again[4]));
        hvd::wait_all(again[2], again[3], std::move(again[4]));
        for (const auto& call : again) CHECK(!call);
        for (const tensor& t : x) CHECK(t == sum_of_ranks(comm));
        hvd::wait_all(std::vector<hvd::request>());
    });
}

TEST_CASE("the first of several failures is thrown when all calls have been waited for") {
    on_every_transport_from(2, [](auto& comm) {
        const auto wrong = std::size_t(10 + comm.rank());
        std::vector<tensor> x = {tensor(10, 1), tensor(wrong), tensor(10, 1), tensor(wrong),
                                 tensor(10, 1)};
        const char* const names[] = {"a", "b", "c", "d", "e"};
        std::vector<hvd::request> pending;
        const auto begin = [&] {
            for (std::size_t i = 0; i < x.size(); ++i)
                pending.push_back(comm.allreduce_async(x[i], hvd::sum, {.name = names[i]}));
        };
        begin();
        if (const auto e = thrown<hvd::mismatch_error>([&] { hvd::wait_all(pending); }))
            CHECK(contains(e->what(), "'b'"));
        for (const auto& call : pending) CHECK(!call);
        for (const std::size_t i : {0, 2, 4}) CHECK(x[i] == tensor(10, comm.size()));

        pending.clear();
        begin();
        std::string failed;
        for (bool all = false; !all;) try {
                all = hvd::test_all(pending);
            } catch (const hvd::mismatch_error& e) {
                failed += contains(e.what(), "'b'") ? 'b' : contains(e.what(), "'d'") ? 'd' : '?';
            }
        // One look may find both, and a look that is too early for the first may find the second.
        CHECK((failed == "bd" || failed == "b" || failed == "db"));
        for (const auto& call : pending) CHECK(!call);
        check_that_it_works(comm);
    });
}

TEST_CASE("the request that is complete first is found, whichever communicator it is of") {
    on_every_transport_from(2, [](auto& comm) {
        auto slow = comm.duplicate(), gate = comm.duplicate();
        const bool is_late = comm.rank() == 0;
        tensor a(100, comm.rank()), b = a;
        std::array<hvd::request, 3> pending;
        if (!is_late) pending[0] = slow.allreduce_async(a, hvd::sum);
        pending[2] = comm.allreduce_async(b, hvd::sum);
        CHECK(hvd::wait_any(pending) == 2);  // number 1 is empty
        CHECK(b == sum_of_ranks(comm));
        gate.barrier();
        if (is_late) pending[0] = slow.allreduce_async(a, hvd::sum);
        CHECK(hvd::test_all(std::span(pending).first(0)));
        CHECK(hvd::wait_any(pending) == 0);
        CHECK(a == sum_of_ranks(comm));
        if (const auto e = thrown<hvd::usage_error>([&] { hvd::wait_any(pending); }))
            CHECK(contains(e->what(), "none of 3 requests is under way"));
        CHECK(hvd::test_all(pending));
    });
}

TEST_CASE("a call that fails is found as others are, and is not found again") {
    on_every_transport_from(2, [](auto& comm) {
        tensor a(std::size_t(10 + comm.rank())), b(10, 1);
        std::vector<hvd::request> pending;
        pending.push_back(comm.allreduce_async(a, hvd::sum));
        pending.push_back(comm.allreduce_async(b, hvd::sum));
        thrown<hvd::mismatch_error>([&] { hvd::wait_any(pending); });
        CHECK(!pending[0]);
        CHECK(hvd::wait_any(pending) == 1);
        CHECK(b == tensor(10, comm.size()));
    });
}

}  // namespace requests_tests
