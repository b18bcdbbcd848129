// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>
#include <initializer_list>

#include "../backend/refused.hpp"
#include "../collective/allgather.hpp"
#include "../collective/allreduce.hpp"
#include "../collective/allreduce_with_rank.hpp"
#include "../collective/alltoall.hpp"
#include "../collective/barrier.hpp"
#include "../collective/broadcast.hpp"
#include "../collective/gather.hpp"
#include "../collective/message.hpp"
#include "../collective/reduce.hpp"
#include "../collective/reduce_scatter.hpp"
#include "../collective/scan.hpp"
#include "../collective/scatter.hpp"
#include "../core/settings/unread_variables.hpp"
#include "object.hpp"
#include "plan.hpp"
#include "topology.hpp"

namespace hvd::inline v0 {

namespace detail {

// Endpoints of E are made of a handle. `of` makes them on all ranks of the handle, or on none; a
// constructor knows one rank only.
template <class E, class Handle, class Ownership>
concept made_together =
    requires(const Handle& handle, Ownership ownership, const communicator_options& options) {
        { E::of(handle, ownership, options).release() } -> std::convertible_to<E*>;
    };
template <class E, class Handle, class Ownership>
concept made_of = made_together<E, Handle, Ownership> ||
                  std::constructible_from<E, const Handle&, Ownership, const communicator_options&>;

template <class E, class Handle, class Ownership>
owner<E> endpoint_of(const Handle& handle, Ownership ownership,
                     const communicator_options& options) {
    if constexpr (made_together<E, Handle, Ownership>) return E::of(handle, ownership, options);
    else return owner<E>::make(handle, ownership, options);
}

}  // namespace detail

/// The ranks that work together, with all collectives.
///
/// Calls are matched by their order on the communicator, which is the same on every rank (names are
/// for people). It is movable, not copyable, and empty after a move. **Threads**: it is bound to
/// the thread that makes its first call, until `hand_over`; with `.threads_take_turns` several
/// threads use it, one at a time. Different communicators may be used by different threads. After
/// `fork` the child may not use it. The destructor waits for calls under way, at most
/// `destructor_timeout`, and tells the peers.
/// @tparam Backend an empty type that models `hvd::host_backend`: `threads`, `mpi`, …
/// @snippet tests/docs/snippets.cpp communicator
template <class Backend>
class communicator : public detail::allreduce_calls<communicator<Backend>, Backend>,
                     public detail::allreduce_with_rank_calls<communicator<Backend>, Backend>,
                     public detail::reduce_calls<communicator<Backend>, Backend>,
                     public detail::reduce_scatter_calls<communicator<Backend>, Backend>,
                     public detail::scan_calls<communicator<Backend>, Backend>,
                     public detail::broadcast_calls<communicator<Backend>, Backend>,
                     public detail::allgather_calls<communicator<Backend>, Backend>,
                     public detail::gather_calls<communicator<Backend>, Backend>,
                     public detail::scatter_calls<communicator<Backend>, Backend>,
                     public detail::alltoall_calls<communicator<Backend>, Backend>,
                     public detail::barrier_calls<communicator<Backend>, Backend>,
                     public detail::message_calls<communicator<Backend>, Backend>,
                     public detail::object_calls<communicator<Backend>, Backend>,
                     public detail::plan_calls<communicator<Backend>, Backend>,
                     public detail::placed_rank<communicator<Backend>> {
    static_assert(!std::is_same_v<Backend, detail::backend_not_named>,
                  "hvd: the backend is missing: write hvd::communicator<hvd::mpi>");
    static_assert(detail::is_host_backend<Backend>,
                  "hvd: not a backend: include its header (hvd/mpi.hpp for hvd::mpi), or see "
                  "hvd::backend and docs/adding_a_backend.md");
    using known_backend = detail::backend_or_refused<Backend>;
    using session_type = detail::backend_session<known_backend>;

public:
    using backend_type = known_backend;
    using endpoint_type = typename known_backend::endpoint_type;

    /// Makes an empty communicator, of which this rank is not a member.
    communicator() = default;

    /// Takes an endpoint of the backend, by `std::unique_ptr` or another owner that can `release()`
    /// it. Backends and their tests use this.
    template <class Pointer>
        requires requires(Pointer p) {
            { p.release() } -> std::convertible_to<endpoint_type*>;
        }
    explicit communicator(Pointer endpoint, const communicator_options& options = {}) {
        begin(detail::owner<endpoint_type>(endpoint.release()), options);
    }

    /// Takes over a raw handle (`MPI_Comm`). It frees the handle at the end, also if options are
    /// refused.
    /// @throws hvd::usage_error for null handles and others that can't work.
    template <class Handle>
        requires detail::made_of<endpoint_type, Handle, adopt_t>
    communicator(const Handle& handle, adopt_t, const communicator_options& options = {})
        : communicator(detail::endpoint_of<endpoint_type>(handle, adopt, options), options) {}

    /// Works beside the owner of a raw handle (`MPI_Comm`), on its own duplicate.
    /// **Collective**: all ranks of the handle.
    template <class Handle>
        requires detail::made_of<endpoint_type, Handle, borrow_t>
    communicator(const Handle& handle, borrow_t, const communicator_options& options = {})
        : communicator(detail::endpoint_of<endpoint_type>(handle, borrow, options), options) {}

    // A handle alone does not say who frees it.
    template <class Handle>
        requires(std::is_scalar_v<Handle> && detail::made_of<endpoint_type, Handle, borrow_t>)
    explicit communicator(const Handle&, const communicator_options& = {}) {
        static_assert(!std::is_scalar_v<Handle>,
                      "hvd: who frees the handle? Write hvd::borrow (you), or hvd::adopt (hvd), "
                      "after it");
    }

    /// Makes a communicator of all ranks, on its own duplicate. All ranks get it, or all throw,
    /// within the timeout of the options. **Collective**.
    [[nodiscard("hvd: a communicator ends with its object")]] static communicator world(
        const communicator_options& options = {})
        requires requires { endpoint_type::world(options); };

    /// The same with options of the backend's own, such as `tcp_options`. **Collective**.
    /// @snippet tests/docs/snippets.cpp tcp_options
    template <class Own>
    [[nodiscard("hvd: a communicator ends with its object")]] static communicator world(
        const Own& own, const communicator_options& options = {})
        requires requires { endpoint_type::world(own, options); };

    /// Makes a communicator of this rank alone. Only `hvd::threads` and the policies around it have
    /// it.
    [[nodiscard("hvd: a communicator ends with its object")]] static communicator self(
        const communicator_options& options = {})
        requires requires {
            { endpoint_type::self(options).release() } -> std::convertible_to<endpoint_type*>;
        }
    {
        return communicator(endpoint_type::self(options), options);
    }

    communicator(communicator&&) noexcept = default;
    communicator& operator=(communicator&& other) noexcept {
        if (this != &other) {
            end();
            session_ = std::move(other.session_);
            parents_ = std::move(other.parents_);
            detail::placed_rank<communicator>::operator=(std::move(other));
        }
        return *this;
    }
    ~communicator() { end(); }

    /// True if this rank is a member.
    explicit operator bool() const noexcept { return bool(session_); }

    /// This rank, from 0; -1 if empty.
    int rank() const noexcept { return !session_ ? -1 : session_->rank(); }
    /// The number of ranks; 0 if empty.
    int size() const noexcept { return !session_ ? 0 : session_->size(); }

    /// Returns the rank in the communicator that this one was made of, by `subset`, `split`,
    /// `local`, `cross` or `duplicate`, of rank `rank` here. It is `rank` itself where there is
    /// none. MPI: `MPI_Group_translate_ranks`. It may be called on one rank alone.
    /// @throws hvd::usage_error for a rank that does not exist.
    /// @snippet tests/docs/snippets.cpp parent_rank
    int parent_rank(int rank) const {
        if (rank < 0 || rank >= size()) refuse_rank("parent_rank", rank);
        return parents_.empty() ? rank : parents_[std::size_t(rank)];
    }

    /// Makes another communicator of all ranks, with its own order of calls. **Collective**. All
    /// ranks get it, or all throw, within this one's timeout. MPI: `MPI_Comm_dup`.
    /// @throws hvd::peer_error if another rank could not make it.
    /// @snippet tests/docs/snippets.cpp duplicate
    [[nodiscard("hvd: a communicator ends with its object")]] communicator duplicate()
        requires splittable_endpoint<endpoint_type>;

    /// Makes a communicator of the ranks of this node, in order. **Collective**.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator local()
        requires splittable_endpoint<endpoint_type>
    {
        return among("local", this->topology_.local);
    }

    /// Makes a communicator of the ranks with this local rank, one of each node that has it.
    /// **Collective**.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator cross()
        requires splittable_endpoint<endpoint_type>
    {
        return among("cross", this->topology_.cross);
    }

    /// Makes a communicator of the given ranks, in ascending order. It is empty on all others.
    /// **Collective**: all ranks of this communicator, with the same list. Roots of the result are
    /// its own ranks. All ranks get the communicator, or all throw, within this one's timeout.
    /// Horovod: process sets.
    /// @throws hvd::usage_error for a rank that does not exist or occurs twice; hvd::peer_error if
    /// another rank could not make it.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator subset(
        std::span<const int> ranks)
        requires splittable_endpoint<endpoint_type>;
    [[nodiscard("hvd: a communicator ends with its object")]] communicator subset(
        std::initializer_list<int> ranks)
        requires splittable_endpoint<endpoint_type>
    {
        return subset(std::span<const int>(ranks.begin(), ranks.size()));
    }

    /// Makes one communicator for each colour, its ranks ordered by key, then by rank. It is empty
    /// for a negative colour. **Collective**.
    [[nodiscard("hvd: a communicator ends with its object")]] communicator split(int color,
                                                                                 int key = 0)
        requires splittable_endpoint<endpoint_type>;

    /// The backend's own handle (`MPI_Comm`). It lives as long as the communicator.
    auto native_handle() const
        requires requires(endpoint_type& l) { l.native_handle(); }
    {
        return detail::access::endpoint_of(*this).native_handle();
    }

    /// The observer of an `observed<Backend, Observer>`. Read it when no call is under way.
    auto& observer()
        requires requires { typename Backend::observer_type; }
    {
        return detail::access::backend_of(*this).observer();
    }

    /// Returns the thresholds that are in force. **Threads**: the thread that may call `retune`.
    [[nodiscard]] tuning_options tuning() const {
        return detail::access::session_of(*this).options().tuning;
    }

    /// Gives the communicator these thresholds, all of them, for later calls; `tuning()` has those
    /// in force. It waits for the calls made before. All ranks take them, or none does and all
    /// throw. Communicators made of this one before keep theirs. **Collective**, with the same
    /// thresholds.
    /// @throws hvd::usage_error for a value outside its range; hvd::mismatch_error if the ranks
    /// give different ones; hvd::peer_error if another rank has no memory for them.
    /// @snippet tests/docs/snippets.cpp retune
    void retune(const tuning_options& to) {
        static_cast<detail::call_driver&>(detail::access::session_of(*this)).retune(to);
    }

    /// Gives the communicator away: the thread that makes the next call on it is bound to it from
    /// then on. **Threads**: the thread that it is bound to.
    /// @throws hvd::usage_error on another thread, and inside a call.
    /// @snippet tests/docs/snippets.cpp hand_over
    void hand_over() { detail::access::session_of(*this).user().hand_over(); }

    /// Gives the communicator up, and tells the peers why: their calls that need this rank throw
    /// `hvd::peer_error`, which names it and the text, and so do later calls here. It waits for no
    /// peer, and is no collective. Calls under way on this rank end with `hvd::peer_error`; a peer
    /// of its node in the same call may still wait for a third rank. Nothing happens if
    /// the communicator was given up before. NCCL: `ncclCommAbort`. MPI: `MPI_Abort`, which ends
    /// the processes as well. **Threads**: any, also while another one is inside a call; with MPI
    /// below MULTIPLE only that of the communicator.
    /// @throws hvd::usage_error inside a call of this communicator, whose callable may throw.
    /// @snippet tests/docs/snippets.cpp abort
    void abort(std::string_view why = {})
        requires(!detail::is_direct<known_backend>)
    {
        static_cast<detail::call_driver&>(detail::access::session_of(*this)).abort(why);
    }

    /// True once the communicator refuses all calls, since a rank is gone, came too late or has
    /// called `abort`. This rank may not have heard of it yet. **Threads**: any.
    bool is_given_up() const noexcept {
        return session_ && static_cast<const detail::call_driver&>(*session_).is_broken();
    }

    /// Goes on with the asynchronous calls of this communicator as far as it can without waiting.
    /// It is for loops of a program whose calls no thread drives: with MPI below the level
    /// MULTIPLE. Submissions of asynchronous calls and an optimizer's reports do the same on the
    /// way. Where a progress thread runs, and with `direct<>`, it does nothing. A failure of a
    /// call, also one by the death of a peer, is thrown by `wait()` or `test()` of its request. A
    /// call's timeout and the notice of a long wait count from these. It is no collective.
    /// **Threads**: the one that makes the calls.
    /// @throws hvd::usage_error in a forked child and, where it does something, on another thread
    /// and inside a call.
    /// @snippet tests/docs/snippets.cpp progress
    void progress() {
        static_cast<detail::call_driver&>(detail::access::session_of(*this)).make_progress();
    }

    /// Resumes, on this thread, coroutines that wait for calls that are complete. It returns their
    /// number.
    std::size_t run_ready() {
        auto& own = static_cast<detail::call_driver&>(detail::access::session_of(*this));
        own.refuse_in_driver("run_ready");
        detail::shared<detail::call_queue> queue;
        {
            detail::session_user& user = own.user();  // any thread may resume; it is no call
            if (!user.try_take()) user.refuse("run_ready", user.is_inside());
            const detail::session_use use(user);
            queue = own.queue();
        }
        return queue ? queue->run_ready(*queue) : 0;
    }

private:
    friend struct detail::access;

    void begin(detail::owner<endpoint_type> endpoint, const communicator_options& options);

    [[gnu::cold, noreturn]] void refuse_rank(const char* call, int rank) const {
        if (!session_) detail::access::throw_empty();
        throw usage_error(this->rank(),
                          detail::text("hvd: ", call, " on rank ", this->rank(), ": ", rank,
                                       " is not a rank of this communicator of size ", size()));
    }

    communicator among(const char* name, const std::vector<int>& ranks);

    // Ends a communicator that other ranks do not have.
    void discard() noexcept {
        if (session_) session_->discard();
        session_ = {};
        parents_ = {};
        this->topology_ = {};
    }

    void end() noexcept {
        if (!session_) return;
        session_->close(std::uncaught_exceptions() > 0
                            ? "its communicator died while an exception unwound"
                            : "its communicator was destroyed");
        session_ = {};
    }

    detail::shared<detail::session> session_;
    std::vector<int> parents_;  // by rank; empty: of no other communicator
};

// A handle alone does not say which backend is meant: hvd::mpi, hvd::direct<hvd::mpi>, ….
template <class Handle>
communicator(const Handle&, adopt_t, const communicator_options& = {})
    -> communicator<detail::backend_not_named>;
template <class Handle>
communicator(const Handle&, borrow_t, const communicator_options& = {})
    -> communicator<detail::backend_not_named>;

// None of these is inline. Everything behind a communicator is compiled with them. A program of
// several files that declare `extern template class hvd::communicator<…>` compiles it in one of
// them.

template <class Backend>
communicator<Backend> communicator<Backend>::world(const communicator_options& options)
    requires requires { endpoint_type::world(options); }
{
    communicator made(endpoint_type::world(options), options);
    detail::tell_unread_variables(made.rank());
    return made;
}

template <class Backend>
template <class Own>
communicator<Backend> communicator<Backend>::world(const Own& own,
                                                   const communicator_options& options)
    requires requires { endpoint_type::world(own, options); }
{
    communicator made(endpoint_type::world(own, options), options);
    detail::tell_unread_variables(made.rank());
    return made;
}

template <class Backend>
communicator<Backend> communicator<Backend>::duplicate()
    requires splittable_endpoint<endpoint_type>
{
    return detail::duplicate(*this);
}

template <class Backend>
communicator<Backend> communicator<Backend>::subset(std::span<const int> ranks)
    requires splittable_endpoint<endpoint_type>
{
    return detail::subset(*this, ranks);
}

template <class Backend>
communicator<Backend> communicator<Backend>::split(int color, int key)
    requires splittable_endpoint<endpoint_type>
{
    return detail::split(*this, color, key);
}

template <class Backend>
communicator<Backend> communicator<Backend>::among(const char* name,
                                                   const std::vector<int>& ranks) {
    auto& own = detail::access::session_of(*this);
    detail::agree(own, detail::agreement_header(name), detail::never);
    return detail::make_subset(*this, name, own.next_context(), [&] { return ranks; });
}

template <class Backend>
void communicator<Backend>::begin(detail::owner<endpoint_type> endpoint,
                                  const communicator_options& options) {
    endpoint_type& made = *endpoint;
    const auto build = [&] {
        this->topology_ = detail::topology_of(made);
        const int cpu =
            detail::cpu_of(options.cpus, this->local_rank(), this->local_size(), made.rank());
        session_ = detail::shared<session_type>::make(endpoint, options);
        static_cast<detail::call_driver&>(*session_).cpu = cpu;
    };
    if constexpr (requires { made.settle(build); }) try {
            made.settle(build);
        } catch (...) {
            discard();
            throw;
        }
    else build();
}

}  // namespace hvd::inline v0
