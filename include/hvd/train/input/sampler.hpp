// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "../../data/part.hpp"
#include "../../data/permutation.hpp"

namespace hvd::inline v0 {

/// The choice for the samples that are left over where the ranks can't all have as many.
enum class uneven_samples : std::uint8_t {
    /// Some samples occur twice, so that all ranks have as many, as in Horovod and LibTorch.
    repeat,
    drop,  ///< They are left out of this epoch. Another epoch has another order.
    /// Some ranks have one more: for `uneven_scope`, which ranks with fewer batches need.
    keep,
};

/// Options of a sampler. They are the same on all ranks.
struct sampler_options {
    bool shuffle = true;     ///< each epoch has an order of its own
    std::uint64_t seed = 0;  ///< of the orders, the same on all ranks
    /// for samples that do not divide by the ranks
    uneven_samples uneven = uneven_samples::repeat;
};

/// An epoch, and the samples of it that all ranks together have done: see
/// `sharded_sampler::done_after`.
struct epoch_position {
    std::uint64_t epoch = 0;
    std::size_t done = 0;
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

class sharded_sampler;

/// The samples of a rank, in order. They are computed where they are read, and take no memory.
///
/// It is a copy of the sampler's state. `begin_epoch` does not change it.
class sample_indices {
public:
    class iterator {
    public:
        using iterator_category = std::random_access_iterator_tag;
        using value_type = std::size_t;
        using difference_type = std::ptrdiff_t;
        using pointer = void;
        using reference = std::size_t;

        iterator() = default;
        iterator(const sample_indices& of, std::size_t at) : of_(&of), at_(at) {}

        std::size_t operator*() const { return (*of_)[at_]; }
        std::size_t operator[](std::ptrdiff_t i) const { return (*of_)[at_ + std::size_t(i)]; }
        iterator& operator+=(std::ptrdiff_t n) { return at_ += std::size_t(n), *this; }
        iterator& operator-=(std::ptrdiff_t n) { return at_ -= std::size_t(n), *this; }
        iterator& operator++() { return *this += 1; }
        iterator& operator--() { return *this -= 1; }
        iterator operator++(int) { return std::exchange(*this, iterator(*of_, at_ + 1)); }
        iterator operator--(int) { return std::exchange(*this, iterator(*of_, at_ - 1)); }
        friend iterator operator+(iterator i, std::ptrdiff_t n) { return i += n; }
        friend iterator operator+(std::ptrdiff_t n, iterator i) { return i += n; }
        friend iterator operator-(iterator i, std::ptrdiff_t n) { return i -= n; }
        friend std::ptrdiff_t operator-(const iterator& a, const iterator& b) {
            return std::ptrdiff_t(a.at_ - b.at_);
        }
        friend bool operator==(const iterator& a, const iterator& b) { return a.at_ == b.at_; }
        friend auto operator<=>(const iterator& a, const iterator& b) { return a.at_ <=> b.at_; }

    private:
        const sample_indices* of_ = nullptr;
        std::size_t at_ = 0;
    };

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    std::size_t operator[](std::size_t i) const;
    iterator begin() const { return {*this, 0}; }
    iterator end() const { return {*this, size_}; }

private:
    friend sharded_sampler;

    sample_indices(const sampler_options& options, std::size_t samples, epoch_position position,
                   part mine, std::size_t size)
        : order_(samples, options.seed, position.epoch),
          is_shuffled_(options.shuffle),
          first_(position.done + std::size_t(mine.rank)),
          ranks_(std::size_t(mine.size)),
          size_(size) {}

    data::permutation order_;
    bool is_shuffled_;
    std::size_t first_, ranks_, size_;
};

// This rank's places are `ranks_` apart. Those after the last sample repeat the first ones.
inline std::size_t sample_indices::operator[](std::size_t i) const {
    const std::uint64_t all = order_.size(), place = (first_ + i * ranks_) % all;
    return std::size_t(is_shuffled_ ? order_(place) : place);
}

/// Chooses this rank's samples of an epoch. All ranks compute the same order, and position p of the
/// order goes to rank (p - done) mod size. It can resume in the middle of an epoch, on any number
/// of ranks, from the number of samples that all ranks together have done. It needs no
/// communication, and no memory for the order.
///
/// All ranks have as many samples and so as many batches, unless uneven samples are kept. `steps`,
/// `done_after` and `epoch_after` return the same on all ranks even then.
/// @snippet tests/train/snippets.cpp sampler
class sharded_sampler {
public:
    /// For this rank of a communicator.
    template <has_ranks Communicator>
    sharded_sampler(std::size_t samples, const Communicator& world,
                    const sampler_options& options = {})
        : sharded_sampler(samples, part{world.rank(), world.size()}, options) {}

    /// @throws hvd::usage_error for a rank that does not exist.
    sharded_sampler(std::size_t samples, part mine, const sampler_options& options = {})
        : samples_(samples), part_(detail::checked(mine)), options_(options) {}

    /// Starts an epoch after `done` samples, which all ranks together have done: see `done_after`.
    /// Samples that are repeated count too, so `done` may exceed the number of samples then.
    /// @throws hvd::usage_error for a `done` above the number of samples, unless some are repeated.
    void begin_epoch(epoch_position from) {
        if (options_.uneven == uneven_samples::repeat && from.done > samples_) from.done = samples_;
        if (from.done > samples_)
            detail::refuse(part_.rank, "a sampler of ", samples_, " samples resumes after ",
                           from.done);
        position_ = from;
    }

    /// This rank's samples of the rest of the epoch, in order.
    sample_indices indices() const { return {options_, samples_, position_, part_, size()}; }
    std::size_t size() const { return before(total()); }
    std::uint64_t epoch() const { return position_.epoch; }

    /// The steps of the rest of the epoch. The last one may take fewer samples.
    /// @throws hvd::usage_error for a batch of 0; those below, too.
    std::size_t steps(batch_size batch) const {
        const std::size_t all = of_all(batch);
        return total() / all + (total() % all != 0 ? 1 : 0);
    }

    /// This rank's samples of one of the steps. There are none where it has run out.
    ///
    /// With a `global_batch` and uneven samples kept, any number of ranks takes the same samples in
    /// a step. The ranks' shares differ by one sample at most, and may be empty.
    std::vector<std::size_t> batch(std::size_t step, batch_size batch) const {
        const auto [first, last] = places(step, batch);
        const sample_indices all = indices();
        std::vector<std::size_t> mine;
        mine.reserve(before(last) - before(first));
        for (std::size_t i = before(first); i < before(last); ++i) mine.push_back(all[i]);
        return mine;
    }

    /// The factor for a sum over this rank's samples of a step. With it, an average over the ranks
    /// is the mean over the samples of all. It is 0 after the last step.
    double weight(std::size_t step, batch_size batch) const {
        const auto [first, last] = places(step, batch);
        return last > first ? double(ranks()) / double(last - first) : 0;
    }

    /// The samples that all ranks together have done after so many steps, since the epoch's first.
    /// `begin_epoch({.epoch = epoch, .done = done})` continues from there. Each sample counts once,
    /// and those that are dropped count after the last step.
    std::size_t done_after(std::size_t steps, batch_size batch) const {
        if (steps >= this->steps(batch)) return samples_;
        const std::size_t done = position_.done + steps * of_all(batch);
        return done < samples_ ? done : samples_;
    }

    /// The epoch after so many steps, with the part of it that is done, for `warmup_factor` and
    /// `rate_schedule`.
    double epoch_after(std::size_t steps, batch_size batch) const {
        const double done = double(done_after(steps, batch));
        return double(position_.epoch) + (samples_ == 0 ? 1 : done / double(samples_));
    }

private:
    // The largest number of samples that a rank has.
    std::size_t rounds() const {
        const std::size_t left = samples_ - position_.done;
        const bool drops = options_.uneven == uneven_samples::drop;
        return left / ranks() + (!drops && left % ranks() != 0 ? 1 : 0);
    }

    // The number of samples of all ranks, and of this rank's among the first `places` of them.
    std::size_t total() const {
        return options_.uneven == uneven_samples::keep ? samples_ - position_.done
                                                       : rounds() * ranks();
    }
    std::size_t before(std::size_t places) const {
        return (places + ranks() - 1 - std::size_t(part_.rank)) / ranks();
    }

    // The first and the last place of a step, among those of all ranks.
    std::pair<std::size_t, std::size_t> places(std::size_t step, batch_size batch) const {
        const std::size_t width = of_all(batch), all = total(),
                          first = step <= all / width ? step * width : all;
        return {first, all - first < width ? all : first + width};
    }

    std::size_t of_all(batch_size batch) const {
        const std::size_t all = batch.of_all(ranks());
        if (all == 0)
            detail::refuse(part_.rank, "a sampler's batch has no samples, and at least 1");
        return all;
    }

    std::size_t ranks() const { return std::size_t(part_.size); }

    std::size_t samples_;
    part part_;
    sampler_options options_;
    epoch_position position_;
};

}  // namespace hvd::inline v0
