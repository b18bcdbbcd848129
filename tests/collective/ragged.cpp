// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <numeric>

#include "disagreement.hpp"
#include "reference.hpp"
#include "support.hpp"

namespace ragged_tests {

using namespace hvd_test;

// Ranks contribute different amounts, also none.

namespace {

// Rank r contributes r elements of value r, so rank 0 contributes none.
std::vector<int> staircase(int rank) { return std::vector<int>(std::size_t(rank), rank); }

template <class Comm>
void check_staircase(Comm& comm, const hvd::gathered<int>& all) {
    REQUIRE(all.counts.size() == size_of(comm));
    REQUIRE(all.displacements.size() == size_of(comm));
    std::vector<int> expected;
    for (int r = 0; r < comm.size(); ++r) {
        CHECK(all.counts[std::size_t(r)] == std::size_t(r));
        CHECK(all.displacements[std::size_t(r)] == expected.size());
        expected.insert(expected.end(), std::size_t(r), r);
    }
    CHECK(all.values == expected);
}

// The counts of a reduce_scatter, for any number of ranks.
using count_of_rank = std::size_t (*)(std::size_t rank, std::size_t size);
constexpr count_of_rank splits[] = {
    [](std::size_t rank, std::size_t) { return rank; },
    [](std::size_t rank, std::size_t size) { return rank + 1 == size ? std::size_t(7) : 0; },
    [](std::size_t rank, std::size_t) { return (rank * 7 + 3) % 5; },
    [](std::size_t rank, std::size_t) { return rank == 0 ? std::size_t(300'000) : 3; },
    [](std::size_t rank, std::size_t) { return 50'000 * ((rank + 1) % 3); },
};

// Rank r gives 10 * r + i as element i.
std::vector<int> ascending(int rank, std::size_t n) {
    std::vector<int> x(n);
    std::iota(x.begin(), x.end(), 10 * rank);
    return x;
}

// Sizes around those whose data goes with the headers of a node: in the line of a step, below what
// is read where it lies, and half a window.
constexpr std::size_t sizes_with_headers[] = {0, 1, 2,    3,    4,      6,     7,
                                              8, 9, 1023, 1025, 32'768, 32'769};

// Element i of what rank `from` gives to rank `to`.
int sent(int from, int to, std::size_t i) { return 1000 * from + 100 * to + int(i % 97); }

// The tensors of ranks that give to each other: n elements each, or some more by rank.
struct uneven {
    std::size_t n;
    bool is_ragged;
    std::size_t count(int from, int to) const {
        return n + (is_ragged ? std::size_t((2 * from + to) % 3) : 0);
    }
    std::vector<std::size_t> counts(int from, int size) const {
        std::vector<std::size_t> all;
        for (int to = 0; to < size; ++to) all.push_back(count(from, to));
        return all;
    }
    // The elements that one rank gives to all, or to one.
    std::vector<int> gives(int from, int first_to, int end) const {
        std::vector<int> x;
        for (int to = first_to; to < end; ++to)
            for (std::size_t i = 0; i < count(from, to); ++i) x.push_back(sent(from, to, i));
        return x;
    }
    std::vector<int> comes(int to, int size) const {
        std::vector<int> x;
        for (int from = 0; from < size; ++from)
            for (const int value : gives(from, to, to + 1)) x.push_back(value);
        return x;
    }
};

template <class F>
void on_sizes_with_headers(F f) {
    on_every_transport([&](auto& comm) {
        for (const std::size_t n : sizes_with_headers)
            for (const bool is_ragged : {false, true}) {
                INFO(n, is_ragged ? " elements and more" : " elements");
                f(comm, uneven{n, is_ragged});
            }
    });
}

}  // namespace

TEST_CASE("alltoalls of sizes whose data goes with the headers, into new and given memory") {
    on_sizes_with_headers([](auto& comm, const uneven& u) {
        const std::vector<int> expected = u.comes(comm.rank(), comm.size());
        const auto counts = u.counts(comm.rank(), comm.size());
        std::vector<int> mine = u.gives(comm.rank(), 0, comm.size());
        const auto got = comm.alltoall(mine, counts);
        CHECK(got.values == expected);
        for (int p = 0; p < comm.size(); ++p)
            CHECK(got.counts[std::size_t(p)] == u.count(p, comm.rank()));
        std::vector<int> out(expected.size(), -1);
        comm.alltoall(mine, counts, hvd::into(out));
        CHECK(out == expected);
        if (u.is_ragged) return;
        comm.alltoall(mine, hvd::into(mine));
        CHECK(mine == expected);
    });
}

TEST_CASE("allgathers and gathers of sizes whose data goes with the headers") {
    on_sizes_with_headers([](auto& comm, const uneven& u) {
        const int last = comm.size() - 1;
        const std::vector<int> expected = u.comes(0, comm.size());
        const std::vector<int> mine = u.gives(comm.rank(), 0, 1);
        CHECK(comm.allgather(mine).values == expected);
        std::vector<int> out(expected.size(), -1), place = out;
        comm.allgather(mine, hvd::into(out));
        CHECK(out == expected);
        std::size_t before = 0;
        for (int p = 0; p < comm.rank(); ++p) before += u.count(p, 0);
        std::copy(mine.begin(), mine.end(), place.begin() + std::ptrdiff_t(before));
        comm.allgather(hvd::view(place.data() + before, mine.size()), hvd::into(place));
        CHECK(place == expected);
        for (const int root : {0, last}) {
            const auto all = comm.gather(mine, hvd::root{root});
            CHECK(all.values == (comm.rank() == root ? expected : std::vector<int>()));
            out.assign(expected.size(), -1);
            comm.gather(mine, hvd::into(out), hvd::root{root});
            if (comm.rank() == root) CHECK(out == expected);
        }
    });
}

TEST_CASE("scatters of sizes whose data goes with the headers") {
    on_sizes_with_headers([](auto& comm, const uneven& u) {
        for (const int root : {0, comm.size() - 1}) {
            const std::vector<int> expected = u.gives(root, comm.rank(), comm.rank() + 1);
            // the others name any tensor, and any counts
            std::vector<int> all =
                comm.rank() == root ? u.gives(root, 0, comm.size()) : std::vector<int>(70'000, -1);
            const std::vector<std::size_t> counts =
                comm.rank() == root ? u.counts(root, comm.size()) : std::vector<std::size_t>();
            CHECK(comm.scatter(all, counts, hvd::root{root}) == expected);
            std::vector<int> out(expected.size(), -1);
            comm.scatter(all, counts, hvd::into(out), hvd::root{root});
            CHECK(out == expected);
        }
    });
}

TEST_CASE(
    "memory of another size than the result on one rank is told to all, and no output changes") {
    on_every_transport_from(2, [](auto& comm) {
        const int size = comm.size();
        for (const std::size_t n : {1, 5, 300, 20'000})
            for (const int culprit : {0, size - 1}) {
                INFO(n, " elements, and one more on rank ", culprit);
                const uneven u{n, false};
                const std::size_t more = comm.rank() == culprit ? 1 : 0;
                const std::string room = "into() has room for ";
                std::vector<int> all(n * std::size_t(size) + more, -1), one(n + more, -1),
                    before = all, before_one = one;
                const std::vector<int> mine = u.gives(comm.rank(), 0, 1),
                                       to_all = u.gives(comm.rank(), 0, size);
                expect_refusal(comm, culprit, room, [&] { comm.allgather(mine, hvd::into(all)); });
                CHECK(all == before);
                expect_refusal(comm, culprit, room, [&] { comm.alltoall(to_all, hvd::into(all)); });
                CHECK(all == before);
                expect_refusal(comm, culprit, room,
                               [&] { comm.gather(mine, hvd::into(all), hvd::root{culprit}); });
                CHECK(all == before);
                for (const int root : {0, size - 1}) {
                    const hvd::options together{.confirm = true};
                    expect_refusal(comm, culprit, room, [&] {
                        comm.scatter(to_all, hvd::into(one), hvd::root{root}, together);
                    });
                    CHECK(one == before_one);
                    // ranks that leave the call have their parts
                    expect_refusal(comm, culprit, room,
                                   [&] { comm.scatter(to_all, hvd::into(one), hvd::root{root}); });
                    if (comm.rank() == culprit ||
                        one != u.gives(root, comm.rank(), comm.rank() + 1))
                        CHECK(one == before_one);
                    one = before_one;
                }
            }
    });
}

TEST_CASE("allgather of different sizes keeps every rank's elements, counts and places") {
    on_every_transport(
        [](auto& comm) { check_staircase(comm, comm.allgather(staircase(comm.rank()))); });
}

TEST_CASE("gather of different sizes gives the root every rank's elements") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            const auto all = comm.gather(staircase(comm.rank()), hvd::root{root});
            if (comm.rank() == root) check_staircase(comm, all);
            else CHECK(all.values.empty());
        }
    });
}

TEST_CASE("ragged allgather goes into memory of exactly its size") {
    on_every_transport([](auto& comm) {
        const std::size_t total = size_of(comm) * (size_of(comm) - 1) / 2;
        std::vector<int> out(total, -1);
        comm.allgather(staircase(comm.rank()), hvd::into(out));
        std::size_t at = 0;
        for (int r = 0; r < comm.size(); ++r)
            for (int i = 0; i < r; ++i) CHECK(out[at++] == r);
    });
}

TEST_CASE("allgather joins matrices of different heights by their rows") {
    on_every_transport([](auto& comm) {
        const std::size_t rows = size_of(comm) - rank_of(comm);
        std::vector<int> matrix(rows * 3, comm.rank());
        const auto all = comm.allgather(hvd::view(matrix.data(), hvd::shape(rows, 3)));
        for (std::size_t r = 0; r < size_of(comm); ++r)
            CHECK(all.counts[r] == 3 * (size_of(comm) - r));
        CHECK(all.values.size() == 3 * size_of(comm) * (size_of(comm) + 1) / 2);
    });
}

TEST_CASE("large ragged allgather where one rank alone has something") {
    on_every_transport([](auto& comm) {
        const int giver = comm.size() - 1;
        const std::size_t n = 300001;
        const auto all = comm.allgather(input<float>(comm.rank(), comm.rank() == giver ? n : 0));
        CHECK(wrong_input<float>(all.values, n, giver) == 0);
    });
}

TEST_CASE("alltoall with counts of each rank's own, zeros included") {
    on_every_transport([](auto& comm) {
        const int n = comm.size();
        // Rank r sends (r + 2 * p) % 4 elements to rank p.
        const auto count = [](int from, int to) { return std::size_t(from + 2 * to) % 4; };
        std::vector<std::size_t> counts(size_of(comm));
        std::vector<int> in, expected;
        for (int p = 0; p < n; ++p) {
            counts[std::size_t(p)] = count(comm.rank(), p);
            in.insert(in.end(), count(comm.rank(), p), 10 * comm.rank() + p);
            expected.insert(expected.end(), count(p, comm.rank()), 10 * p + comm.rank());
        }
        const auto got = comm.alltoall(in, counts);
        CHECK(got.values == expected);
        for (int p = 0; p < n; ++p) CHECK(got.counts[std::size_t(p)] == count(p, comm.rank()));
        std::vector<int> out(expected.size());
        comm.alltoall(in, counts, hvd::into(out));
        CHECK(out == expected);
    });
}

TEST_CASE("alltoall where one rank sends nothing, and one receives nothing") {
    on_every_transport([](auto& comm) {
        const int n = comm.size(), silent = 0, deaf = n - 1;
        std::vector<int> counts(size_of(comm), comm.rank() == silent ? 0 : 2);
        counts[std::size_t(deaf)] = 0;
        const int total = std::accumulate(counts.begin(), counts.end(), 0);
        const auto got = comm.alltoall(std::vector<int>(std::size_t(total), comm.rank()), counts);
        CHECK(got.values.size() == (comm.rank() == deaf ? 0 : 2 * (size_of(comm) - 1)));
        CHECK(comm.alltoall(std::vector<int>()).values.empty());
    });
}

TEST_CASE("alltoall of large uneven pieces") {
    on_every_transport([](auto& comm) {
        // All elements go to the next rank, many more than fit in one chunk.
        const std::size_t n = 200003;
        const int next = (comm.rank() + 1) % comm.size(),
                  previous = (comm.rank() + comm.size() - 1) % comm.size();
        std::vector<std::size_t> counts(size_of(comm));
        counts[std::size_t(next)] = n;
        const auto got = comm.alltoall(input<double>(comm.rank(), n), counts);
        CHECK(wrong_input<double>(got.values, n, previous) == 0);
    });
}

TEST_CASE("alltoall whose counts do not add up, or do not divide, is refused on every rank") {
    on_every_transport([](auto& comm) {
        const std::vector<int> in(size_of(comm) * 2 + 1);
        std::vector<long> counts(size_of(comm), 2);
        thrown<hvd::usage_error>([&] { comm.alltoall(in, counts); });
        counts.push_back(1);
        thrown<hvd::usage_error>([&] { comm.alltoall(in, counts); });
        counts.assign(size_of(comm), 2);
        counts.front() = -1;
        thrown<hvd::usage_error>([&] { comm.alltoall(in, counts); });
        if (comm.size() > 1) thrown<hvd::usage_error>([&] { comm.alltoall(in); });
        check_that_it_works(comm);
    });
}

TEST_CASE("a count that is negative, or makes the sum wrap around, is refused by value and rank") {
    on_every_transport([](auto& comm) {
        const int culprit = comm.size() - 1;
        const std::vector<float> two(2);
        std::vector<float> out(2);
        const auto refused = [&](const std::string& what, const auto& wrong, const auto& send) {
            using count = std::remove_cvref_t<decltype(wrong[0])>;
            std::vector<count> counts(size_of(comm), 0);
            if (comm.rank() == culprit) std::copy(wrong.begin(), wrong.end(), counts.begin());
            else counts[0] = 2;
            expect_refusal(comm, culprit, what, [&] { send(counts); });
        };
        const auto refused_by_all = [&](const std::string& what, const auto& wrong) {
            refused(what, wrong, [&](const auto& counts) { comm.alltoall(two, counts); });
            refused(what, wrong,
                    [&](const auto& counts) { comm.alltoall(two, counts, hvd::into(out)); });
            refused(what, wrong,
                    [&](const auto& counts) { comm.alltoall_async(two, counts).wait(); });
            refused(what, wrong,
                    [&](const auto& counts) { comm.scatter(two, counts, hvd::root{culprit}); });
            refused(what, wrong, [&](const auto& counts) {
                comm.scatter_async(two, counts, hvd::root{culprit}).wait();
            });
        };
        refused_by_all("a count of -2 for rank 0", std::vector<std::int8_t>{-2});
        if (comm.size() == 1) return;
        constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
        refused_by_all("a count of -1 for rank 1", std::vector<int>{3, -1});
        refused_by_all("a count of -1 for rank 0", std::vector<long>{-1, 3});
        refused_by_all("for rank 0", std::vector<std::size_t>{most, 3});
        refused_by_all("for rank 1", std::vector<std::size_t>{3, most});
        refused_by_all("a count of 13835058055282163714 for rank 1",
                       std::vector<std::size_t>{std::size_t(1) << 62, 2 - (std::size_t(1) << 62)});
    });
}

TEST_CASE("scatter with counts gives each rank what the root says") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            std::vector<std::size_t> counts(size_of(comm));
            std::iota(counts.begin(), counts.end(), std::size_t(0));
            const std::size_t total = size_of(comm) * (size_of(comm) - 1) / 2;
            std::vector<int> in;
            if (comm.rank() == root)
                for (int r = 0; r < comm.size(); ++r)
                    in.insert(in.end(), std::size_t(r), 100 * root + r);
            CHECK(in.size() == (comm.rank() == root ? total : 0));
            const auto mine = comm.scatter(
                in, comm.rank() == root ? counts : std::vector<std::size_t>(), hvd::root{root});
            CHECK(mine == std::vector<int>(rank_of(comm), 100 * root + comm.rank()));
            std::vector<int> into(rank_of(comm));
            comm.scatter(in, counts, hvd::into(into), hvd::root{root});
            CHECK(into == mine);
        }
    });
}

TEST_CASE("scatter refused by its root is refused everywhere") {
    on_every_transport_from(2, [](auto& comm) {
        const std::vector<int> in(5);
        const std::vector<std::size_t> counts(size_of(comm), 3);
        if (comm.rank() == 0) {
            thrown<hvd::usage_error>([&] { comm.scatter(in, counts); });
        } else {
            const auto e = thrown<hvd::peer_error>([&] { comm.scatter(in, counts); });
            if (e) CHECK(e->peers() == std::vector<int>{0});
        }
        check_that_it_works(comm);
    });
}

TEST_CASE(
    "reduce_scatter and scatter split matrices by whole rows, the first ranks having one more") {
    on_every_transport([](auto& comm) {
        for (const std::size_t rows : {size_of(comm) * 2 + 1, size_of(comm) * 3 - 1, size_of(comm),
                                       std::size_t(1), std::size_t(0)}) {
            INFO(rows, " rows");
            std::vector<int> matrix(rows * 3);
            for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = int(i) + comm.rank();
            const auto view = hvd::view(matrix.data(), hvd::shape(rows, 3));
            const part mine(rows, comm.rank(), comm.size());
            const int n = comm.size();
            CHECK(wrong(comm.reduce_scatter(view, hvd::sum), 3 * mine.count, [&](std::size_t i) {
                      return n * int(3 * mine.first + i) + n * (n - 1) / 2;
                  }) == 0);
            CHECK(wrong(comm.scatter(view), 3 * mine.count,
                        [&](std::size_t i) { return int(3 * mine.first + i); }) == 0);
        }
    });
}

TEST_CASE("reduce_scatter gives each rank as many elements as the counts say") {
    on_every_transport([](auto& comm) {
        const int size = comm.size();
        for (const count_of_rank count : splits) {
            std::vector<std::int32_t> counts;  // of any integer type
            for (std::size_t r = 0; r < size_of(comm); ++r)
                counts.push_back(std::int32_t(count(r, size_of(comm))));
            const auto sum_to = [&](int r) {
                return std::accumulate(counts.begin(), counts.begin() + r, std::size_t(0));
            };
            const std::size_t first = sum_to(comm.rank()), n = sum_to(size);
            const auto mine = std::size_t(counts[rank_of(comm)]);
            INFO(mine, " of ", n, " elements");
            const std::vector<int> in = ascending(comm.rank(), n);
            const auto sum = [&](std::size_t i) { return size * int(i) + 5 * size * (size - 1); };
            const auto right = [&](const auto& slice) {
                std::vector<int> expected(mine);
                for (std::size_t i = 0; i < mine; ++i) expected[i] = sum(first + i);
                return std::equal(slice.begin(), slice.end(), expected.begin(), expected.end());
            };
            CHECK(right(comm.reduce_scatter(in, hvd::sum, counts)));
            CHECK(right(comm.reduce_scatter(in, [](int a, int b) { return a + b; }, counts)));
            CHECK(right(comm.reduce_scatter_async(in, hvd::sum, counts).wait()));
            std::vector<int> out(mine), own = in;
            comm.reduce_scatter(in, hvd::sum, counts, hvd::into(out));
            CHECK(right(out));
            std::fill(out.begin(), out.end(), -1);
            comm.reduce_scatter_async(in, hvd::sum, counts, hvd::into(out)).wait();
            CHECK(right(out));
            const auto slice = hvd::view(own.data() + first, mine);  // in place
            comm.reduce_scatter(own, hvd::sum, counts, hvd::into(slice));
            CHECK(right(slice.span()));
            if (n % 2 == 0) {
                const auto matrix = hvd::view(in.data(), hvd::shape(n / 2, 2));
                CHECK(right(comm.reduce_scatter(matrix, hvd::sum, counts)));
            }
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("counts of a reduce_scatter that differ between ranks are told to all, with the counts") {
    on_every_transport_from(2, [](auto& comm) {
        const std::size_t last = size_of(comm) - 1;
        std::vector<int> in(4 * size_of(comm), 1);
        std::vector<std::size_t> counts(size_of(comm), 4);
        const auto printed = [&](std::size_t first) {
            std::string list = "[" + std::to_string(first);
            for (std::size_t r = 1; r <= last; ++r)
                list += ", " + std::to_string(r == last ? 8 - first : 4);
            return list + "]";
        };
        if (comm.rank() == 0) counts.front() = 3, counts.back() = 5;
        const auto counts_of = [&](int rank) { return printed(rank == 0 ? 3 : 4); };
        expect_mismatch(comm, "counts", counts_of,
                        [&] { (void)comm.reduce_scatter(in, hvd::sum, counts); });
        const auto with_and_without = [&] {
            if (comm.rank() == 0) (void)comm.reduce_scatter(in, hvd::sum);
            else (void)comm.reduce_scatter(in, hvd::sum, counts);
        };
        const auto counts_or_none = [&](int rank) {
            return rank == 0 ? std::string("reduce_scatter") : printed(4);
        };
        expect_mismatch(comm, "counts", counts_or_none, with_and_without);
    });
}

TEST_CASE("counts of a reduce_scatter that can't be are refused") {
    on_every_transport([](auto& comm) {
        const int culprit = comm.size() - 1;
        const std::vector<int> in(4 * size_of(comm), 1);
        const std::string all = std::to_string(in.size());
        const auto check = [&](std::vector<int> wrong, const std::string& reason) {
            const std::vector<int> counts(size_of(comm), 4);
            const auto call = [&] {
                (void)comm.reduce_scatter(in, hvd::sum, comm.rank() == culprit ? wrong : counts);
            };
            expect_refusal(comm, culprit, reason, call);
        };
        std::vector<int> counts(size_of(comm), 4);
        counts.back() = 5;
        check(counts, "counts add up to " + std::to_string(in.size() + 1) + ", the tensor has " +
                          all + " elements");
        counts.back() = -4;
        check(counts, "a count of -4 for rank " + std::to_string(culprit));
        counts.push_back(8);
        check(counts, std::to_string(comm.size() + 1) + " counts for " +
                          std::to_string(comm.size()) + " ranks");
        std::vector<int> small(3);
        counts.assign(size_of(comm), 4);
        const auto call = [&] {
            std::vector<int> right(4);
            comm.reduce_scatter(in, hvd::sum, counts,
                                hvd::into(comm.rank() == culprit ? small : right));
        };
        expect_refusal(comm, culprit, "into() has room for 3 elements, this rank's part has 4",
                       call);
    });
}

TEST_CASE("results of bool are bytes") {
    on_every_transport([](auto& comm) {
        const bool mine = comm.rank() % 2 == 0;
        const auto all = comm.allgather(mine);
        static_assert(std::is_same_v<decltype(all.values), std::vector<std::uint8_t>>);
        for (std::size_t r = 0; r < size_of(comm); ++r)
            CHECK(all.values[r] == (r % 2 == 0 ? 1 : 0));
        bool everybody = mine;
        comm.allreduce(everybody, hvd::logical_and);
        CHECK(everybody == (comm.size() == 1));
    });
}

}  // namespace ragged_tests
