// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <utility>

#include "disagreement.hpp"
#include "reference.hpp"

namespace arguments_tests {

using namespace hvd_test;

// The arguments that a collective takes, and errors that one rank can see.

namespace {

// A tensor of a user's that may have no view.
struct moody {
    std::vector<float> cells;
    bool throws = false;
};

}  // namespace

}  // namespace arguments_tests

template <>
struct hvd::view_traits<arguments_tests::moody> {
    static constexpr bool borrowed = false;
    static auto view(auto& t) {
        if (t.throws) throw std::domain_error("no view today");
        return hvd::view(t.cells.data(), t.cells.size());
    }
};

namespace arguments_tests {

TEST_CASE("spans, std::arrays, C arrays, nested ones and scalars are tensors") {
    on_every_transport([](auto& comm) {
        const float sum = float(comm.size() * (comm.size() + 1) / 2), mine = float(comm.rank() + 1);
        std::vector<float> memory(3, mine);
        std::array<float, 3> array{mine, mine, mine};
        float c_array[3] = {mine, mine, mine},
              nested[2][3] = {{mine, mine, mine}, {mine, mine, mine}};
        double scalar = mine;
        comm.allreduce(std::span(memory), hvd::sum);
        comm.allreduce(array, hvd::sum);
        comm.allreduce(c_array, hvd::sum);
        comm.allreduce(nested, hvd::sum);
        comm.allreduce(scalar, hvd::sum);
        CHECK(memory == std::vector<float>(3, sum));
        CHECK(array == std::array<float, 3>{sum, sum, sum});
        CHECK(std::count(std::begin(c_array), std::end(c_array), sum) == 3);
        CHECK(std::count(&nested[0][0], &nested[0][0] + 6, sum) == 6);
        CHECK(scalar == sum);
    });
}

TEST_CASE("a temporary view of somebody's memory may be reduced in place") {
    on_every_transport([](auto& comm) {
        std::vector<int> memory(6, 1);
        comm.allreduce(hvd::view(memory.data() + 2, 2), hvd::sum);
        CHECK(memory == std::vector<int>{1, 1, comm.size(), comm.size(), 1, 1});
    });
}

TEST_CASE("constant inputs are read and not written") {
    on_every_transport([](auto& comm) {
        const std::vector<int> in(5, comm.rank() + 1);
        std::vector<int> out(5);
        comm.allreduce(in, out, hvd::sum);
        CHECK(out == std::vector<int>(5, comm.size() * (comm.size() + 1) / 2));
        CHECK(in == std::vector<int>(5, comm.rank() + 1));
        CHECK(comm.allgather(in).values.size() == 5 * size_of(comm));
        CHECK(comm.allgather(comm.rank()).values.back() ==
              comm.size() - 1);  // a temporary scalar is read in time
    });
}

TEST_CASE("exactly the same memory as input and output is in place") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(1000, 1);
        comm.allreduce(std::as_const(x), x, hvd::sum);
        CHECK(x == std::vector<int>(1000, comm.size()));
    });
}

TEST_CASE("strided tensors are packed, and what lies between their elements stays") {
    on_every_transport([](auto& comm) {
        const int n = comm.size(), sum = n * (n + 1) / 2;
        std::vector<int> matrix(5 * 4, -1), expected = matrix;
        const auto column = hvd::view(matrix.data() + 1, hvd::shape(5), hvd::strides(4));
        const auto fill = [](std::vector<int>& m, int value) {
            for (std::size_t row = 0; row < 5; ++row) m[row * 4 + 1] = value;
        };
        fill(matrix, comm.rank() + 1);
        comm.reduce(column, hvd::sum, hvd::root{n - 1});
        fill(expected, comm.rank() == n - 1 ? sum : comm.rank() + 1);
        CHECK(matrix == expected);

        fill(matrix, comm.rank() + 1);
        comm.allreduce(column, hvd::sum);
        fill(expected, sum);
        CHECK(matrix == expected);

        fill(matrix, 2);
        const auto shares = comm.reduce_scatter(column, hvd::sum);
        CHECK(shares == std::vector<int>(part(5, comm.rank(), n).count, 2 * n));
        CHECK(comm.gather(column).values ==
              std::vector<int>(comm.rank() == 0 ? 5 * size_of(comm) : 0, 2));
        CHECK(comm.scatter(column) == std::vector<int>(part(5, comm.rank(), n).count, 2));
        std::vector<int> counts(size_of(comm), 0);
        counts.back() = 5;
        CHECK(comm.alltoall(column, counts).values ==
              std::vector<int>(comm.rank() == n - 1 ? 5 * size_of(comm) : 0, 2));
    });
}

TEST_CASE("strided tensors of several dimensions and negative steps keep their order") {
    on_every_transport([](auto& comm) {
        std::vector<int> memory(24);
        for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = int(i) + 100 * comm.rank();
        // The view has every second column of a 4 x 6 matrix, its rows from the last to the first.
        const auto view = hvd::view(memory.data() + 18, hvd::shape(4, 3), hvd::strides(-6, 2));
        const auto all = comm.allgather(view);
        REQUIRE(all.values.size() == 12 * size_of(comm));
        for (int r = 0; r < comm.size(); ++r)
            for (int i = 0; i < 12; ++i)
                CHECK(all.values[std::size_t(12 * r + i)] ==
                      100 * r + 18 - 6 * (i / 3) + 2 * (i % 3));
        std::vector<int> dense(12);
        comm.allreduce(view, dense, hvd::max);
        CHECK(dense.front() == 100 * (comm.size() - 1) + 18);
        comm.broadcast(view, hvd::root{comm.size() - 1});
        CHECK(memory[18] == 100 * (comm.size() - 1) + 18);
        CHECK(memory[19] == 19 + 100 * comm.rank());
        CHECK(memory[0] == 100 * (comm.size() - 1));
    });
}

TEST_CASE("a strided output takes a reduction of a dense input") {
    on_every_transport([](auto& comm) {
        const std::vector<int> in{1, 2, 3};
        std::vector<int> out(6, -1);
        comm.allreduce(in, hvd::view(out.data(), hvd::shape(3), hvd::strides(2)), hvd::sum);
        CHECK(out == std::vector<int>{comm.size(), -1, 2 * comm.size(), -1, 3 * comm.size(), -1});
    });
}

TEST_CASE("one column of a matrix is reduced into another: they share no element") {
    on_every_transport([](auto& comm) {
        std::vector<int> matrix(5 * 4, 1), expected = matrix;
        for (std::size_t row = 0; row < 5; ++row) expected[row * 4 + 1] = comm.size();
        const auto column = [&](std::size_t c) {
            return hvd::view(matrix.data() + c, hvd::shape(5), hvd::strides(4));
        };
        comm.allreduce(column(0), column(1), hvd::sum);
        CHECK(matrix == expected);
    });
}

TEST_CASE(
    "an output that overlaps the input in part is refused on every rank, and the communicator "
    "works on") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(10, 1);
        const auto head = hvd::view(x.data(), 6), tail = hvd::view(x.data() + 4, 6);
        const auto e = thrown<hvd::usage_error>([&] { comm.allreduce(head, tail, hvd::sum); });
        if (e) CHECK(contains(e->what(), "input of 24 bytes and output of 24 bytes overlap"));
        CHECK(x == std::vector<int>(10, 1));
        thrown<hvd::usage_error>([&] {
            comm.reduce_scatter(
                x, hvd::sum,
                hvd::into(hvd::view(x.data(), part(10, comm.rank(), comm.size()).count + 1)));
        });
        check_that_it_works(comm);
    });
}

TEST_CASE("rows of different numbers are gathered in place, and refused where they lie elsewhere") {
    on_every_transport_from(2, [](auto& comm) {
        constexpr std::size_t k = 2000;
        const auto rows = [](int rank) { return k * std::size_t(rank + 1); };
        const auto before = [](int rank) { return k * std::size_t(rank * (rank + 1) / 2); };
        std::vector<int> all(before(comm.size()), -1), expected;
        for (int p = 0; p < comm.size(); ++p)
            for (std::size_t i = 0; i < rows(p); ++i) expected.push_back(100000 * p + int(i));
        const auto mine = [&](std::size_t at) {
            const auto x = hvd::view(all.data() + at, rows(comm.rank()));
            std::copy_n(expected.begin() + std::ptrdiff_t(before(comm.rank())), x.size(), x.data());
            return x;
        };
        comm.allgather(mine(before(comm.rank())), hvd::into(all));
        CHECK(all == expected);
        // Rank 1's would be in place if all three ranks had as many.
        std::fill(all.begin(), all.end(), -1);
        const bool is_wrong = comm.rank() == 1 && comm.size() > 2;
        const auto x = mine(is_wrong ? rows(1) : before(comm.rank()));
        const auto gather = [&] { comm.allgather(x, hvd::into(all)); };
        if (is_wrong) {
            const auto e = thrown<hvd::usage_error>(gather);
            if (e) CHECK(contains(e->what(), "not where this rank's elements end up"));
        } else if (comm.size() > 2) {
            thrown<hvd::peer_error>(gather);
        } else {
            gather();
            CHECK(all == expected);
        }
        check_that_it_works(comm);
    });
}

// Calls in which this rank's part lies in its slot already: no further memory, the same result.
// Rank r has 1000 * (r + 1) rows, whose elements tell their places.
TEST_CASE("gather and scatter are in place where the root's part lies in its slot") {
    on_every_transport([](auto& comm) {
        const auto rows = [](int rank) { return std::size_t(1000 * (rank + 1)); };
        const auto before = [](int rank) { return std::size_t(500 * rank * (rank + 1)); };
        std::vector<std::size_t> counts;
        for (int r = 0; r < comm.size(); ++r) counts.push_back(rows(r));
        const std::size_t n = before(comm.size()), mine = rows(comm.rank());
        for (int root = 0; root < comm.size(); ++root) {
            const hvd::root to{root};
            const bool is_root = comm.rank() == root;
            std::vector<int> expected(n), own(mine), all(is_root ? n : 0, -1);
            std::iota(expected.begin(), expected.end(), 7 * root);
            const auto from = expected.begin() + std::ptrdiff_t(before(comm.rank()));
            const std::vector<int> part(from, from + std::ptrdiff_t(mine));
            const auto slot =
                hvd::view(is_root ? all.data() + before(root) : own.data(), std::size_t(mine));
            for (const bool waits : {true, false}) {
                std::fill(all.begin(), all.end(), -1);
                std::copy(part.begin(), part.end(), slot.begin());
                if (waits) comm.gather(slot, hvd::into(all), to);
                else comm.gather_async(slot, hvd::into(all), to).wait();
                if (is_root) CHECK(all == expected);
                if (!is_root) std::fill(own.begin(), own.end(), -1);
                if (waits) comm.scatter(all, counts, hvd::into(slot), to);
                else comm.scatter_async(all, counts, hvd::into(slot), to).wait();
                CHECK(std::equal(slot.begin(), slot.end(), part.begin(), part.end()));
                if (is_root) CHECK(all == expected);
            }
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("an alltoall is in place where input and output are one tensor") {
    on_every_transport([](auto& comm) {
        const int size = comm.size(), rank = comm.rank();
        for (const std::size_t n : {std::size_t(3), std::size_t(30'000)}) {
            std::vector<int> x(n * size_of(comm)), expected(x.size());
            const auto fill = [&] {
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const int peer = int(i / n), at = int(i % n);
                    x[i] = 1000 * rank + 100 * peer + at;
                    expected[i] = 1000 * peer + 100 * rank + at;
                }
            };
            fill();
            comm.alltoall(x, hvd::into(x));
            CHECK(x == expected);
            fill();
            comm.alltoall_async(x, hvd::into(x)).wait();
            CHECK(x == expected);
            fill();
            comm.alltoall(x, std::vector<int>(size_of(comm), int(n)), hvd::into(x));
            CHECK(x == expected);
        }
        // Rank r sends 2 elements to the next rank, and 1 to itself where there are others.
        std::vector<int> counts(size_of(comm));
        counts[std::size_t((rank + 1) % size)] += 2;
        counts[rank_of(comm)] += 1;
        std::vector<int> x = {rank, rank, rank};
        comm.alltoall(x, counts, hvd::into(x));
        const int before = (rank + size - 1) % size;
        const bool gets_own_first = rank < before;
        CHECK(x == (gets_own_first ? std::vector{rank, before, before}
                                   : std::vector{before, before, rank}));
        std::vector<int> y(3 * size_of(comm));
        const auto shifted = hvd::view(y.data() + 1, y.size() - 1);
        if (size == 1)
            thrown<hvd::usage_error>(
                [&] { comm.alltoall(hvd::view(y.data(), y.size() - 1), hvd::into(shifted)); });
        check_that_it_works(comm);
    });
}

TEST_CASE("an output that would overwrite data that peers still read is refused") {
    on_every_transport([](auto& comm) {
        const std::size_t n = 6, all = n * std::size_t(comm.size());
        const std::size_t elsewhere = n * std::size_t((comm.rank() + 1) % comm.size());
        std::vector<int> x(all, 1);
        const auto mine = hvd::view(x.data() + elsewhere, n);
        if (comm.size() > 1) {
            thrown<hvd::usage_error>([&] { comm.allgather(mine, hvd::into(x)); });
            thrown<hvd::usage_error>([&] { comm.allgather_async(mine, hvd::into(x)).wait(); });
            const hvd::root last{comm.size() - 1};
            const bool is_last = comm.rank() == last.rank;
            const auto into_a_peers_part = [&] {
                comm.reduce_scatter(x, hvd::sum, hvd::into(mine));
            };
            const auto e = thrown<hvd::usage_error>(into_a_peers_part);
            if (e) CHECK(contains(e->what(), "overlap in part"));
            std::vector<int> part(n);
            const auto to = hvd::into(is_last ? hvd::view(x.data(), n) : hvd::view(part.data(), n));
            const auto scatter = [&] { comm.scatter(x, to, last); };
            if (is_last) thrown<hvd::usage_error>(scatter);
            else thrown<hvd::peer_error>(scatter);
        }
        CHECK(x == std::vector<int>(all, 1));
        check_that_it_works(comm);
    });
}

TEST_CASE("the root's part of a scatter may stay where it is") {
    on_every_transport([](auto& comm) {
        const std::size_t n = 5;
        std::vector<int> x(n * std::size_t(comm.size())), part(n);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = int(i);
        const std::vector<int> before = x;
        const hvd::root last{comm.size() - 1};
        const auto own = hvd::view(x.data() + n * std::size_t(last.rank), n);
        const auto to = comm.rank() == last.rank ? own : hvd::view(part.data(), n);
        comm.scatter(x, hvd::into(to), last);
        for (std::size_t i = 0; i < n; ++i) CHECK(to.data()[i] == int(n) * comm.rank() + int(i));
        CHECK(x == before);
    });
}

TEST_CASE("the input of a gather's root may lie anywhere in its output, for no peer reads it") {
    on_every_transport([](auto& comm) {
        const std::size_t n = 3000, size = std::size_t(comm.size());
        for (const std::size_t shift : {0, 1, 2}) {  // its elements end up one further, or before
            std::vector<int> memory(n * size + 2, -1), expected, mine(n);
            for (std::size_t i = 0; i < n * size; ++i) expected.push_back(int(i));
            const int root = comm.size() - 1;
            const auto in = hvd::view(memory.data() + n * std::size_t(root) + shift, n);
            std::iota(in.data(), in.data() + n, int(n) * root);
            std::iota(mine.begin(), mine.end(), int(n) * comm.rank());
            const auto out = hvd::view(memory.data() + 1, n * size);
            if (comm.rank() == root) comm.gather(in, hvd::into(out), hvd::root{root});
            else comm.gather(mine, hvd::into(out), hvd::root{root});
            if (comm.rank() == root)
                CHECK(std::vector<int>(out.data(), out.data() + out.size()) == expected);
        }
    });
}

TEST_CASE("an output of another size is refused with both sizes, and the communicator works on") {
    on_every_transport([](auto& comm) {
        const std::vector<int> in(10, 1);
        std::vector<int> out(9);
        const auto allreduce = thrown<hvd::usage_error>([&] { comm.allreduce(in, out, hvd::sum); });
        const auto allgather =
            thrown<hvd::usage_error>([&] { comm.allgather(in, hvd::into(out)); });
        const auto scatter = thrown<hvd::usage_error>(
            [&] { comm.scatter(in, hvd::into(hvd::view(out.data(), 0))); });
        const auto alltoall = thrown<hvd::usage_error>(
            [&] { comm.alltoall(hvd::view(in.data(), std::size_t(0)), hvd::into(out)); });
        if (allreduce)
            CHECK((contains(allreduce->what(), "9") && contains(allreduce->what(), "10")));
        if (allgather)
            CHECK((contains(allgather->what(), "9") &&
                   contains(allgather->what(), std::to_string(10 * comm.size()))));
        check_that_it_works(comm);
    });
}

TEST_CASE("a view of the user's that throws on one rank refuses the call") {
    on_every_transport_from(2, [](auto& comm) {
        const int last = comm.size() - 1;
        const bool throws = comm.rank() == last;
        moody x{std::vector<float>(size_of(comm), 1), throws};
        std::vector<float> out(size_of(comm)), all(size_of(comm) * size_of(comm)), one(1);
        const auto check = [&](const char* name, auto call) {
            INFO("call ", std::string(name));
            if (throws) {
                thrown<std::domain_error>([&] { by_next_call(comm, call); });
            } else {
                const auto e = thrown<hvd::peer_error>([&] { by_next_call(comm, call); });
                if (e) CHECK(contains(e->what(), "no view today"));
            }
            check_that_it_works(comm);
        };
        check("allreduce", [&] { comm.allreduce(x, hvd::sum); });
        check("allreduce into", [&] { comm.allreduce(x, hvd::into(out), hvd::sum); });
        check("allreduce async", [&] { comm.allreduce_async(x, hvd::sum).wait(); });
        check("reduce", [&] { comm.reduce(x, hvd::sum); });
        check("reduce into", [&] { comm.reduce(x, hvd::into(out), hvd::sum); });
        check("reduce async", [&] { comm.reduce_async(x, hvd::sum).wait(); });
        check("reduce_scatter", [&] { comm.reduce_scatter(x, hvd::sum); });
        check("reduce_scatter into", [&] { comm.reduce_scatter(x, hvd::sum, hvd::into(one)); });
        check("scan", [&] { comm.scan(x, hvd::sum); });
        check("scan async", [&] { comm.scan_async(x, hvd::sum).wait(); });
        check("exscan into", [&] { comm.exscan(x, hvd::into(out), hvd::sum); });
        check("broadcast", [&] { comm.broadcast(x); });
        check("broadcast async", [&] { comm.broadcast_async(x).wait(); });
        check("allgather", [&] { comm.allgather(x); });
        check("allgather into", [&] { comm.allgather(x, hvd::into(all)); });
        check("gather", [&] { comm.gather(x); });
        check("gather into", [&] { comm.gather(x, hvd::into(all)); });
        check("scatter", [&] { comm.scatter(x, hvd::root{last}); });
        check("alltoall", [&] { comm.alltoall(x); });
        check("allreduce_with_rank", [&] { comm.allreduce_with_rank(x, hvd::max); });
        const auto plan = [&] {
            static_cast<void>(
                comm.plan_allreduce(x, hvd::sum, {}, hvd::codec::cast<hvd::bfloat16>));
        };
        check("plan", plan);
        if (throws) {
            thrown<std::domain_error>([&] { comm.send(x, hvd::peer{0}); });
            thrown<std::domain_error>([&] { comm.send_async(x, hvd::peer{0}).wait(); });
        }
        for (int i = 0; i < 2 && comm.rank() == 0; ++i) {
            const auto e =
                thrown<hvd::peer_error>([&] { comm.recv(hvd::into(out), hvd::peer{last}); });
            if (e) CHECK(contains(e->what(), "no view today"));
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("a null pointer with elements is refused, without elements it is an empty tensor") {
    on_every_transport([](auto& comm) {
        int* const nothing = nullptr;
        const auto e =
            thrown<hvd::usage_error>([&] { comm.allreduce(hvd::view(nothing, 3), hvd::sum); });
        if (e) CHECK(contains(e->what(), "null pointer with 3 elements"));
        comm.allreduce(hvd::view(nothing, std::size_t(0)), hvd::sum);
        comm.broadcast(hvd::view(nothing, std::size_t(0)));
        CHECK(comm.allgather(hvd::view(nothing, std::size_t(0))).values.empty());
        check_that_it_works(comm);
    });
}

TEST_CASE("only the element type matters of what others than the root give to a scatter") {
    on_every_transport([](auto& comm) {
        const int last = comm.size() - 1;
        const bool is_root = comm.rank() == last;
        std::vector<int> all(2 * size_of(comm), 7);
        int* const data = is_root ? all.data() : nullptr;
        const auto whole = hvd::view(data, all.size());
        const auto gaps = hvd::view(data, hvd::shape(size_of(comm)), hvd::strides(2));
        int mine = 0;
        CHECK(comm.scatter(whole, hvd::root{last}) == std::vector<int>(2, 7));
        CHECK(comm.scatter_async(whole, hvd::root{last}).wait() == std::vector<int>(2, 7));
        comm.scatter(gaps, hvd::into(mine), hvd::root{last});
        CHECK(mine == 7);
        mine = 0;
        comm.scatter(hvd::fuse(gaps), hvd::into(hvd::fuse(mine)), hvd::root{last});
        CHECK(mine == 7);
        const auto e = thrown<hvd::error>(
            [&] { comm.scatter(hvd::view(static_cast<int*>(nullptr), 3), hvd::root{last}); });
        if (e) CHECK(contains(e->what(), "null pointer with 3 elements"));
        check_that_it_works(comm);
    });
}

TEST_CASE("a null pointer with elements in a fused list is refused with its number in the list") {
    on_every_transport([](auto& comm) {
        std::vector<float> a(5, 1);
        std::vector<double> b(7, 1);
        const bool wrong = comm.rank() == comm.size() - 1;
        const auto nothing = hvd::view(wrong ? static_cast<float*>(nullptr) : a.data(), 5);
        const auto check = [&](auto call, const char* list = "fuse()") {
            const std::string reason =
                std::string("tensor 1 of ") + list + " is a null pointer with 5 elements";
            if (wrong) {
                if (const auto e = thrown<hvd::usage_error>(call))
                    CHECK(contains(e->what(), reason));
            } else if (const auto e = thrown<hvd::peer_error>(call)) {
                CHECK(contains(e->what(), reason));
            }
            check_that_it_works(comm);
        };
        const auto list = hvd::fuse(b, nothing);
        check([&] { comm.allreduce(list, hvd::sum); });
        check([&] { comm.allreduce_async(list, hvd::sum).wait(); });
        check([&] { comm.scan(list, hvd::sum); });
        check([&] { comm.broadcast(list); });
        check([&] { comm.allgather(list); });
        check([&] { comm.reduce_scatter(list, hvd::sum); });
        check([&] { static_cast<void>(comm.plan_allreduce(list, hvd::sum)); });
        std::vector<float> in(5 * size_of(comm), 1), small(size_of(comm), 1), out(1);
        check(
            [&] {
                comm.reduce_scatter(hvd::fuse(small, in), hvd::sum,
                                    hvd::into(hvd::fuse(out, nothing)));
            },
            "into()");
        if (comm.size() > 1) {  // on one rank nothing travels, and the plan has no codec
            const auto coded = [&] {
                static_cast<void>(
                    comm.plan_allreduce(list, hvd::sum, {}, hvd::codec::cast<hvd::bfloat16>));
            };
            check(coded);
        }
        std::vector<float> empty;
        comm.allreduce(hvd::fuse(a, hvd::view(empty.data(), 0)), hvd::sum);
        CHECK(a == std::vector<float>(5, float(comm.size())));
    });
}

TEST_CASE("a shape whose bytes nothing can count is refused") {
    on_every_transport([](auto& comm) {
        int x = 1;
        const std::size_t much = std::size_t(1) << 32;
        const auto e = thrown<hvd::usage_error>(
            [&] { comm.allreduce(hvd::view(&x, hvd::shape(much, much)), hvd::sum); });
        if (e) CHECK(contains(e->what(), "4294967296 x 4294967296 elements of 4 bytes"));
        thrown<hvd::usage_error>([&] { comm.broadcast(hvd::view(&x, SIZE_MAX / sizeof x)); });
        // an empty one is allowed
        comm.allreduce(hvd::view(&x, hvd::shape(much, much, 0)), hvd::sum);
        CHECK(x == 1);
        // the same in a list, and a list whose tensors are too much together
        std::vector<int> y(3);
        const auto refused = [&](const char* reason, auto call) {
            if (const auto why = thrown<hvd::error>(call)) CHECK(contains(why->what(), reason));
        };
        const auto each = hvd::fuse(y, hvd::view(&x, hvd::shape(much, much)));
        const char* const of_one = "no memory has the elements of tensor 1 of fuse()";
        refused(of_one, [&] { comm.allreduce(each, hvd::sum); });
        refused(of_one, [&] { comm.allgather(each); });
        refused(of_one, [&] { comm.scatter(each); });
        refused(of_one, [&] { comm.reduce_scatter(each, hvd::sum); });
        const auto half = hvd::view(&x, PTRDIFF_MAX / 2 / sizeof x);
        const auto all = hvd::fuse(y, half, half, half);
        const char* const of_all = "no memory has the elements of tensor 2 of fuse()";
        refused(of_all, [&] { comm.broadcast(all); });
        refused(of_all, [&] { comm.scan(all, hvd::sum); });
        refused(of_all, [&] { comm.gather(all); });
        refused(of_all, [&] { static_cast<void>(comm.plan_allreduce(all, hvd::sum)); });
        check_that_it_works(comm);
    });
}

TEST_CASE("timeouts as long as their types can say are never over") {
    using namespace std::chrono;
    on_every_transport([](auto& comm) {
        int x = 1;
        for (const hvd::time_span span :
             {hvd::time_span(hours::max()), hvd::time_span(nanoseconds::max()),
              hvd::time_span(duration<double>(std::numeric_limits<double>::infinity()))})
            comm.allreduce(x, hvd::sum, {.timeout = span});
        CHECK(x == comm.size() * comm.size() * comm.size());
    });
}

TEST_CASE("a root that is no rank is refused, with the ranks there are") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(3);
        for (const int root : {-1, comm.size()}) {
            const auto e = thrown<hvd::usage_error>([&] { comm.broadcast(x, hvd::root{root}); });
            if (e)
                CHECK((contains(e->what(), std::to_string(root)) &&
                       contains(e->what(), std::to_string(comm.size()))));
            if (e) CHECK(e->rank() == comm.rank());
            thrown<hvd::usage_error>([&] { comm.reduce(x, hvd::sum, hvd::root{root}); });
            thrown<hvd::usage_error>([&] { comm.gather(x, hvd::root{root}); });
            thrown<hvd::usage_error>([&] { comm.scatter(x, hvd::root{root}); });
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("errors name the call as the user named it") {
    on_every_transport([](auto& comm) {
        std::vector<int> x(3), y(4);
        const auto e = thrown<hvd::usage_error>(
            [&] { comm.allreduce(x, y, hvd::sum, {.name = "conv1.weight"}); });
        if (e) CHECK(contains(e->what(), "allreduce 'conv1.weight'"));
    });
}

TEST_CASE("an empty communicator refuses calls instead of crashing") {
    on_every_transport([](auto& comm) {
        std::remove_reference_t<decltype(comm)> nobody;
        std::vector<int> x(3);
        CHECK(!nobody);
        CHECK(nobody.rank() == -1);
        CHECK(nobody.size() == 0);
        thrown<hvd::usage_error>([&] { nobody.allreduce(x, hvd::sum); });
        thrown<hvd::usage_error>([&] { nobody.barrier(); });
        thrown<hvd::usage_error>([&] { static_cast<void>(nobody.allreduce_async(x, hvd::sum)); });
        thrown<hvd::usage_error>([&] { nobody.subset({0}); });
        thrown<hvd::usage_error>([&] { static_cast<void>(nobody.plan_allreduce(x, hvd::sum)); });
    });
}

}  // namespace arguments_tests
