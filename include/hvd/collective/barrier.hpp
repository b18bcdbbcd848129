// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "call/calls_base.hpp"

namespace hvd::inline v0::detail {

struct barrier_call : call {
    explicit barrier_call(const options& o) : call(collective::barrier, o.name) {}
};

/// The members of a communicator for barrier.
template <class Comm, class B>
class barrier_calls {
public:
    /// Returns when every rank has called it.
    ///
    /// **Collective**: all ranks, in the same order of calls.
    /// @throws hvd::peer_error naming the ranks that did not come within the timeout,
    /// hvd::mismatch_error if a rank makes another call.
    /// @snippet tests/docs/snippets.cpp barrier
    void barrier(const options& o = {}) {
        Comm& self = static_cast<Comm&>(*this);
        if constexpr (is_direct<B>) {
            access::direct_endpoint_of(self, collective::barrier, o.timeout)->barrier();
        } else {
            barrier_call call(o);
            run_call(self, call, o);
        }
    }

    /// Begins a barrier. The request is complete when every rank has called it.
    request barrier_async(const options& o = {}) {
        return start_call(static_cast<Comm&>(*this), collective::barrier, o,
                          [&] { return barrier_call(o); });
    }
};

}  // namespace hvd::inline v0::detail
