// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <atomic>
#include <chrono>
#include <coroutine>
#include <memory>
#include <stdexcept>
#include <thread>

#include "detached.hpp"
#include "reference.hpp"
#include "support.hpp"

namespace asynchronous_tests {

using namespace hvd_test;

namespace {

struct trace {
    bool done = false;
    std::thread::id thread;
};

// A coroutine whose frame dies with this object. Its exceptions are thrown by the call that resumes
// it.
struct owned {
    struct promise_type {
        owned get_return_object() {
            return owned(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    explicit owned(std::coroutine_handle<promise_type> frame) : handle(frame) {}
    owned(const owned&) = delete;
    ~owned() { handle.destroy(); }
    std::coroutine_handle<promise_type> handle;
};

template <class Comm>
owned sum_once(Comm& comm, std::vector<int>& x, trace& end) {
    co_await comm.allreduce_async(x, hvd::sum);
    end = {true, std::this_thread::get_id()};
}

owned wait_for(hvd::request& pending, trace& end) {
    co_await pending;
    end = {true, std::this_thread::get_id()};
}

owned throw_after(hvd::request& pending) {
    co_await pending;
    throw std::runtime_error("no more data");
}

template <class T>
owned take(hvd::result<T>& pending, std::string& error) {
    try {
        co_await pending;
    } catch (const hvd::mismatch_error& e) {
        error = e.field();
    }
}

// Delays the other ranks, so that a call begun by rank 0 is not complete at once.
template <class Comm>
void come_late_unless_first(const Comm& comm) {
    if (comm.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

template <class Comm>
detached sum_twice(Comm& comm, std::vector<int>& x, trace& end) {
    co_await comm.allreduce_async(x, hvd::sum);
    co_await comm.allreduce_async(x, hvd::sum);
    end = {true, std::this_thread::get_id()};
}

template <class Comm>
detached gather_ranks(Comm& comm, const int& mine, hvd::gathered<int>& all, trace& end) {
    all = co_await comm.allgather_async(mine);
    end = {true, std::this_thread::get_id()};
}

// A coroutine that continues in the communicator's destructor makes another call.
template <class Comm>
detached call_again(Comm& comm, std::vector<int>& x, const bool& dying, bool& refused, trace& end) {
    co_await comm.allreduce_async(x, hvd::max);
    try {
        if (dying) co_await comm.allreduce_async(x, hvd::max);
    } catch (const hvd::peer_error&) {
        refused = true;
    }
    end = {true, std::this_thread::get_id()};
}

template <class Comm>
detached disagree(Comm& comm, std::vector<int>& x, std::string& error, trace& end) {
    try {
        co_await comm.allreduce_async(x, hvd::sum);
    } catch (const hvd::mismatch_error& e) {
        error = e.field();
    }
    end = {true, std::this_thread::get_id()};
}

// Its first message cannot be sent. Afterwards it is cancelled and not used.
struct broken_endpoint {
    int rank() const { return 0; }
    int size() const { return 2; }
    void send(int, const std::byte*, std::size_t) {
        CHECK(!cancelled);
        throw hvd::error(0, "the wire is cut");
    }
    void recv(int, std::byte*, std::size_t) {}
    bool poll() { return false; }
    bool pending(int) const { return true; }
    void cancel() noexcept { cancelled = true; }
    bool cancelled = false;
};
struct broken {
    using endpoint_type = broken_endpoint;
};

}  // namespace

TEST_CASE("calls in flight are waited for in any order") {
    on_every_transport([](auto& comm) {
        constexpr std::size_t calls = 8;
        std::vector<std::vector<int>> x(calls);
        std::vector<hvd::request> pending;
        for (std::size_t i = 0; i < calls; ++i) {
            x[i].assign(i % 2 == 0 ? 10 + i : 100000 + i, int(i) + comm.rank());
            pending.push_back(comm.allreduce_async(x[i], hvd::sum));
        }
        for (const std::size_t i : {5, 0, 7, 1, 6, 2, 4, 3}) {
            CHECK(bool(pending[i]));
            pending[i].wait();
            CHECK(!pending[i]);
            const int expected = comm.size() * int(i) + comm.size() * (comm.size() - 1) / 2;
            CHECK(std::count(x[i].begin(), x[i].end(), expected) == std::ssize(x[i]));
        }
    });
}

TEST_CASE("a request that nobody waits for is complete after its destructor") {
    on_every_transport([](auto& comm) {
        std::vector<float> x(50000, 1);
        {
            const auto pending = comm.allreduce_async(x, hvd::sum);
        }
        CHECK(x == std::vector<float>(50000, float(comm.size())));
    });
}

TEST_CASE("test() says when it is done, without waiting") {
    on_every_transport([](auto& comm) {
        std::vector<float> x(100003, 1);
        auto pending = comm.allreduce_async(x, hvd::sum);
        while (!pending.test()) std::this_thread::yield();
        CHECK(x == std::vector<float>(100003, float(comm.size())));
        CHECK(pending.test());
        pending.wait();
    });
}

TEST_CASE("test() on a later call completes the earlier ones on the way") {
    on_every_transport([](auto& comm) {
        std::vector<int> first(1000, 1), second(10, 2);
        auto one = comm.allreduce_async(first, hvd::sum);
        auto two = comm.allreduce_async(second, hvd::sum);
        while (!two.test()) std::this_thread::yield();
        CHECK(first.front() == comm.size());
        CHECK(second.front() == 2 * comm.size());
        one.wait();
    });
}

TEST_CASE("progress() alone completes calls that nobody waits for, in their order") {
    on_every_transport([](auto& comm) {
        std::vector<std::vector<int>> x(4);
        std::vector<hvd::request> pending;
        std::vector<std::size_t> order;
        std::atomic<std::size_t> complete{0};
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i].assign(i % 2 == 0 ? 100003 : 10, 1);
            pending.push_back(comm.allreduce_async(x[i], hvd::sum));
            pending.back().then([&, i](const std::exception_ptr& failure) {
                CHECK(!failure);
                order.push_back(i);
                ++complete;
            });
        }
        while (complete < x.size()) {
            comm.progress();
            std::this_thread::yield();
        }
        CHECK(order == std::vector<std::size_t>{0, 1, 2, 3});
        for (std::size_t i = 0; i < x.size(); ++i) {
            CHECK(x[i] == std::vector<int>(x[i].size(), comm.size()));
            CHECK(pending[i].test());
        }
        comm.progress();  // there is nothing to do
        check_that_it_works(comm);
    });
}

TEST_CASE("the submission of a call drives those that were made before it") {
    on_every_transport([](auto& comm) {
        auto gate = comm.duplicate();
        std::vector<int> x(100003, 1);
        std::atomic<bool> is_over{false};
        hvd::request early = comm.allreduce_async(x, hvd::sum);
        early.then([&](const std::exception_ptr&) { is_over = true; });
        std::vector<hvd::request> later;
        for (int all = 0; all == 0; later.push_back(comm.barrier_async())) {
            all = is_over ? 1 : 0;
            gate.allreduce(all, hvd::min);
        }
        CHECK(x == std::vector<int>(100003, comm.size()));
        hvd::wait_all(later);
        check_that_it_works(comm);
    });
}

#if !defined(HVD_TEST_QUEUES)  // which tell nobody of a rank that gives up
TEST_CASE("a rank that gives up ends a call that progress() drives, and the wait tells it") {
    on_every_transport_from(2, [](auto& comm) {
        auto doomed = comm.duplicate();
        if (comm.rank() == 0) {
            std::vector<int> x(100, 1);
            hvd::request pending = doomed.allreduce_async(x, hvd::sum);
            comm.barrier();
            while (!doomed.is_given_up()) {
                doomed.progress();
                std::this_thread::yield();
            }
            const auto e = thrown<hvd::peer_error>([&] { pending.wait(); });
            if (e) CHECK(contains(e->what(), "it called abort(): no data"));
            doomed.progress();
        } else {
            comm.barrier();
            if (comm.rank() == comm.size() - 1) doomed.abort("no data");
        }
        comm.barrier();
    });
}
#endif

TEST_CASE("progress() is refused inside a call where it would do something") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(3, 1);
        int refusals = 0;
        comm.allreduce(x, [&](int a, int b) {
            try {
                comm.progress();
            } catch (const hvd::usage_error& e) {
                CHECK(contains(e.what(), "progress"));
                ++refusals;
            }
            return a + b;
        });
        CHECK((refusals == 0 || refusals == 3 * (comm.size() - 1)));
        check_that_it_works(comm);
    });
}

#if defined(HVD_TEST_QUEUES)
TEST_CASE("the time of a call that only progress() drives counts from the wait for it") {
    using namespace std::chrono_literals;
    run_queues(2, [](auto& comm) {
        auto gate = comm.duplicate();
        std::vector<int> x(10, 1);
        if (comm.rank() == 1) gate.barrier();
        auto pending = comm.allreduce_async(x, hvd::sum, {.timeout = 1s});
        if (comm.rank() == 0) {
            const auto end = std::chrono::steady_clock::now() + 1200ms;
            while (std::chrono::steady_clock::now() < end) comm.progress();
            gate.barrier();
        }
        pending.wait();
        CHECK(x == std::vector<int>(10, 2));
    });
}
#endif

TEST_CASE("a blocking call waits for the asynchronous ones before it") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(100003, 1);
        auto pending = comm.allreduce_async(x, hvd::sum);
        comm.allreduce(x, hvd::sum);
        CHECK(std::count(x.begin(), x.end(), comm.size() * comm.size()) == std::ssize(x));
        pending.wait();
    });
}

TEST_CASE("calls on one tensor run in the order in which they were made") {
    on_every_transport([](auto& comm) {
        std::int64_t x = comm.rank() + 1;
        auto sum = comm.allreduce_async(x, hvd::sum);
        auto most = comm.allreduce_async(x, hvd::product);
        auto sent = comm.broadcast_async(x, hvd::root{comm.size() - 1});
        sent.wait();
        most.wait();
        sum.wait();
        std::int64_t expected = 1;
        for (int r = 0; r < comm.size(); ++r) expected *= comm.size() * (comm.size() + 1) / 2;
        CHECK(x == expected);
    });
}

TEST_CASE("every collective has an asynchronous form, out of place and in place") {
    on_every_transport([](auto& comm) {
        const int n = comm.size(), sum = n * (n + 1) / 2, last = n - 1;
        const std::vector<int> mine(5, comm.rank() + 1);
        std::vector<int> reduced(5), in_place = mine, at_root = mine, to_root(5), sent(5),
                                     here = mine, all(5 * size_of(comm)),
                                     at_last(comm.rank() == last ? 5 * size_of(comm) : 0);
        const part share(5, comm.rank(), n);
        std::vector<int> scattered_into(share.count);
        std::vector<int> counts(size_of(comm), 0), twos(size_of(comm), 2),
            equal(2 * size_of(comm), comm.rank()), equal_into(equal.size()),
            by_counts_into(equal.size()), first_into(comm.rank() == 0 ? 5 : 0),
            share_into(share.count);
        counts.front() = 5;

        std::vector<hvd::request> pending;
        pending.push_back(comm.allreduce_async(mine, reduced, hvd::sum));
        pending.push_back(comm.allreduce_async(in_place, hvd::sum));
        pending.push_back(comm.reduce_async(at_root, hvd::sum, hvd::root{last}));
        pending.push_back(comm.reduce_async(mine, hvd::into(to_root), hvd::sum, hvd::root{last}));
        pending.push_back(comm.broadcast_async(here, hvd::root{last}));
        pending.push_back(comm.broadcast_async(mine, hvd::into(sent), hvd::root{last}));
        pending.push_back(comm.allgather_async(mine, hvd::into(all)));
        pending.push_back(comm.gather_async(mine, hvd::into(at_last), hvd::root{last}));
        pending.push_back(comm.reduce_scatter_async(mine, hvd::sum, hvd::into(scattered_into)));
        pending.push_back(comm.alltoall_async(equal, hvd::into(equal_into)));
        pending.push_back(comm.alltoall_async(equal, twos, hvd::into(by_counts_into)));
        pending.push_back(comm.scatter_async(mine, hvd::into(share_into), hvd::root{last}));
        pending.push_back(comm.scatter_async(mine, counts, hvd::into(first_into), hvd::root{last}));
        pending.push_back(comm.barrier_async());
        auto gathered = comm.allgather_async(mine);
        auto gathered_at_last = comm.gather_async(mine, hvd::root{last});
        auto part_of_sum = comm.reduce_scatter_async(mine, hvd::sum);
        auto part_of_last = comm.scatter_async(mine, hvd::root{last});
        auto first_of_last = comm.scatter_async(mine, counts, hvd::root{last});
        auto to_first = comm.alltoall_async(mine, counts);
        counts.assign(counts.size(), 0);  // they were copied
        auto empty = comm.alltoall_async(hvd::view(mine.data(), std::size_t(0)));

        CHECK(empty.wait().values.empty());
        CHECK(to_first.wait().values.size() == (comm.rank() == 0 ? 5 * size_of(comm) : 0));
        CHECK(first_of_last.wait() == std::vector<int>(comm.rank() == 0 ? 5 : 0, n));
        CHECK(part_of_last.wait() == std::vector<int>(share.count, n));
        CHECK(part_of_sum.wait() == std::vector<int>(share.count, sum));
        CHECK(gathered_at_last.wait().values.size() == at_last.size());
        const auto everybody = gathered.wait();
        for (auto& request : pending) request.wait();
        CHECK(reduced == std::vector<int>(5, sum));
        CHECK(in_place == reduced);
        CHECK(at_root == (comm.rank() == last ? reduced : mine));
        if (comm.rank() == last) CHECK(to_root == reduced);
        CHECK(here == std::vector<int>(5, n));
        CHECK(sent == here);
        CHECK(everybody.values == all);
        CHECK(all.back() == n);
        CHECK(all.front() == 1);
        if (comm.rank() == last) CHECK(at_last == all);
        CHECK(scattered_into == std::vector<int>(share.count, sum));
        for (std::size_t i = 0; i < equal.size(); ++i) CHECK(equal_into[i] == int(i / 2));
        CHECK(by_counts_into == equal_into);
        CHECK(share_into == std::vector<int>(share.count, n));
        CHECK(first_into == std::vector<int>(first_into.size(), n));
    });
}

TEST_CASE("a result is taken once") {
    on_every_transport([](auto& comm) {
        const int mine = comm.rank();
        auto pending = comm.allgather_async(mine);
        CHECK(bool(pending));
        while (!pending.test()) std::this_thread::yield();
        CHECK(pending.wait().values.size() == size_of(comm));
        CHECK(!pending);
        thrown<hvd::usage_error>([&] { pending.wait(); });
    });
}

TEST_CASE("handles move, and a moved-from one is empty and complete") {
    on_every_transport([](auto& comm) {
        int x = 1, y = 1;
        hvd::request a = comm.allreduce_async(x, hvd::sum);
        hvd::request b = std::move(a);
        CHECK(!a);
        CHECK(a.test());
        a.wait();
        a = comm.allreduce_async(y, hvd::sum);
        b = std::move(a);  // the call that b stood for is complete first
        CHECK(x == comm.size());
        b.wait();
        CHECK(y == comm.size());
    });
}

TEST_CASE("a communicator may be moved while calls are in flight") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(1000, 1);
        auto pending = comm.allreduce_async(x, hvd::sum);
        auto moved = std::move(comm);
        CHECK(!comm);
        pending.wait();
        CHECK(x == std::vector<int>(1000, moved.size()));
        check_that_it_works(moved);
        comm = std::move(moved);
        check_that_it_works(comm);
    });
}

TEST_CASE("a communicator that dies completes its calls, and their requests say so") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(1000, 1);
        const int n = comm.size();
        hvd::request pending;
        {
            const auto mortal = std::move(comm);
            pending = const_cast<std::remove_const_t<decltype(mortal)>&>(mortal).allreduce_async(
                x, hvd::sum);
        }
        pending.wait();
        CHECK(x == std::vector<int>(1000, n));
    });
}

TEST_CASE("coroutines go on on the thread that runs the communicator") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(1000, 1);
        trace end;
        sum_twice(comm, x, end);
        while (!end.done) comm.run_ready();
        CHECK(end.thread == std::this_thread::get_id());
        CHECK(x == std::vector<int>(1000, comm.size() * comm.size()));
    });
}

TEST_CASE("a wait on the communicator resumes coroutines whose calls are complete") {
    on_every_transport([](auto& comm) {
        hvd::gathered<int> all;
        trace end;
        const int mine = comm.rank();
        gather_ranks(comm, mine, all, end);
        auto later = comm.barrier_async();
        later.wait();
        CHECK(end.done);
        CHECK(end.thread == std::this_thread::get_id());
        CHECK(all.values.size() == size_of(comm));
        CHECK(all.values.back() == comm.size() - 1);
    });
}

TEST_CASE(
    "a coroutine that waits on a communicator that dies goes on, and its next call is refused") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(100, comm.rank());
        bool dying = false, refused = false, waited = false;
        trace end;
        {
            auto other = comm.split(0);
            if (comm.rank() == 0)
                std::this_thread::sleep_for(
                    std::chrono::milliseconds(20));  // the others wait for it
            call_again(other, x, dying, refused, end);
            waited = !end.done;
            dying = true;
        }
        CHECK(end.done);
        CHECK(end.thread == std::this_thread::get_id());
        CHECK(refused == waited);
        CHECK(x == std::vector<int>(100, comm.size() - 1));
        check_that_it_works(comm);
    });
}

TEST_CASE("co_await throws what the call failed with") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<int> x(5 + rank_of(comm));
        std::string error;
        trace end;
        disagree(comm, x, error, end);
        while (!end.done) comm.run_ready();
        CHECK(error == "shape");
        check_that_it_works(comm);
    });
}

TEST_CASE("an endpoint that fails while test() begins a call is not used again") {
    for (const bool by_test : {true, false}) {
        hvd::communicator<broken> comm(std::make_unique<broken_endpoint>());
        auto pending = comm.barrier_async();
        const auto e = thrown<hvd::error>([&] {
            if (by_test) pending.test();
            else pending.wait();
        });
        if (e) CHECK(contains(e->what(), "the wire is cut"));
        const auto refused = thrown<hvd::peer_error>([&] { comm.barrier(); });
        if (refused) CHECK(contains(refused->what(), "the wire is cut"));
    }
}

TEST_CASE("a result whose call failed is empty, and does not look like one that came") {
    on_every_transport_from(2, [](auto& comm) {
        const std::vector<int> mine(3);
        const std::vector<float> other(3);
        const auto check = [&](const auto& begun, const auto& look) {
            auto pending = begun();
            look(pending);
            CHECK(!pending);
            thrown<hvd::usage_error>([&] { pending.wait(); });
        };
        const auto check_all = [&](const auto& begun) {
            check(begun, [](auto& p) { thrown<hvd::mismatch_error>([&] { p.wait(); }); });
            check(begun, [](auto& p) {
                thrown<hvd::mismatch_error>([&] {
                    while (!p.test()) std::this_thread::yield();
                });
            });
            check(begun, [&](auto& p) {
                std::string error;
                const owned taking = take(p, error);
                while (!taking.handle.done()) comm.run_ready();
                CHECK(error == "element type");
            });
        };
        if (comm.rank() == 0) check_all([&] { return comm.allgather_async(mine); });
        else check_all([&] { return comm.allgather_async(other); });
        check_that_it_works(comm);
    });
}

TEST_CASE("a coroutine that is destroyed while it waits is forgotten") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<int> x(1000, 1), y(1000, 1);
        trace end, other_end;
        bool done = false, other_done = false;
        come_late_unless_first(comm);
        auto pending = comm.allreduce_async(y, hvd::sum);
        {
            const owned other = wait_for(pending, other_end), waiting = sum_once(comm, x, end);
            done = end.done;
            other_done = other_end.done;
        }
        CHECK(comm.run_ready() == 0);
        pending.wait();
        CHECK(end.done == done);
        CHECK(other_end.done == other_done);
        CHECK(x == std::vector<int>(1000, comm.size()));
        CHECK(y == x);
        check_that_it_works(comm);
    });
}

TEST_CASE("a coroutine that throws into a wait does not hide what the call failed with") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<int> x(10 + rank_of(comm)), y(1);
        come_late_unless_first(comm);
        auto reached = comm.barrier_async();
        auto failing = comm.allreduce_async(x, hvd::sum);
        if (comm.rank() == 0) {
            const owned waiting = throw_after(reached);
            thrown<std::runtime_error>([&] { failing.wait(); });
            thrown<hvd::mismatch_error>([&] { comm.allreduce(y, hvd::sum); });
        } else {
            thrown<hvd::mismatch_error>([&] { failing.wait(); });
            thrown<hvd::peer_error>([&] { comm.allreduce(y, hvd::sum); });
        }
        check_that_it_works(comm);
    });
}

TEST_CASE(
    "the timeout of an asynchronous call counts from its turn, not from its place behind others") {
    on_every_transport_from(2, [](auto& comm) {
        if (comm.size() != 2) return;
        using namespace std::chrono_literals;
        constexpr std::size_t calls = 4;  // together they take longer than the timeout
        std::vector<std::vector<int>> x(calls, std::vector<int>(100, 1));
        std::vector<hvd::request> pending;
        for (auto& tensor : x) {
            if (comm.rank() == 0) {
                pending.push_back(comm.allreduce_async(tensor, hvd::sum, {.timeout = 2500ms}));
            } else {
                std::this_thread::sleep_for(700ms);
                comm.allreduce(tensor, hvd::sum);
            }
        }
        for (auto& call : pending) call.wait();
        for (const auto& tensor : x) CHECK(tensor == std::vector<int>(100, 2));
        check_that_it_works(comm);
    });
}

TEST_CASE("test() gives up after the timeout") {
    on_every_transport_from(2, [](auto& comm) {
        using namespace std::chrono_literals;
        auto doomed = comm.split(0);
        if (comm.rank() == 0) {
            std::vector<int> x(100, 1);
            auto pending = doomed.allreduce_async(x, hvd::sum, {.timeout = 50ms});
            const auto e = thrown<hvd::timeout_error>([&] {
                while (!pending.test()) std::this_thread::yield();
            });
            if (e) CHECK(contains(e->what(), "did not come in time"));
            thrown<hvd::peer_error>([&] { doomed.barrier(); });
        }
        comm.barrier();  // the others do not leave before
    });
}

TEST_CASE("a request that is dropped waits as its call does") {
    using namespace std::chrono_literals;
    on_every_transport_from(2,
                            [](auto& comm) {
                                std::vector<int> x(1000, 1);
                                if (comm.rank() == 0) std::this_thread::sleep_for(100ms);
                                {
                                    const auto dropped = comm.allreduce_async(x, hvd::sum);
                                }
                                CHECK(x == std::vector<int>(1000, comm.size()));
                                check_that_it_works(comm);
                            },
                            {.destructor_timeout = 1ms});
    on_every_transport_from(2, [](auto& comm) {
        auto doomed = comm.split(0);
        std::vector<int> x(1000, 1);
        if (comm.rank() == 0) {
            {
                const auto dropped = doomed.allreduce_async(x, hvd::sum, {.timeout = 50ms});
            }
            if (const auto e = thrown<hvd::peer_error>([&] { doomed.barrier(); }))
                CHECK(contains(e->what(), "did not come in time"));
        }
        comm.barrier();
    });
}

TEST_CASE("the limit of a destructor does not hold for later calls") {
    using namespace std::chrono_literals;
    on_every_transport_from(2,
                            [](auto& comm) {
                                if (comm.size() != 2) return;
                                comm.barrier();  // nobody is late for the next one
                                try {
                                    const auto dropped = comm.barrier_async();
                                    throw 1;
                                } catch (int) {
                                }
                                if (comm.rank() == 1) std::this_thread::sleep_for(900ms);
                                comm.barrier();
                                check_that_it_works(comm);
                            },
                            {.destructor_timeout = 400ms});
}

TEST_CASE("a call in the queue of a communicator that was given up is refused") {
    using namespace std::chrono_literals;
    on_every_transport_from(2, [](auto& comm) {
        auto doomed = comm.split(0);
        if (comm.rank() != 0) return comm.barrier();  // rank 0 comes when it has given up
        std::vector<int> x(100, 1), y(100, 1), z(100, 1);
        auto first = doomed.allreduce_async(x, hvd::sum, {.timeout = 50ms});
        auto second = doomed.allreduce_async(y, hvd::sum);
        auto third = doomed.allreduce_async(z, hvd::sum);
        thrown<hvd::timeout_error>([&] { first.wait(); });
        if (const auto e = thrown<hvd::peer_error>([&] { second.wait(); }))
            CHECK(contains(e->what(), "this communicator was given up"));
        const auto test_third = [&] {
            while (!third.test()) std::this_thread::yield();
        };
        if (const auto e = thrown<hvd::peer_error>(test_third))
            CHECK(contains(e->what(), "this communicator was given up"));
        CHECK(y == std::vector<int>(100, 1));
        CHECK(z == std::vector<int>(100, 1));
        comm.barrier();
    });
}

}  // namespace asynchronous_tests
