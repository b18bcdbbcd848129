// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "clock.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Memory for coroutine frames: one collective runs at a time on a communicator and its frames nest,
// so that a stack serves them without allocating.
class frame_stack {
public:
    void* push(std::size_t bytes) {
        bytes = rounded(bytes);
        if (bytes > sizeof store_ - used_) return ::operator new(bytes);
        void* frame = store_ + used_;
        used_ += bytes;
        return frame;
    }

    void pop(void* frame, std::size_t bytes) {
        std::byte* const at = static_cast<std::byte*>(frame);
        if (at < store_ || at >= store_ + sizeof store_) ::operator delete(frame);
        else used_ -= rounded(bytes);
    }

private:
    static std::size_t rounded(std::size_t bytes) { return (bytes + 15) & ~std::size_t(15); }

    alignas(16) std::byte store_[8192];
    std::size_t used_ = 0;
};

enum class verdict { ready, expired, hopeless };

// What a suspended collective waits for, and the frames it is made of. A collective is written once,
// as a coroutine that awaits conditions; who drives it decides how to wait.
struct driver {
    frame_stack frames;
    std::coroutine_handle<> leaf;
    bool (*ready)(void*) = nullptr;
    bool (*hopeless)(void*) = nullptr;
    void* context = nullptr;
    detail::verdict verdict = verdict::ready;
    bool lost = false;  // a peer or the link is: nothing more can be agreed on
    std::atomic<std::int64_t> stop{std::numeric_limits<std::int64_t>::max()};  // whatever the deadline
};

// co_await until{…}: resumes when ready() says so, or when the driver gives up.
struct until {
    detail::driver& driver;
    bool (*ready)(void*);
    bool (*hopeless)(void*);
    void* context;

    bool await_ready() const { return ready(context); }

    void await_suspend(std::coroutine_handle<> handle) const {
        driver.leaf = handle;
        driver.ready = ready;
        driver.hopeless = hopeless;
        driver.context = context;
    }

    detail::verdict await_resume() const { return std::exchange(driver.verdict, verdict::ready); }
};

// A coroutine without a value whose first parameter has driver(); runs when awaited or started.
class [[nodiscard]] task {
public:
    struct promise_type {
        std::coroutine_handle<> caller;
        std::exception_ptr failure;

        task get_return_object() { return task(handle_type::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }

        auto final_suspend() noexcept {
            struct back_to_caller {
                bool await_ready() noexcept { return false; }
                std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
                    return h.promise().caller ? h.promise().caller : std::noop_coroutine();
                }
                void await_resume() noexcept {}
            };
            return back_to_caller{};
        }

        void return_void() {}
        void unhandled_exception() { failure = std::current_exception(); }

        template <class First, class... Rest>
        static void* operator new(std::size_t bytes, First& first, Rest&...) {
            frame_stack& frames = first.driver().frames;
            auto* frame = static_cast<std::byte*>(frames.push(bytes + header));
            ::new (frame) frame_stack*(&frames);
            return frame + header;
        }

        static void operator delete(void* memory, std::size_t bytes) {
            std::byte* frame = static_cast<std::byte*>(memory) - header;
            (*reinterpret_cast<frame_stack**>(frame))->pop(frame, bytes + header);
        }

        static constexpr std::size_t header = 16;
    };

    using handle_type = std::coroutine_handle<promise_type>;

    explicit task(handle_type handle) : handle_(handle) {}
    task(task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
    task& operator=(task&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~task() {
        if (handle_) handle_.destroy();
    }

    void start() { handle_.resume(); }
    bool done() const { return handle_.done(); }
    const std::exception_ptr& failure() const { return handle_.promise().failure; }

    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) noexcept {
        handle_.promise().caller = caller;
        return handle_;
    }
    void await_resume() const {
        if (failure()) std::rethrow_exception(failure());
    }

private:
    handle_type handle_;
};

// Looks once, and goes on as far as it can: for test().
inline bool advance(driver& driver, const task& work) {
    while (!work.done() && driver.ready(driver.context)) driver.leaf.resume();
    return work.done();
}

// Goes on to the end; after `deadline` the collective is told that it is late.
inline void drive_on(driver& driver, const task& work, bool may_spin, time_point deadline) {
    while (!work.done()) {
        backoff wait(may_spin);
        while (!driver.ready(driver.context)) {
            if (!wait.pause()) continue;
            const time_point time = now();
            if (driver.hopeless(driver.context)) driver.verdict = verdict::hopeless;
            else if (time > deadline || time.time_since_epoch().count() > driver.stop.load(std::memory_order_relaxed))
                driver.verdict = verdict::expired;
            if (driver.verdict != verdict::ready) break;
        }
        driver.leaf.resume();
    }
}

inline void drive(driver& driver, task& work, bool may_spin, time_point deadline) {
    work.start();
    drive_on(driver, work, may_spin, deadline);
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
