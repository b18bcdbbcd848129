// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>
#include <limits>

#include "model.hpp"

namespace state_tests {

using communicator = hvd_test::communicator;
using hvd_test::regression;
namespace optimizers = hvd::optimizers;

namespace {

template <class Optimizer>
void check_state_is_the_roots(communicator& comm, Optimizer optimizer, bool others_have_slots) {
    const int from = comm.size() - 1;
    regression model;
    auto alone = comm.split(comm.rank());
    hvd::distributed_optimizer own(alone, std::move(optimizer));
    model.register_with(own);
    if (comm.rank() == from || others_have_slots)
        for (int step = 0; step <= comm.rank(); ++step) {
            own.zero_gradients();
            model.backward(step, 0, regression::batch, 0, 1);
            own.step();
        }
    hvd::broadcast_parameters(comm, own.shared_parameters(), hvd::root{from});
    hvd::broadcast_optimizer_state(comm, own.optimizer(), hvd::root{from});

    // Equal state takes equal steps.
    own.zero_gradients();
    model.backward(99, 0, regression::batch, 0, 1);
    own.step();
    const auto all = comm.allgather(model.all());
    const std::size_t n = model.all().size();
    for (std::size_t i = 0; i < all.values.size(); ++i) CHECK(all.values[i] == model.all()[i % n]);
}

}  // namespace

TEST_CASE("the state of every optimizer becomes the root's, with and without slots before") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool slots : {false, true}) {
            check_state_is_the_roots(comm, optimizers::sgd<double>{0.01 * (comm.rank() + 1)},
                                     slots);
            check_state_is_the_roots(
                comm, optimizers::sgd<double>{.rate = 0.01 * (comm.rank() + 1), .momentum = 0.9},
                slots);
            check_state_is_the_roots(
                comm, optimizers::adam<double>{.rate = 0.01 * (comm.rank() + 1)}, slots);
            check_state_is_the_roots(comm, optimizers::adamw<double>{0.01 * (comm.rank() + 1)},
                                     slots);
            check_state_is_the_roots(
                comm, optimizers::adadelta<double>{.rho = 0.9 - 0.1 * comm.rank()}, slots);
        }
    });
}

TEST_CASE("the parameters to broadcast are a fuse, one tensor, or a range of tensors") {
    hvd_test::on_ranks([](communicator& comm) {
        const int from = comm.size() - 1;
        const hvd::root last{from};
        std::vector<float> weights(3, float(comm.rank()));
        std::vector<double> bias(2, comm.rank());
        std::vector<std::vector<float>> layers = {{float(comm.rank()), 1}, {2, float(comm.rank())}};
        std::vector<float> viewed(4, float(comm.rank()));

        hvd::broadcast_parameters(comm, hvd::fuse(weights, bias), last);
        CHECK(weights == std::vector<float>(3, float(from)));
        CHECK(bias == std::vector<double>(2, from));

        hvd::broadcast_parameters(comm, layers, last);
        CHECK(layers == std::vector<std::vector<float>>{{float(from), 1}, {2, float(from)}});

        std::vector<float> one(2, float(comm.rank()));
        hvd::broadcast_parameters(comm, one, last);
        CHECK(one == std::vector<float>(2, float(from)));

        const std::vector<hvd::tensor_view<float>> views = {hvd::view(viewed.data(), 1),
                                                            hvd::view(viewed.data() + 1, 3)};
        hvd::broadcast_parameters(comm, views, last);
        CHECK(viewed == std::vector<float>(4, float(from)));
    });
}

TEST_CASE("slots that the root does not have are gone on all ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        optimizers::sgd<float> optimizer;
        if (comm.rank() != 0) optimizer.velocity = {{1, 2}, {3}};
        hvd::broadcast_optimizer_state(comm, optimizer);
        CHECK(optimizer.velocity.empty());
    });
}

TEST_CASE("slots that the root does not have are gone beside those of a local parameter") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(2), own(3), da(2, 1), d_own(3, 1);
        hvd::distributed_optimizer distributed(comm,
                                               optimizers::sgd<float>{.rate = 1, .momentum = 0.5f});
        distributed.register_parameter("a", a, da);
        distributed.register_local("own", own, d_own);
        distributed.step();
        if (comm.rank() == 0) distributed.optimizer().velocity.clear();
        hvd::broadcast_optimizer_state(distributed);
        const auto& velocity = distributed.optimizer().velocity;
        CHECK((velocity.empty() || velocity[0].empty()));
        if (comm.rank() != 0) CHECK(velocity.at(1).size() == 3);
    });
}

TEST_CASE("frozen parameters are broadcast, local ones and their slots are not") {
    hvd_test::on_ranks([](communicator& comm) {
        const float mine = float(comm.rank() + 1);
        std::vector<float> a(2, mine), b(1, mine), own(3, mine), da(2), db(1), d_own(3, mine);
        hvd::distributed_optimizer distributed(comm,
                                               optimizers::sgd<float>{.rate = 1, .momentum = 0.5f});
        distributed.register_parameter("a", a, da);
        distributed.register_local("own", own, d_own);
        distributed.register_parameter("b", b, db);
        distributed.step();
        distributed.freeze(0);
        hvd::broadcast_parameters(distributed);
        hvd::broadcast_optimizer_state(distributed);
        CHECK(a == std::vector<float>(2, 1.0f));
        CHECK(b == std::vector<float>(1, 1.0f));
        CHECK(own[2] == doctest::Approx(mine - mine / float(comm.size())));
        CHECK(distributed.optimizer().velocity[1][0] == doctest::Approx(mine / float(comm.size())));
    });
}

TEST_CASE("a tape's gradients are averaged, summed, or combined by adasum; local ones stay") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> w(3), own(2), dw, d_own;
        const std::vector<hvd::tensor_view<double>> parameters = {hvd::view(w.data(), 3),
                                                                  hvd::view(own.data(), 2)};
        hvd::local_parameters local;
        local.register_local(own);
        const auto reduce = [&](const hvd::gradient_options& o) {
            dw.assign(3, comm.rank());
            d_own.assign(2, comm.rank());
            const std::vector<hvd::tensor_view<double>> gradients = {hvd::view(dw.data(), 3),
                                                                     hvd::view(d_own.data(), 2)};
            hvd::partial_distributed_gradients(comm, parameters, gradients, local, o);
        };
        const double mean = (comm.size() - 1) / 2.0, total = mean * comm.size();
        reduce({});
        CHECK(dw[2] == doctest::Approx(mean));
        CHECK(d_own[1] == doctest::Approx(double(comm.rank()) / comm.size()));
        reduce({.op = hvd::sum, .prescale = 2, .scale_local_gradients = false});
        CHECK(dw[2] == doctest::Approx(2 * total));
        CHECK(d_own[1] == comm.rank());
        std::vector<double> expected(3, comm.rank());
        hvd::adasum_allreduce(comm, expected);
        reduce({.op = hvd::adasum});
        CHECK(dw == expected);
        // Whole numbers below 2^8 and their halves are exact in 16 bits.
        for (const auto codec : std::initializer_list<hvd::gradient_codec>{
                 hvd::codec::cast<hvd::float16>, hvd::codec::cast<hvd::bfloat16>}) {
            reduce({.prescale = 2, .postscale = 0.5, .codec = codec});
            CHECK(dw[2] == mean);
            CHECK(d_own[1] == doctest::Approx(double(comm.rank()) / comm.size()));
        }
        dw.assign(3, 1.0 + 1.0 / (1 << 20));
        const std::vector<hvd::tensor_view<double>> fine = {hvd::view(dw.data(), 3)};
        hvd::distributed_gradients(comm, fine, {.codec = hvd::codec::cast<hvd::float16>});
        CHECK(dw[0] == 1);
        CHECK_THROWS_WITH_AS(reduce({.op = hvd::adasum, .codec = hvd::codec::cast<hvd::float16>}),
                             doctest::Contains("there is a codec"), hvd::usage_error);

        const std::vector<hvd::tensor_view<double>> fewer = {hvd::view(dw.data(), 3)};
        CHECK_THROWS_WITH_AS(hvd::partial_distributed_gradients(comm, parameters, fewer, local),
                             doctest::Contains("2 parameters and 1 gradients"), hvd::usage_error);
    });
}

namespace {

struct counting {
    using value_type = float;
    std::uint64_t steps = 0;
    std::int64_t far = 0;
    bool warm = false;
    void step(optimizers::tensors<float>, optimizers::tensors<float>) {}
    template <class F>
    void for_each_slot(F) {}
    template <class F>
    void for_each_number(F f) {
        f("steps", steps);
        f("warm", warm);
        f("far", far);
    }
};

}  // namespace

TEST_CASE("numbers of an optimizer arrive to their last bit, whatever their type") {
    hvd_test::on_ranks([](communicator& comm) {
        constexpr auto last = std::numeric_limits<std::int64_t>::max();
        counting optimizer;
        optimizer.steps = (std::uint64_t(1) << 53) + 1 + std::uint64_t(comm.rank());
        optimizer.far = last - comm.rank();
        optimizer.warm = comm.rank() == 0;
        hvd::broadcast_optimizer_state(comm, optimizer);
        CHECK(optimizer.steps == (std::uint64_t(1) << 53) + 1);
        CHECK(optimizer.far == last);
        CHECK(optimizer.warm);
    });
}

TEST_CASE("state of other parameters is refused by the step") {
    const auto step = [](auto optimizer, std::size_t elements) {
        optimizer.for_each_slot([&](const char*, auto& slots) {
            slots.resize(1);
            slots[0].resize(elements);
        });
        std::vector<float> values(4, 1), slopes(4, 1);
        const hvd::tensor_view<float> value = hvd::view(values.data(), 4),
                                      slope = hvd::view(slopes.data(), 4);
        optimizer.step({&value, 1}, {&slope, 1});
    };
    for (const std::size_t elements : {3, 5}) {
        CHECK_THROWS_AS(step(optimizers::sgd<float>{.rate = 1, .momentum = 0.9f}, elements),
                        hvd::usage_error);
        CHECK_THROWS_AS(step(optimizers::adam<float>{}, elements), hvd::usage_error);
        CHECK_THROWS_AS(step(optimizers::adadelta<float>{}, elements), hvd::usage_error);
    }
    CHECK_NOTHROW(step(optimizers::sgd<float>{.rate = 1, .momentum = 0.9f}, 4));

    // Rows and masters are not taken from it either, and it stays as it was.
    for (const std::size_t elements : {2, 6}) {
        optimizers::lazy_rows<optimizers::adam<float>> lazy;
        lazy.mean = lazy.variance = {std::vector<float>(elements, 1)};
        std::vector<float> table(4, 1);
        const hvd::sparse_rows<float> rows = {{1}, {1, 1}};
        CHECK_THROWS_AS(lazy.step_rows(0, hvd::view(table.data(), 4), rows), hvd::usage_error);
        CHECK(lazy.mean[0] == std::vector<float>(elements, 1));
        CHECK(lazy.variance[0] == std::vector<float>(elements, 1));
        CHECK(table == std::vector<float>(4, 1));

        using hvd::bfloat16;
        optimizers::float_masters<bfloat16, optimizers::sgd<float>> masters{{.rate = 1}};
        masters.master = {std::vector<float>(elements, 7)};
        std::vector<bfloat16> values(4, bfloat16(1.0f)), slopes(4, bfloat16(1.0f));
        const hvd::tensor_view<bfloat16> value = hvd::view(values.data(), 4),
                                         slope = hvd::view(slopes.data(), 4);
        CHECK_THROWS_AS(masters.step({&value, 1}, {&slope, 1}), hvd::usage_error);
        CHECK(float(values[0]) == 1);
    }
}

}  // namespace state_tests
