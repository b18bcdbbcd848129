// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Adam corrects the bias of each parameter's slots by the steps of that parameter.

#include <hvd/train.hpp>

#include "model.hpp"

namespace step_counts_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;

namespace {

// The mean over the ranks of the gradient in this step.
double gradient_in(int step) { return 1.0 + step % 3; }

// Steps two parameters, of which the second is frozen from step `from` to `to`.
template <class T, class Optimizer>
std::vector<double> steps_with_freeze(communicator& comm, const Optimizer& optimizer, int from,
                                      int to, int steps) {
    std::vector<T> first = {T(1)}, second = {T(1)}, d_first = {T(0)}, d_second = {T(0)};
    hvd::distributed_optimizer distributed(comm, optimizer);
    distributed.register_parameter("first", first, d_first);
    distributed.register_parameter("second", second, d_second);
    for (int step = 0; step < steps; ++step) {
        if (step == from) distributed.freeze(1);
        if (step == to) distributed.unfreeze(1);
        const double apart = comm.rank() - (comm.size() - 1) / 2.0;  // ranks have others
        d_first[0] = d_second[0] = T(gradient_in(step) + apart);
        distributed.step();
    }
    comm.barrier();
    return {double(first[0]), double(second[0])};
}

// Adam as in its paper, of one parameter that takes part in some of the steps.
double adam_by_hand(double rate, double decay, int from, int to, int steps) {
    double value = 1, mean = 0, variance = 0, beta1 = 1, beta2 = 1;
    for (int step = 0; step < steps; ++step) {
        if (step >= from && step < to) continue;
        const double g = gradient_in(step);
        mean = 0.9 * mean + 0.1 * g;
        variance = 0.999 * variance + 0.001 * g * g;
        beta1 *= 0.9;
        beta2 *= 0.999;
        value -= rate *
                 (mean / (1 - beta1) / (std::sqrt(variance / (1 - beta2)) + 1e-8) + decay * value);
    }
    return value;
}

}  // namespace

TEST_CASE("a parameter that is unfrozen steps as Adam begins, or goes on where it was") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const int from : {0, 3}) {
            const double rate = 0.125;
            const auto moved =
                steps_with_freeze<double>(comm, optimizers::adam<double>{.rate = rate}, from, 7, 9);
            CHECK(moved[0] == doctest::Approx(adam_by_hand(rate, 0, 9, 9, 9)));
            CHECK(moved[1] == doctest::Approx(adam_by_hand(rate, 0, from, 7, 9)));
            const auto decayed = steps_with_freeze<float>(
                comm, optimizers::adamw<float>{.rate = 0.125f, .weight_decay = 0.5f}, from, 7, 9);
            CHECK(decayed[1] == doctest::Approx(adam_by_hand(rate, 0.5, from, 7, 9)).epsilon(1e-5));
            using masters = optimizers::float_masters<hvd::bfloat16, optimizers::adam<float>>;
            const auto rounded =
                steps_with_freeze<hvd::bfloat16>(comm, masters{{.rate = 0.125f}}, from, 7, 9);
            CHECK(rounded[1] == doctest::Approx(adam_by_hand(rate, 0, from, 7, 9)).epsilon(1e-2));
        }
    });
}

TEST_CASE("each parameter has a count of its steps, which is broadcast with its moments") {
    hvd_test::on_ranks([](communicator& comm) {
        const int last = comm.size() - 1;
        std::vector<float> a = {1}, b = {1}, da = {1}, db = {1};
        auto alone = comm.split(comm.rank());
        hvd::distributed_optimizer own(alone, optimizers::adam<float>{});
        own.register_parameter("a", a, da);
        own.register_parameter("b", b, db);
        for (int step = 0; step < 4 + comm.rank(); ++step) {
            if (step == 1) own.freeze(1);
            if (step == 3) own.unfreeze(1);
            own.step();
        }
        const auto& counts = own.optimizer().steps;
        CHECK(counts.of(0) == 4 + comm.rank());
        CHECK(counts.of(1) == 2 + comm.rank());
        CHECK(counts.of(7) == 0);
        hvd::broadcast_optimizer_state(comm, own.optimizer(), hvd::root{last});
        CHECK(counts.of(0) == 4 + last);
        CHECK(counts.of(1) == 2 + last);
    });
}

TEST_CASE("ranks whose parameters took other numbers of steps are told before the first step") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<float> a = {1}, da = {1};
        optimizers::adam<float> adam{.mean = {{1}}, .variance = {{1}}};
        adam.steps = {{comm.rank() == 0 ? 5.0 : 3.0}};
        hvd::distributed_optimizer distributed(comm, adam);
        distributed.register_parameter("a", a, da);
        CHECK_THROWS_WITH_AS(distributed.step(), doctest::Contains("steps"), hvd::mismatch_error);
        comm.barrier();
    });
}

}  // namespace step_counts_tests
