// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <utility>

#include "../core/error.hpp"
#include "../core/lean/atomic.hpp"
#include "../core/message_sink.hpp"

namespace hvd::inline v0::detail {

// The place of the one callback that an asynchronous call may have. The thread that completes the
// call and the one that gives the callback may come at the same time: the second of them runs it.
class completion_callback {
public:
    completion_callback() = default;
    completion_callback(const completion_callback&) = delete;
    completion_callback& operator=(const completion_callback&) = delete;
    ~completion_callback() {
        kept* const left = kept_.load();
        if (left != nullptr && left != over()) left->destroy(left);
    }

    enum class outcome { kept, run, is_second };

    // Keeps f until the call is complete, or runs it now. `failure` is there once it is complete.
    template <class F>
    outcome give(F f, const std::exception_ptr& failure) {
        auto* const made = new kept_function<F>(std::move(f));
        if (kept_.compare_exchange(nullptr, made)) return outcome::kept;
        const bool is_over = kept_.load() == over();
        if (is_over) made->run(made, failure);
        made->destroy(made);
        return is_over ? outcome::run : outcome::is_second;
    }

    // The call is complete. Returns true if it has run a callback, inside `around(run)`.
    template <class Around>
    bool complete(const std::exception_ptr& failure, Around around) noexcept {
        kept* const given = kept_.exchange(over());
        if (given == nullptr || given == over()) return false;
        around([&] { given->run(given, failure); });
        given->destroy(given);
        return true;
    }

    // Runs f, whose exceptions have nowhere else to go.
    template <class F>
    static void run(F& f, const std::exception_ptr& failure) noexcept {
        try {
            f(failure);
        } catch (...) {
            write_line(text_or(
                "hvd: the callback of a request threw",
                "hvd: the callback of a request threw: ", what_of(std::current_exception())));
        }
    }

private:
    struct kept {
        void (*run)(kept* self, const std::exception_ptr& failure) noexcept;
        void (*destroy)(kept* self) noexcept;
    };
    template <class F>
    struct kept_function : kept {
        F function;

        explicit kept_function(F&& f)
            : kept{[](kept* self, const std::exception_ptr& failure) noexcept {
                       completion_callback::run(static_cast<kept_function*>(self)->function,
                                                failure);
                   },
                   [](kept* self) noexcept { delete static_cast<kept_function*>(self); }},
              function(std::move(f)) {}
    };

    // Stands for all callbacks once the call is complete.
    static kept* over() noexcept {
        static kept mark{};
        return &mark;
    }

    atomic<kept*> kept_{nullptr};
};

}  // namespace hvd::inline v0::detail
