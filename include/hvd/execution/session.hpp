// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/handles.hpp"
#include "../platform/clock.hpp"
#include "../protocol/step_question.hpp"
#include "../transport/operation.hpp"
#include "session_user.hpp"

namespace hvd::inline v0::detail {

// The part of a communicator that calls need. Code that only uses communicators compiles no more
// than this. The implementation (call_driver.hpp) is compiled where communicators are made.
class session : public counted {
public:
    [[gnu::cold]] session(int rank, int size, const communicator_options& options)
        : options_(options),
          work_(size),
          rank_(rank),
          size_(size),
          user_(rank, options.threads_take_turns) {}

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    workspace& work() noexcept { return work_; }
    const communicator_options& options() const noexcept { return options_; }
    int next_context() noexcept { return ++contexts_; }
    std::uint64_t next_plan() noexcept { return ++plans_; }

    session_user& user() noexcept { return user_; }

    // The question that steps of training take along, if there is one. All ranks have it, or none.
    shared<step_question> question;

    // Runs a blocking call, after all that were made before it.
    void (*run)(session& self, operation& op, time_limit timeout) = nullptr;
    // Shows a header to all ranks, and gives all of theirs, by rank: a session is a channel of
    // protocol/agreement.hpp. The headers are compared on the way, as those of every call.
    [[gnu::cold]] table<call_header> exchange_headers(const call_header& mine, time_point limit) {
        table<call_header> all;
        std::exception_ptr failure;
        operation op;
        op.entry = mine;
        op.only_agree = true;
        try {
            all = table<call_header>(static_cast<std::size_t>(size()));
        } catch (...) {
            failure = std::current_exception();
            forfeit(op, unprepared, failure);
        }
        op.headers = all.data();
        run(*this, op, limit_until(limit));
        return all;
    }
    // Takes the place of a call that the peers make. Throws the refusal here, too, where ranks
    // compare their calls.
    [[gnu::cold]] void post_refusal(const call_header& refused, time_point limit) {
        operation op;
        op.entry = refused;
        run(*this, op, limit_until(limit));
    }

    // Called in a handler: this rank could not prepare a call that its peers make. A refusal takes
    // the place of the call, and this rank throws what the handler has caught. Nothing is allocated
    // before the refusal has been sent.
    template <class Options>
    [[gnu::cold, noreturn]] void forfeit_call(collective kind, const Options& o) {
        operation op;
        op.entry.kind = kind;
        store(op.entry.name, o.name);
        if constexpr (requires { o.other; }) op.entry.root = o.other;
        const std::exception_ptr failure = std::current_exception();
        forfeit(op, unprepared, failure);
        run(*this, op, o.timeout);
        std::rethrow_exception(failure);  // a backend that compares no calls has told nobody
    }

    // True if it is known that a rank is gone: see transport.hpp.
    bool abandoned() { return abandoned_ != nullptr && abandoned_(*this); }

    // A rank can't make a communicator of this one: see transport.hpp.
    void tell_unmade(int context) noexcept {
        if (tell_unmade_ != nullptr) tell_unmade_(*this, std::uint64_t(context));
    }
    bool is_unmade(int context) {
        return is_unmade_ != nullptr && is_unmade_(*this, std::uint64_t(context));
    }

    // The session ends without a word to other ranks, which do not have it.
    void discard() noexcept { closed_ = true; }

    // Ends the calls under way within the destructor's timeout, and tells the peers.
    void close(const char* reason) noexcept { close_(*this, reason); }

protected:
    // The implementation. The functions are not virtual, for the reason at `counted`.
    void (*close_)(session&, const char*) noexcept = nullptr;
    bool (*abandoned_)(session&) = nullptr;
    void (*tell_unmade_)(session&, std::uint64_t) noexcept = nullptr;
    bool (*is_unmade_)(session&, std::uint64_t) = nullptr;
    communicator_options options_;
    workspace work_;
    const int rank_, size_;
    session_user user_;
    bool closed_ = false;

private:
    static constexpr const char* unprepared = "it could not begin: ";

    int contexts_ = 0;
    std::uint64_t plans_ = 0;
};

// Runs code that prepares a call: it makes the call and the memory that it needs, and gives what
// it makes. It may fail on this rank alone, by an exception of any kind. Then the call is
// forfeited, so that the ranks stay in step.
template <class Options, class F>
auto prepare(session& own, collective kind, const Options& o, F make) -> decltype(make()) {
    try {
        return make();
    } catch (...) {
        own.forfeit_call(kind, o);
    }
}

}  // namespace hvd::inline v0::detail
