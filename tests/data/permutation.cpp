// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include <hvd/data.hpp>

namespace data_permutation_tests {

namespace {

using hvd::data::permutation;
using numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t huge = std::uint64_t(1) << 63;

numbers first_of(const permutation& order, std::uint64_t count) {
    numbers first;
    for (std::uint64_t i = 0; i < count; ++i) first.push_back(order(i));
    return first;
}

// The distance from the expected chi-square of equal counts, in standard deviations.
double deviation(const std::vector<double>& counts, double degrees) {
    double all = 0, square = 0;
    for (const double count : counts) all += count;
    const double expected = all / double(counts.size());
    for (const double count : counts) square += (count - expected) * (count - expected) / expected;
    return (square - degrees) / std::sqrt(2 * degrees);
}

}  // namespace

TEST_CASE("every number is at one position, and its position is found") {
    for (std::uint64_t n = 1; n <= 2000; ++n) {
        const permutation order(n, 7, n);
        std::vector<bool> seen(n);
        std::uint64_t right = 0;
        for (std::uint64_t i = 0; i < n; ++i) {
            const std::uint64_t number = order(i);
            if (number >= n || seen[number]) continue;
            if (n % 8 == 1 && order.position_of(number) != i) continue;
            seen[number] = true;
            ++right;
        }
        REQUIRE(right == n);
        REQUIRE(order.size() == n);
    }
}

TEST_CASE("positions of large permutations have different numbers, which lead back") {
    hvd::detail::mixed_stream draw(11);
    for (std::uint64_t k = 0; k < 100; ++k) {
        const std::uint64_t n = k == 0 ? huge : (draw[k] >> (1 + k % 40)) + 5000;
        const permutation order(n, k, 3);
        numbers seen;
        std::uint64_t right = 0;
        for (std::uint64_t i = 0; i < 1000; ++i) {
            const std::uint64_t position = i < 500 ? i : draw[1000 * k + i] % n;
            const std::uint64_t number = order(position);
            right += number < n && order.position_of(number) == position ? 1 : 0;
            if (i < 500) seen.push_back(number);
        }
        CHECK(right == 1000);
        std::ranges::sort(seen);
        CHECK(std::ranges::adjacent_find(seen) == seen.end());
    }
}

TEST_CASE("all orders of few numbers are as frequent") {
    for (const std::uint64_t n : {2, 3, 4, 5}) {
        std::map<numbers, double> times;
        for (std::uint64_t epoch = 0; epoch < 24'000; ++epoch)
            ++times[first_of(permutation(n, 1, epoch), n)];
        std::size_t orders = 1;
        for (std::size_t i = 2; i <= n; ++i) orders *= i;
        REQUIRE(times.size() == orders);
        std::vector<double> counts;
        for (const auto& [order, count] : times) counts.push_back(count);
        CHECK(std::abs(deviation(counts, double(orders - 1))) < 4);
    }
}

TEST_CASE("a number is at each position as often, and neighbours are no nearer than others") {
    for (const std::uint64_t n : {7, 16, 17, 100}) {
        std::vector<double> places(n * n), differences(n - 1);
        for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
            const numbers order = first_of(permutation(n, seed, 2), n);
            for (std::uint64_t i = 0; i < n; ++i) ++places[i * n + order[i]];
            for (std::uint64_t i = 1; i < n; ++i)
                ++differences[(order[i] + n - order[i - 1]) % n - 1];
        }
        CHECK(std::abs(deviation(places, double((n - 1) * (n - 1)))) < 4);
        CHECK(std::abs(deviation(differences, double(n - 2))) < 4);
    }
}

TEST_CASE("seeds and epochs have orders of their own") {
    const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
        return first_of(permutation(1000, seed, epoch), 20);
    };
    CHECK(order(1, 0) == order(1, 0));
    CHECK(order(1, 0) != order(0, 1));
    CHECK(order(1, 1) != order(2, 2));
    CHECK(order(1, 0) != order(2, 0));
    CHECK(order(1, 0) != order(1, 1));
}

TEST_CASE("an order is the same on every machine") {
    CHECK(first_of(permutation(10, 42, 3), 5) == numbers{3, 1, 7, 5, 6});
    CHECK(first_of(permutation(1000, 42, 3), 5) == numbers{812, 880, 4, 975, 388});
    CHECK(first_of(permutation(huge, 42, 3), 3) ==
          numbers{7574914876970625077u, 6159508768060303787u, 4119558255575844751u});
    static_assert(permutation(1000, 42, 3)(1) == 880);
}

TEST_CASE("a position that does not exist is refused") {
    CHECK_THROWS_WITH_AS(static_cast<void>(permutation(10, 1)(10)),
                         doctest::Contains("10 of a permutation of 10"), hvd::usage_error);
    CHECK_THROWS_AS(static_cast<void>(permutation(10, 1).position_of(11)), hvd::usage_error);
    CHECK_THROWS_AS(static_cast<void>(permutation(0, 1)(0)), hvd::usage_error);
}

}  // namespace data_permutation_tests
