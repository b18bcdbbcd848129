// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "layout.hpp"
#include "request.hpp"

namespace hvd::inline v0 {
namespace detail {

template <class Comm, class B>
class device_plans;

}  // namespace detail

/// A collective of device tensors that is laid out and agreed on once, and runs at every step. A
/// run has a launch that packs the small tensors, the calls for them and for the large ones in one
/// group, and a launch that unpacks.
///
/// A run allocates and agrees on nothing.
/// **Buffers**: the tensors outlive the plan, at the same places. A run comes after what its stream
/// has been given.
/// The plan is movable, and empty after a move. It keeps the parts of its communicator alive that
/// it needs, and a request those of the plan. It outlives work that only a stream waits for
/// (`wait(stream)`). On `communicator<nccl>` a run on a stream that is being captured becomes a
/// part of the CUDA graph. All ranks capture it, and launch the graph equally often. The plan
/// outlives the graphs that captured it.
/// **Threads**: the communicator's rule.
/// @snippet tests/device/snippets.cpp device_plan
class [[nodiscard("hvd: a plan does nothing until it is run")]] device_plan {
public:
    device_plan() = default;
    device_plan(device_plan&&) noexcept = default;
    device_plan& operator=(device_plan&&) noexcept = default;

    /// True if there is something to run.
    explicit operator bool() const noexcept { return calls_ != nullptr; }

    /// The bytes that the plan packs. 0: its tensors are not copied.
    std::size_t packed_bytes() const noexcept {
        return calls_ == nullptr ? 0 : calls_->buffer_bytes;
    }

    /// The next runs belong to this epoch of a training. Ranks compare it where they compare calls,
    /// which `nccl` does not. If they differ, all get mismatch_error, which names the epochs. Call
    /// it between runs, on all ranks.
    /// @throws hvd::usage_error if empty.
    void begin_epoch(std::uint64_t epoch) {
        if (calls_ == nullptr) throw usage_error(-1, "hvd: this plan is empty");
        for (detail::collective_call& call : calls_->calls)
            detail::enter_epoch(call.entry, epoch, calls_->name);
    }

    /// Runs the collective on `stream`. If none is given, it comes after what the default streams
    /// have been given, and runs on the communicator's own stream. **Collective**:
    /// all ranks run the plans of a communicator in one order.
    /// @throws hvd::usage_error if empty, and as the collective does.
    void run(device_stream stream = {}) { run_async(stream).wait(); }

    /// Begins a run, which is complete when the request is. It is not begun again before that,
    /// except on the same stream.
    device_request run_async(device_stream stream = {}) {
        if (calls_ == nullptr) throw usage_error(-1, "hvd: this plan is empty");
        detail::device_session& s = *session_;
        const char* const label = calls_->label.c_str();
        s.refuse_if_broken(label);
        const detail::device_session::inside turn(s);
        const detail::current_device here(s.device(), s.rank());
        const bool captured = s.is_captured(stream);
        if (const char* const who = s.obstacle_to_capture(); captured && who != nullptr)
            throw usage_error(s.rank(), detail::text("hvd: ", label, " on rank ", s.rank(), ": ",
                                                     who, " needs the host at each run and can't ",
                                                     "be captured into a CUDA graph"));
        const detail::time_point limit = s.limit_for(calls_->timeout);
        const cudaStream_t where = s.enter(stream);
        s.guarded([&] {
            detail::launch_tiles_of(calls_->first_tile(), calls_->before, where, s.rank());
        });
        s.enqueue(calls_->calls, label, where, limit);
        s.guarded([&] {
            detail::launch_tiles_of(calls_->first_tile() + calls_->before, calls_->after, where,
                                    s.rank());
        });
        s.leave(stream);
        if (captured) return {};
        return {session_, s.mark(where), label, limit, calls_};
    }

private:
    template <class, class>
    friend class detail::device_plans;

    device_plan(std::shared_ptr<detail::device_session> session,
                std::shared_ptr<detail::planned_calls> calls)
        : session_(std::move(session)), calls_(std::move(calls)) {}

    std::shared_ptr<detail::device_session> session_;
    std::shared_ptr<detail::planned_calls> calls_;
};

}  // namespace hvd::inline v0
