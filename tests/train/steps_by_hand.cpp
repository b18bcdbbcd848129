// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// Steps of the optimizers, whose results were computed by hand.

#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>

#include "model.hpp"
#include "shared_folder.hpp"

namespace steps_by_hand_tests {

using communicator = hvd_test::communicator;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

// Gradients of 0.5 and 0.25, summed over ranks that have others, step a value of 1.
template <class T, class Optimizer>
std::vector<double> two_steps(communicator& comm, const Optimizer& optimizer) {
    std::vector<T> value = {T(1)}, gradient(1);
    hvd::distributed_optimizer distributed(comm, optimizer, {.op = hvd::sum});
    distributed.register_parameter("w", value, gradient);
    std::vector<double> seen;
    for (const T wanted : {T(0.5), T(0.25)}) {
        gradient[0] = comm.rank() == 0 ? wanted - T(8 * (comm.size() - 1)) : T(8);
        distributed.step();
        seen.push_back(double(value[0]));
    }
    return seen;
}

template <class T>
using masters_of = optimizers::float_masters<T, optimizers::sgd<float>>;

}  // namespace

// PyTorch: g += decay w, v = momentum v + g, and w -= rate v or, with Nesterov, rate (g + momentum
// v).
TEST_CASE_TEMPLATE("weight decay and Nesterov's momentum are those of PyTorch's SGD", T, float,
                   double) {
    hvd_test::on_ranks([](communicator& comm) {
        using numbers = std::vector<double>;
        const T rate = T(0.5), half = T(0.5), decay = T(0.25);
        CHECK(two_steps<T>(comm, optimizers::sgd<T>{rate}) == numbers{0.75, 0.625});
        CHECK(two_steps<T>(comm, optimizers::sgd<T>{.rate = rate, .weight_decay = decay}) ==
              numbers{0.625, 0.421875});
        CHECK(two_steps<T>(comm, optimizers::sgd<T>{.rate = rate, .momentum = half}) ==
              numbers{0.75, 0.5});
        CHECK(
            two_steps<T>(
                comm, optimizers::sgd<T>{.rate = rate, .momentum = half, .weight_decay = decay}) ==
            numbers{0.625, 0.234375});
        CHECK(two_steps<T>(comm,
                           optimizers::sgd<T>{.rate = rate, .momentum = half, .nesterov = true}) ==
              numbers{0.625, 0.375});
        CHECK(two_steps<T>(
                  comm,
                  optimizers::sgd<T>{
                      .rate = rate, .momentum = half, .nesterov = true, .weight_decay = decay}) ==
              numbers{0.4375, 0.07421875});
    });
}

TEST_CASE("a step in the same pass has the decay and Nesterov's momentum, too") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> value = {1}, gradient = {0};
        auto plan = comm.plan_allreduce(hvd::view(gradient.data(), 1), hvd::average);
        hvd::fused_step step{
            hvd::fuse(hvd::view(value.data(), 1)),
            optimizers::sgd<float>{
                .rate = 0.5f, .momentum = 0.5f, .nesterov = true, .weight_decay = 0.25f}};
        gradient[0] = 0.5f;
        plan.run_and_apply(step);
        CHECK(value[0] == 0.4375f);
        gradient[0] = 0.25f;
        plan.run_and_apply(step);
        CHECK(value[0] == 0.07421875f);
        comm.barrier();
    });
}

TEST_CASE("steps that 16 bits lose arrive with masters in float") {
    hvd_test::on_ranks([](communicator& comm) {
        using T = hvd::bfloat16;
        std::vector<T> plain = {T(1.0f)}, kept = {T(1.0f)}, gradient = {T(1.0f / 1024)};
        hvd::distributed_optimizer without(comm, optimizers::sgd<T>{.rate = 1});
        hvd::distributed_optimizer with(comm, masters_of<T>{{.rate = 1}});
        without.register_parameter("w", plain, gradient);
        with.register_parameter("w", kept, gradient);
        for (int step = 0; step < 16; ++step) {
            without.step();
            with.step();
        }
        CHECK(float(plain[0]) == 1);
        CHECK(float(kept[0]) == 1 - 1.0f / 64);
    });
}

TEST_CASE("masters are saved and broadcast, and frozen parameters keep theirs") {
    hvd_test::on_ranks([](communicator& comm) {
        using T = hvd::float16;
        const shared_folder folder(comm);
        struct model {
            std::vector<T> value = {T(2.0f)}, gradient = {T(1.0f / 4096)};
            hvd::distributed_optimizer<communicator, masters_of<T>> optimizer;
            explicit model(communicator& on) : optimizer(on, masters_of<T>{{.rate = 1}}) {
                optimizer.register_parameter("w", value, gradient);
            }
            void steps(int n) {
                for (int i = 0; i < n; ++i) optimizer.step();
            }
        } first(comm), second(comm), third(comm);
        first.steps(4);
        hvd::save_checkpoint(folder / "c", first.optimizer, {});
        hvd::load_checkpoint(folder / "c", second.optimizer);
        if (comm.rank() == 0) third.optimizer.optimizer().master = {{2 - 4.0f / 4096}};
        hvd::broadcast_optimizer_state(third.optimizer);
        second.steps(3);
        third.optimizer.freeze(0);
        third.steps(1);
        third.optimizer.unfreeze(0);
        third.steps(3);
        CHECK(second.optimizer.optimizer().master[0][0] == 2 - 7.0f / 4096);
        CHECK(third.optimizer.optimizer().master[0][0] == 2 - 7.0f / 4096);
        comm.barrier();
    });
}

TEST_CASE("masters and Adasum are refused") {
    hvd_test::on_ranks([](communicator& comm) {
        CHECK_THROWS_WITH_AS(
            hvd::distributed_optimizer(comm, masters_of<hvd::bfloat16>(), {.op = hvd::adasum}),
            doctest::Contains("float_masters are for averages and sums"), hvd::usage_error);
    });
}

}  // namespace steps_by_hand_tests
