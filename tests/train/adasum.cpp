// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <hvd/train.hpp>

#include "adasum_reference.hpp"
#include "model.hpp"

namespace adasum_tests {

using communicator = hvd_test::communicator;
using hvd_test::noise;

namespace {

template <class F>
std::vector<double> vector_of(std::size_t n, F f) {
    std::vector<double> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = f(i);
    return x;
}

double norm(const std::vector<double>& x) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    return std::sqrt(squares);
}

template <class Make>
void check_against_reference(communicator& comm, std::size_t n, Make make) {
    std::vector<std::vector<double>> all;
    for (int r = 0; r < comm.size(); ++r)
        all.push_back(vector_of(n, [&](std::size_t i) { return make(r, i); }));
    auto mine = all[std::size_t(comm.rank())];
    hvd::adasum_allreduce(comm, mine);
    const auto expected = hvd_test::adasum_of(all);
    CHECK(hvd_test::distance(mine, expected) <= 1e-12 * (norm(expected) + 1e-300));
    const auto everybodys = comm.allgather(mine);
    for (std::size_t i = 0; i < everybodys.values.size(); ++i)
        CHECK(everybodys.values[i] == mine[i % n]);
}

}  // namespace

TEST_CASE("adasum equals the serial combination on any number of ranks, of any length") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const std::size_t n : {1, 2, 3, 1000})
            check_against_reference(
                comm, n, [](int r, std::size_t i) { return noise(std::uint64_t(r) * 5000 + i); });
        std::vector<double> nothing;
        hvd::adasum_allreduce(comm, nothing);
    });
}

TEST_CASE("adasum of orthogonal vectors is their sum") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<float> x(std::size_t(comm.size()) * 3);
        x[std::size_t(comm.rank()) * 3 + 1] = float(comm.rank() + 1);
        hvd::adasum_allreduce(comm, x);
        for (std::size_t i = 0; i < x.size(); ++i)
            CHECK(x[i] == (i % 3 == 1 ? float(i / 3 + 1) : 0.0f));
    });
}

TEST_CASE("adasum of equal vectors is the vector") {
    hvd_test::on_ranks([](communicator& comm) {
        auto x = vector_of(101, [](std::size_t i) { return noise(i); });
        const auto before = x;
        hvd::adasum_allreduce(comm, x);
        CHECK(hvd_test::distance(x, before) < 1e-14);
    });
}

TEST_CASE("adasum of tiny, huge and far apart values, and of zeros, stays exact") {
    hvd_test::on_ranks([](communicator& comm) {
        for (const double scale : {1e-200, 1e-30, 1e30, 1e150}) {
            auto x = vector_of(50, [&](std::size_t i) {
                return scale * (1 + noise(i + std::size_t(comm.rank()) * 50));
            });
            auto y = x;
            for (double& v : y) v /= scale;
            hvd::adasum_allreduce(comm, x);
            hvd::adasum_allreduce(comm, y);
            for (double& v : x) v /= scale;
            CHECK(hvd_test::distance(x, y) < 1e-12 * norm(y));
        }
        check_against_reference(comm, 64, [](int r, std::size_t i) {
            return noise(i + 64) * std::pow(10.0, -3.0 * r);
        });
        check_against_reference(comm, 16,
                                [](int r, std::size_t i) { return r % 2 == 0 ? 0.0 : noise(i); });
        std::vector<float> zeros(10);
        hvd::adasum_allreduce(comm, zeros);
        CHECK(zeros == std::vector<float>(10));
    });
}

TEST_CASE("adasum of vectors whose ratio leaves the range of double is finite") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        constexpr double tiny = 1e-200, huge = 1e200;
        for (const bool tiny_first : {true, false}) {
            const bool is_tiny = (comm.rank() == 0) == tiny_first;
            std::vector<double> orthogonal(3), parallel(3, is_tiny ? tiny : huge);
            if (comm.rank() < 2) orthogonal[std::size_t(comm.rank())] = is_tiny ? tiny : huge;
            else parallel.assign(3, 0);
            hvd::adasum_allreduce(comm, orthogonal);
            hvd::adasum_allreduce(comm, parallel);
            CHECK(orthogonal ==
                  std::vector<double>{tiny_first ? tiny : huge, tiny_first ? huge : tiny, 0});
            for (const double x : parallel) CHECK(x == doctest::Approx(huge / 2));
        }
    });
}

TEST_CASE("adasum works on every floating-point element, rounded once") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto check = [&]<class T>(T, double tolerance) {
            std::vector<std::vector<double>> all(std::size_t(comm.size()));
            for (std::size_t r = 0; r < all.size(); ++r)
                all[r] = vector_of(
                    40, [&](std::size_t i) { return double(float(T(float(noise(r * 40 + i))))); });
            std::vector<T> mine;
            for (const double v : all[std::size_t(comm.rank())]) mine.push_back(T(float(v)));
            hvd::adasum_allreduce(comm, mine);
            const auto expected = hvd_test::adasum_of(all);
            for (std::size_t i = 0; i < mine.size(); ++i)
                CHECK(std::abs(double(float(mine[i])) - expected[i]) <=
                      tolerance * (std::abs(expected[i]) + 1e-3));
        };
        check(hvd::float16(0.0f), 1e-3);
        check(hvd::bfloat16(0.0f), 8e-3);
        check(0.0f, 1e-6);
    });
}

TEST_CASE("adasum works on a subset of the ranks") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        std::vector<int> odd;
        for (int r = 1; r < comm.size(); r += 2) odd.push_back(r);
        auto subset = comm.subset(odd);
        if (!subset) return;
        check_against_reference(
            subset, 33, [](int r, std::size_t i) { return noise(std::size_t(r) * 33 + i); });
    });
}

TEST_CASE("adasum of different shapes, types or scales is told on every rank, and what it was") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        const auto differ = [&](const char* field, auto call) {
            try {
                call(comm.rank() == 0);
                FAIL("no error");
            } catch (const hvd::mismatch_error& e) {
                CHECK(e.field() == field);
            }
            int one = 1;
            comm.allreduce(one, hvd::sum);
            CHECK(one == comm.size());
        };
        std::vector<float> x(6, 1), shorter(5, 1);
        std::vector<double> wider(6, 1);
        differ("shape", [&](bool first) { hvd::adasum_allreduce(comm, first ? shorter : x); });
        differ("shape", [&](bool first) {
            hvd::adasum_allreduce(comm,
                                  hvd::view(x.data(), first ? hvd::shape(2, 3) : hvd::shape(3, 2)));
        });
        differ("element type", [&](bool first) {
            first ? hvd::adasum_allreduce(comm, wider) : hvd::adasum_allreduce(comm, x);
        });
        differ("prescale", [&](bool first) {
            comm.allreduce(x, hvd::adasum, {.prescale = first ? 2.0 : 1.0});
        });
        differ("postscale", [&](bool first) {
            comm.allreduce(x, hvd::adasum, {.postscale = first ? 2.0 : 1.0});
        });
        CHECK(x == std::vector<float>(6, 1));
    });
}

namespace {

// Counts the calls of a communicator.
class counting {
public:
    void on_begin(const hvd::event&) { ++calls; }
    void on_end(const hvd::event&, bool) {}
    int calls = 0;
};

}  // namespace

TEST_CASE("adasum of many tensors takes as many calls as that of one") {
    const auto check = [](auto& comm) {
        const auto calls_for = [&](std::size_t tensors) {
            std::vector<std::vector<float>> parameters(tensors, std::vector<float>(7, 1)),
                gradients(tensors, std::vector<float>(7, float(comm.rank())));
            hvd::distributed_optimizer distributed(comm, hvd::optimizers::sgd<float>{},
                                                   {.op = hvd::adasum});
            for (std::size_t t = 0; t < tensors; ++t)
                distributed.register_parameter(std::to_string(t), parameters[t], gradients[t]);
            const int before = comm.observer().calls;
            distributed.step();
            return comm.observer().calls - before;
        };
        const int one = calls_for(1);
        CHECK(one > 0);
        CHECK(calls_for(20) == one);
    };
    using policy = hvd::observed<hvd_test::backend, counting>;
#if defined(HVD_TEST_BACKEND_MPI)
    const hvd_test::failing_rank_does_not_hang guard;
    auto world = hvd::communicator<policy>::world();
    check(world);
#else
    for (const int ranks : hvd_test::thread_counts()) hvd::run_threads<policy>(ranks, check);
#endif
}

TEST_CASE("each of several tensors is combined by its own inner products, in its own type") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto make = [](int r, std::size_t t) {
            return vector_of(t * 5, [&](std::size_t i) {
                return noise(i + t * 1000 + std::size_t(r) * 77) * std::pow(10.0, double(t));
            });
        };
        std::vector<std::vector<double>> tensors;
        std::vector<std::vector<float>> floats;
        for (std::size_t t = 0; t < 6; ++t) {
            tensors.push_back(make(comm.rank(), t));
            floats.emplace_back(tensors[t].begin(), tensors[t].end());
        }
        auto alone = floats[3];
        hvd::adasum_allreduce(comm, hvd::fuse(tensors, floats));
        hvd::adasum_allreduce(comm, alone);
        CHECK(alone == floats[3]);
        for (std::size_t t = 0; t < 6; ++t) {
            std::vector<std::vector<double>> all;
            for (int r = 0; r < comm.size(); ++r) all.push_back(make(r, t));
            const auto expected = hvd_test::adasum_of(all);
            CHECK(hvd_test::distance(tensors[t], expected) <= 1e-12 * norm(expected));
            CHECK(hvd_test::distance({floats[t].begin(), floats[t].end()}, expected) <=
                  1e-6 * norm(expected));
        }
    });
}

TEST_CASE("allreduce with the operation adasum is adasum, of one tensor or of each of several") {
    hvd_test::on_ranks([](communicator& comm) {
        const auto make = [&](std::size_t n) {
            return vector_of(
                n, [&](std::size_t i) { return noise(i + 77 * std::size_t(comm.rank()) + n); });
        };
        auto one = make(9), a = make(4), b = make(6);
        auto expected = one, expected_a = a, expected_b = b;
        for (auto* x : {&expected, &expected_a, &expected_b}) hvd::adasum_allreduce(comm, *x);
        comm.allreduce(one, hvd::adasum);
        comm.allreduce(hvd::fuse(a, b), hvd::adasum);
        CHECK(one == expected);
        CHECK(a == expected_a);
        CHECK(b == expected_b);

        auto scaled = make(9);
        comm.allreduce(scaled, hvd::adasum, {.prescale = 0.5, .postscale = 4});
        for (double& x : expected) x *= 2;
        CHECK(hvd_test::distance(scaled, expected) < 1e-12);
    });
}

}  // namespace adasum_tests
