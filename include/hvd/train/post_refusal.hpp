// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../comm/communicator.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// This rank refuses a call that its peers make. The refusal takes the place of the call, so that
// the order of calls is kept, and the peers throw peer_error with the text.
template <class Comm, class... Parts>
[[gnu::cold, noreturn]] void post_refusal(Comm& comm, const Parts&... parts) {
    const message why = text("hvd: ", parts...);  // whoever throws adds the rank
    run_refused(access::session_of(comm), why, {});
    throw usage_error(comm.rank(), why);  // where nobody compares
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
