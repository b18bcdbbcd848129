// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <numeric>

#include "disagreement.hpp"
#include "reference.hpp"

namespace fused_tests {

using namespace hvd_test;

// Many tensors as one: compile-time lists, runtime lists, both, and mixed element types.

namespace {

// Tensors of four element types, one strided, one of rows, one empty, one alone.
struct model {
    tensor<float> weights;
    tensor<double> statistics;
    tensor<hvd::bfloat16> half;
    std::vector<float> grid;  // `column` is every third element of it
    tensor<std::int64_t> rows, nothing;
    float scalar;

    explicit model(int rank, std::size_t n = 1001)
        : weights(input<float>(rank, n)),
          statistics(input<double>(rank, 3)),
          half(input<hvd::bfloat16>(rank, 2 * n + 1)),
          grid(21, -1),
          rows(input<std::int64_t>(rank, 5 * 2)),
          scalar(element<float>(rank, 0)) {
        for (std::size_t i = 0; i < 7; ++i) grid[3 * i] = element<float>(rank, i);
    }

    auto column() { return hvd::view(grid.data(), hvd::shape(7), hvd::strides(3)); }
    auto row_view() { return hvd::view(rows.data(), hvd::shape(5, 2)); }
    std::vector<float> column_values() const {
        std::vector<float> values;
        for (std::size_t i = 0; i < 7; ++i) values.push_back(grid[3 * i]);
        return values;
    }
    auto list() { return hvd::fuse(weights, statistics, half, column(), rows, nothing, scalar); }
};

template <class F>
void check_all(const model& m, F wrong_in) {
    CHECK(wrong_in(m.weights, m.weights.size()) == 0);
    CHECK(wrong_in(m.statistics, 3) == 0);
    CHECK(wrong_in(m.half, m.half.size()) == 0);
    CHECK(wrong_in(m.rows, 10) == 0);
    tensor<float> column(7), scalar(1);
    std::copy_n(m.column_values().data(), 7, column.data());
    scalar[0] = m.scalar;
    CHECK(wrong_in(column, 7) == 0);
    CHECK(wrong_in(scalar, 1) == 0);
    CHECK(m.grid[1] == -1);
}

template <class Op>
auto against_reference(const Op& op, int ranks) {
    return [op, ranks]<class T>(const tensor<T>& got, std::size_t n) {
        return wrong(got, n, reference<T>(op, ranks));
    };
}

auto against_rank(int rank) {
    return [rank]<class T>(const tensor<T>& got, std::size_t n) {
        return wrong_input<T>(got, n, rank);
    };
}

// Two elements of a user's, which differ in name and size.
struct point {
    float x;
    float front() const { return x; }
    friend bool operator==(const point&, const point&) = default;
};
struct box {
    float x, y, z;
};
point right_of(const point& a, const point& b) { return a.x < b.x ? b : a; }

}  // namespace

}  // namespace fused_tests

template <>
struct hvd::dtype_traits<fused_tests::point> : hvd::transport_only<fused_tests::point> {
    static constexpr std::string_view name = "point";
};
template <>
struct hvd::dtype_traits<fused_tests::box> : hvd::transport_only<fused_tests::box> {
    static constexpr std::string_view name = "box";
};

namespace fused_tests {

TEST_CASE("an empty list beside one tensor of another type adds nothing to it") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto own = float(comm.rank());
        std::vector<float> x(4, own);
        const std::vector<hvd::tensor_view<float>> one = {hvd::view(x.data(), x.size())};
        const std::vector<hvd::tensor_view<double>> none;
        comm.broadcast(hvd::fuse(one, none), hvd::root{comm.size() - 1});
        CHECK(x == std::vector<float>(4, float(comm.size() - 1)));
        x.assign(4, own);
        comm.broadcast(hvd::fuse(none, one), hvd::root{0});
        CHECK(x == std::vector<float>(4, 0));
        x.assign(4, own);
        comm.allreduce(hvd::fuse(one, none), hvd::max);
        CHECK(x == std::vector<float>(4, float(comm.size() - 1)));
    });
}

TEST_CASE("fused allreduce of mixed element types equals each tensor's own") {
    on_every_transport([](auto& comm) {
        for (const std::size_t n : {std::size_t(3), std::size_t(1001), std::size_t(100003)}) {
            model m(comm.rank(), n);
            comm.allreduce(m.list(), hvd::sum);
            check_all(m, against_reference(hvd::sum, comm.size()));
            model later(comm.rank(), n);
            auto pending = comm.allreduce_async(later.list(), hvd::max);
            pending.wait();
            check_all(later, against_reference(hvd::max, comm.size()));
        }
    });
}

TEST_CASE("fused averages with scales") {
    on_every_transport([](auto& comm) {
        std::vector<float> a(1000, float(comm.rank() + 1));
        std::vector<double> b(3, 2 * comm.rank());
        comm.allreduce(hvd::fuse(a, b), hvd::average, {.prescale = 2, .postscale = 0.25});
        CHECK(a == std::vector<float>(1000, float(comm.size() + 1) / 4));
        CHECK(b == std::vector<double>(3, (comm.size() - 1) / 2.0));
    });
}

TEST_CASE("a list made at run time, also mixed with one made at compile time") {
    on_every_transport([](auto& comm) {
        std::vector<std::vector<float>> layers;
        std::vector<hvd::tensor_view<float>> views;
        for (std::size_t i = 0; i < 40; ++i) layers.emplace_back(i * 7, float(comm.rank()));
        for (auto& layer : layers) views.push_back(hvd::view(layer.data(), layer.size()));
        std::vector<double> other(5, 1);
        const float sum = float(comm.size() * (comm.size() - 1) / 2);
        comm.allreduce(hvd::fuse(views), hvd::sum);
        for (const auto& layer : layers)
            CHECK(std::count(layer.begin(), layer.end(), sum) == std::ssize(layer));
        comm.allreduce(hvd::fuse(std::span(views), other), hvd::max);
        CHECK(other == std::vector<double>(5, 1));
        CHECK(layers[39].back() == sum);
        views.clear();
        comm.allreduce(hvd::fuse(views), hvd::sum);
    });
}

TEST_CASE("fuse takes ranges of anything viewable, and calls write the elements in place") {
    on_every_transport([](auto& comm) {
        const float mine = float(comm.rank() + 1);
        const float sum = float(comm.size() * (comm.size() + 1) / 2);
        std::vector<std::vector<float>> layers;
        for (std::size_t i = 0; i < 12; ++i) layers.emplace_back(i * 50, mine);
        std::list<std::vector<double>> linked = {{mine, mine}, {}, {mine}};
        std::array<std::array<int, 3>, 2> fixed;
        for (auto& row : fixed) row.fill(comm.rank() + 1);
        std::vector<float> plain[2] = {{mine}, {mine, mine}};
        float memory[6];
        std::ranges::fill(memory, mine);
        const std::vector<std::span<float>> spans = {{memory, 2}, {memory + 2, 4}};
        const auto list = hvd::fuse(layers, linked, fixed, plain, spans);
        CHECK(list.count() == 12 + 3 + 2 + 2 + 2);
        comm.allreduce(list, hvd::sum);
        for (const auto& layer : layers) CHECK(std::ranges::count(layer, sum) == std::ssize(layer));
        CHECK(linked.front() == std::vector<double>(2, sum));
        CHECK(linked.back() == std::vector<double>(1, sum));
        for (const auto& row : fixed) CHECK(std::ranges::count(row, int(sum)) == 3);
        CHECK(plain[1] == std::vector<float>(2, sum));
        CHECK(std::ranges::count(memory, sum) == 6);

        layers[3].assign(4, mine);
        comm.broadcast(hvd::fuse(std::span(layers).subspan(3, 1)), hvd::root{comm.size() - 1});
        CHECK(layers[3] == std::vector<float>(4, float(comm.size())));

        auto plan = comm.plan_allreduce(hvd::fuse(layers), hvd::max);
        layers[5].assign(250, mine);
        plan.run();
        CHECK(std::ranges::count(layers[5], float(comm.size())) == 250);
    });
}

TEST_CASE("fused allgather of constant vectors gives one result for each") {
    on_every_transport([](auto& comm) {
        const std::vector<std::vector<int>> mine = {{}, {comm.rank()}, {7, comm.rank()}};
        const auto [all] = comm.allgather(hvd::fuse(mine));
        REQUIRE(all.size() == 3);
        CHECK(all[0].values.empty());
        for (std::size_t r = 0; r < size_of(comm); ++r) {
            CHECK(all[1].values[r] == int(r));
            CHECK(all[2].values[2 * r + 1] == int(r));
        }
    });
}

TEST_CASE("fused reduce to every root equals each tensor's own, and leaves the others' alone") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            model m(comm.rank()), later(comm.rank());
            comm.reduce(m.list(), hvd::max, hvd::root{root});
            comm.reduce_async(later.list(), hvd::max, hvd::root{root}).wait();
            for (model* const done : {&m, &later})
                if (comm.rank() == root) check_all(*done, against_reference(hvd::max, comm.size()));
                else check_all(*done, against_rank(comm.rank()));
        }
        std::vector<float> a(10, 1), b(20, 2);
        std::vector<double> none;
        comm.reduce(hvd::fuse(a, b, none), hvd::average, hvd::root{0}, {.prescale = 2});
        if (comm.rank() == 0) CHECK(a == std::vector<float>(10, 2));
        if (comm.rank() == 0) CHECK(b == std::vector<float>(20, 4));
        comm.reduce(hvd::fuse(none), hvd::sum);
    });
}

TEST_CASE("fused gather gives the root all tensors, and the others none") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            const bool is_root = comm.rank() == root;
            const std::vector<int> a(rank_of(comm) + 1, comm.rank());
            const double b = comm.rank() + 0.5;
            const std::vector<std::vector<float>> list(3, std::vector<float>(2, float(root)));
            const auto check = [&](const auto& results) {
                const auto& [all_a, all_b, lists] = results;
                CHECK(all_a.counts.size() == (is_root ? size_of(comm) : 0));
                CHECK(all_b.values.size() == (is_root ? size_of(comm) : 0));
                REQUIRE(lists.size() == 3);
                CHECK(lists[2].values.size() == (is_root ? 2 * size_of(comm) : 0));
                for (std::size_t r = 0; is_root && r < size_of(comm); ++r) {
                    CHECK(all_a.counts[r] == r + 1);
                    CHECK(all_a.values[all_a.displacements[r] + r] == int(r));
                    CHECK(all_b.values[r] == double(r) + 0.5);
                    CHECK(lists[2].values[2 * r + 1] == float(root));
                }
            };
            check(comm.gather(hvd::fuse(a, b, list), hvd::root{root}));
            check(comm.gather_async(hvd::fuse(a, b, list), hvd::root{root}).wait());
            std::vector<double> all(is_root ? size_of(comm) : 0);
            std::vector<float> rows(is_root ? 2 * size_of(comm) : 0);
            const auto out = hvd::into(hvd::fuse(all, rows));
            comm.gather(hvd::fuse(b, list[0]), out, hvd::root{root});
            if (is_root) CHECK(all.back() == double(comm.size()) - 0.5);
            all.assign(all.size(), 0);
            comm.gather_async(hvd::fuse(b, list[0]), out, hvd::root{root}).wait();
            if (is_root) CHECK(all.back() == double(comm.size()) - 0.5);
            if (is_root) all.push_back(0);
            const hvd::root r{root};
            const auto too_large = [&] {
                comm.gather(hvd::fuse(b, list[0]), hvd::into(hvd::fuse(all, rows)), r);
            };
            if (is_root) thrown<hvd::usage_error>(too_large);
            else thrown<hvd::peer_error>(too_large);
        }
        check_that_it_works(comm);
    });
}

TEST_CASE("fused broadcast from every root") {
    on_every_transport([](auto& comm) {
        for (int root = 0; root < comm.size(); ++root) {
            model m(comm.rank()), later(comm.rank());
            comm.broadcast(m.list(), hvd::root{root});
            check_all(m, against_rank(root));
            comm.broadcast_async(later.list(), hvd::root{root}).wait();
            check_all(later, against_rank(root));
        }
    });
}

TEST_CASE("fused allgather of equal and ragged tensors") {
    on_every_transport([](auto& comm) {
        const std::size_t n = 1000 + 13 * rank_of(comm);
        const tensor<float> a = input<float>(comm.rank(), n);
        const tensor<std::uint8_t> b = input<std::uint8_t>(comm.rank(), rank_of(comm));
        const tensor<bool> c = input<bool>(comm.rank(), 5);
        const auto [all_a, all_b, all_c] = comm.allgather(hvd::fuse(a, b, c));
        static_assert(std::is_same_v<std::remove_const_t<decltype(all_a)>, hvd::gathered<float>>);
        for (std::size_t r = 0; r < size_of(comm); ++r) {
            REQUIRE(all_a.counts[r] == 1000 + 13 * r);
            REQUIRE(all_b.counts[r] == r);
            REQUIRE(all_c.counts[r] == 5);
            CHECK(wrong_input<float>(
                      std::span(all_a.values).subspan(all_a.displacements[r], all_a.counts[r]),
                      1000 + 13 * r, int(r)) == 0);
            CHECK(wrong_input<std::uint8_t>(
                      std::span(all_b.values).subspan(all_b.displacements[r], r), r, int(r)) == 0);
            CHECK(wrong_input<bool>(std::span(all_c.values).subspan(all_c.displacements[r], 5), 5,
                                    int(r)) == 0);
        }
    });
}

TEST_CASE("fused allgather of a runtime list, and into the caller's tensors") {
    on_every_transport([](auto& comm) {
        std::vector<std::vector<int>> mine;
        for (std::size_t i = 0; i < 5; ++i) mine.emplace_back(i, comm.rank());
        std::vector<hvd::tensor_view<int>> views;
        for (auto& x : mine) views.push_back(hvd::view(x.data(), x.size()));
        const auto [all] = comm.allgather(hvd::fuse(views));
        REQUIRE(all.size() == 5);
        for (std::size_t i = 0; i < 5; ++i) {
            CHECK(all[i].values.size() == i * size_of(comm));
            CHECK(all[i].counts == std::vector<std::size_t>(size_of(comm), i));
        }
        const float a = float(comm.rank());
        const std::vector<double> b(3, comm.rank());
        std::vector<float> all_a(size_of(comm));
        std::vector<double> all_b(3 * size_of(comm));
        comm.allgather(hvd::fuse(a, b), hvd::into(hvd::fuse(all_a, all_b)));
        for (std::size_t r = 0; r < size_of(comm); ++r) {
            CHECK(all_a[r] == float(r));
            CHECK(all_b[3 * r + 2] == double(r));
        }
    });
}

TEST_CASE("fused allgather and reduce_scatter are begun, and complete when they are waited for") {
    on_every_transport([](auto& comm) {
        const std::size_t n = size_of(comm);
        const auto total = comm.size() * (comm.size() + 1) / 2;
        std::vector<float> a(rank_of(comm) + 1, float(comm.rank())), all_a(n * (n + 1) / 2);
        const bool one = true;
        std::vector<double> all_b(2 * n);
        double b[2] = {double(comm.rank()), 1};
        std::vector<int> c(10, comm.rank() + 1), d(3 * n, comm.rank() + 1);
        const part mine(10, comm.rank(), comm.size());
        std::vector<int> part_c(mine.count), part_d(3);
        std::vector<hvd::tensor_view<int>> views{hvd::view(c.data(), c.size()),
                                                 hvd::view(d.data(), d.size())};

        auto gathered = comm.allgather_async(hvd::fuse(a, one, b));
        auto listed = comm.allgather_async(hvd::fuse(views));
        auto gathered_into =
            comm.allgather_async(hvd::fuse(a, b), hvd::into(hvd::fuse(all_a, all_b)));
        auto reduced = comm.reduce_scatter_async(hvd::fuse(c, b, d), hvd::max);
        auto reduced_into = comm.reduce_scatter_async(hvd::fuse(views), hvd::sum,
                                                      hvd::into(hvd::fuse(part_c, part_d)));
        views.clear();
        comm.allgather(hvd::fuse(c));  // in the communicator's memory, not in theirs

        reduced_into.wait();
        CHECK(part_c == std::vector<int>(mine.count, total));
        CHECK(part_d == std::vector<int>(3, total));
        const auto [max_c, max_b, max_d] = reduced.wait();
        CHECK(max_c == std::vector<int>(mine.count, comm.size()));
        CHECK(max_b.size() == part(2, comm.rank(), comm.size()).count);
        CHECK(max_d == std::vector<int>(3, comm.size()));
        gathered_into.wait();
        const auto [got_a, got_one, got_b] = gathered.wait();
        CHECK(got_a.values == all_a);
        CHECK(got_one.values == std::vector<std::uint8_t>(n, 1));
        CHECK(got_b.values == all_b);
        for (std::size_t r = 0; r < n; ++r) {
            CHECK(got_a.counts[r] == r + 1);
            CHECK(all_a[got_a.displacements[r]] == float(r));
            CHECK(all_b[2 * r] == double(r));
        }
        const auto [lists] = listed.wait();
        REQUIRE(lists.size() == 2);
        CHECK(lists[1].values.size() == 3 * n * n);
        CHECK(lists[0].values.back() == comm.size());
    });
}

TEST_CASE("fused reduce_scatter gives each rank its rows of each tensor") {
    on_every_transport([](auto& comm) {
        const model m(comm.rank(), 1003);
        model copy(comm.rank(), 1003);
        const int n = comm.size();
        const auto check = [&](const auto& weights, const auto& half, const auto& rows,
                               const auto& column) {
            const part w(1003, comm.rank(), n), h(2007, comm.rank(), n), r(5, comm.rank(), n),
                c(7, comm.rank(), n);
            CHECK(wrong(weights, w.count, reference<float>(hvd::sum, n), w.first) == 0);
            CHECK(wrong(half, h.count, reference<hvd::bfloat16>(hvd::sum, n), h.first) == 0);
            CHECK(wrong(rows, 2 * r.count, reference<std::int64_t>(hvd::sum, n), 2 * r.first) == 0);
            CHECK(wrong(column, c.count, reference<float>(hvd::sum, n), c.first) == 0);
        };
        const auto list = [&] {
            return hvd::fuse(m.weights, m.half, copy.row_view(), copy.column());
        };
        const auto [weights, half, rows, column] = comm.reduce_scatter(list(), hvd::sum);
        check(weights, half, rows, column);
        tensor<float> w(weights.size()), c(column.size());
        tensor<hvd::bfloat16> h(half.size());
        tensor<std::int64_t> r(rows.size());
        comm.reduce_scatter(list(), hvd::sum, hvd::into(hvd::fuse(w, h, r, c)));
        check(w, h, r, c);
    });
}

TEST_CASE("an element that has the members of a vector is one element of a fused result") {
    on_every_transport([](auto& comm) {
        const std::vector<point> points(size_of(comm), point{float(comm.rank())});
        const auto [mine] = comm.scatter(hvd::fuse(points));
        CHECK(mine == std::vector<point>(1, point{0}));
        const auto [most] = comm.reduce_scatter(hvd::fuse(points), right_of);
        CHECK(most == std::vector<point>(1, point{float(comm.size() - 1)}));
    });
}

TEST_CASE("fused reduce_scatter of two types of one name reduces each element once") {
    on_every_transport([](auto& comm) {
        const std::size_t n = size_of(comm);
        const std::vector<long> a(2 * n, 1);
        const std::vector<long long> b(3 * n, 1);
        std::atomic<int> calls = 0, others = 0;
        const auto add = [&](auto p, auto q) {
            ++calls;
            others += p < 1 || q < 1;
            return decltype(p)(p + q);
        };
        const auto [x, y] = comm.reduce_scatter(hvd::fuse(a, b), add);
        CHECK(x == std::vector<long>(2, comm.size()));
        CHECK(y == std::vector<long long>(3, comm.size()));
        CHECK(others == 0);  // it sees the ranks' elements alone
        int all_calls = calls;
        comm.allreduce(all_calls, hvd::sum);
        CHECK(all_calls == 5 * comm.size() * (comm.size() - 1));
    });
}

TEST_CASE("fused reduce_scatter of a runtime list") {
    on_every_transport([](auto& comm) {
        std::vector<std::vector<int>> mine;
        for (std::size_t i = 0; i < 4; ++i) mine.emplace_back(10 * i, comm.rank() + 1);
        std::vector<hvd::tensor_view<int>> views;
        for (auto& x : mine) views.push_back(hvd::view(x.data(), x.size()));
        const auto [parts] = comm.reduce_scatter(hvd::fuse(views), hvd::sum);
        REQUIRE(parts.size() == 4);
        for (std::size_t i = 0; i < 4; ++i)
            CHECK(parts[i] == std::vector<int>(part(10 * i, comm.rank(), comm.size()).count,
                                               comm.size() * (comm.size() + 1) / 2));
    });
}

TEST_CASE("fused scatter gives each rank its rows of each of the root's tensors") {
    on_every_transport([](auto& comm) {
        const int size = comm.size();
        for (int root = 0; root < size; ++root) {
            const bool is_root = comm.rank() == root;
            model m(is_root ? root : 100 + comm.rank(), is_root ? 1003 : 0);
            std::vector<std::vector<int>> list(3);
            for (std::size_t i = 0; is_root && i < 3; ++i) list[i].assign(i * 7, int(i) + root);
            const auto all = hvd::fuse(m.weights, m.half, m.row_view(), m.column(), list, m.scalar);
            const auto size_at = [&](std::size_t n) { return part(n, comm.rank(), size).count; };
            const auto first_at = [&](std::size_t n) { return part(n, comm.rank(), size).first; };
            const auto check = [&](const auto& weights, const auto& half, const auto& rows,
                                   const auto& column, const auto& lists, const auto& scalar) {
                CHECK(wrong_input<float>(weights, size_at(1003), root, first_at(1003)) == 0);
                CHECK(wrong_input<hvd::bfloat16>(half, size_at(2007), root, first_at(2007)) == 0);
                CHECK(wrong_input<std::int64_t>(rows, 2 * size_at(5), root, 2 * first_at(5)) == 0);
                CHECK(wrong_input<float>(column, size_at(7), root, first_at(7)) == 0);
                REQUIRE(lists.size() == 3);
                for (std::size_t i = 0; i < 3; ++i)
                    CHECK(lists[i] == std::vector<int>(size_at(7 * i), int(i) + root));
                CHECK(wrong_input<float>(scalar, comm.rank() == 0 ? 1 : 0, root) == 0);
            };
            const hvd::root r{root};
            std::apply(check, comm.scatter(all, r));
            std::apply(check, comm.scatter_async(all, r).wait());
            std::vector<float> w(size_at(1003)), c(size_at(7)), s(comm.rank() == 0 ? 1 : 0);
            std::vector<hvd::bfloat16> h(size_at(2007));
            std::vector<std::int64_t> rows(2 * size_at(5));
            std::vector<std::vector<int>> lists(3);
            for (std::size_t i = 0; i < 3; ++i) lists[i].resize(size_at(7 * i));
            comm.scatter(all, hvd::into(hvd::fuse(w, h, rows, c, lists, s)), r);
            check(w, h, rows, c, lists, s);
            for (auto& x : lists) std::ranges::fill(x, -1);
            std::ranges::fill(w, -1.f);
            comm.scatter_async(all, hvd::into(hvd::fuse(w, h, rows, c, lists, s)), r).wait();
            check(w, h, rows, c, lists, s);
        }
    });
}

TEST_CASE("fused alltoall gives each rank its share of every rank's tensors") {
    on_every_transport([](auto& comm) {
        const std::size_t size = size_of(comm), me = rank_of(comm);
        // Rank r gives each rank r elements of a, 300 of b, r + 1 columns of c and 2 rows of d.
        const tensor<float> a = input<float>(comm.rank(), size * me);
        const tensor<bool> b = input<bool>(comm.rank(), size * 300);
        std::vector<std::vector<int>> c(2);
        for (std::vector<int>& list : c)
            for (std::size_t i = 0; i < size * (me + 1); ++i)
                list.push_back(element<int>(comm.rank(), i));
        tensor<double> d(size * 2 * 6, -1);  // of which every second column goes
        const auto columns = hvd::view(d.data(), hvd::shape(size * 2, 3), hvd::strides(6, 2));
        for (std::size_t i = 0; i < size * 6; ++i)
            d[i / 3 * 6 + i % 3 * 2] = element<double>(comm.rank(), i);
        const auto all = hvd::fuse(a, b, c, columns);

        const auto from = [](const auto& x, std::size_t r, std::size_t n) {
            CHECK(x.counts[r] == n);
            return std::span(x.values).subspan(x.displacements[r], x.counts[r]);
        };
        const auto check = [&](const auto& got_a, const auto& got_b, const auto& got_c,
                               const auto& got_d) {
            REQUIRE(got_a.counts.size() == size);
            REQUIRE(got_c.size() == 2);
            for (std::size_t r = 0; r < size; ++r) {
                const int sender = int(r);
                CHECK(wrong_input<float>(from(got_a, r, r), r, sender, me * r) == 0);
                CHECK(wrong_input<bool>(from(got_b, r, 300), 300, sender, me * 300) == 0);
                for (const auto& list : got_c)
                    CHECK(wrong_input<int>(from(list, r, r + 1), r + 1, sender, me * (r + 1)) == 0);
                CHECK(wrong_input<double>(from(got_d, r, 6), 6, sender, me * 6) == 0);
            }
        };
        const auto results = comm.alltoall(all);
        std::apply(check, results);
        std::apply(check, comm.alltoall_async(all).wait());

        const auto& [got_a, got_b, got_c, got_d] = results;
        std::vector<float> x(got_a.values.size());
        tensor<bool> y(got_b.values.size());
        std::vector<std::vector<int>> z(2, std::vector<int>(got_c[0].values.size()));
        std::vector<double> w(got_d.values.size());
        const auto out = hvd::into(hvd::fuse(x, y, z, w));
        const auto check_into = [&] {
            CHECK(x == got_a.values);
            CHECK(std::equal(y.data(), y.data() + y.size(), got_b.values.begin()));
            CHECK(z[1] == got_c[1].values);
            CHECK(w == got_d.values);
        };
        comm.alltoall(all, out);
        check_into();
        x.assign(x.size(), 0);
        z[1].assign(z[1].size(), 0);
        comm.alltoall_async(all, out).wait();
        check_into();
    });
}

TEST_CASE("fused scatter and alltoall may be in place, and overlap in no other way") {
    on_every_transport_from(2, [](auto& comm) {
        const std::size_t n = size_of(comm), me = rank_of(comm);
        const bool is_root = me == 1;
        std::vector<int> a(4 * n, int(me)), b(n, 10 + int(me)), slice(4), mine(1);
        if (is_root) std::iota(a.begin(), a.end(), 0);
        const auto own = is_root ? hvd::view(a.data() + 4 * me, 4) : hvd::view(slice.data(), 4);
        comm.scatter(hvd::fuse(a, b), hvd::into(hvd::fuse(own, mine)), hvd::root{1});
        CHECK(own[0] == 4 * int(me));
        CHECK(own[3] == 4 * int(me) + 3);
        CHECK(mine[0] == 11);
        if (is_root) CHECK(a[4 * n - 1] == 4 * int(n) - 1);

        a.assign(4 * n, int(me));
        comm.alltoall(hvd::fuse(a, b), hvd::into(hvd::fuse(a, b)));
        for (std::size_t r = 0; r < n; ++r) {
            CHECK(a[4 * r + 3] == int(r));
            CHECK(b[r] == 10 + int(r));
        }
        const auto shifted = hvd::view(a.data() + (is_root ? 4 * me + 1 : 0), 4);
        expect_refusal(comm, 1, "tensor 0 of fuse(), of ", [&] {
            comm.scatter(hvd::fuse(a, b), hvd::into(hvd::fuse(shifted, mine)), hvd::root{1});
        });
        std::vector<int> room(2 * n), c(2 * n);
        const auto front = hvd::view(c.data(), n),
                   other = hvd::view(is_root ? c.data() + 1 : room.data(), n);
        expect_refusal(comm, 1, "bytes, overlap in part",
                       [&] { comm.alltoall(hvd::fuse(b, front), hvd::into(hvd::fuse(b, other))); });
    });
}

TEST_CASE("lists that differ between ranks are a mismatch on every rank") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> a(10), b(20), c(30);
        std::vector<double> d(10);
        const auto both = [&](const auto& call, const auto& here, const auto& there) {
            const auto e = thrown<hvd::mismatch_error>([&] {
                if (comm.rank() == 0) call(here);
                else call(there);
            });
            if (e) CHECK(e->table().size() == size_of(comm));
            check_that_it_works(comm);
        };
        const auto reduce = [&](const auto& list) { comm.allreduce(list, hvd::sum); };
        const auto send = [&](const auto& list) { comm.broadcast(list); };
        const auto scatter = [&](const auto& list) { comm.reduce_scatter(list, hvd::sum); };
        both(reduce, hvd::fuse(a, b), hvd::fuse(b, a));
        both(reduce, hvd::fuse(a, b), hvd::fuse(a, c));
        both(reduce, hvd::fuse(a, d), hvd::fuse(d, a));
        both(reduce, hvd::fuse(a, b), hvd::fuse(hvd::view(a.data(), hvd::shape(2, 5)), b));
        both(reduce, hvd::fuse(a, b), hvd::fuse(a, b, c));
        both(send, hvd::fuse(a, b), hvd::fuse(b, a));
        both(scatter, hvd::fuse(a, b), hvd::fuse(b, a));
        both([&](const auto& list) { comm.allgather(list); }, hvd::fuse(a, d), hvd::fuse(d, a));
        const std::size_t n = size_of(comm);
        std::vector<float> e(6 * n);
        both([&](const auto& list) { comm.alltoall(list); },
             hvd::fuse(hvd::view(e.data(), hvd::shape(3 * n, 2))),
             hvd::fuse(hvd::view(e.data(), hvd::shape(2 * n, 3))));
        const auto differ = [&](const auto& call) {
            expect_mismatch(
                comm, "tensors",
                [](int r) {
                    return r == 0 ? "2 of float32 float64" : "3 of float32 float64 float32";
                },
                [&] {
                    if (comm.rank() == 0) call(hvd::fuse(e, d));
                    else call(hvd::fuse(e, d, e));
                });
        };
        d.resize(n);
        differ([&](const auto& list) { comm.alltoall(list); });
        differ([&](const auto& list) { comm.scatter(list, hvd::root{1}); });
        differ([&](const auto& list) { comm.scatter_async(list, hvd::root{1}).wait(); });
        std::vector<std::vector<float>> lists(comm.rank() == 0 ? 100 : 101);
        const auto longer = thrown<hvd::mismatch_error>([&] { comm.scatter(hvd::fuse(lists)); });
        if (longer) CHECK(contains(longer->what(), "rank 1: 101 of float32"));
        check_that_it_works(comm);
    });
}

TEST_CASE("a fused refusal by one rank reaches the others") {
    on_every_transport_from(2, [](auto& comm) {
        const bool mine = comm.rank() == 0;
        std::vector<float> a(4), b(2);
        expect_refusal(comm, 0, "root 9",
                       [&] { comm.broadcast(hvd::fuse(a, b), hvd::root{mine ? 9 : 1}); });
        expect_refusal(comm, 0, "into()", [&] {
            std::vector<float> all_a(4 * size_of(comm)), all_b(2 * size_of(comm) + (mine ? 1 : 0));
            comm.allgather(hvd::fuse(a, b), hvd::into(hvd::fuse(all_a, all_b)));
        });
        expect_refusal(comm, 0, "into()", [&] {
            std::vector<float> part_a(part(4, comm.rank(), comm.size()).count),
                part_b(part(2, comm.rank(), comm.size()).count + (mine ? 1 : 0));
            comm.reduce_scatter(hvd::fuse(a, b), hvd::sum, hvd::into(hvd::fuse(part_a, part_b)));
        });
        expect_refusal(comm, 0, "into()", [&] {
            std::vector<float> all_a(4 * size_of(comm) + (mine ? 1 : 0));
            comm.allgather_async(hvd::fuse(a), hvd::into(hvd::fuse(all_a))).wait();
        });
        expect_refusal(comm, 0, "into()", [&] {
            std::vector<float> part_a(part(4, comm.rank(), comm.size()).count + (mine ? 1 : 0));
            comm.reduce_scatter_async(hvd::fuse(a), hvd::sum, hvd::into(hvd::fuse(part_a))).wait();
        });
        const std::size_t n = size_of(comm);
        expect_refusal(comm, 0, "of box, this rank's part 1 of point", [&] {
            const std::vector<point> points(n);
            std::vector<point> part(1);
            std::vector<box> boxes(1);
            if (mine) comm.reduce_scatter(hvd::fuse(points), right_of, hvd::into(hvd::fuse(boxes)));
            else comm.reduce_scatter(hvd::fuse(points), right_of, hvd::into(hvd::fuse(part)));
        });
        std::vector<float> c(2 * n + (mine ? 1 : 0)), d(n), x(2 * n), y(n);
        std::vector<double> wide(n);
        expect_refusal(comm, 0, "rows of tensor 1 can't be split equally among",
                       [&] { comm.alltoall(hvd::fuse(d, c)); });
        expect_refusal(comm, 0, "tensor 1 of fuse() is a null pointer with 3 elements", [&] {
            comm.scatter(hvd::fuse(d, hvd::view(static_cast<float*>(nullptr), mine ? 3u : 0u)));
        });
        expect_refusal(comm, 0, "root 9",
                       [&] { comm.scatter(hvd::fuse(a, b), hvd::root{mine ? 9 : 1}); });
        c.resize(2 * n);
        expect_refusal(comm, 0, "1 tensors in into(), 2 to send", [&] {
            if (mine) comm.alltoall(hvd::fuse(c, d), hvd::into(hvd::fuse(x)));
            else comm.alltoall(hvd::fuse(c, d), hvd::into(hvd::fuse(x, y)));
        });
        expect_refusal(comm, 0, "3 tensors in into(), 2 to scatter", [&] {
            std::vector<float> p(2), q(1);
            if (mine) comm.scatter(hvd::fuse(c, d), hvd::into(hvd::fuse(p, q, q)), hvd::root{1});
            else comm.scatter(hvd::fuse(c, d), hvd::into(hvd::fuse(p, q)), hvd::root{1});
        });
        expect_refusal(comm, 0, "tensor 1 of into() is float64, the input float32", [&] {
            if (mine) comm.alltoall(hvd::fuse(c, d), hvd::into(hvd::fuse(x, wide)));
            else comm.alltoall(hvd::fuse(c, d), hvd::into(hvd::fuse(x, y)));
        });
        if (mine) y.push_back(0);
        const std::string room = "tensor 1 of into() has room for ";
        expect_refusal(comm, 0, room + std::to_string(n + 1) + " elements, the result has ",
                       [&] { comm.alltoall(hvd::fuse(c, d), hvd::into(hvd::fuse(x, y))); });
        std::vector<float> p(2), q(mine ? 2 : 1);
        expect_refusal(comm, 0, room + "2 elements, the result has 1", [&] {
            comm.scatter(hvd::fuse(c, d), hvd::into(hvd::fuse(p, q)), hvd::root{1});
        });
        expect_refusal(comm, 0, room + "2 elements, the result has 1", [&] {
            comm.scatter_async(hvd::fuse(c, d), hvd::into(hvd::fuse(p, q)), hvd::root{1}).wait();
        });
    });
}

}  // namespace fused_tests
