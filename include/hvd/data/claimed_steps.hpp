// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <optional>

namespace hvd::inline v0::detail {

// The batches that a rank gets of an epoch in which ranks claim the next free one. It does not know
// them before it claims them, nor how many there will be.
class claimed_steps {
public:
    claimed_steps() = default;
    claimed_steps(const claimed_steps&) = delete;
    claimed_steps& operator=(const claimed_steps&) = delete;
    virtual ~claimed_steps() = default;

    // The position of this rank's batch of that number in the epoch. It waits until it is claimed.
    // None at the end. Any thread calls it.
    virtual std::optional<std::uint64_t> position(std::uint64_t step) = 0;
    // The trainer has so many batches. One at the end knows that all ranks are told.
    virtual void returned(std::uint64_t steps, bool is_end) = 0;
    // All ranks together have had the samples before this position.
    virtual std::uint64_t samples_done() = 0;
};

}  // namespace hvd::inline v0::detail
