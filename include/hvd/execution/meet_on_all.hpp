// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../protocol/agreement.hpp"
#include "session.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Runs f(gone), in which ranks wait for each other outside of calls, for as long as gone() is
// false. Where it fails, all ranks throw: the rank that failed its own exception, the others
// peer_error with its text. `context` is a number of what is made (`next_context`).
template <class F>
void meet_on_all(session& own, const char* name, time_point limit, int context, F f) {
    // A rank that another one stopped says so in a second round, after the one that failed. Ranks
    // would wait for ever for one that is gone, or that has failed and waits for them in this
    // round. So it tells them, and the round ends without it.
    std::exception_ptr stopped;
    const auto gone = [&] { return own.abandoned() || own.is_unmade(context); };
    run_on_all(own, name, limit, [&] {
        if (!gone()) try {
                f(gone);
            } catch (const peer_error&) {
                stopped = std::current_exception();
                own.tell_unmade(context);
            } catch (...) {
                own.tell_unmade(context);
                throw;
            }
    });
    run_on_all(own, name, limit, [&] {
        if (stopped) std::rethrow_exception(stopped);
    });
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
