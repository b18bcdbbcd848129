// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "disagreement.hpp"
#include "reference.hpp"

namespace policies_tests {

using namespace hvd_test;

// checked<>, observed<> and direct<> around this build's backend, and the process-wide
// communicator.

namespace {

template <class Comm>
void check_every_collective(Comm& comm) {
    const int n = comm.size();
    for (const std::size_t count : {std::size_t(0), std::size_t(7), std::size_t(20011)}) {
        const tensor<float> in = input<float>(comm.rank(), count);
        tensor<float> x = in, y(count), z = in, w = in;
        const tensor<float> sum = reference<float>(hvd::sum, n),
                            mean = reference<float>(hvd::average, n);
        comm.allreduce(x, hvd::sum);
        comm.allreduce(in, y, hvd::average);
        comm.reduce(z, hvd::max, hvd::root{n - 1});
        comm.broadcast(w, hvd::root{n - 1});
        CHECK(wrong(x, count, sum) == 0);
        CHECK(wrong(y, count, mean) == 0);
        CHECK(wrong(z, count,
                    comm.rank() == n - 1 ? reference<float>(hvd::max, n)
                                         : input<float>(comm.rank(), period)) == 0);
        CHECK(wrong_input<float>(w, count, n - 1) == 0);
        tensor<float> up_to = in, before = in;
        comm.scan(up_to, hvd::average);
        comm.exscan(before, hvd::sum);
        CHECK(wrong(up_to, count, reference<float>(hvd::average, comm.rank() + 1)) == 0);
        CHECK(wrong(before, count,
                    comm.rank() == 0 ? tensor<float>(period, 0.0f)
                                     : reference<float>(hvd::sum, comm.rank())) == 0);
        tensor<float> all(count * size_of(comm));
        comm.allgather(in, hvd::into(all));
        const auto ragged = comm.allgather(hvd::view(in.data(), std::min(count, rank_of(comm))));
        for (std::size_t r = 0; r < size_of(comm); ++r) {
            CHECK(wrong_input<float>(std::span(all.data() + r * count, count), count, int(r)) == 0);
            CHECK(ragged.counts[r] == std::min(count, r));
        }
        const part mine(count, comm.rank(), n);
        CHECK(wrong(comm.reduce_scatter(in, hvd::sum), mine.count, sum, mine.first) == 0);
        tensor<float> v = in;
        const auto kept = hvd::view(v.data() + mine.first, mine.count);
        comm.reduce_scatter(v, hvd::sum, hvd::into(kept));
        CHECK(wrong(std::span(kept.data(), mine.count), mine.count, sum, mine.first) == 0);
        CHECK(wrong_input<float>(comm.scatter(in), mine.count, 0, mine.first) == 0);
        CHECK(comm.gather(in).values.size() == (comm.rank() == 0 ? count * size_of(comm) : 0));
        CHECK(comm.alltoall(all).counts == std::vector<std::size_t>(size_of(comm), count));
    }
    std::vector<float> a(100, 1);
    std::vector<double> b(3, 2);
    comm.allreduce(hvd::fuse(a, b), hvd::sum);
    comm.broadcast(hvd::fuse(a, b));
    CHECK(a == std::vector<float>(100, float(n)));
    CHECK(b == std::vector<double>(3, 2 * n));
    std::vector<int> strided(10, 1);
    comm.allreduce(hvd::view(strided.data(), hvd::shape(5), hvd::strides(2)), hvd::sum);
    CHECK(strided[8] == n);
    CHECK(strided[9] == 1);
    auto pending = comm.allreduce_async(b, hvd::sum);
    pending.wait();
    CHECK(b == std::vector<double>(3, 2 * n * n));
    auto plan = comm.plan_allreduce(a, hvd::max);
    plan.run();
    CHECK(a == std::vector<float>(100, float(n)));
    CHECK(comm.allgather_object(std::string("abc")) ==
          std::vector<std::string>(size_of(comm), "abc"));
    auto half = comm.split(comm.rank() % 2);
    check_that_it_works(half);
    comm.barrier();
}

enum class moment { never, begin, end };

// An observer that throws.
struct throwing {
    void on_begin(const hvd::event&) const {
        if (at == moment::begin) throw std::runtime_error("no room in the timeline");
    }
    void on_end(const hvd::event&, bool) {
        ++ended;
        if (at == moment::end) throw std::runtime_error("no room in the timeline");
    }
    moment at = moment::never;
    int ended = 0;
};

// An observer that keeps the events it received, most recent last.
class remembering {
public:
    struct what {
        std::string collective, name;
        std::size_t bytes;
        bool ended, succeeded;
    };
    void on_begin(const hvd::event& e) {
        seen.push_back({std::string(e.collective), std::string(e.name), e.bytes, false, false});
    }
    void on_end(const hvd::event&, bool succeeded) {
        seen.back().ended = true;
        seen.back().succeeded = succeeded;
    }
    std::vector<what> seen;
};

}  // namespace

TEST_CASE("checked<>: every collective gives the same results") {
    on_ranks_of<hvd::checked<backend>>([](auto& comm) { check_every_collective(comm); });
}

TEST_CASE("checked<>: names count, and a rank that strays is named") {
    on_ranks_of<hvd::checked<backend>>([](auto& comm) {
        if (comm.size() == 1) return;
        int x = 1;
        const auto e = thrown<hvd::mismatch_error>(
            [&] { comm.allreduce(x, hvd::sum, {.name = comm.rank() == 0 ? "conv1" : "conv2"}); });
        if (e) CHECK((contains(e->what(), "conv1") && contains(e->what(), "conv2")));
        if (e) CHECK(e->field() == "name");
        if (e) CHECK(e->table().size() == size_of(comm));
        check_that_it_works(comm);
    });
}

TEST_CASE("checked<>: plans work on after ranks ran different ones, however often") {
    on_ranks_of<hvd::checked<backend>>([](auto& comm) {
        if (comm.size() == 1) return;
        const bool first = comm.rank() == 0;
        std::vector<float> a(10, 1), b(10, 1);
        auto plan_a = comm.plan_allreduce(a, hvd::max, {.name = "a"}),
             plan_b = comm.plan_allreduce(b, hvd::max, {.name = "b"});
        for (int i = 0; i < 3; ++i) {
            const auto e = thrown<hvd::mismatch_error>([&] { (first ? plan_a : plan_b).run(); });
            if (e) CHECK(e->table().size() == size_of(comm));
            thrown<hvd::mismatch_error>([&] {
                if (first) plan_a.run();
                else comm.barrier();
            });
            plan_a.run();
            plan_b.run();
            plan_a.run_async().wait();
        }
        CHECK(a == b);
    });
}

TEST_CASE("observed<>: every collective gives the same results") {
    on_ranks_of<hvd::observed<backend, hvd::statistics>>(
        [](auto& comm) { check_every_collective(comm); });
}

TEST_CASE("observed<>: an observer is told name, bytes and outcome of each call") {
    on_ranks_of<hvd::observed<backend, remembering>>([](auto& comm) {
        std::vector<float> x(10);
        comm.allreduce(x, hvd::sum, {.name = "gradient"});
        comm.broadcast(x);
        comm.allreduce_async(x, hvd::sum).wait();
        thrown<hvd::usage_error>([&] { comm.broadcast(x, hvd::root{-1}); });
        const auto& seen = comm.observer().seen;
        REQUIRE(seen.size() == 4);
        CHECK(seen[0].collective == "allreduce");
        CHECK(seen[0].name == "gradient");
        CHECK(seen[0].bytes == 40);
        CHECK(seen[1].collective == "broadcast");
        CHECK(seen[1].name.empty());
        CHECK(seen[2].collective == "allreduce");
        CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& s) { return s.ended; }));
        CHECK(
            std::all_of(seen.begin(), seen.begin() + 3, [](const auto& s) { return s.succeeded; }));
        CHECK(!seen[3].succeeded);
    });
}

TEST_CASE("observed<>: statistics count calls, failures and bytes") {
    on_ranks_of<hvd::observed<backend, hvd::statistics>>([](auto& comm) {
        std::vector<double> x(10);
        comm.allreduce(x, hvd::sum);
        comm.barrier();
        thrown<hvd::usage_error>([&] { comm.broadcast(x, hvd::root{-1}); });
        CHECK(comm.observer().calls() == 3);
        CHECK(comm.observer().failed() == 1);
        CHECK(comm.observer().bytes() >= 80);
    });
}

TEST_CASE("observed<>: an exception of on_begin refuses the call, and all ranks stay in step") {
    on_ranks_of<hvd::observed<backend, throwing>>([](auto& comm) {
        std::vector<int> x(100, 1);
        for (const bool later : {false, true}) {
            comm.observer().at = comm.rank() == comm.size() - 1 ? moment::begin : moment::never;
            const auto call = [&] {
                if (later) comm.allreduce_async(x, hvd::sum).wait();
                else comm.allreduce(x, hvd::sum);
            };
            if (comm.rank() == comm.size() - 1) {
                thrown<std::runtime_error>(call);
            } else if (const auto e = thrown<hvd::peer_error>(call)) {
                CHECK(contains(e->what(), "no room in the timeline"));
                CHECK(e->peers() == std::vector<int>{comm.size() - 1});
            }
            const auto wrong = [&] {  // the first reason is told
                comm.broadcast(x, hvd::root{comm.rank() == comm.size() - 1 ? 77 : 0});
            };
            if (comm.rank() == comm.size() - 1) thrown<std::runtime_error>(wrong);
            else if (const auto e = thrown<hvd::peer_error>(wrong))
                CHECK(contains(e->what(), "root 77"));
            comm.observer().at = moment::never;
            CHECK(x == std::vector<int>(100, 1));
            check_that_it_works(comm);
        }
    });
}

TEST_CASE(
    "observed<>: an exception of on_end comes after the call, which is complete on all ranks") {
    on_ranks_of<hvd::observed<backend, throwing>>([](auto& comm) {
        std::vector<int> x(100, 1);
        comm.observer().at = comm.rank() == 0 ? moment::end : moment::never;
        const auto call = [&] { comm.allreduce(x, hvd::sum); };
        if (comm.rank() == 0) thrown<std::runtime_error>(call);
        else call();
        CHECK(comm.observer().ended == 1);
        CHECK(x == std::vector<int>(100, comm.size()));
        std::vector<int> ragged(std::size_t(5 + comm.rank()));
        if (comm.size() > 1)  // the reason of a call that failed goes before that of its observer
            thrown<hvd::mismatch_error>([&] { comm.allreduce(ragged, hvd::sum); });
        comm.observer().at = moment::never;
        check_that_it_works(comm);
    });
}

TEST_CASE("policies nest") {
    on_ranks_of<hvd::observed<hvd::checked<backend>, hvd::statistics>>([](auto& comm) {
        check_that_it_works(comm);
        CHECK(comm.observer().calls() == 2);
    });
}

TEST_CASE("hvd::init is idempotent and thread-safe, and shutdown undoes it") {
    CHECK(!hvd::is_initialized());
    thrown<hvd::usage_error>([] { hvd::world(); });
    thrown<hvd::usage_error>([] { hvd::rank(); });
    for (int round = 0; round < 3; ++round) {
        {
            std::vector<std::jthread> threads;
            for (int i = 0; i < 4; ++i) threads.emplace_back([] { hvd::init(); });
        }
        CHECK(hvd::is_initialized());
        CHECK(hvd::rank() == hvd::world().rank());
        CHECK(hvd::size() == hvd::world().size());
        CHECK(hvd::local_rank() == hvd::world().local_rank());
        CHECK(hvd::local_size() == hvd::world().local_size());
#if defined(HVD_TEST_BACKEND_MPI)
        CHECK(hvd::size() == launched_ranks());
#endif
        check_that_it_works(hvd::world());
        hvd::shutdown();
        hvd::shutdown();
        CHECK(!hvd::is_initialized());
    }
}

#if defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("direct<mpi>: every collective gives the same results") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) { check_every_collective(comm); });
}

TEST_CASE_TEMPLATE("direct<mpi>: every operation that MPI has", T, std::int8_t, std::int32_t,
                   std::uint64_t, double, std::complex<double>, bool, std::byte) {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        for_each_operation<T>(comm, [&](const auto& op) {
            INFO(name_of(op));
            // With one rank MPI copies its values, even if the operation gives only 0 or 1.
            if (comm.size() == 1 && std::string(name_of(op)).find("logical") == 0) return;
            const tensor<T> expected = reference<T>(op, comm.size()),
                            in = input<T>(comm.rank(), 1003);
            tensor<T> x = in, y(1003);
            comm.allreduce(in, y, op);
            comm.reduce(x, op);
            CHECK(wrong(y, 1003, expected) == 0);
            if (comm.rank() == 0) CHECK(wrong(x, 1003, expected) == 0);
            const part mine(1003, comm.rank(), comm.size());
            CHECK(wrong(comm.reduce_scatter(in, op), mine.count, expected, mine.first) == 0);
            if (comm.rank() == 0) {  // like one rank
                tensor<T> first = in;
                comm.scan(in, y, op);
                comm.exscan(first, op);
                CHECK(wrong(first, 1003, [&](std::size_t) { return of_none<T>(op); }) == 0);
                return;
            }
            tensor<T> z = in;
            comm.scan(z, op);
            comm.exscan(in, y, op);
            CHECK(wrong(z, 1003, reference<T>(op, comm.rank() + 1)) == 0);
            if (comm.rank() > 1) CHECK(wrong(y, 1003, reference<T>(op, comm.rank())) == 0);
        });
    });
}

TEST_CASE("direct<mpi>: every root reduces in place, at once and later") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        const float sum = float(comm.size() * (comm.size() + 1) / 2);
        for (int root = 0; root < comm.size(); ++root)
            for (const std::size_t n : {std::size_t(1), std::size_t(1003), std::size_t(100003)}) {
                std::vector<float> x(n, float(comm.rank() + 1)), y = x;
                comm.reduce(x, hvd::sum, hvd::root{root});
                comm.reduce_async(y, hvd::sum, hvd::root{root}).wait();
                for (const auto* result : {&x, &y})
                    if (comm.rank() == root) CHECK(*result == std::vector<float>(n, sum));
            }
    });
}

TEST_CASE("direct<mpi>: parts that lie in their slots, and slices of given sizes") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        const int size = comm.size(), rank = comm.rank();
        const std::size_t n = 1003, me = std::size_t(rank), all = n * std::size_t(size);
        std::vector<int> x(all, -1), ranks;
        for (int r = 0; r < size; ++r) ranks.insert(ranks.end(), n, r);
        const auto slot = hvd::view(x.data() + me * n, n);
        std::fill(slot.begin(), slot.end(), rank);
        comm.allgather(slot, hvd::into(x));
        CHECK(x == ranks);
        for (int root = 0; root < size; ++root) {
            if (rank == root) std::fill(x.begin(), x.end(), -1);
            std::fill(slot.begin(), slot.end(), rank);
            comm.gather(slot, hvd::into(x), hvd::root{root});
            if (rank == root) CHECK(x == ranks);
            comm.scatter(x, hvd::into(slot), hvd::root{root});
            if (rank == root) CHECK(x == ranks);
            CHECK(slot[n - 1] == rank);
        }
        std::fill(x.begin(), x.end(), rank);
        comm.alltoall(x, hvd::into(x));
        CHECK(x == ranks);

        std::vector<std::size_t> counts(std::size_t(size), 2);
        counts.back() = all - 2 * std::size_t(size - 1);
        std::vector<int> expected(counts[me]);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = size * ranks[2 * me + i];
        CHECK(comm.reduce_scatter(x, hvd::sum, counts) == expected);
    });
}

TEST_CASE("direct<mpi>: scales") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        std::vector<float> x(10, float(comm.rank() + 1));
        comm.allreduce(x, hvd::average, {.prescale = 2, .postscale = 4});
        CHECK(x == std::vector<float>(10, float(4 * (comm.size() + 1))));
        int y = 1;
        thrown<hvd::usage_error>([&] { comm.allreduce(y, hvd::sum, {.prescale = 2}); });
        std::vector<float> z(10, float(comm.rank() + 1)), w = z;
        comm.scan(z, hvd::average, {.prescale = 2, .postscale = 4});
        CHECK(z == std::vector<float>(10, float(4 * (comm.rank() + 2))));
        thrown<hvd::usage_error>([&] { comm.scan(y, hvd::sum, {.prescale = 2}); });
        thrown<hvd::usage_error>([&] { comm.scan(w, hvd::max, {.prescale = 2}); });
        thrown<hvd::usage_error>(
            [&] { comm.allreduce(hvd::fuse(w, x), hvd::max, {.prescale = 2}); });
    });
}

TEST_CASE("direct<mpi>: a blocking call comes after the asynchronous ones before it") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        const int n = comm.size();
        const auto check = [&](int expected, auto call) {
            int x = 1;
            auto pending = comm.allreduce_async(x, hvd::sum);
            // it is complete here and has not begun on the other ranks
            if (comm.rank() == 0) pending.test();
            int y = 100;
            call(y);
            CHECK(x == n);
            pending.wait();
            CHECK(y == expected);
        };
        check(100 * n, [&](int& y) { comm.allreduce(y, hvd::sum); });
        check(comm.rank() == 0 ? 100 * n : 100, [&](int& y) { comm.reduce(y, hvd::sum); });
        check(100, [&](int& y) { comm.broadcast(y); });
        check(100, [&](int&) { comm.barrier(); });
        std::vector<int> all(size_of(comm));
        check(100, [&](int& y) { comm.allgather(std::as_const(y), hvd::into(all)); });
        CHECK(all == std::vector<int>(size_of(comm), 100));
    });
}

TEST_CASE("direct<mpi>: an error nobody looked at is thrown by the next call") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        const auto forget = [&] {
            std::vector<int> mine(4), all(1);  // no room
            const auto never_waited_for = comm.allgather_async(mine, hvd::into(all));
        };
        int x = 1;
        forget();
        thrown<hvd::usage_error>([&] { comm.allreduce(x, hvd::sum); });
        forget();
        thrown<hvd::usage_error>([&] { comm.barrier(); });
        forget();
        thrown<hvd::usage_error>([&] { const auto pending = comm.barrier_async(); });
        check_that_it_works(comm);
    });
}

TEST_CASE("direct<mpi>: a look at inputs is refused, since its ranks compare no calls") {
    using direct = hvd::direct<hvd::mpi>;
    on_ranks_of<direct>([](auto& comm) {
        const auto e = thrown<hvd::usage_error>([&] {
            const hvd::communicator<direct> looks(comm.native_handle(), hvd::borrow,
                                                  {.check_finite = true});
        });
        if (e) CHECK(contains(e->what(), ".check_finite"));
        comm.progress();  // does nothing
    });
    on_ranks_of<hvd::checked<direct>>(
        [](auto& comm) {
            float x = std::numeric_limits<float>::infinity();
            const auto e = thrown<hvd::not_finite_error>([&] { comm.allreduce(x, hvd::sum); });
            if (e) CHECK(e->source() == 0);
            check_that_it_works(comm);
        },
        {.check_finite = true});
}

TEST_CASE("direct<mpi>: a timeout is refused by its name, since MPI gives up no call") {
    using direct = hvd::direct<hvd::mpi>;
    on_ranks_of<direct>([](auto& comm) {
        const hvd::options o{.timeout = std::chrono::seconds(1)};
        const hvd::reduce_options r{.timeout = std::chrono::seconds(1)};
        float x = 1, y = 1;
        std::vector<float> all(size_of(comm));
        const auto refused = [&](auto call) {
            const auto e = thrown<hvd::usage_error>(call);
            if (e) CHECK(contains(e->what(), ".timeout"));
        };
        refused([&] { comm.allreduce(x, hvd::sum, r); });
        refused([&] { comm.reduce(x, hvd::sum, hvd::root{0}, r); });
        refused([&] { comm.broadcast(x, hvd::root{0}, o); });
        refused([&] { comm.allgather(std::as_const(x), hvd::into(all), o); });
        refused([&] { comm.barrier(o); });
        refused([&] { comm.allreduce(hvd::fuse(x, y), hvd::sum, r); });
        refused([&] { (void)comm.allgather(std::as_const(x), o); });
        refused([&] { comm.allreduce_async(x, hvd::sum, r).wait(); });
        CHECK(x == 1);
        refused([&] {
            const hvd::communicator<direct> late(comm.native_handle(), hvd::borrow,
                                                 {.timeout = std::chrono::seconds(1)});
        });
        check_that_it_works(comm);
    });
}

TEST_CASE("direct<mpi>: a count above that of one MPI call is refused before anything is sent") {
    on_ranks_of<hvd::direct<hvd::mpi>>([](auto& comm) {
        // No memory is there: reading any of it would be a crash.
        const std::size_t many = (std::size_t(1) << 31) + 3;
        const auto in =
            hvd::view(reinterpret_cast<const std::int8_t*>(std::uintptr_t(1) << 20), many);
        const auto out = hvd::view(reinterpret_cast<std::int8_t*>(std::uintptr_t(1) << 40),
                                   many * size_of(comm));
        const auto e = thrown<hvd::usage_error>([&] { comm.allgather(in, hvd::into(out)); });
        if (e) CHECK(contains(e->what(), std::to_string(many)));
        check_that_it_works(comm);
    });
}

TEST_CASE("direct<mpi>: a reduction that MPI lacks does not compile, and reducible is false") {
    using direct = hvd::direct<hvd::mpi>;
    static_assert(!hvd::reducible<hvd::float16, hvd::op::sum, direct>);
    static_assert(!hvd::reducible<int, hvd::op::rounded<hvd::op::average>, direct>);
    static_assert(hvd::reducible<float, hvd::op::average, direct>);
    static_assert(hvd::reducible<hvd::float16, hvd::op::sum, hvd::mpi>);
    CHECK(hvd::transportable<hvd::float16, direct>);
}
#endif

}  // namespace policies_tests
