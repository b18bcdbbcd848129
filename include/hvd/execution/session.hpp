// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/handles.hpp"
#include "../platform/clock.hpp"
#include "../transport/operation.hpp"
#include "session_user.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// The part of a communicator that calls need. Code that only uses communicators compiles no more
// than this. The implementation (call_driver.hpp) is compiled where communicators are made.
class session : public counted {
public:
    session(int rank, int size, const communicator_options& options)
        : options_(options), work_(size), rank_(rank), size_(size), user_(rank) {}

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    workspace& work() noexcept { return work_; }
    const communicator_options& options() const noexcept { return options_; }
    int next_context() noexcept { return ++contexts_; }
    std::uint64_t next_plan() noexcept { return ++plans_; }

    session_user& user() noexcept { return user_; }

    // Runs a blocking call, after all that were made before it.
    void (*run)(session& self, operation& op, time_span deadline) = nullptr;
    // Shows a header to all ranks, and gives all of theirs, by rank: a session is a channel of
    // protocol/agreement.hpp. The headers are compared on the way, as those of every call.
    [[gnu::cold]] table<call_header> exchange_headers(const call_header& mine, time_point limit) {
        table<call_header> all(static_cast<std::size_t>(size()));
        operation op;
        op.entry = mine;
        op.only_agree = true;
        op.headers = all.data();
        run(*this, op, span_until(limit));
        return all;
    }
    // Takes the place of a call that the peers make. Throws the refusal here, too, where ranks
    // compare their calls.
    [[gnu::cold]] void post_refusal(const call_header& refused, time_point limit) {
        operation op;
        op.entry = refused;
        run(*this, op, span_until(limit));
    }

    // Ends the calls under way within the destructor's deadline, and tells the peers.
    void close(const char* reason) noexcept { close_(*this, reason); }

protected:
    // The implementation. The functions are not virtual, for the reason at `counted`.
    void (*close_)(session&, const char*) noexcept = nullptr;
    communicator_options options_;
    workspace work_;
    const int rank_, size_;
    session_user user_;

private:
    int contexts_ = 0;
    std::uint64_t plans_ = 0;
};

}  // namespace detail
}  // namespace v0
}  // namespace hvd
