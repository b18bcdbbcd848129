// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "../options.hpp"

namespace hvd::inline v0 {

/// The place of one process in a job without MPI, for `communicator<tcp>::world`. A launcher
/// (`hvdrun`) sets them in the environment.
/// @snippet tests/docs/snippets.cpp tcp_options
struct tcp_options {
    int rank = -1;                ///< of this process
    int size = 0;                 ///< the number of ranks; 0 is a job of this process alone
    std::string rendezvous = {};  ///< where the ranks find each other: "host:port"
    /// the launcher serves the rendezvous; otherwise rank 0 does, at that port
    bool rendezvous_served = false;
    std::string secret_file = {};  ///< a file with the job's secret, which only its owner may read
    std::string secret = {};       ///< the secret itself: 64 hexadecimal digits
    std::string network_interface = {};  ///< by whose addresses the others reach this process
    std::string address = {};  ///< by which the others reach this process, before an interface
    /// equal for processes that share memory; empty takes the machine's name and boot
    std::string host_id = {};
    /// all ranks have come in this time
    time_limit start_timeout = time_span::of_nanoseconds(60 * detail::tuning::second);
};

}  // namespace hvd::inline v0
