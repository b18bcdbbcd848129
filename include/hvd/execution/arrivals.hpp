// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <utility>
#include <vector>

#include "../observe/lateness.hpp"
#include "../observe/observer.hpp"
#include "../platform/clock.hpp"
#include "../transport/operation.hpp"

namespace hvd::inline v0::detail {

// Who comes last to the calls of a communicator, where an observer wants to know. The header of a
// call tells how long its rank was in the call before. So all ranks know it of all, and need no
// common clock.
class arrivals {
public:
    explicit arrivals(int size) : times_(std::size_t(size)) {}

    // This rank has been ready for the call that begins next since that time.
    void set_ready(time_point time) noexcept { ready_ = time; }

    // A call begins: it tells of the one before. An agreement may come before the call that this
    // rank is ready for, and is none of those that count.
    void begin(operation& op, time_point time) {
        op.entry.took = took_.bits;
        if (!op.only_agree) since_ = ready_ != 0 ? std::exchange(ready_, 0) : time;
    }

    // A call ends. Returns the times of all ranks in the call before, null if one does not tell.
    const std::int64_t* end(const call_header* const* headers) {
        if (took_.bits == 0) return nullptr;
        for (std::size_t r = 0; r < times_.size(); ++r)
            if ((times_[r] = short_span{headers[r]->took}.nanoseconds()) == 0) return nullptr;
        late_.add(name_, times_.data(), int(times_.size()));
        return times_.data();
    }
    // Afterwards: the next call tells of this one.
    void keep(const operation& op, time_point time) {
        const bool counts = all_wait_for_all(op.entry.kind) && !op.only_agree;
        took_ = counts ? short_span::of(time - since_) : short_span();
        kind_ = op.entry.kind;
        id_ = op.entry.id;
        bytes_ = std::size_t(op.entry.count) * op.element_bytes;
        store(name_, op.entry.name);
    }
    // The call has failed.
    void forget() noexcept { took_ = {}; }

    // The call before, for an observer.
    event describe(int rank, time_point time) const {
        return {name_of(kind_), name_, id_, bytes_, rank, int(times_.size()), time};
    }
    const lateness& late() const noexcept { return late_; }

private:
    time_point ready_ = 0, since_ = 0;
    short_span took_;
    collective kind_ = collective::barrier;
    dtype id_ = dtype::byte;
    std::size_t bytes_ = 0;
    char name_[sizeof call_header::name] = "";
    std::vector<std::int64_t> times_;  // by rank
    lateness late_;
};

}  // namespace hvd::inline v0::detail
