// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../options.hpp"

namespace hvd::inline v0::elastic {

/// The bounds of an elastic job, for `elastic::run`. All its processes have the same; a launcher
/// sets them in the environment. Horovod: `--min-np`, `--max-np`.
/// @snippet tests/elastic/snippets.cpp elastic_options
struct bounds {
    int min_size = 1;  ///< the job waits while it has fewer ranks
    int max_size = 0;  ///< further processes wait until there is room; 0 is no bound
    /// enough ranks have come in this time
    time_limit timeout = time_span::of_nanoseconds(600 * hvd::detail::tuning::second);
    /// a rank that is connected, and has not come this time after another one, is left out until it
    /// comes
    time_limit straggler_timeout = time_span::of_nanoseconds(5 * hvd::detail::tuning::second);
    /// a process gives up when its launcher has not answered for this time, while too few others go
    /// on with it; `timeout` if it is not given
    time_limit launcher_timeout = {};
    /// files of `state::persist_in` are sealed with the job's secret, which stays from job to job:
    /// files without the seal are refused. `hvdrun --secret-file` sets it
    bool seal_states = false;
};

}  // namespace hvd::inline v0::elastic
