// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <bit>
#include <hvd/train.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "hvd_test.hpp"

namespace compare_tests {

using communicator = hvd_test::communicator;

namespace {

using tensors = std::vector<std::vector<float>>;

// Tensors that all ranks have alike. The last one is longer than a step of the checksum.
tensors equal_tensors() {
    tensors all = {{1, 2, 3}, {0}, std::vector<float>(1003, 0.5f)};
    for (std::size_t i = 0; i < all[2].size(); ++i) all[2][i] = float(i);
    return all;
}

std::optional<hvd::mismatch_error> difference(communicator& comm, tensors& mine) {
    try {
        hvd::compare_parameters(comm, mine);
    } catch (const hvd::mismatch_error& e) {
        return e;
    }
    return {};
}

bool is_marked(const hvd::mismatch_error& e, int rank) {
    return e.table()[std::size_t(rank)].second.ends_with("(differs from most ranks)");
}

// One rank, each in turn, changes its tensors; every rank learns which tensor and which rank.
template <class Change>
void check_found(const char* field, Change change) {
    hvd_test::on_ranks_from(2, [&](communicator& comm) {
        for (int odd = 0; odd < comm.size(); ++odd) {
            tensors mine = equal_tensors();
            if (comm.rank() == odd) change(mine);
            const auto found = difference(comm, mine);
            REQUIRE(found.has_value());
            CHECK(found->field() == field);
            REQUIRE(found->table().size() == std::size_t(comm.size()));
            for (int rank = 0; rank < comm.size(); ++rank)
                CHECK(is_marked(*found, rank) == (comm.size() > 2 && rank == odd));
            comm.barrier();  // the communicator works on
        }
    });
}

}  // namespace

TEST_CASE("equal tensors of all ranks are equal, NaN and an empty tensor among them") {
    hvd_test::on_ranks([](communicator& comm) {
        tensors mine = equal_tensors();
        mine[0][1] = std::numeric_limits<float>::quiet_NaN();
        mine.emplace_back();
        hvd::compare_parameters(comm, mine);
        std::vector<double> other(7, comm.size());
        hvd::compare_parameters(comm, hvd::fuse(mine, other));
        const std::vector<int> constant(3, 1);
        hvd::compare_parameters(comm, constant);
    });
}

TEST_CASE("one element, in the first, a middle and the last tensor") {
    check_found("tensor 0", [](tensors& mine) { mine[0][2] = 4; });
    check_found("tensor 1", [](tensors& mine) { mine[1][0] = 1; });
    for (const std::size_t at : {0, 8, 500, 1000, 1002})
        check_found("tensor 2", [at](tensors& mine) {
            mine[2][at] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(mine[2][at]) ^ 1u);
        });
}

TEST_CASE("the sign of a zero, a NaN, and a tensor that is shorter") {
    check_found("tensor 1", [](tensors& mine) { mine[1][0] = -0.0f; });
    check_found("tensor 2",
                [](tensors& mine) { mine[2][7] = std::numeric_limits<float>::quiet_NaN(); });
    check_found("tensor 2", [](tensors& mine) { mine[2].pop_back(); });
    check_found("tensor 2", [](tensors& mine) { std::swap(mine[2][3], mine[2][11]); });
}

TEST_CASE("the first of several tensors that differ is named") {
    check_found("tensor 1", [](tensors& mine) { mine[1][0] = mine[2][0] = 9; });
}

TEST_CASE("two ranks that differ are both marked, and without a majority nobody is") {
    hvd_test::on_ranks_from(4, [](communicator& comm) {
        const bool odd = comm.rank() == 0 || comm.rank() == comm.size() - 1;
        tensors mine = equal_tensors();
        if (odd) mine[0][0] = float(comm.rank() + 10);
        const auto found = difference(comm, mine);
        REQUIRE(found.has_value());
        CHECK(found->field() == "tensor 0");
        for (int rank = 0; rank < comm.size(); ++rank)
            CHECK(is_marked(*found, rank) ==
                  (comm.size() > 4 && (rank == 0 || rank == comm.size() - 1)));
    });
}

TEST_CASE("another number of tensors is told before their contents") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        tensors mine = equal_tensors();
        if (comm.rank() == 1) mine.resize(2);
        const auto found = difference(comm, mine);
        REQUIRE(found.has_value());
        CHECK(found->field() == "number of tensors");
    });
}

TEST_CASE("tensors with gaps are compared by their elements") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> table(24, float(comm.rank()));  // the gaps differ
        for (std::size_t i = 0; i < table.size(); i += 3) table[i] = float(i);
        const auto column = hvd::view(table.data(), hvd::shape(8), hvd::strides(3));
        hvd::compare_parameters(comm, column);
        if (comm.size() == 1) return;
        table[21] += float(comm.rank());
        CHECK_THROWS_AS(hvd::compare_parameters(comm, column), hvd::mismatch_error);
    });
}

TEST_CASE("parameters of an optimizer are named, and local ones may differ") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> weight(8, 1), bias(3, 2), own(4, float(comm.rank())), gradient(15);
        const auto part = [&](std::size_t at, std::size_t n) {
            return hvd::view(gradient.data() + at, n);
        };
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{});
        optimizer.register_parameter("weight", weight, part(0, 8));
        optimizer.register_local("own", own, part(8, 4));
        optimizer.register_parameter("bias", bias, part(12, 3));
        hvd::compare_parameters(optimizer);
        if (comm.size() == 1) return;
        if (comm.rank() == comm.size() - 1) bias[1] = -2;
        try {
            hvd::compare_parameters(optimizer);
            FAIL_CHECK("nothing was thrown");
        } catch (const hvd::mismatch_error& e) {
            CHECK(e.field() == "parameter \"bias\"");
        }
    });
}

namespace {

// One rank's number differs in a step: returns the field that the mismatch names, or nothing.
template <class Optimizer, class Comm>
std::string field_named(Comm& comm, Optimizer optimizer, int odd_step, void (*change)(Optimizer&)) {
    std::vector<float> weight(8, 1), gradient(8, 1);
    hvd::distributed_optimizer distributed(comm, std::move(optimizer));
    distributed.register_parameter("weight", weight, gradient);
    for (int step = 0; step < 3; ++step) {
        if (step == odd_step && comm.rank() == comm.size() - 1) change(distributed.optimizer());
        const std::vector<float> before = weight;
        try {
            distributed.step();
        } catch (const hvd::mismatch_error& e) {
            CHECK(weight == before);
            comm.barrier();  // the communicator works on
            return std::string(e.field());
        }
    }
    return "";
}

}  // namespace

TEST_CASE("ranks whose optimizers have other numbers learn it in the first step") {
    namespace optimizers = hvd::optimizers;
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        using sgd = optimizers::sgd<float>;
        using adam = optimizers::adam<float>;
        CHECK(field_named<sgd>(comm, {}, 0, [](sgd& o) { o.rate *= 1.0000001f; }) == "rate");
        CHECK(field_named<sgd>(comm, {}, 0, [](sgd& o) { o.momentum = 0.5f; }) == "momentum");
        CHECK(field_named<sgd>(comm, {}, 0, [](sgd& o) { o.nesterov = true; }) == "nesterov");
        CHECK(field_named<adam>(comm, {}, 0, [](adam& o) { o.beta2 = 0.9f; }) == "beta2");
        CHECK(field_named<adam>(comm, {}, 0, [](adam& o) { o.epsilon *= 2; }) == "epsilon");
        CHECK(field_named<adam>(comm, {}, 0, [](adam& o) { o.weight_decay = 1; }) ==
              "weight_decay");
        CHECK(field_named<adam>(comm, {}, 0, [](adam&) {}) == "");
        CHECK(field_named<sgd>(comm, {}, 1, [](sgd& o) { o.rate *= 2; }) == "");
    });
}

#if !defined(HVD_TEST_BACKEND_MPI)
TEST_CASE("checked ranks compare the numbers in each step") {
    for (const int ranks : {2, 3, 4})
        hvd::run_threads<hvd::checked<hvd::threads>>(ranks, [](auto& comm) {
            using adam = hvd::optimizers::adam<float>;
            for (int step = 0; step < 3; ++step)
                CHECK(field_named<adam>(comm, {}, step, [](adam& o) { o.rate *= 2; }) == "rate");
            CHECK(field_named<adam>(comm, {}, 2, [](adam&) {}) == "");
        });
}
#endif

}  // namespace compare_tests
