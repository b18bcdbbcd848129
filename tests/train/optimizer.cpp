// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <limits>
#include <list>

#include <hvd/arena.hpp>
#include <hvd/train.hpp>

#include "model.hpp"

namespace optimizer_tests {

using communicator = hvd_test::communicator;
using hvd_test::regression;
namespace optimizers = hvd::optimizers;

namespace {

constexpr int steps = 5;

// Trains with all ranks. `overlap` reports each gradient as soon as it is there.
template <class Optimizer>
std::vector<double> trained(communicator& comm, Optimizer optimizer,
                            const hvd::optimizer_options& options, bool overlap,
                            std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    regression model(memory);
    hvd::distributed_optimizer distributed(comm, std::move(optimizer), options);
    model.register_with(distributed);
    const auto passes = std::size_t(options.backward_passes_per_step);
    for (int step = 0; step < steps; ++step) {
        distributed.zero_gradients();
        for (std::size_t pass = 0; pass < passes; ++pass)
            model.backward(step, regression::batch / passes * pass,
                           regression::batch / passes * (pass + 1), comm.rank(), comm.size(),
                           [&](std::size_t i) {
                               if (overlap) distributed.gradient_ready(i);
                           });
        CHECK(distributed.step());
    }
    return model.all();
}

template <class Optimizer>
void check_equals_one_rank(communicator& comm, const Optimizer& optimizer,
                           double tolerance = 1e-9) {
    const auto expected = hvd_test::trained_alone(optimizer, steps);
    hvd::arena arena{comm, 4096};
    for (const bool overlap : {false, true}) {
        CHECK(hvd_test::distance(trained(comm, optimizer, {}, overlap, &arena), expected) <
              tolerance);
        for (const hvd::optimizer_options& options :
             std::vector<hvd::optimizer_options>{{},
                                                 {.bucket_bytes = 1},
                                                 {.groups = {{0, 2}}},
                                                 {.backward_passes_per_step = 2},
                                                 {.gradient_predivide_factor = 4}}) {
            CAPTURE(overlap);
            CHECK(hvd_test::distance(trained(comm, optimizer, options, overlap), expected) <
                  tolerance);
        }
    }
}

template <class T>
using adam = optimizers::adam<T>;  // clang 16 takes no template with a further default

// Compares with one rank whose numbers are floats and whose parameters are rounded after each step.
template <template <class> class Optimizer>
void check_16_bits(communicator& comm, const Optimizer<hvd::bfloat16>& optimizer = {},
                   Optimizer<float> alone = {}) {
    using T = hvd::bfloat16;
    std::vector<T> x = {T(1.0f), T(-2.0f), T(0.5f)}, gradient(3);
    std::vector<float> expected = {1.0f, -2.0f, 0.5f}, gradient_in_float(3);
    hvd::distributed_optimizer distributed(comm, optimizer);
    distributed.register_parameter("x", x, gradient);
    const std::vector<hvd::tensor_view<float>> values = {hvd::view(expected.data(), 3)},
                                               gradients = {hvd::view(gradient_in_float.data(), 3)};
    for (int step = 0; step < steps; ++step) {
        for (std::size_t k = 0; k < 3; ++k)
            gradient_in_float[k] = float(gradient[k] = T(float(k) - 0.5f * float(step)));
        CHECK(distributed.step());
        alone.step(values, gradients);
        for (std::size_t k = 0; k < 3; ++k) {
            expected[k] = float(T(expected[k]));
            CHECK(float(x[k]) == expected[k]);
        }
    }
}

}  // namespace

TEST_CASE("optimizers of 16-bit parameters compute and remember in float") {
    hvd_test::on_ranks([](communicator& comm) {
        check_16_bits<optimizers::sgd>(comm);
        check_16_bits<optimizers::sgd>(comm, {.momentum = 0.9f}, {.momentum = 0.9f});
        check_16_bits<adam>(comm);
        check_16_bits<optimizers::adamw>(comm);
        check_16_bits<optimizers::adadelta>(comm);
    });
}

TEST_CASE("N ranks with a part of the batch equal one rank with all of it") {
    hvd_test::on_ranks([](communicator& comm) {
        check_equals_one_rank(comm, optimizers::sgd<double>{0.05});
        check_equals_one_rank(comm, optimizers::sgd<double>{.rate = 0.02, .momentum = 0.9});
        check_equals_one_rank(comm, optimizers::adam<double>{.rate = 0.01});
        check_equals_one_rank(comm, optimizers::adamw<double>{.rate = 0.01});
        check_equals_one_rank(comm, optimizers::adadelta<double>{});
    });
}

TEST_CASE("an optimizer that is a variable is referred to, a constant or a temporary is copied") {
    hvd_test::on_ranks([](communicator& comm) {
        optimizers::sgd<float> mine{.rate = 0};
        const optimizers::sgd<float> fixed{.rate = 1};
        hvd::distributed_optimizer by_name(comm, mine),
            with_options(comm, mine, {.bucket_bytes = 1}),
            said(comm, optimizers::by_reference{mine});
        hvd::distributed_optimizer of_constant(comm, fixed),
            of_temporary(comm, optimizers::sgd<float>(mine));
        CHECK(&by_name.optimizer() == &mine);
        CHECK(&with_options.optimizer() == &mine);
        CHECK(&said.optimizer() == &mine);
        CHECK(&of_temporary.optimizer() != &mine);

        std::vector<float> x{1}, gradient{1}, y{1};
        by_name.register_parameter("x", x, gradient);
        of_constant.register_parameter("y", y, gradient);
        mine.rate = 0.5f;
        CHECK(by_name.step());
        CHECK(x[0] == 0.5f);
        by_name.set_rate(0.25);
        CHECK(mine.rate == 0.25f);
        of_constant.set_rate(2);
        CHECK(of_constant.step());
        CHECK(y[0] == -1);
    });
}

TEST_CASE("sum is the average times the number of ranks; passes are averaged on request") {
    hvd_test::on_ranks([](communicator& comm) {
        const optimizers::sgd<double> sgd{0.01};
        const auto summed = hvd_test::trained_alone(sgd, steps, comm.size());
        CHECK(hvd_test::distance(trained(comm, sgd, {.op = hvd::sum}, true), summed) < 1e-9);
        const auto halved = hvd_test::trained_alone(sgd, steps, 0.5);
        CHECK(hvd_test::distance(
                  trained(comm, sgd, {.backward_passes_per_step = 2, .average_passes = true}, true),
                  halved) < 1e-9);
    });
}

TEST_CASE("gradients that travel in 16 bits train within their rounding") {
    hvd_test::on_ranks([](communicator& comm) {
        const optimizers::sgd<double> sgd{0.05};
        const auto expected = hvd_test::trained_alone(sgd, steps);
        CHECK(hvd_test::distance(
                  trained(comm, sgd, {.codec = hvd::codec::cast<hvd::float16>}, true), expected) <
              2e-3);
        CHECK(hvd_test::distance(
                  trained(comm, sgd, {.codec = hvd::codec::cast<hvd::bfloat16>}, true), expected) <
              2e-2);
    });
}

TEST_CASE("a codec keeps the scales of passes and of the predivide factor") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto codec : std::initializer_list<hvd::gradient_codec>{
                 hvd::codec::none, hvd::codec::cast<hvd::float16>,
                 hvd::codec::cast<hvd::bfloat16>}) {
            std::vector<float> x(3), gradient(3);
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                                   {.backward_passes_per_step = 2,
                                                    .average_passes = true,
                                                    .gradient_predivide_factor = 4,
                                                    .codec = codec});
            distributed.register_parameter("x", x, gradient);
            gradient.assign(3, float(8 * comm.rank()) + 8);  // the sum of two passes
            distributed.step();
            CHECK(x[2] == doctest::Approx(-2.0 * (comm.size() + 1)).epsilon(0.005));
        }
    });
}

TEST_CASE("error feedback adds rounding errors to the next gradient") {
    hvd_test::on_ranks([](communicator& comm) {
        // 1 + 2^-10 in bfloat16 is 1: without feedback the 2^-10 never arrives.
        const float small = 1.0f / 1024;
        const auto after = [&](auto element, bool feedback) {
            using T = decltype(element);
            std::vector<T> x(3), gradient(3);
            const hvd::gradient_codec cast = hvd::codec::cast<hvd::bfloat16>;
            hvd::distributed_optimizer distributed(
                comm, optimizers::sgd<T>{1},
                {.codec = feedback ? hvd::codec::error_feedback(cast) : cast});
            distributed.register_parameter("x", x, gradient);
            for (int step = 0; step < 64; ++step) {
                gradient.assign(3, T(1 + small));
                distributed.step();
            }
            return double(x[2]);
        };
        CHECK(after(1.0f, false) == -64);
        CHECK(std::abs(after(1.0f, true) + 64 * (1 + small)) < 0.01);
        CHECK(std::abs(after(1.0, true) + 64 * (1 + small)) < 0.01);
    });
}

TEST_CASE("a residual stays with its parameter while others are frozen and unfrozen") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> w(4), dw(4), other(4), d_other(4);
        hvd::distributed_optimizer distributed(
            comm, optimizers::sgd<float>{1},
            {.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>)});
        distributed.register_parameter("w", w, dw);
        distributed.register_parameter("other", other, d_other);
        for (int step = 0; step < 64; ++step) {
            if (step % 2 != 0) distributed.freeze(1);
            else distributed.unfreeze(1);
            dw.assign(4, 1.001f);
            d_other.assign(4, 1);
            distributed.step();
        }
        CHECK(std::abs(w[0] + 64 * 1.001f) < 0.02);
    });
}

TEST_CASE("16-bit parameters are trained, by averages and by Adasum") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::adasum}) {
            std::vector<hvd::bfloat16> x(3), gradient(3, hvd::bfloat16(2.0f));
            hvd::distributed_optimizer distributed(
                comm, optimizers::sgd<hvd::bfloat16>{.rate = hvd::bfloat16(0.5f), .momentum = 0.9f},
                {.op = op});
            distributed.register_parameter("x", x, gradient);
            distributed.step();
            CHECK(float(x[2]) == -1);
        }
    });
}

TEST_CASE("an optimizer whose options leave it open has buckets of the communicator's size") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const std::size_t together : {1, 2, 4}) {
            comm.retune({.bucket_bytes = together * 10 * sizeof(float)});
            std::vector<float> p[4], g[4];
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
            for (int i = 0; i < 4; ++i) {
                p[i].assign(10, 0);
                g[i].assign(10, float(comm.rank()));
                distributed.register_parameter(std::to_string(i), p[i], g[i]);
            }
            for (int i = 4; i-- > 0;) distributed.gradient_ready(std::size_t(i));
            CHECK(distributed.buckets() == 4 / together);
            distributed.step();
            CHECK(p[3][9] == -float(comm.size() - 1) / 2);
        }
    });
}

TEST_CASE(
    "buckets are filled in reverse order of registration and start with their last gradient") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> p[4], g[4];
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                               {.bucket_bytes = 2 * 10 * sizeof(float)});
        for (int i = 0; i < 4; ++i) {
            p[i].assign(10, 0);
            g[i].assign(10, float(comm.rank() * (i + 1)));
            distributed.register_parameter(std::to_string(i), p[i], g[i]);
        }
        const float mean = float(comm.size() - 1) / 2;
        for (int step = 1; step <= 2; ++step) {
            for (int i = 0; i < 4; ++i) g[i].assign(10, float(comm.rank() * (i + 1)));
            distributed.gradient_ready(3);
            CHECK(distributed.buckets() == 2);
            CHECK(distributed.buckets_started() == 0);
            distributed.gradient_ready(2);
            CHECK(distributed.buckets_started() == 1);
            distributed.gradient_ready(0);
            CHECK(distributed.buckets_started() == 1);
            distributed.gradient_ready(1);
            CHECK(distributed.buckets_started() == 2);
            distributed.step();
            for (int i = 0; i < 4; ++i)
                CHECK(p[i][9] == doctest::Approx(-mean * float(step * (i + 1))));
        }
    });
}

TEST_CASE("reports in another order on each rank start the same buckets in the same order") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> p[5], g[5];
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                               {.bucket_bytes = 1});
        for (std::size_t i = 0; i < 5; ++i) {
            p[i].assign(i + 1, 0);
            g[i].assign(i + 1, float(i));
            distributed.register_parameter(std::to_string(i), p[i], g[i]);
        }
        for (std::size_t i = 0; i < 5; ++i)
            distributed.gradient_ready((i + std::size_t(comm.rank())) % 5);
        distributed.step();
        for (std::size_t i = 0; i < 5; ++i) CHECK(p[i] == std::vector<float>(i + 1, -float(i)));
    });
}

TEST_CASE(
    "gradients that some ranks say they do not have count as zeros there, and no rank waits") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(3), b(3), da(3, 6.0f), db(3, 6.0f);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                               {.bucket_bytes = 1});
        distributed.register_parameter("a", a, da);
        distributed.register_parameter("b", b, db);
        // b is used on rank 0 alone. The last rank uses nothing, though its memory is not zero.
        const bool last = comm.rank() == comm.size() - 1 && comm.size() > 1;
        if (last) distributed.nothing_ready();
        else distributed.gradient_ready(0);
        if (comm.rank() == 0) distributed.gradient_ready(1);
        else distributed.nothing_ready(1);
        distributed.step();
        const float users_of_a = float(comm.size() > 1 ? comm.size() - 1 : 1);
        CHECK(a[0] == doctest::Approx(-6 * users_of_a / float(comm.size())));
        CHECK(b[2] == doctest::Approx(-6 / float(comm.size())));
    });
}

TEST_CASE("frozen parameters stay and keep their slots; unfrozen ones go on") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(2), b(2), da(2), db(2);
        hvd::distributed_optimizer distributed(comm,
                                               optimizers::sgd<float>{.rate = 1, .momentum = 0.5f});
        const std::size_t first = distributed.register_parameter("a", a, da);
        distributed.register_parameter("b", b, db);
        const auto step = [&] {
            da.assign(2, float(comm.rank()));
            db.assign(2, 1);
            distributed.step();
        };
        const float mean = float(comm.size() - 1) / 2;
        step();
        distributed.freeze(first);
        step();
        CHECK(a[0] == doctest::Approx(-mean));
        CHECK(b[0] == doctest::Approx(-2.5));
        distributed.unfreeze(first);
        step();
        CHECK(a[0] == doctest::Approx(-mean - 1.5f * mean));
        CHECK(b[0] == doctest::Approx(-4.25));
    });
}

TEST_CASE("zero_gradients() is for frozen parameters, too") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(2, 1), da(2);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        distributed.register_parameter("a", a, da);
        distributed.freeze(0);
        da.assign(2, 5);
        distributed.zero_gradients();
        distributed.unfreeze(0);
        distributed.step();
        CHECK(a[0] == 1);
    });
}

TEST_CASE("local gradients are no part of the norm that clips, and stay as they are") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(2), da(2, 3), own(2), d_own(2, float(comm.rank() * 100 + 1));
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                               {.scale_local_gradients = false});
        distributed.register_parameter("a", a, da);
        distributed.register_local("own", own, d_own);
        auto gradients = distributed.synchronize();
        CHECK(gradients.tensors()[1].size() == 2);
        CHECK(gradients.shared()[1].size() == 0);
        CHECK(hvd::clip_by_norm(gradients, 1) == doctest::Approx(std::sqrt(18.0)));
        CHECK(hvd::global_norm(gradients) == doctest::Approx(1));
        CHECK_THROWS_WITH_AS(hvd::clip_by_norm(gradients, -1), doctest::Contains("a norm of -1"),
                             hvd::usage_error);
        CHECK_THROWS_AS(hvd::clip_by_norm(gradients, std::numeric_limits<double>::quiet_NaN()),
                        hvd::usage_error);
        distributed.apply(std::move(gradients));
        CHECK(a[0] == doctest::Approx(-std::sqrt(0.5)));
        CHECK(own[0] == float(-comm.rank() * 100 - 1));
    });
}

TEST_CASE(
    "a norm that is not finite clips as PyTorch does: NaN to NaNs, infinity to zeros and NaNs") {
    hvd_test::on_ranks([](communicator& comm) {
        const double inf = std::numeric_limits<double>::infinity();
        const double nan = std::numeric_limits<double>::quiet_NaN();
        for (const bool skips : {false, true})
            for (const double bad : {nan, inf, -inf}) {
                std::vector<double> w(3), dw(3), own(1), d_own(1, 5);
                hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{1},
                                                     {.skip_nonfinite = skips});
                optimizer.register_parameter("w", w, dw);
                optimizer.register_local("own", own, d_own);
                dw = {1, 2, comm.rank() == comm.size() - 1 ? bad : 0};
                auto gradients = optimizer.synchronize();
                const double norm = hvd::clip_by_norm(gradients, 1);
                CHECK(hvd::detail::is_nan(norm) == hvd::detail::is_nan(bad));
                CHECK_FALSE(hvd::detail::is_finite(norm));
                for (const double g : {dw[0], dw[1]}) {
                    if (hvd::detail::is_nan(bad)) CHECK(hvd::detail::is_nan(g));
                    else CHECK(g == 0);
                }
                CHECK(hvd::detail::is_nan(dw[2]));
                CHECK(hvd::detail::is_finite(d_own[0]));
                CHECK(optimizer.apply(std::move(gradients)) == !skips);
                CHECK(hvd::detail::is_finite(w[2]) == skips);
                CHECK(hvd::detail::is_finite(w[0]) == (skips || !hvd::detail::is_nan(bad)));

                dw = {1, 2, bad};
                auto more = optimizer.synchronize();
                CHECK_THROWS_WITH_AS(hvd::clip_by_norm(more, 1, {.error_if_nonfinite = true}),
                                     doctest::Contains("the norm of the gradients is "),
                                     hvd::usage_error);
                CHECK(dw[0] == 1);  // nothing is clipped then
                CHECK_FALSE(hvd::detail::is_finite(hvd::clip_by_norm(more, inf)));
                CHECK(dw[0] == 1);
            }
    });
}

TEST_CASE("gradients are clipped between synchronize and apply, alike on all ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(4), da(4, float(2 * comm.rank()));
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        distributed.register_parameter("a", a, da);
        auto gradients = distributed.synchronize();
        const double norm = hvd::clip_by_norm(gradients, 1.0);
        CHECK(norm == doctest::Approx(2.0 * (comm.size() - 1)));
        CHECK(distributed.apply(std::move(gradients)));
        CHECK(a[3] == doctest::Approx(comm.size() == 1 ? 0 : -0.5));
        {
            [[maybe_unused]] const auto dropped = distributed.synchronize();
        }
        CHECK(a[3] == doctest::Approx(comm.size() == 1 ? 0 : -0.5));
        distributed.step();  // a dropped step is over
    });
}

TEST_CASE("a step with an infinity on one rank is skipped on all") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto op : std::initializer_list<hvd::gradient_op>{hvd::average, hvd::adasum}) {
            std::vector<float> a(4, 1.0f), da(4, 0.5f);
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                                   {.op = op, .skip_nonfinite = true});
            distributed.register_parameter("a", a, da);
            if (comm.rank() == comm.size() - 1) da[2] = std::numeric_limits<float>::infinity();
            CHECK_FALSE(distributed.step());
            CHECK(a == std::vector<float>(4, 1.0f));
            da.assign(4, 0.5f);
            CHECK(distributed.step());
            CHECK(a[2] == doctest::Approx(0.5f));
        }
    });
}

TEST_CASE("the adasum optimizer combines the changes of the ranks' own steps") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> a(5), da(5);
        for (std::size_t i = 0; i < 5; ++i)
            da[i] = hvd_test::noise(i + 5 * std::size_t(comm.rank()));
        std::vector<double> expected = da;
        for (double& x : expected) x *= -0.25;
        hvd::adasum_allreduce(comm, expected);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<double>{0.25},
                                               {.op = hvd::adasum});
        distributed.register_parameter("a", a, da);
        distributed.step();
        CHECK(hvd_test::distance(a, expected) < 1e-12);
    });
}

TEST_CASE("the adasum optimizer steps with the sum or the mean of its passes, local ones too") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool averages : {false, true}) {
            std::vector<double> a(3), da(3, 6), own(2), d_own(2, 6);  // the sums of two passes
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<double>{0.5},
                                                   {.op = hvd::adasum,
                                                    .backward_passes_per_step = 2,
                                                    .average_passes = averages,
                                                    .scale_local_gradients = false});
            distributed.register_parameter("a", a, da);
            distributed.register_local("own", own, d_own);
            distributed.step();
            CHECK(a[2] == doctest::Approx(averages ? -1.5 : -3));  // equal changes stay
            CHECK(own[1] == doctest::Approx(averages ? -1.5 : -3));
        }
    });
}

namespace {
using answer = hvd::detail::step_question::answer;
using hvd_test::asked_rank;

// Takes a step on gradients of these sizes while one rank says yes, or none. The parameters get the
// bits of a step without a question.
template <class T>
answer answer_of_step(communicator& comm, const hvd::optimizer_options& options,
                      const std::vector<std::size_t>& sizes, int who) {
    auto& question = hvd::detail::access::session_of(comm).question;
    const auto step = [&] {
        std::vector<std::vector<T>> values, gradients;
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<T>{1}, options);
        for (const std::size_t size : sizes) {
            values.emplace_back(size);
            gradients.emplace_back();
            for (std::size_t k = 0; k < size; ++k)
                gradients.back().push_back(
                    hvd::detail::from_double<T>(hvd_test::noise(k * 8 + std::size_t(comm.rank()))));
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            distributed.register_parameter(std::to_string(i), values[i], gradients[i]);
        double norm = 0;
        for (int n = 0; n < 2; ++n) {  // in the second the buckets are made anew
            auto synchronized = distributed.synchronize();
            norm += hvd::global_norm(synchronized);
            distributed.apply(std::move(synchronized));
        }
        std::vector<double> all = {norm};
        for (const auto& tensor : values)
            for (const T& x : tensor) all.push_back(double(hvd::detail::as_double(x)));
        return all;
    };
    const auto without = step();
    const auto own = hvd::detail::shared<asked_rank>::make(comm.rank() == who);
    question = own;
    CHECK(step() == without);
    question = {};
    const answer brought = own->take_answer();
    CHECK(own->take_answer() == answer::none);
    return brought;
}

// The steps bring the answer, if one rank says yes and if none does.
template <class T>
void check_answers(communicator& comm, const hvd::optimizer_options& options,
                   const std::vector<std::size_t>& sizes) {
    CHECK(answer_of_step<T>(comm, options, sizes, -1) == answer::no);
    CHECK(answer_of_step<T>(comm, options, sizes, comm.size() - 1) == answer::yes);
}

}  // namespace

TEST_CASE("a question goes with the gradients of a step, and changes no bit of them") {
    hvd_test::on_ranks([](communicator& comm) {
        constexpr auto float16 = hvd::codec::cast<hvd::float16>;
        constexpr auto bfloat16 = hvd::codec::cast<hvd::bfloat16>;
        for (const hvd::optimizer_options& options : std::vector<hvd::optimizer_options>{
                 {},
                 {.op = hvd::sum},
                 {.bucket_bytes = 1},
                 {.gradient_predivide_factor = 1e9},
                 {.gradient_predivide_factor = 1e9, .codec = float16},
                 {.bucket_bytes = 1, .codec = bfloat16},
                 {.skip_nonfinite = true}}) {
            check_answers<float>(comm, options, {7, 300, 2});
            check_answers<hvd::float16>(comm, options, {2});
        }
        // A long gradient that is a bucket by itself stays where it is.
        constexpr std::size_t is_long = 9'000;
        check_answers<double>(comm, {}, {is_long, 2});
        check_answers<double>(comm, {.bucket_bytes = 1}, {is_long, 2});
        CHECK(answer_of_step<double>(comm, {}, {is_long}, 0) == answer::none);
        check_answers<double>(comm, {.codec = float16}, {is_long});
        check_answers<float>(comm, {.op = hvd::adasum}, {7, 2});
        for (const std::size_t bucket_bytes : {0, 1})
            check_answers<float>(
                comm, {.bucket_bytes = bucket_bytes, .codec = hvd::codec::error_feedback(float16)},
                {7, 300});
        check_answers<double>(
            comm, {.gradient_predivide_factor = 1e9, .codec = hvd::codec::error_feedback(bfloat16)},
            {is_long});
    });
}

TEST_CASE("a question goes through a communicator that looks for infinities") {
    const auto looks = [](communicator& comm) {
        for (const hvd::gradient_codec codec :
             {hvd::gradient_codec(hvd::codec::none),
              hvd::gradient_codec(hvd::codec::cast<hvd::float16>),
              hvd::gradient_codec(hvd::codec::error_feedback(hvd::codec::cast<hvd::bfloat16>))})
            for (const double factor : {1.0, 1e9}) {
                INFO(std::string(codec.name()), " ", factor);
                check_answers<float>(comm, {.gradient_predivide_factor = factor, .codec = codec},
                                     {7, 2});
            }
        check_answers<float>(comm, {.op = hvd::adasum}, {7, 2});
    };
    hvd_test::on_ranks_from(1, {.check_finite = true}, looks);
}

TEST_CASE("an optimizer on a subset of the ranks averages over these") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<int> even;
        for (int r = 0; r < comm.size(); r += 2) even.push_back(r);
        auto members = comm.subset(even);
        if (!members) {
            CHECK_THROWS_WITH_AS(hvd::distributed_optimizer(members, optimizers::sgd<float>{}),
                                 doctest::Contains("communicator is empty"), hvd::usage_error);
            return;
        }
        std::vector<float> a(2), da(2, float(comm.rank()));
        hvd::distributed_optimizer distributed(members, optimizers::sgd<float>{1});
        distributed.register_parameter("a", a, da);
        distributed.step();
        CHECK(a[0] == doctest::Approx(-float(members.size() - 1)));
    });
}

TEST_CASE(
    "local parameters are not synchronised and their gradients are divided by the number of "
    "ranks") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const bool scaled : {true, false}) {
            std::vector<float> own(2), shared(2), d_own(2, float(comm.rank() + 1)), d_shared(2, 1);
            hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1},
                                                   {.scale_local_gradients = scaled});
            distributed.register_parameter("shared", shared, d_shared);
            distributed.register_local("own", own, d_own);
            distributed.step();
            CHECK(own[1] ==
                  doctest::Approx(-float(comm.rank() + 1) / float(scaled ? comm.size() : 1)));
            CHECK(shared[1] == doctest::Approx(-1));
        }
    });
}

TEST_CASE("a local gradient is used, reported or not") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> own(2), shared(2), d_own(2, float(comm.size())), d_shared(2, 1);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        const std::size_t i = distributed.register_parameter("shared", shared, d_shared);
        distributed.register_local("own", own, d_own);
        distributed.gradient_ready(i);
        distributed.step();
        CHECK(own[0] == -1);
        CHECK(shared[0] == -1);
    });
}

TEST_CASE("an optimizer whose step takes nothing is stepped after the average") {
    struct own_engine {
        std::vector<float>*value, *gradient;
        void step() { (*value)[0] -= (*gradient)[0]; }
    };
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(1), da(1, float(comm.rank()));
        hvd::distributed_optimizer distributed(comm, own_engine{&a, &da});
        distributed.register_parameter("a", a, da);
        distributed.step();
        CHECK(a[0] == doctest::Approx(-float(comm.size() - 1) / 2));
    });
}

TEST_CASE("ranges of tensors are registered at once, and trained as their tensors one by one") {
    hvd_test::on_ranks([](communicator& comm) {
        using tensors = std::vector<std::vector<float>>;
        const tensors first = {{1, 2, 3}, {}, {4}}, none = {{0, 0, 0}, {}, {0}};
        tensors values = first, gradients = none, viewed = first, d_viewed = none, alone = first,
                d_alone = none;
        std::list<std::span<float>> spans(viewed.begin(), viewed.end());
        std::vector<hvd::tensor_view<float>> views;
        for (auto& x : d_viewed) views.push_back(hvd::view(x.data(), x.size()));
        std::vector<float> bias = {5}, d_bias = {0};
        tensors empty, also_empty;
        const optimizers::adam<float> adam{.rate = 0.1f};
        hvd::distributed_optimizer together(comm, adam), one_by_one(comm, adam);
        together.register_parameter("bias", bias, d_bias);
        CHECK(together.register_parameters("a", values, gradients) == 1);
        CHECK(together.register_parameters("b", spans, std::move(views)) == 4);
        CHECK(together.register_parameters("empty", empty, also_empty) == 7);
        CHECK(together.name(3) == "a.2");
        CHECK(together.name(4) == "b.0");
        for (std::size_t i = 0; i < 3; ++i)
            one_by_one.register_parameter("a." + std::to_string(i), alone[i], d_alone[i]);
        for (int step = 0; step < 3; ++step) {
            const auto mine = float(comm.rank() + step);
            for (tensors* all : {&gradients, &d_viewed, &d_alone}) {
                (*all)[0].assign({mine, 1, -mine});
                (*all)[2].assign({2 * mine});
            }
            together.step();
            one_by_one.step();
        }
        CHECK(values == alone);
        CHECK(viewed == alone);
        CHECK(values != first);
    });
}

TEST_CASE("ranges that do not fit are refused on the rank, with their sizes or their names") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<std::vector<float>> values = {{1}, {2}}, one = {{0}}, wrong = {{0}, {0, 0}};
        hvd::distributed_optimizer optimizer(comm, optimizers::sgd<float>{});
        CHECK_THROWS_WITH_AS(
            optimizer.register_parameters("layer", values, one),
            doctest::Contains(
                "register_parameters(\"layer\"): there are 2 tensors and 1 gradients"),
            hvd::usage_error);
        CHECK(optimizer.parameters().empty());
        CHECK_THROWS_WITH_AS(optimizer.register_parameters("layer", values, wrong),
                             doctest::Contains("\"layer.1\" has 1 elements, its gradient 2"),
                             hvd::usage_error);
        CHECK(optimizer.parameters().size() == 1);
    });
}

TEST_CASE("wrong registrations, reports and orders are refused with the name") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> a(2), da(2), wrong(3);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        const auto refused = [](auto call, const char* words) {
            CHECK_THROWS_WITH_AS(call(), doctest::Contains(words), hvd::usage_error);
        };
        distributed.register_parameter("a", a, da);
        refused([&] { distributed.register_parameter("a", a, da); },
                "named \"a\" is registered already");
        refused([&] { distributed.register_parameter("b", a, wrong); },
                "\"b\" has 2 elements, its gradient 3");
        std::vector<float> b(2), db(2);
        refused([&] { distributed.register_parameter("b", b, da); },
                "the gradient of parameter \"b\" and the gradient of \"a\" have memory in common");
        refused(
            [&] { distributed.register_parameter("b", hvd::view(&a[1], 1), hvd::view(&b[0], 1)); },
            "the values of parameter \"b\" and the values of \"a\" have memory in common");
        refused([&] { distributed.register_parameter("b", b, a); },
                "the gradient of parameter \"b\" and the values of \"a\" have memory in common");
        refused([&] { distributed.register_parameter("b", b, b); },
                "the values of parameter \"b\" and the gradient of \"b\" have memory in common");
        refused([&] { distributed.gradient_ready(1); }, "there are 1 parameters");
        distributed.gradient_ready(0);
        refused([&] { distributed.gradient_ready(0); }, "\"a\" was ready 1 times already");
        distributed.gradient_ready(0);  // it belongs to the next step: that one is over
        refused([&] { distributed.zero_gradients(); }, "while gradients are under way");
        refused([&] { distributed.freeze(0); }, "between steps");
        auto gradients = distributed.synchronize();
        refused([&] { static_cast<void>(distributed.synchronize()); },
                "apply() or drop them first");
        refused([&] { distributed.gradient_ready(0); }, "apply() or drop them first");
        distributed.apply(std::move(gradients));
        refused([&] { distributed.apply(std::move(gradients)); }, "applied already");
        using options = hvd::optimizer_options;
        const auto with = [&](const options& o) {
            hvd::distributed_optimizer other(comm, optimizers::sgd<float>{}, o);
        };
        refused([&] { with({.backward_passes_per_step = 0}); }, "backward_passes_per_step is 0");
        refused([&] { with({.gradient_predivide_factor = 0}); }, "gradient_predivide_factor is 0");
        refused([&] { with({.op = hvd::sum, .gradient_predivide_factor = 2}); },
                "part of an average");
        refused([&] { with({.op = hvd::adasum, .codec = hvd::codec::cast<hvd::float16>}); },
                "the op is Adasum");
        hvd::distributed_optimizer grouped(comm, optimizers::sgd<float>{}, {.groups = {{0}, {0}}});
        grouped.register_parameter("a", a, da);
        refused([&] { grouped.step(); }, "in groups more than once");
    });
}

TEST_CASE("parameters that differ between ranks are told on every rank, with their names") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<float> a(2), da(2);
        hvd::distributed_optimizer distributed(comm, optimizers::sgd<float>{1});
        distributed.register_parameter(comm.rank() == 1 ? "bias" : "weight", a, da);
        CHECK_THROWS_WITH_AS(distributed.step(), doctest::Contains("rank 1: bias"),
                             hvd::mismatch_error);
        std::vector<float> b(comm.rank() == 1 ? 3 : 2), db(b.size());
        hvd::distributed_optimizer sizes(comm, optimizers::sgd<float>{1});
        sizes.register_parameter("b", b, db);
        CHECK_THROWS_AS(sizes.step(), hvd::mismatch_error);
        std::vector<float> table(12), d_table(12);
        hvd::distributed_optimizer tables(comm, optimizers::sgd<float>{1});
        tables.register_sparse("table", table, d_table, comm.rank() == 1 ? 3 : 2);
        CHECK_THROWS_WITH_AS(tables.step(), doctest::Contains("rows of 3"), hvd::mismatch_error);
    });
}

}  // namespace optimizer_tests
