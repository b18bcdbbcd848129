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
    call refused;
    refused.describe(collective::agree, "a refusal");
    refused.refuse(text("hvd: rank ", comm.rank(), ": ", parts...));
    access::session_of(comm).run(refused.op, {});
    throw usage_error(comm.rank(), refused.op.entry.text);  // where nobody compares
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
