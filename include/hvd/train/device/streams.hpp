// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <vector>

#include "../../device/ranks.hpp"

namespace hvd::inline v0::detail {

// Makes later work of `after` wait for what `before` has been given. The event may serve again at
// once, also while the streams are captured.
inline void order_streams(cudaStream_t before, cudaStream_t after, cuda_event& event, int rank) {
    if (before == after) return;
    event.record(before, rank);
    event.make_wait(after, rank);
}

// Refuses work that needs the host, on a stream that is being captured into a graph.
inline void refuse_capture(device_session& session, cudaStream_t stream, std::string_view what,
                           std::string_view advice = {}) {
    const current_device here(session.device(), session.rank());
    if (is_capturing(stream, session.rank()))
        throw usage_error(session.rank(),
                          text("hvd: ", what, " on rank ", session.rank(),
                               " needs the host and can't be captured into a CUDA graph", advice));
}

// A plan that runs on the communicator's own stream, behind some streams and before others. It may
// be captured into a graph, whose later launches then keep that order.
class ordered_plan {
public:
    ordered_plan() = default;
    ordered_plan(std::shared_ptr<device_session> session, device_plan plan)
        : session_(std::move(session)), plan_(std::move(plan)) {}

    explicit operator bool() const { return bool(plan_); }

    void begin_epoch(std::uint64_t epoch) { plan_.begin_epoch(epoch); }

    // Orders the next run behind what the stream has been given so far.
    void follow(cudaStream_t stream) {
        const current_device here(session_->device(), session_->rank());
        require_no_capture(stream);
        session_->guarded(
            [&] { order_streams(stream, session_->own_stream(), edge_, session_->rank()); });
    }

    // Begins a run behind what the streams have been given, and behind `prepare(own stream)`.
    void start(std::span<const cudaStream_t> before) {
        start(before, [](cudaStream_t) {});
    }
    template <class F>
    void start(std::span<const cudaStream_t> before, F prepare) {
        const current_device here(session_->device(), session_->rank());
        const cudaStream_t own = session_->own_stream();
        for (const cudaStream_t s : before) require_no_capture(s);
        session_->guarded([&] {
            for (const cudaStream_t s : before) order_streams(s, own, edge_, session_->rank());
            prepare(own);
        });
        running_ = plan_.run_async(own);
        // A captured run has no request.
        if (!running_) session_->guarded([&] { edge_.record(own, session_->rank()); });
    }

    // Makes later work of `stream` wait for the run.
    void finish(cudaStream_t stream) {
        if (running_) running_.wait(stream);
        else session_->guarded([&] { edge_.make_wait(stream, session_->rank()); });
    }

private:
    // The own stream must not become part of a capture that the plan then refuses.
    void require_no_capture(cudaStream_t stream) const {
        if (const char* const who = session_->obstacle_to_capture())
            refuse_capture(*session_, stream, who);
    }

    std::shared_ptr<device_session> session_;
    device_plan plan_;
    cuda_event edge_;
    device_request running_;
};

// Points in the work of streams, for which another one waits later.
class later_streams {
public:
    explicit later_streams(device_session& session) : session_(session) {}

    // Adds what the stream has been given so far.
    void add(cudaStream_t stream) {
        const current_device here(session_.device(), session_.rank());
        if (used_ == points_.size()) points_.emplace_back();
        session_.guarded([&] { points_[used_].record(stream, session_.rank()); });
        ++used_;
    }
    void make_wait(cudaStream_t stream) {
        const current_device here(session_.device(), session_.rank());
        for (std::size_t i = 0; i < used_; ++i)
            session_.guarded([&] { points_[i].make_wait(stream, session_.rank()); });
        clear();
    }
    void clear() { used_ = 0; }

private:
    device_session& session_;
    std::vector<cuda_event> points_;
    std::size_t used_ = 0;
};

// Runs `begin(own stream)` of a communicator behind what `stream` has been given, and makes later
// work of `stream` wait for it, unless `begin` throws.
template <class F>
void run_between(device_session& session, cudaStream_t stream, F begin) {
    refuse_capture(session, stream, "distributed_gradients");
    const current_device here(session.device(), session.rank());
    const cudaStream_t own = session.own_stream();
    cuda_event event;
    session.guarded([&] { order_streams(stream, own, event, session.rank()); });
    begin(own).wait(stream);
}

}  // namespace hvd::inline v0::detail
