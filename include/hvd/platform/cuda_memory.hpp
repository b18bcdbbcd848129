// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "../core/lean/atomic.hpp"
#include "../core/tuning.hpp"
#include "clock.hpp"
#include "cuda_api.hpp"
#include "thread.hpp"

namespace hvd::inline v0::detail {

// The calls of this process for which GPUs wait, of all its communicators, and the memory that is
// freed when there are none. CUDA's frees wait for all work of the device, and so for a rank that
// never comes, while the thread that would give that call up is inside the free.
class device_calls {
public:
    static device_calls& of_process() {
        static device_calls* const all = new device_calls;  // it outlives every static object
        return *all;
    }

    // A call for whose end the host asks is under way between the two.
    void begin() noexcept { open_.add(1); }
    void end() noexcept {
        open_.add(-1);
        if (has_graves_.load()) free_buried();
    }

    // A watcher knows of the calls for which only streams wait.
    void add(void* watcher, bool (*is_idle)(void*)) {
        const lock_guard lock(mutex_);
        watchers_.push_back({watcher, is_idle});
    }
    void remove(void* watcher) noexcept {
        {
            const lock_guard lock(mutex_);
            std::erase_if(watchers_, [&](const watched& w) { return w.watcher == watcher; });
        }
        if (has_graves_.load()) free_buried();
    }

    bool none() noexcept {
        const lock_guard lock(mutex_);
        return is_quiet();
    }

    // Frees memory of this device by `release`, at once or when no call is under way any more.
    void free(void* memory, int device, void (*release)(void*)) noexcept {
        const grave now{memory, device, release};
        if (!bury(now)) return now.open();
        free_buried();
    }

    // Waits for the end of all calls, if there is memory to be freed then. False if there is none.
    bool free_until(time_point limit) noexcept {
        if (!has_graves_.load()) return false;
        while (!none() && now() < limit) sleep_for(tuning::check_interval);
        free_buried();
        return !has_graves_.load();
    }

private:
    struct watched {
        void* watcher;
        bool (*is_idle)(void*);
    };
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

    device_calls() = default;

    // With the lock held. A watcher that can't tell has lost its device.
    bool is_quiet() const noexcept {
        if (open_.load() > 0) return false;
        for (const watched& w : watchers_) {
            try {
                if (!w.is_idle(w.watcher)) return false;
            } catch (...) {
            }
        }
        return true;
    }

    // False without memory for it.
    bool bury(const grave& g) noexcept {
        try {
            const lock_guard lock(mutex_);
            graves_.push_back(g);
            has_graves_.store(true);
            return true;
        } catch (...) {
            return false;
        }
    }

    void free_buried() noexcept {
        std::vector<grave> opened;
        {
            const lock_guard lock(mutex_);
            if (graves_.empty() || !is_quiet()) return;
            opened.swap(graves_);
            has_graves_.store(false);
        }
        for (const grave& g : opened) g.open();
    }

    mutex mutex_;  // guards the vectors
    std::vector<watched> watchers_;
    std::vector<grave> graves_;
    atomic<bool> has_graves_ = false;
    atomic<int> open_ = 0;
};

// Held by a request until the host knows that its call is over.
class device_call_under_way {
public:
    device_call_under_way() = default;
    explicit device_call_under_way(bool begins) noexcept : counts_(begins) {
        if (counts_) device_calls::of_process().begin();
    }
    device_call_under_way(device_call_under_way&& other) noexcept
        : counts_(std::exchange(other.counts_, false)) {}
    device_call_under_way& operator=(device_call_under_way&& other) noexcept {
        end();
        counts_ = std::exchange(other.counts_, false);
        return *this;
    }
    ~device_call_under_way() { end(); }

    void end() noexcept {
        if (std::exchange(counts_, false)) device_calls::of_process().end();
    }

private:
    bool counts_ = false;
};

// Device memory or pinned host memory that is freed with its owner, or later: see device_calls. It
// is empty after a move.
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
        if (made == cudaErrorMemoryAllocation &&
            device_calls::of_process().free_until(now() + tuning::destructor_timeout)) {
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
            device_calls::of_process().free(data_, device_,
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
