// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>

#include "model.hpp"

namespace vjp_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;
using values = std::vector<double>;

namespace {

values upstream(int rank, std::size_t n) {
    values g(n);
    for (std::size_t i = 0; i < n; ++i) g[i] = noise(std::size_t(rank) * 1000 + i);
    return g;
}

// Returns the derivative of Σ ranks Σ i upstream[i] · output[i] by each element of this rank's
// input. forward(input) is the collective, which is linear, or linear near the input.
template <class Forward>
values differences(communicator& comm, const values& input, Forward forward) {
    const auto loss = [&](const values& x) {
        const values y = forward(x);
        const values g = upstream(comm.rank(), y.size());
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) sum += g[i] * y[i];
        comm.allreduce(sum, hvd::sum);
        return sum;
    };
    values gradient(input.size());
    const auto sizes = comm.allgather(input.size());
    const double h = 1e-3;
    for (int r = 0; r < comm.size(); ++r)
        for (std::size_t i = 0; i < sizes.values[std::size_t(r)]; ++i) {
            values up = input, down = input;
            if (r == comm.rank()) up[i] += h, down[i] -= h;
            const double slope = (loss(up) - loss(down)) / (2 * h);
            if (r == comm.rank()) gradient[i] = slope;
        }
    return gradient;
}

values input_of(int rank, std::size_t n) {
    values x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = 3 * noise(50000 + std::size_t(rank) * 1000 + i);
    return x;
}

}  // namespace

TEST_CASE("vector-Jacobian products are the derivatives of the sum of all losses") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        const std::size_t n = 5;
        const values x = input_of(comm.rank(), n);
        const hvd::reduce_options scales{.prescale = 0.5, .postscale = 3};
        const auto reduces = [&](auto op) {
            values g = upstream(comm.rank(), n);
            vjp.allreduce(g, op, scales);
            CHECK(hvd_test::distance(g, differences(comm, x, [&](values y) {
                                         comm.allreduce(y, op, scales);
                                         return y;
                                     })) < 1e-6);
            const auto forward = [&](const values& y) {
                return comm.reduce_scatter(y, op, scales);
            };
            const std::size_t own = forward(x).size();
            CHECK(hvd_test::distance(vjp.reduce_scatter(upstream(comm.rank(), own), op, scales),
                                     differences(comm, x, forward)) < 1e-6);
        };
        reduces(hvd::sum);
        reduces(hvd::average);
        const auto extreme = [&](auto op) {
            values y = x, g = upstream(comm.rank(), n);
            comm.allreduce(y, op);
            vjp.allreduce_extreme(g, x, y, op);
            CHECK(hvd_test::distance(g, differences(comm, x, [&](values z) {
                                         comm.allreduce(z, op);
                                         return z;
                                     })) < 1e-6);
        };
        extreme(hvd::min);
        extreme(hvd::max);

        const values ragged = input_of(comm.rank(), std::size_t(comm.rank()) + 1);
        const auto gathered = comm.allgather(ragged);
        CHECK(hvd_test::distance(
                  vjp.allgather(upstream(comm.rank(), gathered.values.size()), gathered.counts),
                  differences(comm, ragged,
                              [&](const values& y) { return comm.allgather(y).values; })) < 1e-6);

        const hvd::root last{comm.size() - 1};
        const auto to_root = [&](auto op) {
            values g = upstream(comm.rank(), n);
            vjp.reduce(g, op, last, scales);
            CHECK(hvd_test::distance(g, differences(comm, x, [&](const values& y) {
                                         values out(comm.rank() == last.rank ? n : 0);
                                         comm.reduce(y, hvd::into(out), op, last, scales);
                                         return out;
                                     })) < 1e-6);
        };
        to_root(hvd::sum);
        to_root(hvd::average);

        const auto at_root = comm.gather(ragged, last);
        CHECK(hvd_test::distance(
                  vjp.gather(upstream(comm.rank(), at_root.values.size()), at_root.counts, last),
                  differences(comm, ragged, [&](const values& y) {
                      return comm.gather(y, last).values;
                  })) < 1e-6);

        const values shared = input_of(comm.rank(), comm.rank() == last.rank ? 7 : 0);
        const auto part = [&](const values& y) { return comm.scatter(y, last); };
        CHECK(hvd_test::distance(vjp.scatter(upstream(comm.rank(), part(shared).size()), last),
                                 differences(comm, shared, part)) < 1e-6);

        values g = upstream(comm.rank(), n);
        vjp.broadcast(g, last);
        CHECK(hvd_test::distance(g, differences(comm, x, [&](values y) {
                                     comm.broadcast(y, last);
                                     return y;
                                 })) < 1e-6);

        std::vector<std::size_t> counts(std::size_t(comm.size()), std::size_t(comm.rank()) + 1);
        const values to_all = input_of(comm.rank(), counts.size() * counts[0]);
        const auto swapped = comm.alltoall(to_all, counts);
        CHECK(hvd_test::distance(
                  vjp.alltoall(upstream(comm.rank(), swapped.values.size()), swapped.counts),
                  differences(comm, to_all, [&](const values& y) {
                      return comm.alltoall(y, counts).values;
                  })) < 1e-6);
    });
}

TEST_CASE("gradients of ones become those of the sum of all losses") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        const double size = comm.size();
        values g(4, 1.0);
        vjp.allreduce(g, hvd::sum);
        CHECK(g == values(4, size));
        g.assign(4, 1.0);
        vjp.allreduce(g, hvd::average);
        CHECK(g == values(4, 1.0));
        const std::vector<std::size_t> counts(std::size_t(comm.size()), 2);
        CHECK(vjp.allgather(values(2 * counts.size(), 1.0), counts) == values(2, size));
        g.assign(4, 1.0);
        vjp.broadcast(g, hvd::root{0});
        CHECK(g == values(4, comm.rank() == 0 ? size : 0.0));
        CHECK(vjp.alltoall(values(2 * counts.size(), 1.0), counts) ==
              values(2 * counts.size(), 1.0));
        CHECK(vjp.reduce_scatter(values(3, 1.0), hvd::sum) == values(3 * counts.size(), 1.0));
        CHECK(vjp.reduce_scatter(values(3, 1.0), hvd::average) ==
              values(3 * counts.size(), 1 / size));
    });
}

TEST_CASE("a minimum that ranks share has its gradient divided among them") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        const values x = {1, double(comm.rank())};
        values y = x, g = {1, 1};
        comm.allreduce(y, hvd::min);
        vjp.allreduce_extreme(g, x, y, hvd::min);
        CHECK(g[0] == doctest::Approx(1));
        CHECK(g[1] == (comm.rank() == 0 ? comm.size() : 0));
    });
}

TEST_CASE("counts that are not the gradient's are refused") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        CHECK_THROWS_WITH_AS(vjp.allgather(values(3), {1}),
                             doctest::Contains("gradient of 3 elements with 1 counts"),
                             hvd::usage_error);
        // Other than one for each rank, though they add up to the elements.
        for (const int number : {comm.size() - 1, comm.size() + 1}) {
            std::vector<std::size_t> counts(std::size_t(number), 0);
            if (!counts.empty()) counts[0] = 3;
            CHECK_THROWS_WITH_AS(vjp.allgather(values(3), counts),
                                 doctest::Contains("elements with"), hvd::usage_error);
            CHECK_THROWS_WITH_AS(vjp.alltoall(values(3), counts),
                                 doctest::Contains("elements with"), hvd::usage_error);
        }
    });
}

TEST_CASE("the gradient of a product is exact, also where factors are zero") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        values x = input_of(comm.rank(), 4);
        if (comm.rank() == 0) x[1] = 0;
        if (comm.rank() == 0 || comm.rank() == 1) x[2] = 0;
        values g = upstream(comm.rank(), 4);
        vjp.allreduce_product(g, x);
        const values expected = differences(comm, x, [&](values y) {
            comm.allreduce(y, hvd::product);
            return y;
        });
        for (std::size_t i = 0; i < 4; ++i)
            CHECK(g[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    });
}

TEST_CASE("a root that is no rank, or another on each, is told as the collective's own") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        values g(3, 1);
        CHECK_THROWS_WITH_AS(vjp.broadcast(g, hvd::root{comm.size()}),
                             doctest::Contains("is not a rank"), hvd::usage_error);
        CHECK_THROWS_WITH_AS(vjp.broadcast(g, hvd::root{comm.rank()}),
                             doctest::Contains("disagree on root"), hvd::mismatch_error);
        CHECK(g == values(3, 1));
        vjp.broadcast(g, hvd::root{1});
        CHECK(g == values(3, comm.rank() == 1 ? comm.size() : 0));
    });
}

TEST_CASE("an error of one rank is told to the others in that call") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        hvd::vjp<communicator> vjp(comm);
        const auto last = std::size_t(comm.size()) - 1;
        std::vector<std::size_t> counts(last + 1, 2);
        if (comm.rank() == int(last)) counts[0] = 99;
        const values g(2 * counts.size());
        const auto refused = [&](auto f) {
            if (comm.rank() == int(last)) CHECK_THROWS_AS(f(), hvd::usage_error);
            else CHECK_THROWS_WITH_AS(f(), doctest::Contains("vjp of"), hvd::peer_error);
        };
        refused([&] { vjp.allgather(g, counts); });
        refused([&] { vjp.alltoall(g, counts); });
        values gradient(3), input(comm.rank() == int(last) ? 4 : 3);
        refused([&] { vjp.allreduce_product(gradient, input); });
        refused([&] { vjp.allreduce_extreme(gradient, input, input, hvd::min); });
        int one = 1;
        comm.allreduce(one, hvd::sum);
        CHECK(one == comm.size());
    });
}

}  // namespace vjp_tests
