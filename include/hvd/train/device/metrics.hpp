// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../metrics.hpp"
#include "host_calls.hpp"

namespace hvd::inline v0 {

/// Averages metrics over the ranks of a communicator of devices: the means are on the host, and the
/// host waits for them.
template <detail::device_communicator Comm>
void average_metrics(Comm& comm, std::vector<metric>& metrics, double count) {
    detail::host_calls calls(comm);
    average_metrics(calls, metrics, count);
}

/// Calls f on rank 0 of a communicator of devices alone. If f throws, all ranks throw.
template <detail::device_communicator Comm, class F>
void on_root(Comm& comm, F&& f) {
    detail::host_calls calls(comm);
    on_root(calls, f);
}

}  // namespace hvd::inline v0
