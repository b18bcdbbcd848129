// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>

#include "../session.hpp"

namespace hvd::inline v0::detail {

// The bytes of one tensor in device memory, and their place in a chunk of host memory.
struct staged_part {
    const std::byte* device;
    std::size_t at;
    std::size_t bytes;
};

// Three chunks of pinned memory between a GPU and the host. One is copied down, one is worked on,
// and one is copied up. Each direction has its own stream, so that both halves of the bus are used.
class staging {
public:
    explicit staging(int rank) : rank_(rank), down_(rank), up_(rank) {}

    // Calls `step(round, chunk)` for each round. Before it, `parts_down(round)` is copied to the
    // chunk, and after it `parts_up(round)` from the chunk. Each lists parts with `add(part)`. Work
    // of `stream` comes before and after.
    template <class Down, class Step, class Up>
    void run(std::size_t rounds, std::size_t chunk_bytes, cudaStream_t stream, Down&& parts_down,
             Step&& step, Up&& parts_up) {
        reserve(chunk_bytes);
        cuda_event(stream, rank_).make_wait(down_.get(), rank_);
        cuda_event(stream, rank_).make_wait(up_.get(), rank_);
        for (std::size_t round = 0; round < rounds; ++round) {
            if (round == 0) bring_down(0, parts_down);
            if (round + 1 < rounds) bring_down(round + 1, parts_down);
            chunk& c = chunks_[round % chunks_.size()];
            reach(c.filled);
            step(round, c.memory.data());
            parts_up(round, [&](const staged_part& p) {
                copy_async(const_cast<std::byte*>(p.device), c.memory.data() + p.at, p.bytes,
                           cudaMemcpyHostToDevice, up_.get(), rank_);
            });
            c.free = cuda_event(up_.get(), rank_);
        }
        cuda_event(up_.get(), rank_).make_wait(stream, rank_);
    }

    // Waits until the copies that are under way are done. The chunks may be used, or freed, then.
    void finish() noexcept {
        const capture_relaxed relaxed;
        cudaStreamSynchronize(down_.get());
        cudaStreamSynchronize(up_.get());
    }

private:
    struct chunk {
        cuda_memory memory;
        cuda_event filled, free;
    };

    template <class Down>
    void bring_down(std::size_t round, Down& parts) {
        chunk& c = chunks_[round % chunks_.size()];
        if (c.free) c.free.make_wait(down_.get(), rank_);
        parts(round, [&](const staged_part& p) {
            copy_async(c.memory.data() + p.at, p.device, p.bytes, cudaMemcpyDeviceToHost,
                       down_.get(), rank_);
        });
        c.filled = cuda_event(down_.get(), rank_);
    }

    void reserve(std::size_t bytes) {
        for (chunk& c : chunks_) {
            if (c.memory.size() >= bytes) continue;
            if (c.free) reach(c.free);
            c.memory = {};
            c.memory = cuda_memory(cuda_memory::kind::pinned, bytes, rank_);
        }
    }

    void reach(const cuda_event& event) const {
        backoff pauses(false);
        while (!event.reached(rank_)) pauses.pause();
    }

    int rank_;
    cuda_stream down_, up_;
    std::array<chunk, 3> chunks_;
};

}  // namespace hvd::inline v0::detail
