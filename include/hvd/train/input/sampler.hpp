// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../protocol/agreement.hpp"

namespace hvd {
inline namespace v0 {

/// Options of a sampler. They are the same on all ranks.
struct sampler_options {
    bool shuffle = true;
    std::uint64_t seed = 0;
    /// repeats some samples so that all ranks have as many; otherwise some ranks have one fewer
    bool pad = false;
};

/// Chooses this rank's samples of an epoch. All ranks compute the same order, and position p of the
/// order goes to rank (p - done) mod size. It can resume in the middle of an epoch, on any number
/// of ranks, from the number of samples that all ranks together have done. It needs no
/// communication. Feature G11.
/// @snippet tests/train/snippets.cpp sampler
class sharded_sampler {
public:
    /// @throws hvd::usage_error for a rank that does not exist.
    sharded_sampler(std::size_t samples, int rank, int size, const sampler_options& options = {})
        : samples_(samples), rank_(rank), size_(size), options_(options) {
        if (size < 1 || rank < 0 || rank >= size)
            detail::refuse(rank, "a sampler for rank ", rank, " of ", size);
        begin_epoch(0);
    }

    /// Starts an epoch after `done` samples, which all ranks together have done. With `pad` the
    /// repeated samples count too, so `done` may exceed the number of samples.
    /// @throws hvd::usage_error for a `done` above the number of samples, without `pad`.
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
    // Shuffles as Fisher and Yates with splitmix64. The order is the same with every standard
    // library.
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

    // Draws uniformly: numbers of the last, incomplete range are drawn again.
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
