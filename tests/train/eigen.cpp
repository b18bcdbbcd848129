// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A trainer that is written with Eigen: its matrices are parameters, and its optimizer uses Eigen.

#include <Eigen/Core>
#include <hvd/interop/eigen.hpp>
#include <hvd/train.hpp>

#include "model.hpp"

namespace eigen_tests {

using communicator = hvd_test::communicator;

namespace {

// Momentum, written with Eigen.
class eigen_momentum {
public:
    using value_type = double;

    void step(hvd::optimizers::tensors<double> parameters,
              hvd::optimizers::tensors<double> gradients) {
        velocities_.resize(parameters.size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (velocities_[i].size() == 0)
                velocities_[i].setZero(Eigen::Index(parameters[i].size()));
            velocities_[i] = 0.9 * velocities_[i] + mapped(gradients[i]);
            mapped(parameters[i]) -= 0.02 * velocities_[i];
        }
    }

private:
    static Eigen::Map<Eigen::ArrayXd> mapped(const hvd::tensor_view<double>& tensor) {
        return {tensor.data(), Eigen::Index(tensor.size())};
    }
    std::vector<Eigen::ArrayXd> velocities_;
};

static_assert(hvd::optimizer_of<eigen_momentum, double>);
static_assert(!hvd::optimizer_of<eigen_momentum, float>);

}  // namespace

TEST_CASE("an optimizer and parameters of Eigen train on N ranks as on one") {
    const auto expected =
        hvd_test::trained_alone(hvd::optimizers::sgd<double>{.rate = 0.02, .momentum = 0.9}, 5);
    hvd_test::on_ranks([&](communicator& comm) {
        hvd_test::regression model;
        const auto width = Eigen::Index(model.width);
        Eigen::MatrixXd w(2, width / 2), dw(2, width / 2);  // six numbers, column-major
        Eigen::RowVectorXd v(width), dv(width);
        w.reshaped() = Eigen::Map<Eigen::VectorXd>(model.w.data(), width);
        v = Eigen::Map<Eigen::RowVectorXd>(model.v.data(), width);
        //! [eigen]
        hvd::distributed_optimizer optimizer(comm, eigen_momentum());
        optimizer.register_parameter("w", w, dw);  // Eigen::MatrixXd
        optimizer.register_parameter("v", v, dv);  // Eigen::RowVectorXd
        //! [eigen]
        optimizer.register_parameter("b", model.b, model.db);
        for (int step = 0; step < 5; ++step) {
            model.zero();
            std::copy_n(w.data(), width, model.w.data());
            std::copy_n(v.data(), width, model.v.data());
            model.backward(step, 0, model.batch, comm.rank(), comm.size());
            std::copy_n(model.dw.data(), width, dw.data());
            std::copy_n(model.dv.data(), width, dv.data());
            optimizer.step();
        }
        std::copy_n(w.data(), width, model.w.data());
        std::copy_n(v.data(), width, model.v.data());
        CHECK(hvd_test::distance(model.all(), expected) < 1e-9);
    });
}

TEST_CASE(
    "matrices of other shapes are no parameter of all ranks, however many numbers they have") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const bool first = comm.rank() == 0;
        Eigen::MatrixXf w(first ? 4 : 3, first ? 3 : 4), dw = w;
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>());
        optimizer.register_parameter("w", w, dw);
        CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("rank 0: w [3, 4]"),
                             hvd::mismatch_error);
    });
}

TEST_CASE("maps and vectors without gaps are parameters where they lie") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> memory(12, 1), gradient(12, 1);
        Eigen::Map<Eigen::MatrixXf> w(memory.data(), 2, 3), dw(gradient.data(), 2, 3);
        Eigen::Map<Eigen::VectorXf> v(memory.data() + 6, 3), dv(gradient.data() + 6, 3);
        Eigen::MatrixXf whole = Eigen::MatrixXf::Ones(3, 2), of_whole = whole;
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{.rate = 1});
        optimizer.register_parameter("w", w, dw);
        optimizer.register_parameter("v", v, dv);
        optimizer.register_parameter("column", whole.col(1), of_whole.col(1));
        std::vector<std::vector<std::size_t>> shapes;
        optimizer.for_each_shared(
            [&](const auto&, const auto&, const auto& shape) { shapes.push_back(shape); });
        CHECK(shapes == std::vector<std::vector<std::size_t>>{{3, 2}, {3}, {3}});
        optimizer.step();
        CHECK(w == Eigen::MatrixXf::Zero(2, 3));
        CHECK(v == Eigen::VectorXf::Zero(3));
        CHECK(memory[9] == 1);
        CHECK(whole.col(1) == Eigen::VectorXf::Zero(3));
        CHECK(whole.col(0) == Eigen::VectorXf::Ones(3));
    });
}

}  // namespace eigen_tests
