// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Dense and sparse gradients in one optimizer.

#include <hvd/train.hpp>

#include "embedding.hpp"

namespace mixed_tests {

using communicator = hvd_test::communicator;
using hvd_test::embedding;
namespace optimizers = hvd::optimizers;

namespace {

constexpr int steps = 5;

enum class table_is { dense, gathered, reduced, automatic };

hvd::sparse_policy policy_of(table_is kind) {
    return kind == table_is::gathered  ? hvd::sparse_policy::gather
           : kind == table_is::reduced ? hvd::sparse_policy::dense
                                       : hvd::sparse_policy::automatic;
}

template <class Optimizer>
std::vector<double> trained(communicator& comm, Optimizer optimizer,
                            const hvd::optimizer_options& options, table_is kind, bool overlap) {
    embedding model;
    hvd::distributed_optimizer distributed(comm, std::move(optimizer), options);
    const bool sparse = kind != table_is::dense;
    const std::size_t table =
        sparse ? distributed.register_sparse("table", model.table, model.d_table,
                                             embedding::columns, policy_of(kind))
               : distributed.register_parameter("table", model.table, model.d_table);
    const std::size_t b = distributed.register_parameter("b", model.b, model.d_b);
    const auto passes = std::size_t(options.backward_passes_per_step);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients();
        for (std::size_t pass = 0; pass < passes; ++pass) {
            model.backward(step, embedding::batch / passes * pass,
                           embedding::batch / passes * (pass + 1), comm.rank(), comm.size());
            if (overlap || sparse) distributed.gradient_ready(b);
            if (sparse) distributed.gradient_ready(table, model.d_rows);
            else if (overlap) distributed.gradient_ready(table);
        }
        CHECK(distributed.step());
    }
    return model.all();
}

template <class Optimizer>
void check_equals_one_rank(communicator& comm, const Optimizer& optimizer) {
    const auto expected = embedding::trained_alone(optimizer, steps);
    for (const auto kind :
         {table_is::dense, table_is::gathered, table_is::reduced, table_is::automatic})
        for (const bool overlap : {false, true})
            for (const hvd::optimizer_options& options :
                 std::vector<hvd::optimizer_options>{{},
                                                     {.bucket_bytes = 1},
                                                     {.backward_passes_per_step = 2},
                                                     {.gradient_predivide_factor = 4}}) {
                CAPTURE(int(kind));
                CAPTURE(overlap);
                const auto result = trained(comm, optimizer, options, kind, overlap);
                CHECK(hvd_test::distance(result, expected) < 1e-9);
            }
}

}  // namespace

TEST_CASE("with dense, sparse and mixed gradients N ranks equal one rank with the whole batch") {
    hvd_test::on_ranks([](communicator& comm) {
        check_equals_one_rank(comm, optimizers::sgd<double>{0.05});
        check_equals_one_rank(comm, optimizers::sgd<double>{.rate = 0.02, .momentum = 0.9});
        check_equals_one_rank(comm, optimizers::adam<double>{.rate = 0.01});
        check_equals_one_rank(comm, optimizers::adadelta<double>{});
    });
}

TEST_CASE("sparse gradients that travel in 16 bits train within their rounding") {
    hvd_test::on_ranks([](communicator& comm) {
        const optimizers::sgd<double> sgd{0.05};
        const auto expected = embedding::trained_alone(sgd, steps);
        const auto with = [&](hvd::gradient_codec codec) {
            return trained(comm, sgd, {.codec = codec}, table_is::gathered, true);
        };
        CHECK(hvd_test::distance(with(hvd::codec::cast<hvd::float16>), expected) < 2e-3);
        CHECK(hvd_test::distance(with(hvd::codec::cast<hvd::bfloat16>), expected) < 2e-2);
    });
}

TEST_CASE("error feedback adds a row's rounding errors to its next gradient") {
    hvd_test::on_ranks([](communicator& comm) {
        // 1 + 2^-10 in bfloat16 is 1: without feedback the 2^-10 never arrives.
        const float small = 1.0f / 1024;
        for (const auto policy : {hvd::sparse_policy::gather, hvd::sparse_policy::dense}) {
            std::vector<float> table(4), gradient(4);
            hvd::distributed_optimizer distributed(
                comm, optimizers::sgd<float>{1},
                {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
            const std::size_t i = distributed.register_sparse("table", table, gradient, 2, policy);
            for (int step = 0; step < 128; ++step) {
                const std::int64_t row = step % 2;
                const hvd::sparse_rows<float> rows = {{row}, {1 + small, -1}};
                distributed.gradient_ready(i, rows);
                distributed.step();
            }
            CHECK(std::abs(table[0] + 64 * (1 + small)) < 0.01);
            CHECK(std::abs(table[2] + 64 * (1 + small)) < 0.01);
            CHECK(table[3] == 64);
        }
    });
}

TEST_CASE("an overflow of the codec in a row of doubles leaves no residual behind") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> table(2), gradient(2);
        hvd::distributed_optimizer distributed(
            comm, optimizers::sgd<double>{1},
            {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>)});
        const std::size_t i = distributed.register_sparse("table", table, gradient, 1);
        distributed.gradient_ready(i, hvd::sparse_rows<double>{{0}, {1e6}});
        distributed.step();
        CHECK(std::isinf(table[0]));
        table[0] = 0;
        distributed.gradient_ready(i, hvd::sparse_rows<double>{{0}, {1}});
        distributed.step();
        CHECK(table[0] == -1);
    });
}

TEST_CASE(
    "rows that no rank reports, or none on some ranks, are zeros; passes are averaged on request") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> table(6, 1), gradient(6, 9);
        hvd::distributed_optimizer distributed(
            comm, optimizers::sgd<float>{1},
            {.backward_passes_per_step = 2, .average_passes = true});
        const std::size_t i = distributed.register_sparse("table", table, gradient, 2);
        if (comm.rank() == 0) {
            const hvd::sparse_rows<float> rows = {{2, 0, 2}, {1, 2, 3, 4, 5, 6}};
            distributed.gradient_ready(i, rows);
            distributed.gradient_ready(i, rows);
        } else {
            distributed.nothing_ready();
        }
        distributed.step();
        const float ranks = float(comm.size());
        CHECK(gradient[0] == doctest::Approx(3 / ranks));
        CHECK(gradient[2] == 0);
        CHECK(gradient[5] == doctest::Approx(8 / ranks));
        CHECK(table[3] == 1);
        distributed.step();  // no rank has rows: the table stays
        CHECK(table[5] == doctest::Approx(1 - 8 / ranks));
    });
}

TEST_CASE("a frozen table stays, and its rows do not come back later") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> table(4, 1), gradient(4);
        const hvd::sparse_rows<float> rows = {{1}, {1, 1}};
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        const std::size_t i = distributed.register_sparse("table", table, gradient, 2);
        distributed.freeze(i);
        gradient.assign(4, 9);
        distributed.gradient_ready(i, rows);
        distributed.step();
        CHECK(table == std::vector<float>(4, 1));
        CHECK(gradient == std::vector<float>(4, 9));  // it has not travelled
        distributed.unfreeze(i);
        distributed.nothing_ready();
        distributed.step();
        CHECK(table == std::vector<float>(4, 1));
        distributed.gradient_ready(i, rows);
        distributed.step();
        CHECK(table == std::vector<float>{1, 1, 0, 0});
    });
}

TEST_CASE("wrong sparse registrations and reports are refused with the name and the numbers") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(6), da(6);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        const auto refused = [](auto call, const char* words) {
            CHECK_THROWS_WITH_AS(call(), doctest::Contains(words), hvd::usage_error);
        };
        refused([&] { distributed.register_sparse("a", a, da, 4); },
                "\"a\": a table of 6 elements has no rows of 4");
        refused([&] { distributed.register_sparse("a", a, da, 0); }, "has no rows of 0");
        const std::size_t i = distributed.register_sparse("a", a, da, 2);
        refused([&] { distributed.gradient_ready(i); }, "\"a\" is sparse; say its rows too");
        const hvd::sparse_rows<float> high = {{3}, {1, 2}}, torn = {{1}, {1}}, good = {{1}, {1, 2}};
        refused([&] { distributed.gradient_ready(i, high); }, "of 3 rows has the index 3");
        refused([&] { distributed.gradient_ready(i, torn); },
                "1 indices and rows of 2 elements has 1 values");
        refused([&] { distributed.gradient_ready(i + 1, good); }, "there is no sparse parameter 1");
        distributed.gradient_ready(i, good);
        refused([&] { distributed.gradient_ready(i, good); }, "\"a\" was ready 1 times already");
        distributed.gradient_ready(i, good);  // it belongs to the next step: that one is over
        distributed.step();
        CHECK(a[3] == -2);

        hvd::distributed_optimizer adasum(comm, optimizers::sgd<float>{}, {.op = hvd::adasum});
        refused([&] { adasum.register_sparse("a", a, da, 2); }, "this optimizer's op is Adasum");
    });
}

#if defined(HVD_TEST_BACKEND_MPI)

TEST_CASE("on direct<mpi>, which reduces no 16-bit floats, everything else is there") {
    const hvd_test::failing_rank_does_not_hang guard;
    using direct = hvd::communicator<hvd::direct<hvd::mpi>>;
    auto comm = direct::world();
    std::vector<float> a(3), da(3, float(comm.rank())), table(4), d_table(4);
    hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
    distributed.register_parameter("a", a, da);
    const std::size_t i = distributed.register_sparse("table", table, d_table, 2);
    const hvd::sparse_rows<float> rows = {{1}, {1, 2}};
    distributed.gradient_ready(0);
    distributed.gradient_ready(i, rows);
    distributed.step();
    const float mean = float(comm.size() - 1) / 2;
    CHECK(a[2] == doctest::Approx(-mean));
    CHECK(table[3] == doctest::Approx(-2));
    const hvd::tensor_view<float> gradients[] = {hvd::view(da.data(), 3)};
    da.assign(3, float(comm.rank()));
    hvd::distributed_gradients(comm, gradients);
    CHECK(da[0] == doctest::Approx(mean));
    comm.allreduce(da, hvd::adasum);
    CHECK(da[0] == doctest::Approx(mean));
    const auto halved = [&] {
        hvd::distributed_optimizer other(comm, optimizers::sgd<float>{1},
                                         {.codec = hvd::codec::cast<hvd::float16>});
    };
    CHECK_THROWS_WITH_AS(halved(), doctest::Contains("does not reduce 16-bit floats"),
                         hvd::usage_error);
}

#endif

}  // namespace mixed_tests
