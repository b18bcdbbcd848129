// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <utility>

#include "../protocol/agreement.hpp"
#include "mixing.hpp"

namespace hvd::inline v0::data {

/// An order of the numbers below n, chosen by (seed, epoch).
///
/// It takes no memory: a number's place is computed, by a Feistel network with cycle walking (Black
/// and Rogaway 2002). The order is the same with every compiler and on every processor. It is for
/// samples, not for secrets.
/// **Threads**: any number at once.
/// @snippet tests/data/snippets.cpp permutation
class permutation {
public:
    constexpr permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch = 0)
        : n_(n), draws_(hvd::detail::mixed_key(seed, epoch)) {
        while (half_ < 32 && (std::uint64_t(1) << (2 * half_)) < n) ++half_;
    }

    constexpr std::uint64_t size() const { return n_; }

    /// The number at a position.
    /// @throws hvd::usage_error unless the position is below `size()`; the next one, too.
    constexpr std::uint64_t operator()(std::uint64_t position) const {
        require_below_n(position);
        // The network permutes the numbers below 4^half_. One that is not below n is permuted
        // again: the way from a number below n leads back to one.
        do position = forward(position);
        while (position >= n_);
        return position;
    }

    /// The position of a number.
    constexpr std::uint64_t position_of(std::uint64_t number) const {
        require_below_n(number);
        do number = backward(number);
        while (number >= n_);
        return number;
    }

private:
    constexpr void require_below_n(std::uint64_t i) const {
        if (i >= n_) hvd::detail::refuse(-1, "position or number ", i, " of a permutation of ", n_);
    }

    // Four rounds would do for large numbers. Small ones have halves of few bits, and a round
    // changes no more than these.
    constexpr std::uint64_t rounds() const { return 6 + 30 / half_; }

    constexpr std::uint64_t drawn(std::uint64_t round, std::uint64_t right) const {
        return draws_[round << 32 | right] >> (64 - half_);
    }

    // Rounds are even permutations. Half of the keys exchange 0 and 1 first, which is odd.
    constexpr std::uint64_t with_parity(std::uint64_t x) const {
        return x < 2 ? x ^ (draws_[~std::uint64_t(0)] & 1) : x;
    }

    constexpr std::uint64_t forward(std::uint64_t x) const {
        x = with_parity(x);
        std::uint64_t left = x >> half_, right = x & ((std::uint64_t(1) << half_) - 1);
        for (std::uint64_t r = 0; r < rounds(); ++r)
            left = std::exchange(right, left ^ drawn(r, right));
        return left << half_ | right;
    }

    constexpr std::uint64_t backward(std::uint64_t x) const {
        std::uint64_t left = x >> half_, right = x & ((std::uint64_t(1) << half_) - 1);
        for (std::uint64_t r = rounds(); r-- > 0;)
            right = std::exchange(left, right ^ drawn(r, left));
        return with_parity(left << half_ | right);
    }

    std::uint64_t n_;
    std::uint64_t half_ = 1;  // bits of each half of a number
    hvd::detail::mixed_stream draws_;
};

}  // namespace hvd::inline v0::data
