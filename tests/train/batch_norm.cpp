// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <limits>

#include <hvd/train.hpp>

#include "model.hpp"

namespace batch_norm_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;

namespace {

constexpr std::size_t channels = 3;

struct part {
    std::vector<double> x, dy;
};

// Returns rank r's samples. Rank r has r + 2 of them, but one rank has none.
part part_of(int rank, double offset, int without = 1) {
    part p;
    const std::size_t samples = rank == without ? 0 : std::size_t(rank) + 2;
    for (std::size_t i = 0; i < samples * channels; ++i) {
        p.x.push_back(offset + noise(std::size_t(rank) * 100 + i) * double(i % channels + 1));
        p.dy.push_back(noise(7000 + std::size_t(rank) * 100 + i));
    }
    return p;
}

void add(std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

std::vector<double> trained_scale() { return {0.5, 2, -1}; }

}  // namespace

TEST_CASE(
    "batch norm over all ranks equals that of one rank with all samples, forward and backward") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const auto& [offset, without] : {std::pair{0.0, 0}, {0.0, 1}, {1e6, 1}}) {
            part all;
            std::size_t before = 0;
            for (int r = 0; r < comm.size(); ++r) {
                const part p = part_of(r, offset, without);
                if (r < comm.rank()) before += p.x.size();
                add(all.x, p.x);
                add(all.dy, p.dy);
            }
            auto self = comm.split(comm.rank());
            hvd::sync_batch_norm<double> alone(channels), together(channels);
            alone.scale = together.scale = trained_scale();
            std::vector<double> y(all.x.size()), dx(all.x.size());
            alone.forward(self, all.x, y);
            alone.backward(self, all.dy, dx);

            const part mine = part_of(comm.rank(), offset, without);
            std::vector<double> my_y(mine.x.size()), my_dx(mine.x.size());
            together.forward(comm, mine.x, my_y);
            together.backward(comm, mine.dy, my_dx);
            const auto at = std::ptrdiff_t(before), end = at + std::ptrdiff_t(my_y.size());
            CHECK(hvd_test::distance(my_y, {y.begin() + at, y.begin() + end}) < 1e-6);
            CHECK(hvd_test::distance(my_dx, {dx.begin() + at, dx.begin() + end}) < 1e-6);
            comm.allreduce(together.scale_gradient, hvd::sum);
            CHECK(hvd_test::distance(together.scale_gradient, alone.scale_gradient) < 1e-6);
        }
    });
}

TEST_CASE("the variance of values far from zero is right") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::sync_batch_norm<double> norm(1);
        std::vector<double> x = {1e9 + comm.rank() - 1, 1e9 + comm.rank() + 1};
        norm.forward(comm, x, x);
        const double n = comm.size();
        CHECK(norm.variance()[0] == doctest::Approx(1 + (n * n - 1) / 12).epsilon(1e-9));
        CHECK(norm.count() == 2 * n);
    });
}

TEST_CASE("the gradient of batch norm is that of finite differences") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const part mine = part_of(comm.rank(), 0);
        const auto loss = [&](const std::vector<double>& x) {
            hvd::sync_batch_norm<double> norm(channels);
            norm.scale = trained_scale();
            std::vector<double> y(x.size());
            norm.forward(comm, x, y);
            double sum = 0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * mine.dy[i];
            comm.allreduce(sum, hvd::sum);
            return sum;
        };
        hvd::sync_batch_norm<double> norm(channels);
        norm.scale = trained_scale();
        std::vector<double> y(mine.x.size()), dx(mine.x.size());
        norm.forward(comm, mine.x, y);
        norm.backward(comm, mine.dy, dx);
        auto moved = mine.x;
        const double h = 1e-5;
        if (comm.rank() == 0) moved[1] += h;
        const double up = loss(moved);
        if (comm.rank() == 0) moved[1] -= 2 * h;
        const double down = loss(moved);
        if (comm.rank() == 0) CHECK(dx[1] == doctest::Approx((up - down) / (2 * h)).epsilon(1e-5));
    });
}

TEST_CASE("batch norm of what is no whole samples is refused") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::sync_batch_norm<float> norm(3);
        std::vector<float> x(4), y(4);
        CHECK_THROWS_WITH_AS(norm.forward(comm, x, y),
                             doctest::Contains("4 elements, which are no samples of 3 channels"),
                             hvd::usage_error);
    });
}

TEST_CASE("ranks with other numbers of channels all get them told, and the communicator works on") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const std::size_t own = comm.rank() == 1 ? 30000 : 2;
        hvd::sync_batch_norm<float> norm(own);
        std::vector<float> x(2 * own, 1);
        CHECK_THROWS_WITH_AS(norm.forward(comm, x, x), doctest::Contains("rank 1: 30000"),
                             hvd::mismatch_error);
        CHECK(norm.count() == 0);
        hvd::sync_batch_norm<float> again(2);
        again.forward(comm, std::vector<float>(4, 1), std::vector<float>(4));
        CHECK(again.count() == 2 * comm.size());
    });
}

TEST_CASE("a batch norm without channels is refused, and one whose vectors were resized") {
    CHECK_THROWS_WITH_AS(hvd::sync_batch_norm<float>(0), doctest::Contains("0 channels"),
                         hvd::usage_error);
    hvd_test::on_ranks([](communicator& comm) {
        hvd::sync_batch_norm<float> norm(3);
        norm.scale.resize(6);
        std::vector<float> x(6);
        CHECK_THROWS_WITH_AS(norm.forward(comm, x, x), doctest::Contains("gradients have 6"),
                             hvd::usage_error);
    });
}

TEST_CASE("sizes that one rank has wrong are told to the others in that call") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::sync_batch_norm<float> norm(2);
        std::vector<float> x(comm.rank() == 1 ? 3 : 4), y(x.size());
        if (comm.rank() == 1)
            CHECK_THROWS_WITH_AS(norm.forward(comm, x, y), doctest::Contains("no samples of 2"),
                                 hvd::usage_error);
        else
            CHECK_THROWS_WITH_AS(norm.forward(comm, x, y),
                                 doctest::Contains("rank 1 refused it: hvd: batch norm of 3"),
                                 hvd::peer_error);
        int one = 1;
        comm.allreduce(one, hvd::sum);
        CHECK(one == comm.size());
    });
}

namespace {

// A batch of samples × channels × inner, in either order, and what batch norm makes of it, by sums
// in long double over all ranks' samples.
struct batch {
    std::size_t samples, channels, inner;
    std::vector<double> x, dy;  // channels first

    std::size_t size() const { return samples * channels * inner; }

    // The place of an element of `channels first` in the order of the tensor.
    std::size_t place(std::size_t i, hvd::channel_order order) const {
        if (order == hvd::channel_order::first) return i;
        const std::size_t k = i % inner, c = i / inner % channels, s = i / inner / channels;
        return (s * inner + k) * channels + c;
    }

    template <class T>
    std::vector<T> ordered(const std::vector<double>& values, hvd::channel_order order) const {
        std::vector<T> all(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) all[place(i, order)] = T(float(values[i]));
        return all;
    }
};

// Rank 1 has no samples. Values are those of T, `offset` from zero.
template <class T>
batch batch_of(int rank, std::size_t samples, std::size_t channels, std::size_t inner,
               double offset) {
    batch b{rank == 1 ? 0 : samples + std::size_t(rank), channels, inner, {}, {}};
    for (std::size_t i = 0; i < b.size(); ++i) {
        const std::size_t c = i / inner % channels, n = i + std::size_t(rank) * 100000;
        b.x.push_back(double(float(T(float(offset * double(c) + noise(n) * double(c + 1))))));
        b.dy.push_back(double(float(T(float(noise(n + 7000000))))));
    }
    return b;
}

struct reference {
    std::vector<long double> mean, variance, of_dy, of_products;
    long double count = 0;

    explicit reference(const std::vector<batch>& all)
        : mean(all[0].channels), variance(mean), of_dy(mean), of_products(mean) {
        const auto each = [&](auto f) {
            for (const batch& b : all)
                for (std::size_t i = 0; i < b.size(); ++i)
                    f(i / b.inner % b.channels, b.x[i], b.dy[i]);
        };
        for (const batch& b : all) count += (long double)(b.samples * b.inner);
        each([&](std::size_t c, double x, double) { mean[c] += x / count; });
        each([&](std::size_t c, double x, double) {
            variance[c] += (x - mean[c]) * (x - mean[c]) / count;
        });
        each([&](std::size_t c, double x, double dy) {
            of_dy[c] += dy / count;
            of_products[c] += dy * normalised(c, x) / count;
        });
    }

    long double normalised(std::size_t c, double x) const {
        return (x - mean[c]) / std::sqrt(variance[c] + 1e-5L);
    }
    double gradient(std::size_t c, double x, double dy) const {
        return double((dy - of_dy[c] - normalised(c, x) * of_products[c]) /
                      std::sqrt(variance[c] + 1e-5L));
    }
};

template <class T>
void check_against_reference(communicator& comm, std::size_t samples, std::size_t channels,
                             std::size_t inner, double offset, double tolerance) {
    std::vector<batch> all;
    for (int r = 0; r < comm.size(); ++r)
        all.push_back(batch_of<T>(r, samples, channels, inner, offset));
    const batch& mine = all[std::size_t(comm.rank())];
    const reference expected(all);
    for (const auto order : {hvd::channel_order::first, hvd::channel_order::last}) {
        CAPTURE(int(order));
        CAPTURE(channels);
        CAPTURE(inner);
        hvd::sync_batch_norm<T> norm(channels, {.momentum = 1, .order = order});
        for (std::size_t c = 0; c < channels; ++c) {
            norm.scale[c] = T(float(c % 3) + 0.5f);
            norm.shift[c] = T(float(c % 2));
        }
        const auto x = mine.ordered<T>(mine.x, order), dy = mine.ordered<T>(mine.dy, order);
        std::vector<T> y(x.size()), again(x.size()), dx(x.size());
        const auto shaped = [&](auto& v) {
            return hvd::view(v.data(), hvd::shape(mine.samples, channels, inner));
        };
        norm.forward(comm, shaped(x), shaped(y));
        norm.backward(comm, dy, dx);
        double wrong = 0, wrong_again = 0, wrong_gradient = 0;
        for (auto& v : norm.running_variance)  // of the batch, as `forward` used it
            v = decltype(+v)(double(v) * double((expected.count - 1) / expected.count));
        norm.evaluate(shaped(x), shaped(again));
        for (std::size_t i = 0; i < mine.size(); ++i) {
            const std::size_t c = i / inner % channels, at = mine.place(i, order);
            const double scale = double(float(norm.scale[c]));
            const double to =
                scale * double(expected.normalised(c, mine.x[i])) + double(float(norm.shift[c]));
            wrong = std::max(wrong, std::abs(double(y[at]) - to));
            wrong_again = std::max(wrong_again, std::abs(double(again[at]) - to));
            wrong_gradient = std::max(
                wrong_gradient,
                std::abs(double(dx[at]) - scale * expected.gradient(c, mine.x[i], mine.dy[i])));
        }
        CHECK(wrong < tolerance);
        // The running mean is rounded to its type.
        CHECK(wrong_again <
              tolerance + offset * double(channels) *
                              std::numeric_limits<decltype(+norm.running_mean[0])>::epsilon());
        CHECK(wrong_gradient < tolerance);
        for (std::size_t c = 0; c < channels; ++c) {
            CHECK(norm.mean()[c] == doctest::Approx(double(expected.mean[c])).epsilon(1e-6));
            CHECK(norm.variance()[c] ==
                  doctest::Approx(double(expected.variance[c])).epsilon(1e-5));
        }
    }
}

}  // namespace

TEST_CASE("batch norm equals a serial one for channels first and last, few and many of them") {
    hvd_test::on_ranks([](communicator& comm) {
        struct shape {
            std::size_t samples, channels, inner;
        };
        for (const shape s : {shape{3, 5, 1},
                              {700, 3, 1},
                              {1, 8, 7},
                              {20, 4, 49},
                              {9, 4, 15},
                              {9, 4, 16},
                              {2, 3, 64},
                              {1, 2, 1700},
                              {2, 65, 3}}) {
            check_against_reference<double>(comm, s.samples, s.channels, s.inner, 0, 1e-7);
            check_against_reference<float>(comm, s.samples, s.channels, s.inner, 0, 2e-5);
        }
    });
}

TEST_CASE("batch norm far from zero and in 16 bits is as exact as its elements") {
    hvd_test::on_ranks([](communicator& comm) {
        check_against_reference<double>(comm, 30, 4, 70, 1e6, 1e-5);
        check_against_reference<float>(comm, 30, 4, 70, 1000, 2e-5);
        check_against_reference<float>(comm, 3, 6, 2, 30000, 2e-5);
        check_against_reference<hvd::bfloat16>(comm, 30, 3, 5, 1, 5e-2);
        check_against_reference<hvd::float16>(comm, 30, 3, 5, 4, 5e-3);
    });
}

TEST_CASE("a first element far from the others costs the variance no precision") {
    hvd_test::on_ranks([](communicator& comm) {
        constexpr std::size_t count = 500;
        std::vector<float> x(count);
        for (std::size_t i = 0; i < count; ++i)
            x[i] = float(noise(i + std::size_t(comm.rank()) * count));
        x[0] = 100;
        hvd::sync_batch_norm<float> norm(1);
        norm.forward(comm, x, std::vector<float>(count));
        double mean = 0, variance = 0;
        const auto all = comm.allgather(x).values;
        for (const float v : all) mean += double(v) / double(all.size());
        for (const float v : all)
            variance += (double(v) - mean) * (double(v) - mean) / double(all.size());
        CHECK(norm.mean()[0] == doctest::Approx(mean).epsilon(1e-6));
        CHECK(norm.variance()[0] == doctest::Approx(variance).epsilon(1e-6));
    });
}

TEST_CASE("running statistics follow those of all ranks, and evaluation uses them without a call") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::sync_batch_norm<float> norm(1);
        const std::vector<float> x = {float(comm.rank()), float(comm.rank()) + 2};
        std::vector<float> y(2);
        norm.forward(comm, x, y);
        const double n = comm.size(), mean = (n - 1) / 2 + 1;
        const double variance = (1 + (n * n - 1) / 12) * 2 * n / (2 * n - 1);
        CHECK(norm.running_mean[0] == doctest::Approx(0.1 * mean));
        CHECK(norm.running_variance[0] == doctest::Approx(0.9 + 0.1 * variance));
        norm.forward(comm, x, y);
        CHECK(norm.running_mean[0] == doctest::Approx(0.19 * mean));
        CHECK(norm.running_variance[0] == doctest::Approx(0.81 + 0.19 * variance));
        const auto kept = norm.running_mean;
        norm.forward(comm, std::vector<float>(), std::vector<float>());  // of no rank
        CHECK(norm.running_mean == kept);
        if (comm.rank() != 0) return;
        norm.scale[0] = 2;
        norm.shift[0] = 3;
        norm.evaluate(x, y);
        CHECK(y[1] ==
              doctest::Approx(
                  2 * (2 - norm.running_mean[0]) / std::sqrt(norm.running_variance[0] + 1e-5) + 3));
        CHECK(norm.running_mean == kept);
    });
}

TEST_CASE("batch norm in place, and of a temporary, keeps what backward needs") {
    hvd_test::on_ranks([](communicator& comm) {
        const part mine = part_of(comm.rank(), 0);
        hvd::sync_batch_norm<double> one(channels), other(channels), third(channels);
        std::vector<double> y(mine.x.size()), dx(y), dx_other(y), dx_third(y), in_place = mine.x;
        one.scale = other.scale = third.scale = {0, 2, -1};
        one.forward(comm, mine.x, y);
        other.forward(comm, in_place, in_place);
        third.forward(comm, std::vector<double>(mine.x), y);
        CHECK(y == in_place);
        one.backward(comm, mine.dy, dx);
        other.backward(comm, mine.dy, dx_other);
        dx_third = mine.dy;
        third.backward(comm, dx_third, dx_third);
        CHECK(dx == dx_other);
        CHECK(dx == dx_third);
    });
}

TEST_CASE("channels first need a shape, and the other ranks are told") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::sync_batch_norm<float> norm(3, {.order = hvd::channel_order::first});
        std::vector<float> x(24), y(24);
        const auto forward = [&](const auto& shape) {
            norm.forward(comm, hvd::view(x.data(), shape), y);
        };
        CHECK_THROWS_WITH_AS(norm.forward(comm, x, y), doctest::Contains("is no samples"),
                             hvd::usage_error);
        if (comm.rank() == comm.size() - 1)
            CHECK_THROWS_WITH_AS(forward(hvd::shape(3, 2, 4)), doctest::Contains("× 3 channels"),
                                 hvd::usage_error);
        else CHECK_THROWS_AS(forward(hvd::shape(2, 3, 4)), hvd::peer_error);
        forward(hvd::shape(2, 3, 4));
        CHECK(norm.count() == 8 * comm.size());
        CHECK_THROWS_AS(norm.evaluate(x, y), hvd::usage_error);
    });
}

}  // namespace batch_norm_tests
