// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <functional>

namespace hvdrun {

// How a run of a job has ended. One that the user or a full disk has ended is for good.
struct run_end {
    int code;
    bool is_for_good;
};

// Runs a job, again when it fails, so many times. Returns the exit code of the last run.
int run_again(int restarts, const std::function<run_end()>& run);

}  // namespace hvdrun
