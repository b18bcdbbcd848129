// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>

#include "model.hpp"

using communicator = hvd_test::communicator;
using hvd_test::noise;

namespace {

constexpr std::size_t channels = 3;

struct part {
    std::vector<double> x, dy;
};

// Returns rank r's samples. Rank r has r + 2 of them, but rank 1 has none.
part part_of(int rank, double offset) {
    part p;
    const std::size_t samples = rank == 1 ? 0 : std::size_t(rank) + 2;
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
        for (const double offset : {0.0, 1e6}) {
            part all;
            std::size_t before = 0;
            for (int r = 0; r < comm.size(); ++r) {
                const part p = part_of(r, offset);
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

            const part mine = part_of(comm.rank(), offset);
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
