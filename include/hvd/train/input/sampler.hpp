// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "../../protocol/agreement.hpp"

namespace hvd::inline v0 {

/// The samples that are left over where the ranks can't all have as many.
enum class sampler_rest : std::uint8_t {
    /// Some samples occur twice, so that all ranks have as many, as in Horovod and LibTorch.
    repeat,
    drop,  ///< They are left out of this epoch. Another epoch has another order.
    /// Some ranks have one more: for `uneven_scope`, which ranks with fewer batches need.
    keep,
};

/// Options of a sampler. They are the same on all ranks.
struct sampler_options {
    bool shuffle = true;
    std::uint64_t seed = 0;
    sampler_rest rest = sampler_rest::repeat;
};

/// A batch of all ranks together, in place of one of each rank.
struct global_batch {
    std::size_t samples = 0;
};

/// The size of a batch: a number of samples of each rank, or a `global_batch`.
class batch_size {
public:
    template <std::integral N>
    constexpr batch_size(N of_each)
        : samples_(of_each > 0 ? std::size_t(of_each) : 0), of_each_(true) {}
    constexpr batch_size(global_batch all) : samples_(all.samples), of_each_(false) {}

    /// The samples of so many ranks together.
    constexpr std::size_t of_all(std::size_t ranks) const {
        if (!of_each_) return samples_;
        return samples_ > ~std::size_t(0) / ranks ? ~std::size_t(0) : samples_ * ranks;
    }

private:
    std::size_t samples_;
    bool of_each_;
};

/// Chooses this rank's samples of an epoch. All ranks compute the same order, and position p of the
/// order goes to rank (p - done) mod size. It can resume in the middle of an epoch, on any number
/// of ranks, from the number of samples that all ranks together have done. It needs no
/// communication.
///
/// All ranks have as many samples and so as many batches, unless the rest is kept. `steps`,
/// `done_after` and `epoch_after` return the same on all ranks even then.
/// @snippet tests/train/snippets.cpp sampler
class sharded_sampler {
public:
    /// @throws hvd::usage_error for a rank that does not exist.
    sharded_sampler(std::size_t samples, int rank, int size, const sampler_options& options = {})
        : samples_(samples), rank_(rank), size_(std::size_t(size)), options_(options) {
        if (size < 1 || rank < 0 || rank >= size)
            detail::refuse(rank, "a sampler for rank ", rank, " of ", size);
        begin_epoch(0);
    }

    /// Starts an epoch after `done` samples, which all ranks together have done: see `done_after`.
    /// Samples that are repeated count too, so `done` may exceed the number of samples then.
    /// @throws hvd::usage_error for a `done` above the number of samples, unless some are repeated.
    void begin_epoch(std::uint64_t epoch, std::size_t done = 0) {
        const bool repeats = options_.rest == sampler_rest::repeat;
        if (repeats && done > samples_) done = samples_;
        if (done > samples_)
            detail::refuse(rank_, "a sampler of ", samples_, " samples resumes after ", done);
        epoch_ = epoch;
        done_ = done;
        mine_.clear();
        const std::vector<std::size_t> order = order_of(epoch);
        for (std::size_t round = 0; round < rounds(); ++round) {
            const std::size_t at = done + round * size_ + std::size_t(rank_);
            if (at < samples_) mine_.push_back(order[at]);
            else if (repeats) mine_.push_back(order[at % samples_]);
        }
    }

    /// This rank's samples of the rest of the epoch, in order.
    const std::vector<std::size_t>& indices() const { return mine_; }
    std::size_t size() const { return mine_.size(); }
    std::uint64_t epoch() const { return epoch_; }

    /// The steps of the rest of the epoch. The last one may take fewer samples.
    /// @throws hvd::usage_error for a batch of 0; those below, too.
    std::size_t steps(batch_size batch) const {
        const std::size_t all = of_all(batch);
        return total() / all + (total() % all != 0 ? 1 : 0);
    }

    /// This rank's samples of one of the steps. There are none where it has run out.
    ///
    /// With a `global_batch` and the rest kept, any number of ranks takes the same samples in a
    /// step. The ranks' shares differ by one sample at most, and may be empty.
    std::span<const std::size_t> batch(std::size_t step, batch_size batch) const {
        const auto [first, last] = places(step, batch);
        return std::span(mine_).subspan(before(first), before(last) - before(first));
    }

    /// The factor for a sum over this rank's samples of a step. With it, an average over the ranks
    /// is the mean over the samples of all. It is 0 after the last step.
    double weight(std::size_t step, batch_size batch) const {
        const auto [first, last] = places(step, batch);
        return last > first ? double(size_) / double(last - first) : 0;
    }

    /// The samples that all ranks together have done after so many steps, since the epoch's first.
    /// `begin_epoch(epoch, done)` continues from there. Each sample counts once, and those that are
    /// dropped count after the last step.
    std::size_t done_after(std::size_t steps, batch_size batch) const {
        if (steps >= this->steps(batch)) return samples_;
        const std::size_t done = done_ + steps * of_all(batch);
        return done < samples_ ? done : samples_;
    }

    /// The epoch after so many steps, with the part of it that is done, for `warmup_factor` and
    /// `rate_schedule`.
    double epoch_after(std::size_t steps, batch_size batch) const {
        const double done = double(done_after(steps, batch));
        return double(epoch_) + (samples_ == 0 ? 1 : done / double(samples_));
    }

private:
    // The largest number of samples that a rank has.
    std::size_t rounds() const {
        const std::size_t left = samples_ - done_;
        const bool drops = options_.rest == sampler_rest::drop;
        return left / size_ + (!drops && left % size_ != 0 ? 1 : 0);
    }

    // The number of samples of all ranks, and of this rank's among the first `places` of them.
    std::size_t total() const {
        return options_.rest == sampler_rest::keep ? samples_ - done_ : rounds() * size_;
    }
    std::size_t before(std::size_t places) const {
        return (places + size_ - 1 - std::size_t(rank_)) / size_;
    }

    // The first and the last place of a step, among those of all ranks.
    std::pair<std::size_t, std::size_t> places(std::size_t step, batch_size batch) const {
        const std::size_t width = of_all(batch), all = total(),
                          first = step <= all / width ? step * width : all;
        return {first, all - first < width ? all : first + width};
    }

    std::size_t of_all(batch_size batch) const {
        const std::size_t all = batch.of_all(size_);
        if (all == 0) detail::refuse(rank_, "a sampler's batch has no samples, and at least 1");
        return all;
    }

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
    std::size_t size_;
    sampler_options options_;
    std::uint64_t epoch_ = 0;
    std::size_t done_ = 0;  // before this rank's first
    std::vector<std::size_t> mine_;
};

}  // namespace hvd::inline v0
