// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

#include <algorithm>
#include <atomic>
#include <hvd/train.hpp>
#include <limits>
#include <optional>
#include <set>

#include "model.hpp"

namespace data_tests {

using communicator = hvd_test::communicator;

namespace {

using hvd::part;
using indices = std::vector<std::size_t>;

indices all_of(const hvd::sharded_sampler& sampler) {
    const auto range = sampler.indices();
    return {range.begin(), range.end()};
}

indices everybodys(std::size_t samples, int size, const hvd::sampler_options& o,
                   std::uint64_t epoch, std::size_t done = 0) {
    indices all;
    for (int r = 0; r < size; ++r) {
        hvd::sharded_sampler sampler(samples, part{r, size}, o);
        sampler.begin_epoch({epoch, done});
        const indices mine = all_of(sampler);
        all.insert(all.end(), mine.begin(), mine.end());
    }
    std::ranges::sort(all);
    return all;
}

indices up_to(std::size_t n) {
    indices all(n);
    for (std::size_t i = 0; i < n; ++i) all[i] = i;
    return all;
}

}  // namespace

using hvd::uneven_samples;

TEST_CASE("all ranks have as many steps by default, also where the samples do not divide") {
    for (const int size : {1, 2, 3, 4})
        for (const auto uneven : {hvd::sampler_options().uneven, uneven_samples::drop})
            for (const std::size_t samples : {1001, 997, 3, 0}) {
                const hvd::sampler_options o{.seed = 3, .uneven = uneven};
                const hvd::sharded_sampler first(samples, part{0, size}, o);
                for (int r = 0; r < size; ++r) {
                    const hvd::sharded_sampler sampler(samples, part{r, size}, o);
                    CHECK(sampler.size() == first.size());
                    CHECK(sampler.steps(10) == (sampler.size() + 9) / 10);
                }
            }
    CHECK(hvd::sharded_sampler(1001, part{0, 2}).steps(10) == 51);
    CHECK(hvd::sharded_sampler(1001, part{1, 2}).steps(10) == 51);
    CHECK(hvd::sharded_sampler(1001, part{0, 2}, {.uneven = uneven_samples::drop}).steps(10) == 50);
}

TEST_CASE("a batch that is larger than any number of samples is one step") {
    constexpr std::size_t half = std::size_t(1) << 63;
    for (const std::size_t batch : {half, half + 1, 2 * (half - 1) + 1})
        for (const int size : {1, 2, 3, 4}) {
            CHECK(hvd::batch_size(batch).of_all(std::size_t(size)) >= batch);
            const hvd::sharded_sampler sampler(1000, part{size - 1, size});
            CHECK(sampler.steps(batch) == 1);
            CHECK(sampler.done_after(1, batch) == 1000);
        }
}

TEST_CASE("a step of a batch of all ranks has the same samples on any number of ranks") {
    for (const std::size_t samples : {1, 3, 10, 47, 2000})
        for (const std::size_t done : {0, 13, 250}) {
            const hvd::global_batch batch{samples};
            hvd::sharded_sampler alone(250, part{0, 1}, {.uneven = uneven_samples::keep});
            alone.begin_epoch({.epoch = 2, .done = done});
            for (const int size : {1, 2, 3, 4, 7}) {
                std::vector<hvd::sharded_sampler> all;
                for (int r = 0; r < size; ++r) {
                    all.emplace_back(250, part{r, size},
                                     hvd::sampler_options{.uneven = uneven_samples::keep});
                    all.back().begin_epoch({.epoch = 2, .done = done});
                    CHECK(all.back().steps(batch) == alone.steps(batch));
                }
                for (std::size_t step = 0; step <= alone.steps(batch); ++step) {
                    const auto whole = alone.batch(step, batch);
                    indices expected(whole.begin(), whole.end()), shares;
                    CHECK((step < alone.steps(batch)) == !expected.empty());
                    for (const auto& one : all) {
                        const auto share = one.batch(step, batch);
                        shares.insert(shares.end(), share.begin(), share.end());
                        CHECK(share.size() + 1 > whole.size() / std::size_t(size));
                        CHECK(share.size() <= whole.size() / std::size_t(size) + 1);
                        CHECK(one.weight(step, batch) ==
                              (whole.empty() ? 0 : double(size) / double(whole.size())));
                    }
                    std::ranges::sort(expected);
                    std::ranges::sort(shares);
                    CHECK(shares == expected);
                }
            }
        }
}

TEST_CASE("what is kept is one rank's, and the ranks' numbers differ by at most one") {
    for (const std::size_t samples : {0, 1, 2, 7, 100})
        for (const int size : {1, 2, 3, 4, 7}) {
            const hvd::sampler_options o{.seed = 3, .uneven = uneven_samples::keep};
            CHECK(everybodys(samples, size, o, 2) == up_to(samples));
            std::size_t least = samples, most = 0;
            for (int r = 0; r < size; ++r) {
                const std::size_t n = hvd::sharded_sampler(samples, part{r, size}, o).size();
                least = std::min(least, n);
                most = std::max(most, n);
            }
            CHECK(most - least <= 1);
            for (int r = 0; r < size; ++r)
                CHECK(hvd::sharded_sampler(samples, part{r, size}, o).steps(3) == (most + 2) / 3);
        }
}

TEST_CASE("repeating gives every rank as many samples, and none is left out") {
    for (const int size : {2, 3, 7}) {
        auto all = everybodys(10, size, {}, 0);
        CHECK(all.size() == (10 + std::size_t(size) - 1) / std::size_t(size) * std::size_t(size));
        all.erase(std::unique(all.begin(), all.end()), all.end());
        CHECK(all == up_to(10));
    }
    CHECK(everybodys(1, 4, {}, 0) == indices{0, 0, 0, 0});
}

TEST_CASE("dropping leaves out fewer samples than there are ranks, others in each epoch") {
    const hvd::sampler_options o{.seed = 3, .uneven = uneven_samples::drop};
    for (const int size : {1, 2, 3, 7}) {
        auto all = everybodys(20, size, o, 0);
        CHECK(all.size() == 20 / std::size_t(size) * std::size_t(size));
        CHECK(std::unique(all.begin(), all.end()) == all.end());
    }
    CHECK(everybodys(20, 7, o, 0) != everybodys(20, 7, o, 1));
    CHECK(everybodys(3, 4, o, 0).empty());
}

TEST_CASE("an epoch with repeated samples is over after all that its ranks have done") {
    for (const int size : {1, 2, 3, 4}) {
        const std::size_t done = everybodys(10, size, {}, 0).size();
        for (const int ranks : {1, 2, 3}) {
            hvd::sharded_sampler sampler(10, part{0, ranks});
            sampler.begin_epoch({.epoch = 0, .done = done});
            CHECK(sampler.size() == 0);
            CHECK(sampler.steps(4) == 0);
        }
    }
}

TEST_CASE("a resumed epoch repeats the first samples of its order, since they are longest ago") {
    hvd::sharded_sampler whole(10, part{0, 1}, {.seed = 5});
    whole.begin_epoch({.epoch = 2});
    const indices order = all_of(whole);
    for (const int size : {2, 3, 4, 7})
        for (const std::size_t done : {0, 3, 5, 8, 9}) {
            const std::size_t left = 10 - done, ranks = std::size_t(size);
            const std::size_t each = (left + ranks - 1) / ranks;
            indices expected(order.begin() + std::ptrdiff_t(done), order.end());
            for (std::size_t i = 0; i < each * ranks - left; ++i) expected.push_back(order[i]);
            std::ranges::sort(expected);
            CHECK(everybodys(10, size, {.seed = 5}, 2, done) == expected);
        }
}

TEST_CASE("batches of all steps are the samples, and the steps are counted alike on all ranks") {
    for (const auto uneven : {uneven_samples::repeat, uneven_samples::drop, uneven_samples::keep})
        for (const int size : {1, 2, 3, 4}) {
            const hvd::sampler_options o{.seed = 1, .uneven = uneven};
            for (int r = 0; r < size; ++r) {
                hvd::sharded_sampler sampler(101, part{r, size}, o);
                sampler.begin_epoch({.epoch = 4, .done = 7});
                indices all;
                for (std::size_t step = 0; step < sampler.steps(10); ++step) {
                    const auto batch = sampler.batch(step, 10);
                    CHECK(batch.size() <= 10);
                    if (uneven != uneven_samples::keep) CHECK(batch.size() > 0);
                    all.insert(all.end(), batch.begin(), batch.end());
                }
                CHECK(all == all_of(sampler));
                CHECK(sampler.batch(sampler.steps(10), 10).empty());
                CHECK(sampler.batch(1000, 10).empty());
                CHECK(sampler.steps(10) == hvd::sharded_sampler(94, part{0, size}, o).steps(10));
            }
        }
    const hvd::sharded_sampler sampler(10, part{0, 1});
    CHECK_THROWS_WITH_AS(static_cast<void>(sampler.steps(0)), doctest::Contains("has no samples"),
                         hvd::usage_error);
    CHECK_THROWS_AS(static_cast<void>(sampler.batch(0, 0)), hvd::usage_error);
}

// Trains some steps of an epoch on each of several numbers of ranks, in turn.
indices seen_in_turns(uneven_samples uneven, const std::vector<int>& sizes, std::size_t batch) {
    indices seen;
    std::size_t done = 0;
    for (std::size_t turn = 0; turn < sizes.size(); ++turn) {
        const bool last = turn + 1 == sizes.size();
        std::size_t after = 0;
        for (int r = 0; r < sizes[turn]; ++r) {
            hvd::sharded_sampler sampler(103, part{r, sizes[turn]}, {.seed = 8, .uneven = uneven});
            sampler.begin_epoch({.epoch = 1, .done = done});
            const std::size_t steps = last ? sampler.steps(batch) : 2;
            for (std::size_t step = 0; step < steps; ++step)
                for (const std::size_t i : sampler.batch(step, batch)) seen.push_back(i);
            if (r > 0) CHECK(sampler.done_after(steps, batch) == after);
            after = sampler.done_after(steps, batch);
        }
        done = after;
    }
    CHECK(done == 103);
    std::ranges::sort(seen);
    return seen;
}

TEST_CASE("an epoch that goes on on other numbers of ranks has each sample, as its rest says") {
    const std::vector<std::vector<int>> turns = {{1}, {2}, {3, 1}, {2, 4}, {4, 3, 2}, {1, 4, 3}};
    for (const auto& sizes : turns)
        for (const std::size_t batch : {1, 5}) {
            CHECK(seen_in_turns(uneven_samples::keep, sizes, batch) == up_to(103));
            indices repeated = seen_in_turns(uneven_samples::repeat, sizes, batch);
            CHECK(repeated.size() < 103 + std::size_t(sizes.back()));
            repeated.erase(std::unique(repeated.begin(), repeated.end()), repeated.end());
            CHECK(repeated == up_to(103));
            indices dropped = seen_in_turns(uneven_samples::drop, sizes, batch);
            CHECK(dropped.size() > 103 - std::size_t(sizes.back()));
            CHECK(std::unique(dropped.begin(), dropped.end()) == dropped.end());
        }
}

TEST_CASE("the part of an epoch that is done is the same number on all ranks, and ends with 1") {
    for (const auto uneven : {uneven_samples::repeat, uneven_samples::drop, uneven_samples::keep})
        for (const int size : {1, 2, 3, 4})
            for (int r = 0; r < size; ++r) {
                hvd::sharded_sampler sampler(101, part{r, size}, {.uneven = uneven});
                sampler.begin_epoch({.epoch = 7});
                CHECK(sampler.epoch_after(0, 10) == 7);
                CHECK(sampler.epoch_after(1, 10) == doctest::Approx(7 + 10.0 * size / 101));
                CHECK(sampler.epoch_after(sampler.steps(10), 10) == 8);
                CHECK(sampler.epoch_after(1000, 10) == 8);
                sampler.begin_epoch({.epoch = 8, .done = 50});
                CHECK(sampler.epoch_after(0, 10) == doctest::Approx(8 + 50.0 / 101));
            }
    CHECK(hvd::sharded_sampler(0, part{0, 1}).epoch_after(0, 10) == 1);
}

TEST_CASE("the order is the seed's and the epoch's") {
    const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
        hvd::sharded_sampler sampler(50, part{0, 1}, {.seed = seed});
        sampler.begin_epoch({.epoch = epoch});
        return all_of(sampler);
    };
    CHECK(order(1, 0) == order(1, 0));
    CHECK(order(1, 0) != order(1, 1));
    CHECK(order(1, 0) != order(2, 0));
    CHECK(all_of({50, part{0, 1}, {.shuffle = false}}) == up_to(50));
}

TEST_CASE("an epoch goes on where it was, on any number of ranks") {
    hvd::sharded_sampler whole(101, part{0, 1}, {.seed = 5});
    whole.begin_epoch({.epoch = 3});
    for (const int size : {1, 2, 3, 4})
        for (const std::size_t done : {std::size_t(0), std::size_t(40), std::size_t(101)}) {
            const auto order = whole.indices();
            indices expected(order.begin() + std::ptrdiff_t(done), order.end());
            std::ranges::sort(expected);
            const hvd::sampler_options o{.seed = 5, .uneven = uneven_samples::keep};
            CHECK(everybodys(101, size, o, 3, done) == expected);
        }
    for (const auto uneven : {uneven_samples::keep, uneven_samples::drop}) {
        hvd::sharded_sampler sampler(101, part{0, 1}, {.uneven = uneven});
        CHECK_THROWS_WITH_AS(sampler.begin_epoch({.epoch = 0, .done = 102}),
                             doctest::Contains("101 samples resumes after 102"), hvd::usage_error);
    }
    CHECK_THROWS_WITH_AS(hvd::sharded_sampler(1, part{2, 2}), doctest::Contains("rank 2 of 2"),
                         hvd::usage_error);
}

TEST_CASE("the samples of a rank are a range with numbers, which can be read from any place") {
    hvd::sharded_sampler sampler(1000, part{.rank = 1, .size = 3}, {.seed = 4});
    sampler.begin_epoch({.epoch = 1, .done = 100});
    const auto range = sampler.indices();
    const indices mine = all_of(sampler);
    CHECK(range.size() == 300);
    CHECK_FALSE(range.empty());
    CHECK(range[299] == mine[299]);
    CHECK(range.begin()[7] == mine[7]);
    CHECK(*(range.end() - 1) == mine.back());
    CHECK(*(2 + range.begin()) == mine[2]);
    CHECK(range.end() - range.begin() == 300);
    CHECK(range.begin() < range.end());
    auto at = range.begin();
    CHECK(*at++ == mine[0]);
    CHECK(*at-- == mine[1]);
    CHECK(*--++at == mine[0]);
}

TEST_CASE("a sampler takes the rank of a communicator, and no memory for the order") {
    hvd_test::on_ranks([](communicator& comm) {
        const std::size_t most = std::size_t(1) << 62;  // as a list of numbers, 32 EiB
        hvd::sharded_sampler sampler(most, comm, {.seed = 2});
        sampler.begin_epoch({.epoch = 1, .done = most / 2});
        const hvd::sharded_sampler alone(most, part{comm.rank(), comm.size()}, {.seed = 2});
        CHECK(alone.size() >= sampler.size());
        const auto mine = sampler.batch(1000, 4);
        REQUIRE(mine.size() == 4);
        const auto everybodys = comm.allgather(mine).values;
        CHECK(std::set(everybodys.begin(), everybodys.end()).size() == everybodys.size());
    });
}

TEST_CASE("a loader gives all batches in order, then nothing; with and without a thread") {
    for (const std::size_t ahead : {0, 1, 4}) {
        int made = 0;
        hvd::background_loader loader(
            [&]() -> std::optional<int> {
                return made < 20 ? std::optional(made++) : std::nullopt;
            },
            ahead);
        for (int i = 0; i < 20; ++i) CHECK(loader.next() == i);
        CHECK_FALSE(loader.next());
        CHECK_FALSE(loader.next());
    }
}

TEST_CASE("a loader whose batch can't be made says why, and has ended") {
    for (const std::size_t ahead : {0, 1, 4}) {
        int made = 0;
        hvd::background_loader loader(
            [&]() -> std::optional<int> {
                if (made == 2) throw std::runtime_error("no disk");
                return made++;
            },
            ahead);
        CHECK(loader.next() == 0);
        CHECK(loader.next() == 1);
        CHECK_THROWS_WITH(loader.next(), "no disk");
        CHECK_FALSE(loader.next());
        CHECK_FALSE(loader.next());
    }
}

TEST_CASE(
    "a loader makes no more batches ahead than its queue holds, and stops when it is dropped") {
    std::atomic<int> made = 0;
    {
        hvd::background_loader loader([&]() -> std::optional<int> { return made++; }, 3);
        for (int i = 0; i < 10; ++i) {
            CHECK(loader.next() == i);
            CHECK(made <= i + 1 + 3);  // taken, queued or in the making
        }
    }
}

TEST_CASE("the exception of a batch reaches the caller after the batches before it") {
    int made = 0;
    hvd::background_loader loader([&]() -> std::optional<int> {
        if (made == 2) throw std::runtime_error("no such file");
        return made++;
    });
    CHECK(loader.next() == 0);
    CHECK(loader.next() == 1);
    CHECK_THROWS_WITH_AS(loader.next(), "no such file", std::runtime_error);
    CHECK_FALSE(loader.next());
}

TEST_CASE("with uneven data no rank waits, and the mean is that of the samples that were there") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::uneven_scope scope(comm);
        int steps = 0;
        // Rank r has r + 1 batches, with 1, 2, ... samples. Their mean is its rank.
        for (; scope.begin_step(steps <= comm.rank() ? std::size_t(steps + 1 + comm.rank()) : 0);
             ++steps) {
            CHECK(scope.takes_part() == (steps <= comm.rank()));
            std::vector<double> gradient(3, scope.takes_part() ? comm.rank() : NAN);
            scope.mean(gradient);
            double total = 0, weighted = 0;
            for (int r = steps; r < comm.size(); ++r)
                total += steps + 1 + r, weighted += double(r) * (steps + 1 + r);
            CHECK(gradient[2] == doctest::Approx(weighted / total));
        }
        CHECK(steps == comm.size());
        CHECK(scope.last_rank() == comm.size() - 1);
        std::vector<float> x(1);
        CHECK_THROWS_WITH_AS(scope.mean(x), doctest::Contains("no step is under way"),
                             hvd::usage_error);
    });
}

TEST_CASE(
    "an optimizer's average over ranks with uneven data is the mean of the samples, by their "
    "weight") {
    hvd_test::on_ranks([](communicator& comm) {
        std::vector<double> parameter(2), gradient(2);
        hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<double>{1});
        optimizer.register_parameter("p", parameter, gradient);
        hvd::uneven_scope scope(comm);
        double expected = 0;
        for (int step = 0; scope.begin_step(step <= comm.rank() ? std::size_t(comm.rank() + 2) : 0);
             ++step) {
            gradient.assign(2, scope.weight() * comm.rank());  // the mean of this rank's samples
            optimizer.step();
            double total = 0, weighted = 0;
            for (int r = step; r < comm.size(); ++r)
                total += r + 2, weighted += double(r) * (r + 2);
            expected -= weighted / total;
            CHECK(parameter[1] == doctest::Approx(expected));
        }
        CHECK_THROWS_AS(static_cast<void>(scope.weight()), hvd::usage_error);
    });
}

TEST_CASE("a rank without samples contributes zeros, though the mean over none of them is a NaN") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (const auto mode : {hvd::join_mode::real_samples, hvd::join_mode::divide_by_size}) {
            std::vector<float> parameter(3), gradient(3);
            hvd::distributed_optimizer optimizer(comm, hvd::optimizers::sgd<float>{1});
            const std::size_t p = optimizer.register_parameter("p", parameter, gradient);
            hvd::uneven_scope scope(comm, mode);
            const auto samples = std::size_t(comm.rank());  // none on rank 0
            REQUIRE(scope.begin_step(samples));
            optimizer.zero_gradients();
            float of_all = 0;  // this rank's gradient is the mean over samples of value 1
            for (std::size_t s = 0; s < samples; ++s) of_all += 1;
            for (float& g : gradient) g = of_all / float(samples);
            scope.weigh(gradient);
            optimizer.gradient_ready(p);
            optimizer.step();
            const bool real = mode == hvd::join_mode::real_samples;
            const float mean = real ? 1 : float(comm.size() - 1) / float(comm.size());
            for (const float x : parameter) CHECK(x == doctest::Approx(-mean));
            std::vector<double> nan(2, 0.0 / double(samples));
            scope.mean(nan);
            CHECK(nan[1] == 0);
        }
    });
}

TEST_CASE("divided by the size, a rank that ran out counts as zeros, whichever it is") {
    hvd_test::on_ranks_from(2, [](communicator& comm) {
        for (int first = 0; first < comm.size(); ++first) {
            hvd::uneven_scope scope(comm, hvd::join_mode::divide_by_size);
            REQUIRE(scope.begin_step(comm.rank() == first ? 0 : 8));
            std::vector<double> x(25, 3.0), y(289, 5.0);
            scope.mean(x);
            scope.mean(y);
            CHECK(x[24] == doctest::Approx(3.0 * (comm.size() - 1) / comm.size()));
            CHECK(y[288] == doctest::Approx(5.0 * (comm.size() - 1) / comm.size()));
            CHECK_FALSE(scope.begin_step(0));
            CHECK(scope.last_rank() != first);
            const auto last = comm.allgather(scope.last_rank());
            for (const int r : last.values) CHECK(r == scope.last_rank());
        }
    });
}

TEST_CASE(
    "minimum, maximum, product and sum are over the ranks that are there, also with several early "
    "leavers") {
    hvd_test::on_ranks([](communicator& comm) {
        hvd::uneven_scope scope(comm);
        const bool there = comm.rank() == comm.size() - 1;  // all others have run out
        REQUIRE(scope.begin_step(there ? 1 : 0));
        const auto check = [&](auto value, auto op) {
            auto x = there ? value : decltype(value)(77);
            scope.reduce(x, op);
            CHECK(x == value);
        };
        // Elements have 16 bits. If their limits were unknown, a rank that ran out would contribute
        // 0.
        check(hvd::float16(-5), hvd::max);
        check(hvd::float16(5), hvd::min);
        check(hvd::bfloat16(-5), hvd::max);
        check(hvd::bfloat16(5), hvd::min);
        check(-5.0f, hvd::min);
        check(-5.0f, hvd::max);
        check(-5.0f, hvd::product);
        check(-5.0f, hvd::sum);
        check(6, hvd::min);
        check(-6, hvd::max);
        std::vector<int> rows(there ? 3 : 0, 9);
        CHECK(comm.allgather(rows).values == std::vector<int>(3, 9));
        std::vector<int> whole(std::size_t(comm.size()), there ? 4 : 0);
        CHECK(comm.reduce_scatter(whole, hvd::sum) == std::vector<int>{4});
        comm.barrier();
    });
}

TEST_CASE("a rank that ran out gives no infinity to a communicator that looks for them") {
    const auto looks = [](communicator& comm) {
        hvd::uneven_scope scope(comm);
        const bool there = comm.rank() == comm.size() - 1;
        REQUIRE(scope.begin_step(there ? 1 : 0));
        const auto check = [&](auto value) {
            auto least = value, most = value;
            scope.reduce(least, hvd::min);
            scope.reduce(most, hvd::max);
            CHECK(least == value);
            CHECK(most == value);
        };
        check(-5.0f);
        check(std::numeric_limits<double>::max());
        check(hvd::bfloat16(5));
    };
    hvd_test::on_ranks_from(1, {.check_finite = true}, looks);
}

}  // namespace data_tests
