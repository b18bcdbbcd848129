// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "../../device/options.hpp"
#include "../../platform/clock.hpp"
#include "../../platform/cuda_memory.hpp"
#include "../../platform/thread.hpp"

namespace hvd::inline v0::detail {

// Memory for one batch: pinned, and on the device.
class device_slot {
public:
    device_slot() = default;
    device_slot(const device_slot&) = delete;
    device_slot& operator=(const device_slot&) = delete;
    // A thread that has calls under way does not wait for others' work: see open_calls, which free
    // the memory then.
    ~device_slot() {
        if (!open_calls::of_this_thread().none()) return;
        try {
            wait_for_copy();
            wait_for_readers();
        } catch (...) {  // CUDA has failed
        }
    }

    std::byte* pinned() const { return pinned_.data(); }
    std::byte* on_device() const { return on_device_.data(); }

    // Makes the memory ready to be written by the host. Batches of several sizes soon all fit.
    void prepare(std::size_t bytes) {
        wait_for_copy();
        if (bytes <= bytes_) return;
        wait_for_readers();
        const std::size_t room = bytes + bytes / 4;
        bytes_ = 0;
        pinned_ = {}, on_device_ = {};  // the old memory is free before there is more
        pinned_ = cuda_memory(cuda_memory::kind::pinned, room, no_rank);
        on_device_ = cuda_memory(cuda_memory::kind::device, room, no_rank);
        bytes_ = room;
    }

    // Enqueues the copy to the device, behind the readers of the last batch.
    void copy(std::size_t bytes, cudaStream_t stream) {
        for (const auto& used : used_) used.make_wait(stream, no_rank);
        copy_async(on_device(), pinned(), bytes, cudaMemcpyHostToDevice, stream, no_rank);
        try {
            copied_.record(stream, no_rank);
        } catch (...) {  // nobody could wait for the copy later
            const finish_before_leaving copy{stream};
            throw;
        }
    }
    const cuda_event& copied() const { return copied_; }

    // Marks the end of what these streams have read.
    void mark_readers(const std::vector<device_stream>& streams) {
        used_.resize(streams.size());
        for (std::size_t i = 0; i < streams.size(); ++i) used_[i].record(streams[i].get(), no_rank);
    }

    static constexpr int no_rank = -1;

private:
    static void wait_for(const cuda_event& event) {
        if (!event) return;
        for (backoff pauses(false); !event.reached(no_rank);) pauses.pause();
    }
    void wait_for_copy() const { wait_for(copied_); }
    void wait_for_readers() const {
        for (const auto& used : used_) wait_for(used);
    }

    std::size_t bytes_ = 0;
    cuda_memory pinned_, on_device_;
    cuda_event copied_;             // from the one to the other
    std::vector<cuda_event> used_;  // by the streams that read the last batch
};

// The slots of a data::to_device, and the stream that fills them. Batches hold it.
class device_slots {
public:
    device_slots() : device_(current()), stream_(device_slot::no_rank) {}

    int device() const { return device_; }
    cudaStream_t stream() const { return stream_.get(); }

    // Memory that nobody on the host uses any more. The device may read it.
    std::unique_ptr<device_slot> take() {
        const lock_guard held(mutex_);
        if (free_.empty()) return std::make_unique<device_slot>();
        std::unique_ptr<device_slot> slot = std::move(free_.front());  // its copy is the oldest
        free_.erase(free_.begin());
        return slot;
    }

    // Takes back the memory of a batch that these streams may still read.
    void give_back(std::unique_ptr<device_slot> slot, const std::vector<device_stream>& readers) {
        const current_device here(device_, device_slot::no_rank);
        // An event of a stream under capture would be a part of the graph.
        const bool is_captured = std::any_of(readers.begin(), readers.end(), [](auto& s) {
            return is_capturing(s.get(), device_slot::no_rank);
        });
        if (!is_captured) slot->mark_readers(readers);
        const lock_guard held(mutex_);
        (is_captured ? retired_ : free_).push_back(std::move(slot));
    }

private:
    static int current() {
        int device = 0;
        check_cuda(cudaGetDevice(&device), "cudaGetDevice", device_slot::no_rank);
        return device;
    }

    const int device_;
    cuda_stream stream_;
    mutex mutex_;
    std::vector<std::unique_ptr<device_slot>> free_;
    // Read by a stream that was captured meanwhile, so perhaps by a graph.
    std::vector<std::unique_ptr<device_slot>> retired_;
};

}  // namespace hvd::inline v0::detail
