// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdint>
#include <utility>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../core/error.hpp"
#include "../core/lean/atomic.hpp"
#include "../platform/linux.hpp"
#include "../protocol/call_header.hpp"

namespace hvd::inline v0::detail {

// Tells whether this process is a fork of the one that made the guard, or the library under the
// communicator has ended. A look costs one load where the kernel wipes the page in the child, and a
// question for the process elsewhere.
class fork_guard {
public:
    fork_guard() : owner_(getpid()) {
        void* page =
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
        if (!wipe_in_children(page, 4096)) {
            munmap(page, 4096);
            return;
        }
        page_ = static_cast<volatile char*>(page);
        *page_ = usable;
    }

    fork_guard(const fork_guard&) = delete;
    fork_guard& operator=(const fork_guard&) = delete;

    ~fork_guard() {
        if (page_ != nullptr) munmap(const_cast<char*>(page_), 4096);
    }

    bool in_child() const { return page_ != nullptr ? *page_ == 0 : getpid() != owner_; }

    // From now on nothing is usable in this process.
    void end() noexcept {
        if (page_ != nullptr) *page_ = ended;
        has_ended_ = true;
    }
    bool is_usable() const {
        return page_ != nullptr ? *page_ == usable : getpid() == owner_ && !has_ended_;
    }

private:
    static constexpr char usable = 1, ended = 2;

    volatile char* page_ = nullptr;
    bool has_ended_ = false;
    pid_t owner_;
};

// Says which thread uses a communicator. One thread at a time does, and none from inside a call:
// the second would change the state of the call under way.
//
// A communicator is bound to the thread that makes its first call, until that thread hands it over.
// Threads that may come in any order between the calls, as those of OpenMP, would make the calls of
// the ranks cross: the ranks match calls by their order alone. Where a program orders the calls of
// its threads itself, they take turns.
class session_user {
public:
    // A thread is known by its address, whose lowest bits are 0.
    using id = std::uintptr_t;
    static constexpr id nobody = 0;
    // The thread is between the calls of an operation that consists of several.
    static constexpr id between_calls = 1;
    // No call is under way, and the communicator is bound to the thread.
    static constexpr id bound = 2;

    session_user(int rank, bool takes_turns) noexcept : rank_(rank) {
        if (takes_turns) take_turns();
    }

    // Before the first call.
    void take_turns() noexcept { binding_ = nobody; }

    // The thread that makes the next call takes the communicator.
    void hand_over() {
        take("hand_over");
        at_rest_ = nobody;
        give_back();
    }

    static id this_thread() noexcept {
#if __has_builtin(__builtin_thread_pointer)
        return id(__builtin_thread_pointer());  // one instruction
#else
        return id(pthread_self());
#endif
    }

    // Begins a call. `call` is a name, or a pointer to the header.
    template <class Call>
    void take(Call call) {
        const id me = this_thread();
        if (!word_.compare_exchange((me | bound) & binding_, me)) [[unlikely]]
            take_otherwise(call);
    }

    // Takes the communicator also if it is bound to another thread, as for its end. Returns false
    // if a call is under way.
    bool try_take() noexcept {
        const id now = word_.load(), me = this_thread();
        const bool is_free = now == nobody || (now & bound) != 0 || now == (me | between_calls);
        return is_free && word_.compare_exchange(now, me);
    }

    // Ends a call.
    void give_back() noexcept { word_.store(at_rest_); }

    // Begins an operation of several calls. Returns the value that `end_scope` gets.
    id begin_scope(const char* operation) {
        take(operation);
        const id before = std::exchange(at_rest_, this_thread() | between_calls);
        give_back();
        return before;
    }

    void end_scope(id before) noexcept {
        at_rest_ = before;
        give_back();
    }

    // True if this thread is inside a call.
    bool is_inside() const noexcept { return word_.load() == this_thread() || is_driver(); }

    // The progress thread makes the queued calls, and the user's thread may hold the communicator
    // meanwhile.
    void set_driver() noexcept { driver_.store(this_thread()); }
    bool is_driver() const noexcept { return driver_.load_relaxed() == this_thread(); }

    template <class Call>
    [[gnu::cold, noreturn]] void refuse(Call call, bool same_thread) const {
        throw usage_error(
            rank_,
            text("hvd: ", name_of(call), " on rank ", rank_,
                 same_thread
                     ? ": this communicator is inside another call, whose callable or "
                       "observer makes this one; code that a call runs makes no calls on its "
                       "communicator"
                 : (word_.load() & bound) != 0
                     ? ": this communicator is bound to another thread, which made calls on it; "
                       "that thread gives it away by hand_over(), threads whose calls the program "
                       "orders share one with .threads_take_turns, and hvd::engine takes tensors "
                       "from any thread"
                     : ": another thread is inside a call on this communicator; one thread "
                       "at a time makes calls on it"));
    }

private:
    template <class Call>
    [[gnu::cold, gnu::noinline]] void take_otherwise(Call call) {
        const id me = this_thread();
        if (word_.compare_exchange(me | between_calls, me)) return;
        if (!word_.compare_exchange(nobody, me)) refuse(call, is_inside());
        at_rest_ = (me | bound) & binding_;
    }

    static const char* name_of(const char* call) { return call; }
    static message name_of(const call_header* call) { return call->label(); }

    atomic<id> word_{nobody};
    id at_rest_ = nobody;  // the value between calls; the thread that holds the communicator has it
    id binding_ = ~nobody;  // the bits of a word at rest; none where threads take turns
    atomic<id> driver_{nobody};
    int rank_;
};

// Holds a communicator for one call. It throws hvd::usage_error, and changes nothing, if another
// thread is inside a call or if this call is made from inside another one.
class session_use {
public:
    // `call` is a name, or a pointer to the header.
    template <class Call>
    [[gnu::always_inline]] session_use(session_user& user, Call call) : user_(user) {
        user_.take(call);
    }
    // Ends a call that `try_take` has begun.
    explicit session_use(session_user& taken) : user_(taken) {}
    session_use(const session_use&) = delete;
    session_use& operator=(const session_use&) = delete;
    [[gnu::always_inline]] ~session_use() { user_.give_back(); }

private:
    session_user& user_;
};

// Holds a communicator for an operation of hvd that makes several calls, or that prepares one in
// the communicator's memory. The same thread may make calls meanwhile.
class session_scope {
public:
    session_scope(session_user& user, const char* operation)
        : user_(user), before_(user.begin_scope(operation)) {}
    session_scope(const session_scope&) = delete;
    session_scope& operator=(const session_scope&) = delete;
    ~session_scope() { user_.end_scope(before_); }

private:
    session_user& user_;
    session_user::id before_;
};

}  // namespace hvd::inline v0::detail
