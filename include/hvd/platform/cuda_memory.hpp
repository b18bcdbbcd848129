// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "../core/lean/atomic.hpp"
#include "cuda_api.hpp"

namespace hvd::inline v0::detail {

// The calls for whose end this thread is to ask, and the memory that it frees when there are none.
// CUDA's frees wait for all work of the device, and so for a rank that never comes, while the
// thread that would give that call up is inside the free. Other threads give up their own calls,
// and watchers those for which only streams wait: these are open until then.
class open_calls {
public:
    static open_calls& of_this_thread() {
        thread_local open_calls own;
        return own;
    }
    open_calls(const open_calls&) = delete;
    open_calls& operator=(const open_calls&) = delete;
    ~open_calls() { free_all(); }

    bool none() const noexcept { return count_->load() == 0; }

    // Frees memory of this device by `release`, at once or when no call is open any more.
    void free(void* memory, int device, void (*release)(void*)) noexcept {
        const grave dead{memory, device, release};
        free_if_none();
        if (none() || !bury(dead)) dead.open();
    }
    void free_if_none() noexcept {
        if (!graves_.empty() && none()) free_all();
    }
    // False if there is nothing to be freed.
    bool free_all() noexcept {
        std::vector<grave> opened;
        opened.swap(graves_);
        for (const grave& g : opened) g.open();
        return !opened.empty();
    }

private:
    friend class open_call;

    struct grave {
        void* memory;
        int device;
        void (*release)(void*);

        void open() const noexcept {
            const capture_relaxed relaxed;
            int current = device;
            const bool elsewhere = cudaGetDevice(&current) == cudaSuccess && current != device;
            if (elsewhere) cudaSetDevice(device);
            release(memory);
            if (elsewhere) cudaSetDevice(current);
        }
    };

    open_calls() = default;

    // False without memory for it.
    bool bury(const grave& dead) noexcept {
        try {
            graves_.push_back(dead);
            return true;
        } catch (...) {
            return false;
        }
    }

    // A request that another thread ends outlives this one.
    std::shared_ptr<atomic<int>> count_ = std::make_shared<atomic<int>>(0);
    std::vector<grave> graves_;
};

// Held by a request until the host knows that its call is over.
class open_call {
public:
    open_call() = default;
    static open_call begun() {
        open_call made;
        made.count_ = open_calls::of_this_thread().count_;
        made.count_->add(1);
        return made;
    }
    open_call(open_call&&) noexcept = default;
    open_call& operator=(open_call&& other) noexcept {
        end();
        count_ = std::move(other.count_);
        return *this;
    }
    ~open_call() { end(); }

    void end() noexcept {
        if (count_ == nullptr) return;
        count_->add(-1);
        count_ = nullptr;
        open_calls::of_this_thread().free_if_none();
    }

private:
    std::shared_ptr<atomic<int>> count_;
};

// Device memory or pinned host memory that is freed with its owner, or later: see open_calls. It is
// empty after a move.
class cuda_memory {
public:
    enum class kind { device, pinned };

    cuda_memory() = default;
    cuda_memory(kind where, std::size_t bytes, int rank) : kind_(where) {
        if (bytes == 0) return;
        const capture_relaxed relaxed;
        check_cuda(cudaGetDevice(&device_), "cudaGetDevice", rank);
        void* memory = nullptr;
        cudaError_t made = allocate(&memory, bytes);
        if (made == cudaErrorMemoryAllocation && open_calls::of_this_thread().free_all()) {
            cudaGetLastError();
            made = allocate(&memory, bytes);
        }
        check_cuda(made, where == kind::device ? "cudaMalloc" : "cudaHostAlloc", rank);
        data_ = static_cast<std::byte*>(memory);
        bytes_ = bytes;
    }
    cuda_memory(cuda_memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          device_(other.device_),
          kind_(other.kind_) {}
    cuda_memory& operator=(cuda_memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(device_, other.device_);
        std::swap(kind_, other.kind_);
        return *this;
    }
    ~cuda_memory() {
        if (data_ != nullptr)
            open_calls::of_this_thread().free(data_, device_,
                                              kind_ == kind::device ? free_device : free_pinned);
    }

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return bytes_; }

private:
    static void free_device(void* memory) { cudaFree(memory); }
    static void free_pinned(void* memory) { cudaFreeHost(memory); }

    cudaError_t allocate(void** memory, std::size_t bytes) const {
        return kind_ == kind::device ? cudaMalloc(memory, bytes)
                                     : cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
    }

    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    int device_ = 0;
    kind kind_ = kind::device;
};

}  // namespace hvd::inline v0::detail
