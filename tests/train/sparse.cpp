// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>

#include "model.hpp"

namespace sparse_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;

namespace {

constexpr std::size_t rows = 40, columns = 3;

// Returns `count` rows of this rank, with repeated indices.
template <class T>
hvd::sparse_rows<T> rows_of(int rank, std::size_t count) {
    hvd::sparse_rows<T> x;
    for (std::size_t i = 0; i < count; ++i) {
        x.indices.push_back(std::int64_t((i * i * 7 + std::size_t(rank) * 11) % rows));
        for (std::size_t c = 0; c < columns; ++c)
            x.values.push_back(T(float(noise(std::size_t(rank) * 999 + i * columns + c))));
    }
    return x;
}

template <class T>
std::vector<double> dense_of(const hvd::sparse_rows<T>& x) {
    std::vector<double> table(rows * columns);
    for (std::size_t i = 0; i < x.indices.size(); ++i)
        for (std::size_t c = 0; c < columns; ++c)
            table[std::size_t(x.indices[i]) * columns + c] += double(x.values[i * columns + c]);
    return table;
}

std::size_t count_on(int rank, std::size_t most) {
    return most * std::size_t(rank % 3) / 2;
}  // none on rank 0

template <class T>
void check_equals_dense(communicator& comm, const hvd::sparse_options& o, double tolerance) {
    for (const std::size_t most : {std::size_t(0), std::size_t(4), std::size_t(200)}) {
        const auto mine = rows_of<T>(comm.rank(), count_on(comm.rank(), most));
        std::vector<double> expected(rows * columns);
        for (int r = 0; r < comm.size(); ++r) {
            const auto theirs = dense_of(rows_of<T>(r, count_on(r, most)));
            for (std::size_t i = 0; i < expected.size(); ++i)
                expected[i] += theirs[i] / (o.op == hvd::average ? comm.size() : 1);
        }
        const auto result = hvd::sparse_allreduce<communicator, T>(comm, mine, rows, columns, o);
        CHECK(hvd_test::distance(dense_of(result), expected) < tolerance);
        for (std::size_t i = 1; i < result.indices.size(); ++i)
            CHECK(result.indices[i - 1] < result.indices[i]);
        std::vector<T> table(rows * columns, T(9));
        hvd::sparse_allreduce<communicator, T>(comm, mine, hvd::into(table), columns, o);
        CHECK(hvd_test::distance(std::vector<double>(table.begin(), table.end()), expected) <
              tolerance);
    }
}

}  // namespace

TEST_CASE("a sparse allreduce equals the dense one, whichever way it takes") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto policy :
             {hvd::sparse_policy::gather, hvd::sparse_policy::dense, hvd::sparse_policy::automatic})
            for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::sum}) {
                check_equals_dense<double>(comm, {.policy = policy, .op = op}, 1e-12);
                check_equals_dense<float>(comm, {.policy = policy, .op = op}, 1e-4);
                check_equals_dense<float>(
                    comm, {.policy = policy, .op = op, .codec = hvd::codec::cast<hvd::float16>},
                    0.1);
                check_equals_dense<float>(
                    comm, {.policy = policy, .op = op, .codec = hvd::codec::cast<hvd::bfloat16>},
                    0.5);
            }
    });
}

TEST_CASE("automatic gathers few rows and reduces many") {
    CHECK(hvd::detail::gathers(hvd::sparse_policy::automatic, 10, 1000, 400));
    CHECK_FALSE(hvd::detail::gathers(hvd::sparse_policy::automatic, 2000, 1000, 400));
    CHECK(hvd::detail::gathers(hvd::sparse_policy::gather, 2000, 1000, 400));
}

TEST_CASE("a sparse allreduce on the even and on the odd ranks at once") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        auto half = comm.split(comm.rank() % 2);
        check_equals_dense<double>(half, {}, 1e-12);
    });
}

TEST_CASE("a sparse gradient trains as the dense one does") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> sparse(rows * columns, 1), dense = sparse, d_sparse(sparse.size()),
                                                       d_dense;
        hvd::distributed_optimizer with_sparse(comm, hvd::optimizers::adam<double>{},
                                               {.scale_local_gradients = false});
        hvd::distributed_optimizer with_dense(comm, hvd::optimizers::adam<double>{});
        with_sparse.register_local("table", sparse, d_sparse);
        d_dense.resize(dense.size());
        with_dense.register_parameter("table", dense, d_dense);
        for (std::size_t step = 1; step < 4; ++step) {
            const auto mine = rows_of<double>(comm.rank(), count_on(comm.rank(), step * 3));
            hvd::sparse_allreduce<communicator, double>(comm, mine, hvd::into(d_sparse), columns);
            const auto table = dense_of(mine);
            std::copy(table.begin(), table.end(), d_dense.begin());
            with_sparse.step();
            with_dense.step();
            CHECK(hvd_test::distance(sparse, dense) < 1e-9);
        }
    });
}

TEST_CASE(
    "an index that is no row, or values or a table that do not fit, are refused on every rank") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto check = [&](auto call, const char* words) {
            if (comm.rank() == comm.size() - 1) {
                CHECK_THROWS_WITH_AS(call(true), doctest::Contains(words), hvd::usage_error);
            } else {
                CHECK_THROWS_WITH_AS(call(false), doctest::Contains(words), hvd::peer_error);
            }
            int one = 1;
            comm.allreduce(one, hvd::sum);
            CHECK(one == comm.size());
        };
        const hvd::sparse_rows<float> good = {{0}, {1, 2, 3}};
        const auto with = [&](const hvd::sparse_rows<float>& bad) {
            return [&](bool mine) {
                static_cast<void>(hvd::sparse_allreduce<communicator, float>(
                    comm, mine ? bad : good, rows, columns));
            };
        };
        check(with({{40}, {1, 2, 3}}), "of 40 rows has the index 40");
        check(with({{-1}, {1, 2, 3}}), "has the index -1");
        check(with({{1}, {1, 2}}), "1 indices and rows of 3 elements has 2 values");
        std::vector<float> table(6), odd(7);
        const auto into = [&](bool mine) {
            hvd::sparse_allreduce<communicator, float>(comm, good, hvd::into(mine ? odd : table),
                                                       3);
        };
        check(into, "7 elements has no rows of 3");
    });
}

TEST_CASE("ranks that disagree on the table or the options of a sparse allreduce are told so") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const auto differ = [&](const char* field, std::size_t its_rows, std::size_t its_columns,
                                hvd::sparse_options its_options) {
            const bool last = comm.rank() == comm.size() - 1;
            const std::size_t r = last ? its_rows : 4, c = last ? its_columns : 2;
            const hvd::sparse_rows<float> mine = {{std::int64_t(r) - 1}, std::vector<float>(c)};
            try {
                static_cast<void>(hvd::sparse_allreduce<communicator, float>(
                    comm, mine, r, c,
                    last ? its_options : hvd::sparse_options{hvd::sparse_policy::gather}));
                FAIL("no error");
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.field() == field);
                CHECK(e.table().size() == std::size_t(comm.size()));
            }
        };
        const hvd::sparse_options same{hvd::sparse_policy::gather};
        differ("rows", 6000000, 2, same);
        differ("columns", 4, 100000, same);
        differ("policy", 4, 2, {hvd::sparse_policy::dense});
        differ("operation", 4, 2, {same.policy, hvd::sum});
        differ("codec", 4, 2, {same.policy, same.op, hvd::codec::cast<hvd::float16>});
        int one = 1;
        comm.allreduce(one, hvd::sum);
        CHECK(one == comm.size());
    });
}

TEST_CASE(
    "a sparse mean or sum in 16 bits is in the range of its elements, whichever way it takes") {
    hvd_test::on_ranks([](communicator& comm) {
        const hvd::sparse_rows<float> mine = {{1}, {60000}};
        for (const auto policy : {hvd::sparse_policy::gather, hvd::sparse_policy::dense})
            for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::sum}) {
                const auto result = hvd::sparse_allreduce<communicator, float>(
                    comm, mine, 4, 1, {policy, op, hvd::codec::cast<hvd::float16>});
                const int times = op == hvd::sum ? comm.size() : 1;
                CHECK(result.values[0] == doctest::Approx(60000 * times).epsilon(1e-3));
            }
    });
}

}  // namespace sparse_tests
