// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "agreement.hpp"
#include "header_check.hpp"

namespace hvd::inline v0::detail {

// Some channels carry headers as plain bytes, by a collective that a rank may also make for its own
// tensors. If it does while the others agree on something, they receive its tensor.

// Replaces other bytes by a header that differs from those of all calls. The comparison then names
// the ranks that were in another call.
[[gnu::cold]] inline void replace_other_bytes(slice<call_header> received) {
    for (call_header& h : received)
        if (!is_header(h)) h = agreement_header("another call, which sent its tensor");
}
[[gnu::cold]] inline void replace_other_bytes(table<call_header>& received) {
    replace_other_bytes(slice<call_header>(received.data(), received.size()));
}

}  // namespace hvd::inline v0::detail
