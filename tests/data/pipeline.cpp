// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

#include "data_test.hpp"

namespace data_pipeline_tests {

namespace data = hvd::data;
using data_tests::numbers_below;
using data_tests::on_all_ranks;
using lists = std::vector<std::vector<int>>;

namespace {

// The batches of an epoch, counted by hand: the order of a permutation, or that of the source.
lists expected_batches(int samples, int size, data::last_batch last, bool shuffled,
                       std::uint64_t seed, std::uint64_t epoch) {
    std::vector<int> order;
    const data::permutation shuffle(std::uint64_t(samples), seed, epoch);
    for (int i = 0; i < samples; ++i)
        order.push_back(shuffled ? int(shuffle(std::uint64_t(i))) : i);
    lists all;
    for (int first = 0; first < samples; first += size) {
        if (last == data::last_batch::drop && samples - first < size) break;
        all.emplace_back();
        for (int i = first; i < first + size; ++i)
            if (i < samples || last == data::last_batch::fill)
                all.back().push_back(order[std::size_t(i % samples)]);
    }
    return all;
}

}  // namespace

TEST_CASE("batches have the samples of the epoch's order, on any number of ranks and threads") {
    for (const int samples : {1, 2, 10, 103})
        for (const int size : {1, 3, 10, 1000})
            for (const auto last :
                 {data::last_batch::keep, data::last_batch::drop, data::last_batch::fill})
                for (const int ranks : {1, 2, 3, 4}) {
                    const auto numbers = numbers_below(samples);
                    const auto plain =
                        data::from(numbers) | data::batch(std::uint64_t(size), {.last = last});
                    CHECK(on_all_ranks(plain, ranks, 4) ==
                          expected_batches(samples, size, last, false, 0, 4));
                    const auto shuffled = data::from(numbers) | data::shuffle({.seed = 6}) |
                                          data::batch(std::uint64_t(size), {.last = last});
                    CHECK(on_all_ranks(shuffled, ranks, 4, ranks % 3) ==
                          expected_batches(samples, size, last, true, 6, 4));
                }
}

TEST_CASE("the parts of a batch differ by one sample at most, and all ranks have as many batches") {
    const auto pipeline = data::from(numbers_below(103)) | data::batch(10);
    for (const int ranks : {1, 2, 3, 4, 7}) {
        std::vector<std::vector<std::size_t>> sizes;
        for (int rank = 0; rank < ranks; ++rank) {
            data::loader loader(pipeline, hvd::part{rank, ranks});
            CHECK(loader.steps() == 11);
            sizes.emplace_back();
            for (auto& batch : loader.epoch(0)) sizes.back().push_back(batch.size());
            CHECK(sizes.back().size() == 11);
            CHECK(loader.steps() == 0);
            CHECK(loader.samples_of_all() == 3);
        }
        for (std::size_t step = 0; step < 11; ++step) {
            std::size_t least = 10, most = 0;
            for (const auto& of_rank : sizes) {
                least = std::min(least, of_rank[step]);
                most = std::max(most, of_rank[step]);
            }
            CHECK(most - least <= 1);
        }
    }
}

TEST_CASE("an epoch has its own order, and the samples of each are all samples") {
    const auto pipeline =
        data::from(numbers_below(50)) | data::shuffle({.seed = 1}) | data::batch(50);
    data::loader loader(pipeline, hvd::part{});
    auto first = data_tests::batches_of(loader, 0).at(0),
         second = data_tests::batches_of(loader, 1).at(0);
    CHECK(first != second);
    CHECK(data_tests::batches_of(loader, 0).at(0) == first);
    std::ranges::sort(first);
    std::ranges::sort(second);
    CHECK(first == numbers_below(50));
    CHECK(second == numbers_below(50));
}

TEST_CASE("random numbers are the sample's, whichever rank and thread makes it") {
    const auto drawn = [](int, data::random& draws) { return int(draws.below(1'000'000)); };
    const auto pipeline = data::from(numbers_below(60)) | data::shuffle({.seed = 3}) |
                          data::map(drawn) | data::batch(7);
    const lists alone = on_all_ranks(pipeline, 1, 2, 0);
    for (const int ranks : {1, 2, 3, 4})
        for (const std::size_t threads : {0, 1, 4})
            CHECK(on_all_ranks(pipeline, ranks, 2, threads) == alone);
    CHECK(on_all_ranks(pipeline, 1, 3) != alone);

    // Other samples, epochs, seeds and stages have other numbers.
    const auto numbers_with = [&](std::uint64_t seed, std::uint64_t epoch) {
        const auto twice = data::from(numbers_below(60)) | data::map([](int i, data::random& r) {
                               return std::pair(i, int(r.below(1'000'000)));
                           }) |
                           data::map([](const auto& p, data::random& r) {
                               return std::array{p.first, p.second, int(r.below(1'000'000))};
                           }) |
                           data::shuffle({.seed = seed}) | data::batch(60);
        data::loader loader(twice, hvd::part{});
        return data_tests::batches_of(loader, epoch).at(0).values;
    };
    std::set<int> different;
    for (const auto& all : {numbers_with(1, 0), numbers_with(1, 1), numbers_with(2, 0)})
        for (std::size_t i = 0; i < all.size(); ++i)
            if (i % 3 != 0) different.insert(all[i]);
    CHECK(different.size() > 355);  // of 360
}

TEST_CASE("random numbers are uniform, and the same on every machine") {
    data::random draws(42);
    double sum = 0;
    std::array<int, 5> counts{};
    for (int i = 0; i < 10'000; ++i) {
        const double x = draws.uniform();
        REQUIRE(x >= 0);
        REQUIRE(x < 1);
        sum += x;
        ++counts[draws.below(5)];
    }
    CHECK(sum / 10'000 == doctest::Approx(0.5).epsilon(0.02));
    for (const int count : counts) CHECK(std::abs(count - 2000) < 200);
    CHECK(draws.below(0) == 0);
    CHECK(draws.below(1) == 0);
    data::random again(42);
    CHECK(again() == 13679457532755275413u);
}

TEST_CASE("a filter shortens the batches and leaves the others' samples where they are") {
    const auto even = [](int i) { return i % 2 == 0; };
    const auto pipeline = data::from(numbers_below(23)) | data::filter(even) | data::batch(5);
    for (const int ranks : {1, 2, 3, 4})
        CHECK(on_all_ranks(pipeline, ranks, 0) ==
              lists{{0, 2, 4}, {6, 8}, {10, 12, 14}, {16, 18}, {20, 22}});
    const auto third = [](int, data::random& draws) { return draws.below(3) == 0; };
    const auto by_chance = data::from(numbers_below(300)) | data::filter(third) |
                           data::map([](int i) { return i + 1; }) | data::batch(300);
    const auto kept = on_all_ranks(by_chance, 1, 0).at(0);
    CHECK(kept.size() > 60);
    CHECK(kept.size() < 140);
    CHECK(on_all_ranks(by_chance, 3, 0).at(0) == kept);
    CHECK(on_all_ranks(by_chance, 1, 1).at(0) != kept);
}

TEST_CASE("stages move samples that can't be copied") {
    const auto pipeline =
        data::from(numbers_below(4)) | data::map([](int i) { return std::make_unique<int>(i); }) |
        data::filter([](const auto& p) { return *p != 2; }) |
        data::map([](std::unique_ptr<int> p) { return *p * 10; }) | data::batch(4);
    CHECK(on_all_ranks(pipeline, 1, 0) == lists{{0, 10, 30}});
}

TEST_CASE("samples are collected by their type, or as the user says") {
    const auto numbers = numbers_below(5);
    const auto pairs = data::from(numbers) |
                       data::map([](int i) { return std::array{float(i), float(-i)}; }) |
                       data::batch(3);
    data::loader by_rows(pairs, hvd::part{});
    const auto rows = data_tests::batches_of(by_rows, 0);
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].width == 2);
    CHECK(rows[0].size() == 3);
    CHECK(rows[0].values == std::vector<float>{0, 0, 1, -1, 2, -2});
    CHECK(rows[1][1][1] == -4);

    const auto words = data::from(numbers) |
                       data::map([](int i) { return std::string(std::size_t(i), char('a' + i)); });
    data::loader texts(words | data::batch(5), hvd::part{});
    CHECK(data_tests::batches_of(texts, 0).at(0).at(2) == "cc");
    data::loader joined(words | data::batch(5, data::concatenate), hvd::part{});
    const auto ragged = data_tests::batches_of(joined, 0).at(0);
    CHECK(std::string(ragged.values.begin(), ragged.values.end()) == "bccdddeeee");
    CHECK(ragged.offsets == std::vector<std::size_t>{0, 0, 1, 3, 6, 10});
    CHECK(ragged.size() == 5);

    const auto sum = [](const std::vector<int>& samples) {
        return std::accumulate(samples.begin(), samples.end(), 0);
    };
    data::loader sums(data::from(numbers) | data::batch(2, sum, {.last = data::last_batch::drop}),
                      hvd::part{});
    CHECK(data_tests::batches_of(sums, 0) == std::vector<int>{1, 5});
}

TEST_CASE("a stage after the batches changes these") {
    const auto pipeline = data::from(numbers_below(7)) | data::batch(3) |
                          data::map([](const std::vector<int>& b) { return b.front(); }) |
                          data::map([](int i) { return std::to_string(i); }) | data::prefetch(2);
    data::loader loader(pipeline, hvd::part{});
    CHECK(data_tests::batches_of(loader, 0) == std::vector<std::string>{"0", "3", "6"});
}

TEST_CASE("batches of equal size are equal on all ranks, or refused") {
    const auto numbers = numbers_below(10);
    const auto dropped = data::from(numbers) | data::equal_batch(4);
    const auto filled =
        data::from(numbers) | data::equal_batch(4, {.last = data::last_batch::fill});
    for (const int ranks : {1, 2, 4}) {
        CHECK(on_all_ranks(dropped, ranks, 0) == lists{{0, 1, 2, 3}, {4, 5, 6, 7}});
        CHECK(on_all_ranks(filled, ranks, 0) == lists{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 0, 1}});
    }
    CHECK_THROWS_WITH_AS(data::loader(dropped, hvd::part{1, 3}),
                         doctest::Contains("batches of 4 samples can't be equal on 3 ranks"),
                         hvd::usage_error);
    CHECK_THROWS_WITH_AS(data::equal_batch(4, {.last = data::last_batch::keep}),
                         doctest::Contains("last_batch::fill"), hvd::usage_error);
    CHECK_THROWS_WITH_AS(data::batch(0), doctest::Contains("0 samples"), hvd::usage_error);
    CHECK_THROWS_AS(data::equal_batch(0), hvd::usage_error);
    CHECK_THROWS_WITH_AS(data::loader(dropped, hvd::part{4, 4}), doctest::Contains("rank 4 of 4"),
                         hvd::usage_error);
}

TEST_CASE("an empty source has no batches") {
    for (const auto last :
         {data::last_batch::keep, data::last_batch::drop, data::last_batch::fill}) {
        const auto pipeline =
            data::from(std::vector<int>()) | data::shuffle({}) | data::batch(4, {.last = last});
        CHECK(on_all_ranks(pipeline, 2, 0).empty());
    }
}

std::uint64_t fingerprint_of_type(std::string_view name) {
    std::uint64_t fingerprint = hvd::detail::empty_fingerprint;
    hvd::detail::mix_type_name(fingerprint, name);
    return fingerprint;
}

TEST_CASE("a fingerprint does not follow the path by which a compiler found a header") {
    const auto of = fingerprint_of_type;
    const std::uint64_t here = of("map<int, (lambda at pipeline.hpp:22:7)>");
    CHECK(of("map<int, (lambda at /home/me/common/pipeline.hpp:22:7)>") == here);
    CHECK(of("map<int, (lambda at ../common/pipeline.hpp:22:7)>") == here);
    CHECK(of("map<int, (lambda at ../common/pipeline.hpp:22:8)>") != here);
    CHECK(of("map<int, (lambda at ../common/other.hpp:22:7)>") != here);
    CHECK(of("map<long, (lambda at pipeline.hpp:22:7)>") != here);
}

// g++ counts each `auto` of a parameter in the whole program, headers included.
TEST_CASE("a fingerprint does not follow what a program includes before its pipeline") {
    const auto of = fingerprint_of_type;
    const std::uint64_t here = of("zip<f()::<lambda(const auto:45&, auto:46)> >");
    CHECK(of("zip<f()::<lambda(const auto:158&, auto:159)> >") == here);
    CHECK(of("zip<f()::<lambda(const auto:1&, auto:2)> >") == here);
    CHECK(of("zip<f()::<lambda(const auto:45&, auto:46&)> >") != here);
    CHECK(of("zip<f()::<lambda(const auto:45&, int)> >") != here);
    CHECK(of("zip<f()::<lambda(const auto:45&, auto:46)> > 7") != here);
}

TEST_CASE("a fingerprint follows types, options and the user's version") {
    const auto numbers = numbers_below(10);
    const auto twice = [](int i) { return 2 * i; };
    const auto made = [](const auto& pipeline) { return pipeline.plan().fingerprint; };
    const auto one = data::from(numbers) | data::map(twice);
    CHECK(made(one | data::batch(2)) == made(one | data::batch(2)));
    const std::set<std::uint64_t> all = {
        made(one | data::batch(2)),
        made(one | data::batch(3)),
        made(one | data::batch(2, {.last = data::last_batch::drop})),
        made(one | data::batch(2, [](auto samples) { return samples; })),
        made(one | data::version("2") | data::batch(2)),
        made(one | data::version("3") | data::batch(2)),
        made(one | data::shuffle({}) | data::batch(2)),
        made(one | data::skip_errors() | data::batch(2)),
        made(one | data::map(twice) | data::batch(2)),
        made(one | data::batch(2) | data::map([](auto batch) { return batch; })),
        made(data::from(numbers_below(10)) | data::map(twice) | data::batch(2)),
        made(data::from(numbers_below(9)) | data::map(twice) | data::batch(2))};
    CHECK(all.size() == 12);
    const auto batches = one | data::batch(2);
    CHECK(data::loader(batches, hvd::part{}).fingerprint() == made(batches));
    CHECK(made(batches | data::prefetch(7)) == made(batches));
}

TEST_CASE("an array stays where it is, and batches of bool are vectors") {
    int numbers[] = {1, 2, 3, 4};
    const bool flags[] = {true, false, false, true};
    data::loader loader(data::from(numbers) | data::batch(3), hvd::part{});
    numbers[1] = 20;
    CHECK(*loader.next() == std::vector<int>{1, 20, 3});
    data::loader pairs(data::from(data::zip(numbers, flags)) | data::batch(2), hvd::part{});
    CHECK(pairs.next()->at(0) == std::tuple(1, true));
    data::loader bits(
        data::from(flags) | data::map([](bool x) { return std::array{x, !x}; }) | data::batch(2),
        hvd::part{});
    CHECK(*bits.next() == std::vector<std::array<bool, 2>>{{true, false}, {false, true}});
    data::loader single(data::from(flags) | data::batch(4), hvd::part{});
    CHECK(*single.next() == std::vector<bool>{true, false, false, true});
}

TEST_CASE("a usage error of code that knows no rank names none") {
    try {
        static_cast<void>(data::batch(0));
        FAIL("no exception");
    } catch (const hvd::usage_error& e) {
        CHECK(std::string(e.what()) == "hvd: data::batch of 0 samples, and at least 1");
    }
}

TEST_CASE("vectors, spans and several sources are sources") {
    std::vector<int> numbers = numbers_below(6);
    const std::span<int> part(numbers.data(), 3);
    CHECK(on_all_ranks(data::from(part) | data::batch(4), 1, 0) == lists{{0, 1, 2}});
    CHECK(on_all_ranks(data::from(std::array{7, 8}) | data::batch(4), 1, 0) == lists{{7, 8}});

    const std::vector<char> letters = {'a', 'b', 'c', 'd', 'e', 'f'};
    const auto zipped = data::zip(numbers, letters, numbers_below(6));
    CHECK(zipped.size() == 6);
    CHECK(zipped.read(4) == std::tuple(4, 'e', 4));
    CHECK_THROWS_WITH_AS(data::zip(numbers, std::vector<int>(5)),
                         doctest::Contains("sources of 6 and of 5 samples"), hvd::usage_error);

    using list = data::range_source<std::vector<int>>;
    const auto chained = data::chain(
        std::vector<list>{list({1, 2}), list({}), list({3}), list({}), list({4, 5, 6}), list({})});
    const auto batches = data::from(chained) | data::batch(10);
    CHECK(on_all_ranks(batches, 1, 0) == lists{{1, 2, 3, 4, 5, 6}});
    CHECK(data::chain(std::vector<list>{}).size() == 0);
}

}  // namespace data_pipeline_tests
