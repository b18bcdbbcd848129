// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// What one rank alone sees to be wrong takes the place of the collective that it would have made:
// its peers, which make it, get peer_error with this text, and the order of calls is kept.
template <class Comm, class... Parts>
[[gnu::cold, noreturn]] void post_refusal(Comm& comm, const Parts&... parts) {
    const message why = text("hvd: ", parts...);  // whoever throws adds the rank
    run_refused(access::session_of(comm), why, {});
    throw usage_error(comm.rank(), why);  // where nobody compares
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
