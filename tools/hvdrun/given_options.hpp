// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "options.hpp"
#include "settings.hpp"

namespace hvdrun {

constexpr int most_elastic_ranks = 4096;

// The command line as CLI11 reads it, before it is looked at.
struct given_options {
    options own;  // those that are read as they are, and the program
    std::string hosts, hostfile, backend = "tcp", mpi_args;
    std::string ssh_command, ssh_identity, passed_on, file;
    int ssh_port = 0;
    std::vector<std::string> variables;
    std::vector<std::pair<const setting*, std::string>> settings;
    std::vector<double> cooldown;
    std::set<std::string> names;  // the long names of those that were given

    bool has(const std::string& name) const { return names.contains(name); }
};

// Reads the command line. It ends the process for --help and --version.
given_options read_given(int argc, char** argv);

}  // namespace hvdrun
