// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

namespace hvd_compute {

struct options {
    int dispatchers = 1;
    bool on_training_side = false;
    double timeout = 60;  // seconds
    bool progress = false;
    bool shares_memory = true;
    bool encrypts = false;
    std::string metrics;               // path of the file for Prometheus, or empty
    std::string config;                // path of the file
    std::vector<std::string> program;  // of the workers, with its arguments
    int rank = 0, size = 1;            // of this process in the job

    int workers_per_dispatcher() const { return size / dispatchers; }
    int dispatcher() const { return rank / workers_per_dispatcher(); }
    // True for the first rank of a group.
    bool serves_dispatcher() const {
        return !on_training_side && rank % workers_per_dispatcher() == 0;
    }
};

// Reads the command line and the launcher's variables. Ends the process for --help and for a wrong
// command line.
options read_options(int argc, char** argv);

}  // namespace hvd_compute
