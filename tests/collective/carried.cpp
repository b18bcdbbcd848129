// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <cmath>
#include <cstring>

#include "disagreement.hpp"
#include "reference.hpp"

namespace carried_tests {

using namespace hvd_test;

// Small tensors travel between nodes in the message that has the headers. The tests have sizes on
// both sides of the limits, and ranks that disagree on whether the data is there at all.

namespace {

namespace tuning = hvd::detail::tuning;

// Bytes around what goes with the headers to 1, 2, 3 and 6 ranks or nodes.
std::vector<std::size_t> sizes_in_bytes() {
    std::vector<std::size_t> sizes{4, 60, 64};
    for (const std::size_t limit :
         {tuning::least_carried, tuning::most_carried, tuning::most_carried / 2,
          tuning::most_carried / 3, tuning::most_carried / 6})
        for (const std::size_t bytes : {limit / 4 * 4, limit / 4 * 4 + 4}) sizes.push_back(bytes);
    return sizes;
}

std::vector<float> fractions(int rank, std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] = std::sin(float(i % 1000 + 1) * float(rank + 1)) * float(1 << (i % 11));
    return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Which rank is alone with another argument: the first one, and one of the last node.
template <class Comm, class F>
void for_culprits(Comm& comm, F f) {
    for (const int culprit : {0, comm.size() - 1}) {
        INFO("rank ", culprit, " differs");
        f(culprit, comm.rank() == culprit);
    }
}

}  // namespace

TEST_CASE_TEMPLATE("small allreduces of every form equal serial ones", T, float, std::int32_t,
                   hvd::bfloat16, std::complex<double>) {
    on_every_transport_from(2, [](auto& comm) {
        const tensor<T> expected = reference<T>(hvd::sum, comm.size());
        for (const std::size_t bytes : sizes_in_bytes()) {
            const std::size_t n = bytes / sizeof(T);
            INFO(n, " elements");
            tensor<T> x = input<T>(comm.rank(), n), y = x, planned = x, out(n);
            comm.allreduce(x, hvd::sum);
            CHECK(wrong(x, n, expected) == 0);
            comm.allreduce(std::as_const(y), out, hvd::sum);
            CHECK(wrong(out, n, expected) == 0);
            std::vector<double> one(3, 1);
            auto plan = comm.plan_allreduce(hvd::fuse(one, planned), hvd::sum);
            plan.run();
            CHECK(wrong(planned, n, expected) == 0);
            CHECK(one == std::vector<double>(3, comm.size()));
            auto pending = comm.allreduce_async(y, hvd::sum);
            pending.wait();
            CHECK(wrong(y, n, expected) == 0);
        }
    });
}

TEST_CASE("small broadcasts come from every root") {
    on_every_transport_from(2, [](auto& comm) {
        for (const std::size_t bytes : sizes_in_bytes())
            for (int root = 0; root < comm.size(); ++root) {
                const std::size_t n = bytes / sizeof(float);
                INFO(n, " elements of rank ", root);
                tensor<float> x = input<float>(comm.rank(), n), in = x, out(n);
                comm.broadcast(x, hvd::root{root});
                CHECK(wrong_input<float>(x, n, root) == 0);
                comm.broadcast(std::as_const(in), hvd::into(out), hvd::root{root});
                CHECK(wrong_input<float>(out, n, root) == 0);
                std::vector<int> a(7, comm.rank());
                std::vector<double> b(5, comm.rank() + 0.5);
                comm.broadcast(hvd::fuse(a, b), hvd::root{root});
                CHECK(a == std::vector<int>(7, root));
                CHECK(b == std::vector<double>(5, root + 0.5));
            }
    });
}

TEST_CASE("small strided tensors are packed before they travel") {
    on_every_transport_from(2, [](auto& comm) {
        std::vector<float> matrix(40, float(comm.rank() + 1));
        const auto column = hvd::view(matrix.data() + 1, hvd::shape(10), hvd::strides(4));
        comm.allreduce(column, hvd::sum);
        const float sum = float(comm.size() * (comm.size() + 1) / 2);
        for (std::size_t i = 0; i < matrix.size(); ++i)
            CHECK(matrix[i] == (i % 4 == 1 ? sum : float(comm.rank() + 1)));
        matrix.assign(40, float(comm.rank()));
        comm.broadcast(column, hvd::root{comm.size() - 1});
        for (std::size_t i = 0; i < matrix.size(); ++i)
            CHECK(matrix[i] == float(i % 4 == 1 ? comm.size() - 1 : comm.rank()));
    });
}

TEST_CASE("a small tensor has the bits of the same elements in a large one") {
    on_every_transport_from(2, [](auto& comm) {
        constexpr std::size_t large = 50000;
        std::vector<float> all = fractions(comm.rank(), large);
        comm.allreduce(all, hvd::average, {.prescale = 0.3, .postscale = 1.7});
        for (const std::size_t bytes : sizes_in_bytes()) {
            const std::size_t n = bytes / sizeof(float);
            std::vector<float> some = fractions(comm.rank(), n);
            comm.allreduce(some, hvd::average, {.prescale = 0.3, .postscale = 1.7});
            CHECK(same_bits(some, {all.begin(), all.begin() + std::ptrdiff_t(n)}));
        }
    });
}

TEST_CASE("ranks disagree on a size below and above the limits, and no output changes") {
    on_every_transport_from(2, [](auto& comm) {
        for (const auto& [few, many] : {std::pair<std::size_t, std::size_t>{3, 100},
                                        {256, 257},
                                        {100, 4096},
                                        {4096, 4097},
                                        {10, 200000}})
            for (const bool culprit_has_more : {true, false})
                for_culprits(comm, [&](int culprit, bool mine) {
                    const std::size_t n = mine == culprit_has_more ? many : few;
                    const auto value = [&](int rank) {
                        const bool more = (rank == culprit) == culprit_has_more;
                        return "[" + std::to_string(more ? many : few) + "]";
                    };
                    const std::vector<float> before(n, float(comm.rank() + 1));
                    std::vector<float> x = before;
                    expect_mismatch(comm, "shape", value, [&] { comm.allreduce(x, hvd::sum); });
                    expect_mismatch(comm, "shape", value,
                                    [&] { comm.broadcast(x, hvd::root{0}, {.confirm = true}); });
                    expect_mismatch(comm, "shape", value, [&] {
                        const hvd::root last{comm.size() - 1};
                        comm.broadcast(x, last, {.confirm = true});
                    });
                    CHECK(x == before);
                });
    });
}

TEST_CASE("ranks of a small call disagree on each other field") {
    on_every_transport_from(2, [](auto& comm) {
        for_culprits(comm, [&](int culprit, bool mine) {
            std::vector<float> x(100, 1);
            std::vector<std::int32_t> ints(100, 1);
            const auto value = [&](const char* theirs, const char* others) {
                return [=](int rank) { return rank == culprit ? theirs : others; };
            };
            expect_mismatch(comm, "element type", value("int32", "float32"), [&] {
                if (mine) comm.allreduce(ints, hvd::sum);
                else comm.allreduce(x, hvd::sum);
            });
            expect_mismatch(comm, "element type", value("int32", "float32"), [&] {
                if (mine) comm.broadcast(ints);
                else comm.broadcast(x);
            });
            expect_mismatch(comm, "operation", value("max", "sum"), [&] {
                if (mine) comm.allreduce(x, hvd::max);
                else comm.allreduce(x, hvd::sum);
            });
            expect_mismatch(comm, "operation", value("custom", "sum"), [&] {
                if (mine) comm.allreduce(x, [](float a, float b) { return a + b; });
                else comm.allreduce(x, hvd::sum);
            });
            expect_mismatch(comm, "rounding", value("down", "nearest"), [&] {
                comm.allreduce(ints,
                               hvd::average(mine ? hvd::rounding::down : hvd::rounding::nearest));
            });
            expect_mismatch(comm, "prescale", value("0.5", "1"),
                            [&] { comm.allreduce(x, hvd::sum, {.prescale = mine ? 0.5 : 1}); });
            expect_mismatch(comm, "postscale", value("0.5", "1"),
                            [&] { comm.allreduce(x, hvd::sum, {.postscale = mine ? 0.5 : 1}); });
            // Both of two ranks send as roots, or none does.
            expect_mismatch(comm, "root", value("1", "0"),
                            [&] { comm.broadcast(x, hvd::root{mine ? 1 : 0}); });
            expect_mismatch(comm, "collective", value("broadcast 'theirs'", "allreduce 'a'"), [&] {
                if (mine) comm.broadcast(x, hvd::root{0}, {.name = "theirs"});
                else comm.allreduce(x, hvd::sum, {.name = "a"});
            });
            expect_mismatch(comm, "collective", value("barrier", "allreduce"), [&] {
                if (mine) comm.barrier();
                else comm.allreduce(x, hvd::sum);
            });
            expect_mismatch(comm, "collective", value("reduce_scatter", "broadcast"), [&] {
                if (mine) comm.reduce_scatter(x, hvd::sum);
                else comm.broadcast(x);
            });
            auto plan = comm.plan_allreduce(x, hvd::sum);
            const auto e = thrown<hvd::mismatch_error>([&] {
                if (mine) plan.run();
                else comm.allreduce(x, hvd::sum);
            });
            if (e) {
                CHECK(e->field() == "collective");
                CHECK(e->table().size() == size_of(comm));
                CHECK(contains(e->what(), "rank " + std::to_string(culprit) + ": "));
                CHECK(contains(e->what(), "allreduce of plan "));
            }
            check_that_it_works(comm);
            CHECK(x == std::vector<float>(100, 1));
            CHECK(ints == std::vector<std::int32_t>(100, 1));
        });
    });
}

TEST_CASE("one rank refuses a small call, with a long reason and a long name") {
    on_every_transport_from(2, [](auto& comm) {
        for_culprits(comm, [&](int culprit, bool mine) {
            std::vector<float> x(100, 1), out(mine ? 99 : 100);
            const std::string name(47, 'n');
            expect_refusal(comm, culprit, "99 elements", [&] {
                comm.allreduce(std::as_const(x), out, hvd::sum, {.name = name});
            });
            expect_refusal(comm, culprit, "null pointer", [&] {
                comm.allreduce(hvd::view(mine ? nullptr : x.data(), 100), hvd::sum);
            });
            expect_refusal(comm, culprit, "root -1",
                           [&] { comm.broadcast(x, hvd::root{mine ? -1 : 0}); });
            expect_refusal(comm, culprit, "null pointer", [&] {
                comm.broadcast(hvd::view(mine ? nullptr : x.data(), 100), hvd::root{culprit});
            });
            CHECK(x == std::vector<float>(100, 1));
        });
    });
}

TEST_CASE("a callable that throws on one rank in a small call reaches all") {
    on_every_transport_from(2, [](auto& comm) {
        for_culprits(comm, [&](int culprit, bool mine) {
            std::vector<int> x(256, 1);  // so many that every rank runs the callable
            const auto f = [&](int a, int b) {
                if (mine) throw std::runtime_error("no more paper");
                return a + b;
            };
            try {
                comm.allreduce(x, f);
                FAIL_CHECK("no exception");
            } catch (const hvd::peer_error& e) {
                CHECK(!mine);
                CHECK(e.peers() == std::vector<int>{culprit});
            } catch (const std::runtime_error& e) {
                CHECK(mine);
                CHECK(contains(e.what(), "no more paper"));
            }
            check_that_it_works(comm);
        });
    });
}

TEST_CASE("what a callable throws in a small call that other ranks refuse concerns no later call") {
    on_every_transport_from(2, [](auto& comm) {
        for_culprits(comm, [&](int, bool mine) {
            std::vector<int> x(mine ? 255 : 256, 1);
            const auto f = [](int, int) -> int { throw std::runtime_error("no more paper"); };
            thrown<hvd::mismatch_error>([&] { comm.allreduce(x, f); });
            check_that_it_works(comm);
        });
    });
}

TEST_CASE("an error-feedback plan that is refused packs nothing: its next run has the same bits") {
    on_every_transport_from(2, [](auto& comm) {
        const auto run = [&](bool refused_first) {
            std::vector<float> x = fractions(comm.rank(), 50);
            auto plan =
                comm.plan_allreduce(hvd::fuse(x), hvd::sum, {},
                                    hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>));
            if (refused_first) {
                std::vector<float> other(50);
                try {
                    if (comm.rank() == 0) comm.broadcast(other, hvd::root{0}, {.confirm = true});
                    else plan.run();
                    FAIL_CHECK("no exception");
                } catch (const hvd::mismatch_error&) {
                }
            }
            plan.run();
            const std::vector<float> again = fractions(comm.rank(), 50);
            std::copy(again.begin(), again.end(), x.begin());
            plan.run();
            return x;
        };
        const std::vector<float> expected = run(false);
        CHECK(same_bits(run(true), expected));
    });
}

}  // namespace carried_tests
