// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>

#include "../standard.hpp"
#include "mixing.hpp"

namespace hvd::inline v0::data {

/// Random numbers for one sample in one stage of a pipeline.
///
/// They are chosen by (seed, epoch, sample, stage): they are the same whichever thread, rank or
/// machine makes the sample. It is a generator for the distributions of `<random>`, whose results
/// differ between standard libraries; those of `uniform` and `below` do not.
class random {
public:
    using result_type = std::uint64_t;

    constexpr explicit random(std::uint64_t key) : draws_(key) {}

    static constexpr std::uint64_t min() { return 0; }
    static constexpr std::uint64_t max() { return ~std::uint64_t(0); }
    constexpr std::uint64_t operator()() { return draws_[drawn_++]; }

    /// A number from 0 to below 1.
    constexpr double uniform() { return double((*this)() >> 11) * 0x1p-53; }

    /// A whole number below `n`, all of them equally likely. It is 0 for an `n` of 0.
    constexpr std::uint64_t below(std::uint64_t n) {
        if (n == 0) return 0;
        const std::uint64_t uneven = (max() % n + 1) % n;  // numbers of the last, incomplete range
        while (true)
            if (const std::uint64_t drawn = (*this)(); drawn <= max() - uneven) return drawn % n;
    }

private:
    hvd::detail::mixed_stream draws_;
    std::uint64_t drawn_ = 0;
};

}  // namespace hvd::inline v0::data
