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

// Memory that is freed later.
struct cuda_grave {
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

// The memory of threads that have ended before their calls. Another thread frees it once these are
// over.
class left_graves {
public:
    static left_graves& of_process() {
        static left_graves* const all = new left_graves;  // it outlives every static object
        return *all;
    }

    void take(const std::shared_ptr<atomic<int>>& calls,
              const std::vector<cuda_grave>& graves) noexcept {
        try {
            const lock_guard lock(mutex_);
            for (const cuda_grave& dead : graves) left_.push_back({calls, dead});
            exist_.store(!left_.empty());
        } catch (...) {  // without memory for it nobody frees them
        }
    }
    void open() noexcept {
        for (left next; exist_.load() && take_one(next);) next.dead.open();
    }

private:
    struct left {
        std::shared_ptr<atomic<int>> calls;
        cuda_grave dead;
    };

    left_graves() = default;

    // False if none is free.
    bool take_one(left& taken) noexcept {
        const lock_guard lock(mutex_);
        for (auto at = left_.begin(); at != left_.end(); ++at) {
            if (at->calls->load() > 0) continue;
            taken = std::move(*at);
            left_.erase(at);
            exist_.store(!left_.empty());
            return true;
        }
        return false;
    }

    mutex mutex_;
    std::vector<left> left_;
    atomic<bool> exist_ = false;
};

// The calls for whose end this thread is to ask, and the memory that it frees when there are none.
// CUDA's frees wait for all work of the device, and so for a rank that never comes, while the
// thread that would give that call up is inside the free. Other threads give up their own calls,
// and watchers those for which only streams wait: these are open until then.
class open_calls {
public:
    static open_calls& of_this_thread() {
        if (has_ended) return of_ended_threads();
        thread_local open_calls own;
        return own;
    }
    open_calls(const open_calls&) = delete;
    open_calls& operator=(const open_calls&) = delete;
    // Another thread may have the requests, and wait for this one.
    ~open_calls() {
        has_ended = true;
        if (none()) free_all();
        else left_graves::of_process().take(count_, graves_);
    }

    bool none() const noexcept { return count_->load() == 0; }

    // Frees memory of this device by `release`, at once or when no call is open any more.
    void free(void* memory, int device, void (*release)(void*)) noexcept {
        const cuda_grave dead{memory, device, release};
        free_if_none();
        if (none() || !bury(dead)) dead.open();
    }
    void free_if_none() noexcept {
        if (!none()) return;
        if (!graves_.empty()) free_all();
        if (!is_hvd_thread) left_graves::of_process().open();
    }
    // False if there is nothing to be freed.
    bool free_all() noexcept {
        std::vector<cuda_grave> opened;
        opened.swap(graves_);
        for (const cuda_grave& g : opened) g.open();
        return !opened.empty();
    }

private:
    friend class open_call;

    open_calls() = default;

    // Objects that end after those of their thread, such as static ones, have no calls.
    static inline constinit thread_local bool has_ended = false;
    static open_calls& of_ended_threads() {
        static open_calls* const all = new open_calls;
        return *all;
    }

    // False without memory for it.
    bool bury(const cuda_grave& dead) noexcept {
        try {
            if (!has_ended) graves_.push_back(dead);
            return !has_ended;
        } catch (...) {
            return false;
        }
    }

    // A request that another thread ends outlives this one.
    std::shared_ptr<atomic<int>> count_ = std::make_shared<atomic<int>>(0);
    std::vector<cuda_grave> graves_;
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
