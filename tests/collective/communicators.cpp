// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <numeric>
#include <thread>

#include <hvd/comm/host_ranks_of.hpp>

#include "disagreement.hpp"
#include "reference.hpp"

namespace communicators_tests {

using namespace hvd_test;

namespace {

// Returns the sum of the ranks that the members of `comm` had in the communicator it was made from.
template <class Comm>
int sum_of(Comm& comm, int former_rank) {
    comm.allreduce(former_rank, hvd::sum);
    return former_rank;
}

}  // namespace

TEST_CASE("a subset has the listed ranks in ascending order, and is empty elsewhere") {
    on_every_transport([](auto& comm) {
        const int last = comm.size() - 1;
        const std::vector<int> members =
            last == 0 ? std::vector<int>{0} : std::vector<int>{last, 0};
        auto some = comm.subset(members);
        const bool member = comm.rank() == 0 || comm.rank() == last;
        CHECK(bool(some) == member);
        if (member) {
            CHECK(some.size() == int(members.size()));
            CHECK(some.rank() == (comm.rank() == 0 ? 0 : 1));
            CHECK(sum_of(some, comm.rank()) == last);
            int root = comm.rank();
            some.broadcast(root, hvd::root{some.size() - 1});  // roots count within the subset
            CHECK(root == last);
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("every collective on the even and the odd ranks at once") {
    on_every_transport([](auto& comm) {
        auto half = comm.split(comm.rank() % 2);
        REQUIRE(bool(half));
        CHECK(half.rank() == comm.rank() / 2);
        const int n = half.size(), first = comm.rank() % 2;
        const auto member = [&](int r) { return first + 2 * r; };
        check_that_it_works(half);

        const tensor<float> in = input<float>(half.rank(), 1003);
        tensor<float> x = in;
        half.allreduce(x, hvd::sum);
        CHECK(wrong(x, 1003, reference<float>(hvd::sum, n)) == 0);
        const part mine(1003, half.rank(), n);
        CHECK(wrong(half.reduce_scatter(in, hvd::max), mine.count, reference<float>(hvd::max, n),
                    mine.first) == 0);
        int root_of = comm.rank();
        half.broadcast(root_of, hvd::root{n - 1});
        CHECK(root_of == member(n - 1));
        const auto all = half.allgather(comm.rank());
        const auto to_all = half.alltoall(std::vector<int>(std::size_t(n), comm.rank()));
        for (int r = 0; r < n; ++r) {
            CHECK(all.values[std::size_t(r)] == member(r));
            CHECK(to_all.values[std::size_t(r)] == member(r));
        }
        CHECK(half.gather(comm.rank(), hvd::root{n - 1}).values.size() ==
              (half.rank() == n - 1 ? std::size_t(n) : 0));
        CHECK(half.scatter(std::vector<int>(std::size_t(n), first)) == std::vector<int>{first});
        CHECK(half.allgather_object(std::string("x")).size() == std::size_t(n));
        auto plan = half.plan_allreduce(root_of, hvd::sum);
        plan.run();
        CHECK(root_of == n * member(n - 1));
        half.barrier();
    });
}

TEST_CASE("keys order the ranks of a split") {
    on_every_transport([](auto& comm) {
        auto reversed = comm.split(0, -comm.rank());
        CHECK(reversed.size() == comm.size());
        CHECK(reversed.rank() == comm.size() - 1 - comm.rank());
        const auto former = reversed.allgather(comm.rank());
        for (int r = 0; r < comm.size(); ++r)
            CHECK(former.values[std::size_t(r)] == comm.size() - 1 - r);
        check_that_it_works(reversed);
        auto by_rank = comm.split(7, 1);  // equal keys are ordered by rank
        CHECK(by_rank.rank() == comm.rank());
    });
}

TEST_CASE("a negative colour gives an empty communicator") {
    on_every_transport([](auto& comm) {
        auto others = comm.split(comm.rank() == 0 ? -1 : 5);
        CHECK(bool(others) == (comm.rank() != 0));
        if (others) CHECK(sum_of(others, comm.rank()) == comm.size() * (comm.size() - 1) / 2);
        check_that_it_works(comm);
    });
}

TEST_CASE("communicators are split again and again, and die in any order") {
    on_every_transport([](auto& comm) {
        auto outer = comm.split(comm.rank() / 2);
        auto inner = outer.split(outer.rank());
        auto reversed = outer.split(0, -outer.rank());
        auto again = reversed.subset({0});
        outer = {};
        CHECK(inner.size() == 1);
        check_that_it_works(inner);
        check_that_it_works(reversed);
        if (again) check_that_it_works(again);
        check_that_it_works(comm);
    });
}

TEST_CASE("a duplicate has all ranks, and its own order of calls") {
    on_every_transport([](auto& comm) {
        auto same = comm.duplicate();
        CHECK(same.rank() == comm.rank());
        CHECK(same.size() == comm.size());
        CHECK(same.local_rank() == comm.local_rank());
        CHECK(same.cross_size() == comm.cross_size());
        std::vector<int> x(100, comm.rank()), y(3, 1);
        const auto use = [&](bool first) {
            if (first) same.allreduce(x, hvd::sum);
            else comm.allreduce(y, hvd::sum);
        };
        use(true);
        use(false);
        CHECK(x == std::vector<int>(100, comm.size() * (comm.size() - 1) / 2));
        CHECK(y == std::vector<int>(3, comm.size()));
        auto again = same.duplicate();
        same = {};
        check_that_it_works(again);
        check_that_it_works(comm);
    });
}

TEST_CASE("ranks that duplicate and split at once are told that they disagree") {
    on_every_transport_from(2, [](auto& comm) {
        thrown<hvd::mismatch_error>(
            [&] { auto made = comm.rank() == 0 ? comm.duplicate() : comm.split(0); });
        check_that_it_works(comm);
    });
}

TEST_CASE("a communicator knows its ranks in the one that it was made of") {
    on_every_transport([](auto& comm) {
        const int size = comm.size(), rank = comm.rank();
        const auto check = [](auto& part, int mine) {
            if (!part) return;
            const auto ranks = part.allgather(mine).values;  // in the communicator above
            for (int r = 0; r < part.size(); ++r)
                CHECK(part.parent_rank(r) == ranks[std::size_t(r)]);
            for (const int wrong : {-1, part.size()})
                if (const auto e = thrown<hvd::usage_error>([&] { part.parent_rank(wrong); }))
                    CHECK(contains(e->what(), "parent_rank on rank " + std::to_string(part.rank()) +
                                                  ": " + std::to_string(wrong) + " is not a rank"));
        };
        check(comm, rank);  // of no other one
        auto duplicate = comm.duplicate(), reversed = comm.split(0, -rank);
        auto odd = comm.split(rank % 2);
        auto local = comm.local(), cross = comm.cross();
        for (auto* part : {&duplicate, &reversed, &odd, &local, &cross}) check(*part, rank);
        if (size > 1) {
            auto some = comm.subset({size - 1, 0});
            check(some, rank);
        }
        auto inner = reversed.split(reversed.rank() == 0 ? -1 : 0);  // in `reversed`, not in `comm`
        check(inner, reversed.rank());
        if (reversed.rank() == 0) thrown<hvd::usage_error>([&] { inner.parent_rank(0); });
        auto moved = std::move(reversed);
        check(moved, rank);
        comm.barrier();
    });
}

TEST_CASE("many communicators one after another") {
    on_every_transport([](auto& comm) {
        for (int i = 0; i < 50; ++i) {
            auto half = comm.split((comm.rank() + i) % 2);
            CHECK(sum_of(half, 1) == half.size());
        }
        check_that_it_works(comm);
    });
}

// This is not run on queues. Without a progress thread a communicator makes progress only while its
// own calls are waited for.
#if !defined(HVD_TEST_QUEUES)
TEST_CASE("communicators do not mix: calls on them may be interleaved") {
    on_every_transport([](auto& comm) {
        auto one = comm.split(0), other = comm.split(0);
        std::vector<int> a(10000, 1), b(10000, 2);
        auto first = one.allreduce_async(a, hvd::sum);
        auto second = other.allreduce_async(b, hvd::sum);
        if (comm.rank() % 2 == 0) {
            first.wait();
            second.wait();
        } else {
            second.wait();
            first.wait();
        }
        CHECK(a.front() == comm.size());
        CHECK(b.front() == 2 * comm.size());
    });
}

TEST_CASE("two communicators are used by two threads at once") {
    on_every_transport([](auto& comm) {
        auto one = comm.split(0), other = comm.split(0);
        const auto work = [](auto& c, int& wrong_sums) {
            for (int i = 0; i < 100; ++i) {
                std::vector<int> x(std::size_t(i) * 10 + 1, i);
                c.allreduce(x, hvd::sum);
                wrong_sums += x.back() != i * c.size();
            }
        };
        int wrong_here = 0, wrong_there = 0;
        {
            std::jthread beside([&] { work(other, wrong_there); });
            work(one, wrong_here);
        }
        CHECK(wrong_here == 0);
        CHECK(wrong_there == 0);
    });
}
#endif

TEST_CASE("a subset of ranks that are none, or stand twice, is refused on every rank") {
    on_every_transport([](auto& comm) {
        const auto no_rank = thrown<hvd::usage_error>([&] { comm.subset({0, comm.size()}); });
        if (no_rank)
            CHECK(contains(no_rank->what(), std::to_string(comm.size()) + " is not a rank"));
        thrown<hvd::usage_error>([&] { comm.subset({-1}); });
        const auto twice = thrown<hvd::usage_error>([&] { comm.subset({0, 0}); });
        if (twice) CHECK(contains(twice->what(), "twice"));
        check_that_it_works(comm);
    });
}

TEST_CASE("a subset in another order of ranks is the same subset") {
    on_every_transport_from(2, [](auto& comm) {
        auto same = comm.rank() == 0 ? comm.subset({0, 1}) : comm.subset({1, 0});
        CHECK(bool(same) == (comm.rank() < 2));
        if (same) CHECK(same.rank() == comm.rank());
    });
}

TEST_CASE("a subset of nobody is empty for all") {
    on_every_transport([](auto& comm) {
        CHECK(!comm.subset(std::span<const int>()));
        check_that_it_works(comm);
    });
}

TEST_CASE("local and cross communicators cover the topology") {
    on_every_transport([](auto& comm) {
        auto local = comm.local(), cross = comm.cross();
        CHECK(local.rank() == comm.local_rank());
        CHECK(local.size() == comm.local_size());
        CHECK(cross.rank() == comm.cross_rank());
        CHECK(cross.size() == comm.cross_size());
        CHECK(local.local_size() == local.size());  // all on one node
        CHECK(sum_of(local, 1) == comm.local_size());
        CHECK(sum_of(cross, 1) == comm.cross_size());
        check_that_it_works(local);
        check_that_it_works(cross);
    });
}

#if !defined(HVD_TEST_QUEUES)
TEST_CASE("declared nodes of two ranks make the topology") {
    on_every_transport(
        [](auto& comm) {
#if defined(HVD_TEST_LAUNCHED)
            auto nodes = hvd_test::communicator::world({.node_size = 2});
#else
            auto& nodes = comm;
#endif
            const int n = nodes.size(), rank = nodes.rank();
            CHECK(n == comm.size());
            CHECK(nodes.local_rank() == rank % 2);
            CHECK(nodes.local_size() == (rank == n - 1 && n % 2 == 1 ? 1 : 2));
            CHECK(nodes.cross_rank() == rank / 2);
            CHECK(nodes.cross_size() == (rank % 2 == 0 ? (n + 1) / 2 : n / 2));
            CHECK(nodes.is_homogeneous() == (n % 2 == 0 || n == 1));
            check_that_it_works(nodes);
        },
        {.node_size = 2});
}
#endif

TEST_CASE("communicators move, and a moved-from one is empty") {
    on_every_transport([](auto& comm) {
        const int rank = comm.rank(), size = comm.size(), local_rank = comm.local_rank();
        auto moved = std::move(comm);
        CHECK(!comm);
        CHECK(comm.rank() == -1);
        CHECK(comm.size() == 0);
        const auto has_no_place = [](const auto& empty) {
            CHECK(empty.local_rank() == -1);
            CHECK(empty.cross_rank() == -1);
            CHECK(empty.local_size() == 0);
            CHECK(empty.cross_size() == 0);
        };
        has_no_place(comm);
        has_no_place(std::remove_cvref_t<decltype(comm)>());
        CHECK(moved.rank() == rank);
        CHECK(moved.size() == size);
        CHECK(moved.local_rank() == local_rank);
        check_that_it_works(moved);
        comm = std::move(moved);
        has_no_place(moved);
        check_that_it_works(comm);
    });
}

TEST_CASE("barrier holds everybody until the last has come") {
    on_every_transport([](auto& comm) {
        for (int round = 0; round < 20; ++round) {
            int arrived = comm.rank() == round % comm.size() ? round : -1;
            comm.barrier();
            comm.broadcast(arrived, hvd::root{round % comm.size()});
            CHECK(arrived == round);
        }
    });
}

TEST_CASE("if one rank throws where all must succeed, all throw") {
    on_every_transport([](auto& comm) {
        using host = typename std::remove_reference_t<decltype(comm)>::backend_type;
        hvd::detail::host_ranks_of<host> ranks(comm.split(0));
        const bool fails = comm.rank() == comm.size() - 1;
        const auto open = [&] {
            hvd::detail::run_on_all(ranks, "opening", hvd::detail::never, [&] {
                if (fails) throw 7;
            });
        };
        if (fails) {
            CHECK_THROWS_AS(open(), int);
        } else {
            const auto e = thrown<hvd::peer_error>(open);
            if (e) CHECK(e->peers() == std::vector<int>{comm.size() - 1});
        }
        check_that_it_works(comm);
    });
}

}  // namespace communicators_tests
