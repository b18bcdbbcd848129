// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Training, codecs and exact scaling in a program that is compiled and linked with -ffast-math, as
// -Ofast does. Infinities and NaNs are made of bits here: for the compiler there are none.

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <hvd/engine.hpp>
#include <hvd/train.hpp>

#include "hvd_test.hpp"

#if !__FINITE_MATH_ONLY__
#error "this test is for -ffast-math"
#endif

namespace fast_math_tests {

using communicator = hvd_test::communicator;
namespace optimizers = hvd::optimizers;

namespace {

template <class T>
using bits_type =
    std::conditional_t<sizeof(T) == 2, std::uint16_t,
                       std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

// The compiler does not see what is written.
template <class T>
void write_bits(T& to, bits_type<T> bits) {
    volatile unsigned char* const bytes = reinterpret_cast<volatile unsigned char*>(&to);
    for (std::size_t i = 0; i < sizeof bits; ++i)
        bytes[i] = static_cast<unsigned char>(bits >> (8 * i));
}

template <class T>
constexpr auto infinity = bits_type<T>(hvd::detail::infinity_bits<T>);
template <class T>
constexpr auto nan = bits_type<T>(infinity<T> | (infinity<T> >> 1));

template <class T>
bool finite(const T& x) {
    bits_type<T> bits;
    std::memcpy(&bits, &x, sizeof x);
    return (bits & infinity<T>) != infinity<T>;
}
template <class T>
bool all_finite(const std::vector<T>& all) {
    for (const T& x : all)
        if (!finite(x)) return false;
    return true;
}

template <class T>
bits_type<T> bits_of(const T& x) {
    bits_type<T> bits;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
}

}  // namespace

TEST_CASE_TEMPLATE("an infinity or NaN on one rank leaves the step out on all", T, float, double,
                   hvd::float16, hvd::bfloat16) {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::adasum})
            for (const auto bad : {infinity<T>, nan<T>})
                for (int culprit = 0; culprit < comm.size(); ++culprit) {
                    std::vector<T> w(70, T(1.0f)), dw(70, T(1.0f));
                    hvd::distributed_optimizer optimizer(comm,
                                                         optimizers::sgd<T>{.momentum = T(0.9)},
                                                         {.op = op, .skip_nonfinite = true});
                    optimizer.register_parameter("w", w, dw);
                    if (comm.rank() == culprit) write_bits(dw[69], bad);
                    CHECK_FALSE(optimizer.step());
                    for (const T& x : w) CHECK(float(x) == 1);
                    dw.assign(70, T(1.0f));
                    CHECK(optimizer.step());
                    CHECK(float(w[69]) < 1);
                }
    });
}

TEST_CASE_TEMPLATE("a sparse gradient that is not finite leaves the step out", T, float, double) {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<T> table(8, 1), gradient(8);
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<T>{1}, {.skip_nonfinite = true});
        const auto t = optimizer.register_sparse("t", table, gradient, 2);
        hvd::sparse_rows<T> rows = {{3}, {1, 2}};
        if (comm.rank() == 0) write_bits(rows.values[1], nan<T>);
        optimizer.gradient_ready(t, rows);
        CHECK_FALSE(optimizer.step());
        CHECK(table == std::vector<T>(8, 1));
    });
}

TEST_CASE("an overflow of the float16 codec lowers the loss scale, and leaves no residual") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const bool feedback : {false, true}) {
            std::vector<float> w(37, 1), dw(37, 1);
            const hvd::gradient_codec cast = hvd::codec::cast<hvd::float16>;
            hvd::distributed_optimizer optimizer(
                comm, optimizers::sgd<float>{1},
                {.codec = feedback ? hvd::codec::error_feedback(cast) : cast,
                 .skip_nonfinite = true});
            optimizer.register_parameter("w", w, dw);
            hvd::loss_scale scale{.value = 1024};
            dw.assign(37, 1024 * 128);  // above the largest float16
            CHECK_FALSE(scale.step(optimizer));
            CHECK(scale.value == 512);
            CHECK(w[36] == 1);
            dw.assign(37, 512);
            CHECK(scale.step(optimizer));
            CHECK(w[36] == 0);
        }
    });
}

TEST_CASE("a norm that is not finite clips as PyTorch does, and a limit that is none is refused") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> w(2), dw(2, 1);
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{1});
        optimizer.register_parameter("w", w, dw);
        write_bits(dw[0], nan<float>);
        auto gradients = optimizer.synchronize();
        CHECK_THROWS_AS(hvd::clip_by_norm(gradients, 1, {.error_if_nonfinite = true}),
                        hvd::usage_error);
        double none;
        write_bits(none, nan<double>);
        CHECK_THROWS_AS(hvd::clip_by_norm(gradients, none), hvd::usage_error);
        hvd::clip_by_norm(gradients, 1);
        CHECK_FALSE(finite(dw[1]));
        hvd::loss_scale scale;
        write_bits(scale.value, nan<double>);
        CHECK_THROWS_AS(scale.unscale(gradients), hvd::usage_error);
        hvd::optimizer_options options;
        write_bits(options.gradient_predivide_factor, infinity<double>);
        CHECK_THROWS_AS(hvd::distributed_optimizer(comm, optimizers::sgd<float>{}, options),
                        hvd::usage_error);
    });
}

TEST_CASE_TEMPLATE("a minimum and a maximum keep a NaN, in one encoding", T, float, double,
                   hvd::float16, hvd::bfloat16) {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const std::size_t n : {std::size_t(1), std::size_t(33), std::size_t(4099)})
            for (int culprit = 0; culprit < comm.size(); ++culprit) {
                const auto check = [&](auto op) {
                    std::vector<T> x(n, T(float(comm.rank())));
                    if (comm.rank() == culprit)
                        for (std::size_t i = 0; i < n; i += 2)
                            write_bits(x[i], bits_type<T>(nan<T> | 1));
                    comm.allreduce(x, op);
                    for (std::size_t i = 0; i < n; ++i) {
                        if (i % 2 == 0) CHECK(bits_of(x[i]) == nan<T>);
                        else CHECK(finite(x[i]));
                    }
                };
                check(hvd::min);
                check(hvd::max);
                check(hvd::sum);
            }
    });
}

TEST_CASE("codecs: overflows become infinities, NaNs stay, subnormals are exact") {
    constexpr std::size_t n = 77;
    std::vector<float> from(n), back(n), residual(n);
    std::vector<hvd::float16> wire(n);
    for (std::size_t i = 0; i < n; ++i) from[i] = i % 3 == 0 ? 70000.0f : 0x1p-24f * float(i);
    write_bits(from[1], nan<float>);
    hvd::codec::error_feedback_t<hvd::codec::cast_t<hvd::float16>>::encode(
        from.data(), n, wire.data(), 1, residual.data());
    hvd::codec::cast_t<hvd::float16>::decode(wire.data(), n, back.data(), 1);
    CHECK(all_finite(residual));
    for (std::size_t i = 2; i < n; ++i) {
        CHECK(finite(wire[i]) == (i % 3 != 0));
        CHECK(finite(back[i]) == (i % 3 != 0));
        if (i % 3 != 0) CHECK(back[i] == from[i]);
        if (i % 3 != 0) CHECK(float(wire[i]) == from[i]);
    }
    CHECK(bits_of(wire[1]) == nan<hvd::float16>);
    CHECK((bits_of(back[1]) & 0x7fffffffu) > infinity<float>);
}

TEST_CASE("integers are scaled exactly, also by an infinity and by a NaN") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<std::int64_t> x(5, (std::int64_t(1) << 53) + 1);
        comm.allreduce(x, hvd::sum(hvd::rounding::nearest), {.prescale = 0.5});
        CHECK(x[4] == ((comm.size() * ((std::int64_t(1) << 53) + 1)) + 1) / 2);
        double factor;
        write_bits(factor, infinity<double>);
        std::vector<std::int32_t> y(5, -3);
        comm.allreduce(y, hvd::sum(hvd::rounding::toward_zero), {.prescale = factor});
        CHECK(y[4] == std::numeric_limits<std::int32_t>::min());
        write_bits(factor, nan<double>);
        y.assign(5, -3);
        comm.allreduce(y, hvd::sum(hvd::rounding::toward_zero), {.prescale = factor});
        CHECK(y[4] == 0);
    });
}

TEST_CASE_TEMPLATE("a rank that joined multiplies by 1 / prescale, also where it is a NaN", T,
                   float, double, hvd::float16, hvd::bfloat16) {
    std::vector<T> x(3);
    const auto fill = [&](const double& prescale) {
        hvd::detail::fill_neutral(hvd::dtype_traits<T>::id, reinterpret_cast<std::byte*>(x.data()),
                                  3, hvd::op::product::id, prescale);
    };
    fill(2);
    CHECK(float(x[2]) == 0.5f);
    double factor;
    write_bits(factor, nan<double>);
    fill(factor);
    CHECK((bits_of(x[2]) & infinity<T>) == infinity<T>);
    fill(1);
    CHECK(float(x[2]) == 1);
}

TEST_CASE("all optimizers train, and the fused step with them") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto trains = [&](auto optimizer) {
            using T = typename decltype(optimizer)::value_type;
            std::vector<T> w(100, T(4.0f)), dw(100);
            hvd::distributed_optimizer distributed(comm, optimizer);
            const auto p = distributed.register_parameter("w", w, dw);
            for (int step = 0; step < 40; ++step) {
                for (std::size_t i = 0; i < w.size(); ++i)
                    dw[i] = T(float(w[i]) * 2 * float(comm.rank() + 1) / float(comm.size() + 1));
                distributed.gradient_ready(p);
                distributed.step();
            }
            CHECK(all_finite(w));
            CHECK(float(w[99]) < 3.95f);
            // a vector and the elements behind the last one may round apart there
            CHECK(std::abs(float(w[0]) - float(w[99])) < 1e-4f);
        };
        trains(optimizers::sgd<float>{.rate = 0.1f});
        trains(optimizers::sgd<double>{.rate = 0.05, .momentum = 0.9, .nesterov = true});
        trains(optimizers::adam<float>{.rate = 0.05f});
        trains(optimizers::adamw<double>{.rate = 0.05});
        trains(optimizers::adadelta<float>{});
        trains(optimizers::float_masters<hvd::bfloat16, optimizers::adam<float>>{{.rate = 0.05f}});
        std::vector<float> w(100, 4), dw(100, 1);
        auto plan = comm.plan_allreduce(dw, hvd::average);
        hvd::fused_step step{hvd::fuse(w), optimizers::adam<float>{.rate = 0.5f}};
        plan.run_and_apply(step);
        CHECK(w[99] == doctest::Approx(3.5));
    });
}

TEST_CASE("NaN is never the best so far") {
    double value;
    write_bits(value, nan<double>);
    for (const auto better : {hvd::best_so_far::direction::up, hvd::best_so_far::direction::down}) {
        hvd::best_so_far best(better);
        CHECK_FALSE(best.improves(value));
        CHECK(best.improves(0.5));
        CHECK_FALSE(best.improves(value));
    }
}

}  // namespace fast_math_tests
