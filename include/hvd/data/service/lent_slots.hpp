// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <memory>

#include "batch_arena.hpp"
#include "link.hpp"

namespace hvd::inline v0::detail {

// The slots that a trainer lends to one worker of its host. There is an arena as soon as a batch
// has shown how large batches are, and another one when they get larger or more are asked for. An
// older one goes when its last batch was taken. Without memory for it, and for a worker that can't
// open it, batches go by the connection.
class lent_slots {
public:
    explicit lent_slots(bool may_share = false) : may_share_(may_share) {}

    // True if the worker needs an arena, or another one, for the next requests.
    bool needs_arena(std::size_t credit) {
        if (!may_share_ || largest_ == 0) return false;
        if (arena_ && arena_->slot_bytes() >= largest_ && arena_->slots() >= wanted(credit))
            return false;
        const std::size_t room = shared_memory::whole_part(largest_ + largest_ / 4);
        arena_.reset();  // the older one, before there is a second
        arena_ = batch_arena::make(wanted(credit), room);
        may_share_ = arena_ != nullptr;
        return may_share_;
    }
    std::span<const std::byte> offer() const {
        return std::as_bytes(std::span(&arena_->offer(), 1));
    }

    // The slot of the next request: none if all are on loan.
    batch_arena::slot take() { return arena_ ? arena_->take() : batch_arena::slot(); }

    void came_by_connection(std::size_t bytes, const batch_arena::slot& slot) {
        if (bytes <= service_head::most_authenticated) return;
        largest_ = std::max(largest_, bytes);
        if (bytes > slot.capacity()) return;
        may_share_ = false;  // the worker could not open it
        arena_.reset();
    }

private:
    // One is being read while another is asked for, so there are more than open requests.
    std::size_t wanted(std::size_t credit) const {
        constexpr std::size_t most_bytes = std::size_t(1) << 30;
        const std::size_t most = std::max<std::size_t>(2, most_bytes / largest_);
        return std::min({credit + 2, most, std::size_t(most_arena_slots)});
    }

    bool may_share_;
    std::size_t largest_ = 0;  // batch that came by the connection
    std::shared_ptr<batch_arena> arena_;
};

}  // namespace hvd::inline v0::detail
