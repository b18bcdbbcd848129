// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../core/lean/atomic.hpp"
#include "../platform/clock.hpp"
#include "../transport/transport.hpp"

namespace hvd {
inline namespace v0 {
namespace detail {

// Waits until the transport's round is ready. It gives up when a peer that is needed is gone, or
// after `limit` or `stop`.
inline void wait_ready(transport& t, time_point limit, const atomic<time_point>& stop) {
    if (t.ready()) return;
    backoff wait(t.may_spin());
    while (!t.ready()) {
        if (!wait.pause()) continue;
        const time_point time = now();
        if (t.hopeless()) t.fail(verdict::hopeless);
        if (time > limit || time > stop.load_relaxed()) t.fail(verdict::expired);
    }
}

}  // namespace detail
}  // namespace v0
}  // namespace hvd
