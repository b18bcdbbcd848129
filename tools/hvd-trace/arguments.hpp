// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

namespace hvd_trace {

// The command line.
struct arguments {
    std::vector<std::string> files;
    std::string output;
    bool quiet = false;
};

// Reads the command line. Ends the process for --help and for a wrong command line.
arguments read_arguments(int argc, char** argv);

}  // namespace hvd_trace
