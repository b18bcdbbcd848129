// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "disagreement.hpp"
#include "reference.hpp"

namespace codecs_tests {

using namespace hvd_test;

// Plans whose floats travel as 16-bit floats.

namespace {

constexpr std::size_t lengths[] = {0, 1, 7, 1000, 70001};

// Returns the value of a float after it has travelled.
template <class Half>
float rounded(float x) {
    return float(Half(x));
}

template <class T>
void fill(tensor<T>& x, int rank) {
    std::copy_n(input<T>(rank, x.size()).data(), x.size(), x.data());
}

}  // namespace

TEST_CASE_TEMPLATE(
    "a plan with a codec reduces what the codec makes of floats, and other elements as they are",
    Half, hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        const int n = comm.size();
        for (const std::size_t length : lengths) {
            tensor<float> a(length), b(3);
            tensor<double> c(5);
            auto plan =
                comm.plan_allreduce(hvd::fuse(a, c, b), hvd::sum, {.prescale = 0.5, .postscale = 4},
                                    hvd::codec::cast<Half>);
            for (int step = 0; step < 3; ++step) {
                fill(a, comm.rank());
                fill(b, comm.rank() + step);
                fill(c, comm.rank() + step);
                plan.run();
                // Small integers and halves of them are exact.
                const auto whole = reference<float>(hvd::sum, n);
                CHECK(wrong(a, length, [&](std::size_t i) { return 2 * whole[i % period]; }) == 0);
                const auto sum_of = [&](std::size_t i) {
                    double sum = 0;
                    for (int r = 0; r < n; ++r) sum += element<double>(r + step, i);
                    return 2 * sum;
                };
                CHECK(wrong(b, 3, [&](std::size_t i) { return float(sum_of(i)); }) == 0);
                CHECK(wrong(c, 5, sum_of) == 0);
            }
        }
    });
}

TEST_CASE_TEMPLATE("a plan whose codec changes nothing is the plan without one", Codec,
                   hvd::codec::none_t, hvd::codec::error_feedback_t<hvd::codec::none_t>) {
    on_every_transport([](auto& comm) {
        tensor<float> a(1000), column(30);
        tensor<double> b(5);
        fill(a, comm.rank());
        fill(b, comm.rank());
        fill(column, comm.rank());
        auto plan = comm.plan_allreduce(hvd::fuse(a, b), hvd::sum, {.prescale = 0.5}, Codec{});
        plan.run();
        const auto half = [](const auto& whole) {
            return [&whole](std::size_t i) { return whole[i % period] / 2; };
        };
        const auto floats = reference<float>(hvd::sum, comm.size());
        const auto doubles = reference<double>(hvd::sum, comm.size());
        CHECK(wrong(a, 1000, half(floats)) == 0);
        CHECK(wrong(b, 5, half(doubles)) == 0);
        auto larger = comm.plan_allreduce(
            hvd::view(column.data(), hvd::shape(10), hvd::strides(3)),
            [](float x, float y) { return x < y ? y : x; }, {}, Codec{});
        larger.run();
        CHECK(column[27] == reference<float>(hvd::max, comm.size())[27 % period]);
    });
}

TEST_CASE_TEMPLATE("rounding errors of a codec are lost, and arrive late with error feedback", Half,
                   hvd::float16, hvd::bfloat16) {
    on_every_transport([](auto& comm) {
        const float fine = 1 + 1.0f / (1 << 12);  // it is no number of 16 bits
        tensor<float> x(1000), y(1000);
        auto lossy = comm.plan_allreduce(x, hvd::average, {}, hvd::codec::cast<Half>);
        auto late = comm.plan_allreduce(y, hvd::average, {},
                                        hvd::codec::error_feedback(hvd::codec::cast<Half>));
        const int steps = 1024;
        double sum = 0;
        for (int step = 0; step < steps; ++step) {
            std::fill_n(x.data(), x.size(), fine);
            std::fill_n(y.data(), y.size(), fine);
            lossy.run();
            late.run();
            CHECK(x[999] == (comm.size() > 1 ? rounded<Half>(fine) : fine));
            sum += y[999];
        }
        CHECK(sum / steps == doctest::Approx(fine).epsilon(1e-5));
    });
}

TEST_CASE("an average by a codec is rounded once more, and the same on all ranks") {
    on_every_transport([](auto& comm) {
        tensor<float> x = input<float>(comm.rank(), 1001);
        comm.plan_allreduce(x, hvd::average, {}, hvd::codec::cast<hvd::bfloat16>).run();
        const auto sums = reference<float>(hvd::sum, comm.size());
        CHECK(wrong(x, 1001, [&](std::size_t i) {
                  const float mean = sums[i % period] / float(comm.size());
                  return comm.size() > 1 ? rounded<hvd::bfloat16>(mean) : mean;
              }) == 0);
    });
}

TEST_CASE("ranks with different codecs disagree, and none is kept waiting") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10, 1);
        if (comm.rank() == 0)
            CHECK_THROWS_AS(static_cast<void>(comm.plan_allreduce(x, hvd::sum, {},
                                                                  hvd::codec::cast<hvd::bfloat16>)),
                            hvd::mismatch_error);
        else
            CHECK_THROWS_AS(static_cast<void>(comm.plan_allreduce(x, hvd::sum, {},
                                                                  hvd::codec::cast<hvd::float16>)),
                            hvd::mismatch_error);
        check_that_it_works(comm);
        // the same on the wire, but the residuals keep one of them from going with the headers
        constexpr auto codec = hvd::codec::cast<hvd::bfloat16>;
        const auto plan = [&] {
            if (comm.rank() == 0)
                static_cast<void>(
                    comm.plan_allreduce(x, hvd::sum, {}, hvd::codec::error_feedback(codec)));
            else static_cast<void>(comm.plan_allreduce(x, hvd::sum, {}, codec));
        };
        CHECK_THROWS_AS(plan(), hvd::mismatch_error);
        check_that_it_works(comm);
    });
}

TEST_CASE("a tensor with gaps is refused by a codec, with its number") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> x(10, 1), y(4);
        std::vector<int> between(3);
        const auto column = hvd::view(x.data(), hvd::shape(5), hvd::strides(2));
        try {
            static_cast<void>(comm.plan_allreduce(hvd::fuse(y, between, column), hvd::sum, {},
                                                  hvd::codec::cast<hvd::bfloat16>));
            FAIL("a plan was made");
        } catch (const hvd::usage_error& e) {
            CHECK(std::string(e.what()).find("tensor 2 has gaps") != std::string::npos);
        }
        check_that_it_works(comm);
    });
}

}  // namespace codecs_tests
