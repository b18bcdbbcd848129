// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../refuse.hpp"

namespace hvd {
inline namespace v0 {

/// How a sampler shares out samples. The same on all ranks.
struct sampler_options {
    bool shuffle = true;
    std::uint64_t seed = 0;
    bool pad = false;  ///< repeat some samples so that all ranks have as many; otherwise some have
                       ///< one fewer
};

/// Which samples are this rank's, in an epoch's order that all ranks work out alike: position p of
/// the order goes to rank (p - done) mod size. Resumable in the middle of an epoch, on any number
/// of ranks: what counts is how many samples all ranks together have done. Needs no communication.
/// Feature G11.
/// @snippet tests/train/snippets.cpp sampler
class sharded_sampler {
public:
    /// @throws hvd::usage_error for a rank that is none.
    sharded_sampler(std::size_t samples, int rank, int size, const sampler_options& options = {})
        : samples_(samples), rank_(rank), size_(size), options_(options) {
        if (size < 1 || rank < 0 || rank >= size)
            detail::refuse(rank, "a sampler for rank ", rank, " of ", size);
        begin_epoch(0);
    }

    /// Goes to an epoch, of which `done` samples are done by all ranks together. With `pad` those
    /// that were repeated count, too, on however many ranks: more than all is all.
    /// @throws hvd::usage_error if there are not as many, without `pad`.
    void begin_epoch(std::uint64_t epoch, std::size_t done = 0) {
        if (options_.pad && done > samples_) done = samples_;
        if (done > samples_)
            detail::refuse(rank_, "a sampler of ", samples_, " samples resumes after ", done);
        epoch_ = epoch;
        mine_.clear();
        const std::vector<std::size_t> order = order_of(epoch);
        const std::size_t left = samples_ - done, size = std::size_t(size_);
        const std::size_t rounds = left / size + (left % size != 0 ? 1 : 0);
        for (std::size_t round = 0; round < rounds; ++round) {
            const std::size_t at = round * size + std::size_t(rank_);
            if (at < left) mine_.push_back(order[done + at]);
            else if (options_.pad) mine_.push_back(order[(done + at) % samples_]);
        }
    }

    /// This rank's samples of the rest of the epoch, in order.
    const std::vector<std::size_t>& indices() const { return mine_; }
    std::size_t size() const { return mine_.size(); }
    std::uint64_t epoch() const { return epoch_; }

private:
    // Fisher and Yates by splitmix64: the same numbers with every standard library.
    std::vector<std::size_t> order_of(std::uint64_t epoch) const {
        std::vector<std::size_t> order(samples_);
        for (std::size_t i = 0; i < samples_; ++i) order[i] = i;
        if (!options_.shuffle) return order;
        std::uint64_t state = mixed(options_.seed) ^ mixed(epoch + 0x632be59bd9b4e019u);
        for (std::size_t i = samples_; i > 1; --i) std::swap(order[i - 1], order[below(i, state)]);
        return order;
    }

    static std::uint64_t mixed(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    // Uniform: numbers of the last, incomplete range are drawn again.
    static std::size_t below(std::size_t n, std::uint64_t& state) {
        const std::uint64_t most = ~std::uint64_t(0) - ~std::uint64_t(0) % n;
        while (true) {
            const std::uint64_t drawn = mixed(state += 0x9e3779b97f4a7c15u);
            if (drawn < most) return std::size_t(drawn % n);
        }
    }

    std::size_t samples_;
    int rank_;
    int size_;
    sampler_options options_;
    std::uint64_t epoch_ = 0;
    std::vector<std::size_t> mine_;
};

}  // namespace v0
}  // namespace hvd
