// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../backend/threads.hpp"
#include "../execution/session_user.hpp"
#include "communicator.hpp"

namespace hvd::inline v0 {

/// Makes the threads that a program started itself ranks: each gets the communicator of its rank.
///
/// The group only makes communicators; `run_threads` also starts the threads and joins them. It may
/// be destroyed before its communicators. A rank that has not asked for its communicator by then
/// has left, and calls of the others that need it throw `hvd::peer_error`. Not movable.
/// **Threads**: any thread may call every member, also several at once. Make the group in a thread
/// that may run on all the processors that its ranks use. Ranks that outnumber these do not
/// spin while they wait. Horovod: `horovod.run`.
/// @throws hvd::usage_error if `ranks` < 1; std::bad_alloc without memory for them.
/// @snippet tests/docs/snippets.cpp thread_group
class [[nodiscard("hvd: its threads end with it")]] thread_group {
public:
    [[nodiscard("hvd: its threads end with it")]]
    explicit thread_group(int ranks, const communicator_options& options = {})
        : options_(options), members_(checked_number(ranks)) {
        open_.at(1, 0, members_.size(), [this] { return make_hub(); });
        detail::tell_unread_variables(0);
    }

    thread_group(const thread_group&) = delete;
    thread_group& operator=(const thread_group&) = delete;

    ~thread_group() {
        if (fork_.in_child()) return;
        for (const auto& awaited : open_)
            for (int rank = 0; rank < size(); ++rank)
                if (member_of(rank).communicators < awaited.context)
                    awaited.hub->region().leave(
                        rank, "its thread_group was destroyed before the rank came");
    }

    /// The number of ranks.
    int size() const noexcept { return int(members_.size()); }

    /// Returns the communicator of `rank`. It does not wait for the other ranks; calls on the
    /// communicator do, up to their timeout. The communicator may be moved to another thread.
    ///
    /// A rank whose communicator has ended, or was given up after an error, may ask again. The n-th
    /// communicators of all ranks belong together. All ranks of one communicator name the same
    /// `Backend`.
    /// @tparam Backend `threads`, or a policy around it: `checked<threads>`
    /// @throws hvd::usage_error for a number that is no rank, for a rank whose communicator still
    /// lives or that left the group, and in a forked child.
    template <class Backend = threads>
        requires std::is_same_v<typename Backend::endpoint_type, detail::threads_endpoint>
    hvd::communicator<Backend> communicator(int rank) {
        const auto hub = join(rank);
        try {
            return hvd::communicator<Backend>(
                detail::owner<detail::threads_endpoint>::make(hub, rank), options_);
        } catch (...) {
            hub->region().leave(rank, "its communicator could not be made");
            throw;
        }
    }

    /// Reports that `rank` will not come any more, and why. Calls of the others that need it throw
    /// `hvd::peer_error` with the reason, on the rank's communicator and on all later ones.
    /// **Threads**: the rank's own thread calls it, or any thread if it has none.
    /// @throws hvd::usage_error for a number that is no rank.
    void leave(int rank, std::string_view reason) {
        check_rank(rank, "leave");
        const detail::lock_guard lock(mutex_);
        member& gone = member_of(rank);
        if (gone.has_left) return;
        gone.farewell = detail::text_or(detail::no_memory_for_text, reason);
        gone.has_left = true;
        if (gone.hub) gone.hub->region().leave(rank, reason);
        for (const auto& awaited : open_) awaited.hub->region().leave(rank, reason);
    }

private:
    struct member {
        int communicators = 0;  // the number of communicators that it has asked for
        detail::shared<detail::threads_hub> hub;  // the hub of the last one
        detail::message farewell;
        bool has_left = false;
    };

    static std::size_t checked_number(int ranks) {
        if (ranks < 1)
            throw usage_error(-1, detail::text("hvd: threads as ranks: there must be at least one "
                                               "rank, not ",
                                               ranks));
        return std::size_t(ranks);
    }

    void check_rank(int rank, std::string_view function) const {
        if (fork_.in_child())
            throw usage_error(rank, detail::text("hvd: thread_group::", function,
                                                 " in a process forked from the one that made the "
                                                 "group"));
        if (rank < 0 || rank >= size())
            throw usage_error(-1, detail::text("hvd: thread_group::", function, ": ", rank,
                                               " is not a rank of this group of size ", size()));
    }

    member& member_of(int rank) { return members_[std::size_t(rank)]; }

    detail::shared<detail::threads_hub> join(int rank) {
        check_rank(rank, "communicator");
        const detail::lock_guard lock(mutex_);
        member& mine = member_of(rank);
        if (mine.has_left)
            throw usage_error(rank, detail::text("hvd: thread_group::communicator: rank ", rank,
                                                 " left this group (", mine.farewell, ")"));
        if (mine.hub && !mine.hub->region().has_left(rank))
            throw usage_error(rank, detail::text("hvd: thread_group::communicator: rank ", rank,
                                                 " has a communicator, which has not ended"));
        auto& next =
            open_.at(mine.communicators + 1, 0, members_.size(), [this] { return make_hub(); });
        ++mine.communicators;
        return mine.hub = open_.take(next);
    }

    detail::shared<detail::threads_hub> make_hub() {
        auto hub = detail::shared<detail::threads_hub>::make(
            detail::nodes_of_one_host(size(), options_),
            detail::shm_region::window_for(size(), detail::window_bytes_of(options_)), processors_);
        for (int rank = 0; rank < size(); ++rank)
            if (member_of(rank).has_left) hub->region().leave(rank, member_of(rank).farewell);
        return hub;
    }

    communicator_options options_;
    detail::fork_guard fork_;
    detail::processor_set processors_ = detail::processor_set::of_this_thread();
    detail::mutex mutex_;
    detail::table<member> members_;
    detail::open_hubs<detail::threads_hub> open_;
};

}  // namespace hvd::inline v0
