// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace hvd_info {

// The command line.
struct options {
    bool is_json = false;
    std::vector<std::string> only;
    std::string root;

    bool wants(const std::string& name) const {
        return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
    }
};

// Reads the command line. `checks` are those that --only may name. Ends the process for --help and
// for a wrong command line.
options read_options(int argc, char** argv, const std::vector<std::string>& checks);

}  // namespace hvd_info
