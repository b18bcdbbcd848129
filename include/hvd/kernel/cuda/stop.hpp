// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <memory>

#include "../../platform/cuda_memory.hpp"
#include "../host_device.hpp"

namespace hvd::inline v0::detail {

// A word of pinned memory that the host sets, for good, when it ends the collectives under way.
// The launches behind them would read results that never came.
class stop_word {
public:
    explicit stop_word(int rank) : memory_(cuda_memory::kind::pinned, sizeof(std::uint32_t), rank) {
        __atomic_store_n(word(), 0u, __ATOMIC_SEQ_CST);
    }

    void set() noexcept { __atomic_store_n(word(), 1u, __ATOMIC_SEQ_CST); }
    std::uint32_t* word() const noexcept {
        return reinterpret_cast<std::uint32_t*>(memory_.data());
    }

private:
    cuda_memory memory_;
};

// Leaves launches out that come behind collectives which were ended. They read a copy of the word
// in device memory, so that all blocks of a launch, and all launches behind one look, decide alike.
class launch_stop {
public:
    // The device is current.
    explicit launch_stop(int rank)
        : word_(std::make_shared<stop_word>(rank)),
          seen_(cuda_memory::kind::device, sizeof(std::uint32_t), rank) {}

    const std::shared_ptr<stop_word>& word() const { return word_; }

    // Looks at the word when the stream comes to it, and returns the copy for later launches.
    const std::uint32_t* look(cudaStream_t stream, int rank) const {
        copy_async(seen_.data(), word_->word(), seen_.size(), cudaMemcpyHostToDevice, stream, rank);
        return reinterpret_cast<const std::uint32_t*>(seen_.data());
    }

private:
    std::shared_ptr<stop_word> word_;
    cuda_memory seen_;
};

}  // namespace hvd::inline v0::detail
