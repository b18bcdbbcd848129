// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>

#include "../protocol/agreement.hpp"
#include "../protocol/failure_notice.hpp"
#include "session.hpp"

namespace hvd::inline v0::detail {

// Asked in the wait of a meeting: true once a rank is gone, or has failed and does not come.
struct gone_from_meeting {
    session& own;
    int context;
    // The ranks that wait learn of this rank's failure by what they wait for, and wait on.
    mutable bool all_learn = false;

    bool operator()() const { return own.abandoned() || own.is_unmade(context); }
    void tell_unmade() const {
        if (!all_learn) own.tell_unmade(context);
    }
};

// Runs f(gone), in which ranks wait for each other outside of calls, for as long as gone() is
// false. Where it fails, all ranks throw: the rank that failed its own exception, the others
// peer_error with its text. `context` is a number of what is made (`next_context`).
template <class F>
void meet_on_all(session& own, const char* name, time_point limit, int context, F f) {
    // A rank that another one stopped says so in a later round than the one that failed. Ranks
    // would wait for ever for one that is gone, or that has failed and waits for them in this
    // round. So it tells them, and the round ends without it. Who knows no reason hears the others.
    std::exception_ptr stopped, unexplained;
    const gone_from_meeting gone{own, context};
    run_on_all(own, name, limit, [&] {
        if (!gone()) try {
                f(gone);
            } catch (const unexplained_end&) {
                unexplained = std::current_exception();
                gone.tell_unmade();
            } catch (const peer_error&) {
                stopped = std::current_exception();
                gone.tell_unmade();
            } catch (...) {
                gone.tell_unmade();
                throw;
            }
    });
    for (const std::exception_ptr& failure : {stopped, unexplained})
        run_on_all(own, name, limit, [&] {
            if (failure) std::rethrow_exception(failure);
        });
}

}  // namespace hvd::inline v0::detail
