// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "../core/lean/text.hpp"
#include "../core/tuning.hpp"
#include "errors.hpp"
#include "mixing.hpp"
#include "part.hpp"
#include "permutation.hpp"

namespace hvd::inline v0::data {

/// The choice for an epoch's last batch, where the samples do not fill it.
enum class last_batch : std::uint8_t {
    keep,  ///< It is shorter than the others, and may be empty on some ranks.
    drop,  ///< Its samples are left out of this epoch. Another epoch has another order.
    fill,  ///< The first samples of the epoch fill it, and so occur twice.
};

/// A batch of an epoch, and the part of it that a rank takes. A pipeline makes the same batch from
/// the same request, in any process.
struct batch_request {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t first = 0;  ///< the position of its first sample in the epoch's order
    part mine;
};

/// The part of an epoch that a rank takes.
enum class batch_share : std::uint8_t {
    parts,   ///< Its part of each batch.
    turns,   ///< Each batch whose turn it is. A step has one for each rank.
    whole,   ///< All batches, in an order of its own.
    claims,  ///< The batches that it claims, while other ranks claim others.
};

/// The sizes and the order of a pipeline's batches.
struct batch_plan {
    std::uint64_t samples = 0;     ///< of an epoch
    std::uint64_t batch_size = 1;  ///< of a step, of all ranks together
    batch_share share = batch_share::parts;
    last_batch last = last_batch::keep;
    bool is_equal = false;     ///< All batches have as many samples, on all ranks.
    bool may_shorten = false;  ///< A stage may leave out samples.
    bool is_shuffled = false;
    std::uint64_t seed = 0;
    std::uint64_t most_skipped = 0;
    std::uint64_t fingerprint = 0;
    std::size_t ahead = hvd::detail::tuning::batches_ahead;
    int stages = 0;

    /// The batches that are left after `done` samples of an epoch.
    std::uint64_t steps_after(std::uint64_t done) const {
        const std::uint64_t left = done < samples ? samples - done : 0;
        return left / batch_size + (last != last_batch::drop && left % batch_size != 0 ? 1 : 0);
    }

    /// The number of the sample at a position of a request's epoch. Positions beyond the end are
    /// those of `last_batch::fill`.
    std::uint64_t sample_at(const batch_request& r, std::uint64_t position) const {
        position %= samples;
        return is_shuffled ? permutation(samples, r.seed, r.epoch)(position) : position;
    }

    /// The number of samples of all ranks in the batch that begins at a position.
    std::uint64_t size_at(std::uint64_t first) const {
        if (last == last_batch::fill) return batch_size;
        const std::uint64_t left = first < samples ? samples - first : 0;
        return left < batch_size ? left : batch_size;
    }

    /// The request that a rank's loader makes of a step, as the pipeline without the share knows
    /// it.
    batch_request own(batch_request r) const {
        if (share == batch_share::parts) return r;
        const std::uint64_t rank = std::uint64_t(r.mine.rank);
        if (share == batch_share::turns) {
            r.first += rank * (batch_size / std::uint64_t(r.mine.size));
            if (r.first > samples) r.first = last == last_batch::fill ? r.first % samples : samples;
        } else if (share == batch_share::whole && rank > 0) {
            r.seed = hvd::detail::mixed_key(r.seed, rank);
        }
        r.mine = part{};
        return r;
    }

    /// The first and the last place of a rank's part of a batch. The first ranks have one sample
    /// more than the others, if they do not divide it.
    std::pair<std::uint64_t, std::uint64_t> places(const batch_request& r) const {
        const std::uint64_t size = size_at(r.first), ranks = std::uint64_t(r.mine.size),
                            rank = std::uint64_t(r.mine.rank), each = size / ranks,
                            more = size % ranks;
        const std::uint64_t first = r.first + rank * each + (rank < more ? rank : more);
        return {first, first + each + (rank < more ? 1 : 0)};
    }

    /// The number of the first sample in a rank's part of a batch, or `stage_error::no_sample`.
    std::uint64_t first_sample(const batch_request& r) const {
        batch_plan alone = *this;
        if (share == batch_share::turns) alone.batch_size /= std::uint64_t(r.mine.size);
        const batch_request mine = own(r);
        const auto [begin, end] = alone.places(mine);
        return begin < end ? sample_at(mine, begin) : stage_error::no_sample;
    }
};

/// A batch, and what happened while it was made.
template <class Batch>
struct made_batch {
    Batch batch;
    std::uint64_t skipped = 0;  ///< samples for which a stage threw
    hvd::detail::message last_failure = {};
};

}  // namespace hvd::inline v0::data
