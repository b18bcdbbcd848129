// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstdint>

namespace fashion_mnist {

/// Random numbers without state. Each is a function of the words that name it.
///
/// So the numbers for (seed, epoch, sample) are the same on every rank, for every split of a batch
/// and after every restart.
class random_stream {
public:
    template <std::convertible_to<std::uint64_t>... Words>
    explicit constexpr random_stream(Words... words) {
        ((key_ = mixed(key_ + golden + static_cast<std::uint64_t>(words))), ...);
    }

    /// Returns 64 random bits, the same for the same `counter`.
    constexpr std::uint64_t bits(std::uint64_t counter) const {
        return mixed(key_ + golden * (counter + 1));
    }

    /// Returns a number that is uniform in [0, 1).
    constexpr double uniform(std::uint64_t counter) const {
        return static_cast<double>(bits(counter) >> 11) * 0x1p-53;
    }

private:
    static constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;

    // The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    static constexpr std::uint64_t mixed(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    std::uint64_t key_ = 0;
};

/// The purpose of a stream. It separates streams that share the other words.
enum purpose : std::uint64_t { initial_parameters = 1, dropout_mask = 3 };

}  // namespace fashion_mnist
