// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>

#include "home.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The events by which streams of all ranks meet. Each rank records its own event, tells the others
// on the host, and makes its stream wait for theirs. Two events take turns: one is recorded again
// after all have met by the other.
class ipc_events {
public:
    using pair = std::array<cudaEvent_t, 2>;
    struct offer {
        cudaIpcEventHandle_t handles[2];
        pair events;
    };

    ipc_events() = default;
    ipc_events(const ipc_events&) = delete;
    ipc_events& operator=(const ipc_events&) = delete;
    ~ipc_events() {
        const capture_relaxed relaxed;
        close();
        for (const cudaEvent_t event : own_)
            if (event != nullptr) cudaEventDestroy(event);
    }

    void create(int rank) {
        for (cudaEvent_t& event : own_)
            check_cuda(
                cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming),
                "cudaEventCreateWithFlags", rank);
    }

    offer exported(const std::vector<ipc_home>& homes, int rank) const {
        offer mine{};
        mine.events = own_;
        for (const ipc_home& home : homes) {
            if (home.shares_process_with(homes[std::size_t(rank)])) continue;
            for (std::size_t i = 0; i < 2; ++i)
                check_cuda(cudaIpcGetEventHandle(&mine.handles[i], own_[i]),
                           "cudaIpcGetEventHandle", rank);
            break;
        }
        return mine;
    }

    void open(const std::vector<offer>& offers, const std::vector<ipc_home>& homes, int rank) {
        for (std::size_t p = 0; p < offers.size(); ++p) {
            const bool foreign = !homes[p].shares_process_with(homes[std::size_t(rank)]);
            peers_.push_back({foreign ? pair{} : offers[p].events, foreign});
            for (std::size_t i = 0; foreign && i < 2; ++i)
                check_cuda(cudaIpcOpenEventHandle(&peers_.back().events[i], offers[p].handles[i]),
                           "cudaIpcOpenEventHandle", rank);
        }
    }

    void record(cudaStream_t stream, int rank) {
        turn_ = 1 - turn_;
        check_cuda(cudaEventRecord(own_[turn_], stream), "cudaEventRecord", rank);
    }

    // Makes the stream wait for the events of all others. The host knows that they are recorded.
    void make_wait(cudaStream_t stream, int rank) const {
        for (std::size_t p = 0; p < peers_.size(); ++p)
            if (int(p) != rank)
                check_cuda(cudaStreamWaitEvent(stream, peers_[p].events[turn_], 0),
                           "cudaStreamWaitEvent", rank);
    }

    void close() noexcept {
        for (const peer& p : peers_)
            for (const cudaEvent_t event : p.events)
                if (p.foreign && event != nullptr) cudaEventDestroy(event);
        peers_.clear();
    }

    void keep() noexcept {
        peers_.clear();
        own_ = {};
    }

private:
    struct peer {
        pair events;
        bool foreign;
    };

    pair own_{};
    std::vector<peer> peers_;
    std::size_t turn_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
