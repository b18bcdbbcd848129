// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cooldowns.hpp"
#include "hosts.hpp"
#include "shell.hpp"

namespace hvdrun {

enum class backend { tcp, mpi };

// The command line.
struct options {
    int ranks = 0;
    host_list hosts;
    backend chosen = backend::tcp;
    words program;

    std::string output_folder;
    bool timestamps = false;
    double start_timeout = 30;
    double kill_after = 5;
    std::set<int> passed_on;  // signals
    bool takes_input = false;
    bool verbose = false, dry_run = false, check = false;
    std::string data_service;  // a config file that --check looks at
    std::string event_log;
    int max_restarts = 0;

    // Elastic jobs have these bounds. `ranks` must be there at the start.
    int min_np = 0, max_np = 0;
    std::string discovery_script;
    int slots_per_host = 1;
    int reset_limit = -1;  // less than 0: none
    double elastic_timeout = 600;
    cooldown_rules cooldown;
    bool is_elastic() const { return min_np > 0; }
    bool may_win_hosts() const { return !discovery_script.empty(); }

    words mpi_args;
    std::string mpi_launcher;
    std::string interface;
    words ssh_command;
    std::string secret_file;
    std::map<std::string, std::string> variables;  // of -x and of settings, with their values
    std::vector<std::string> remarks;              // for the user, before the job starts
};

// Reads the command line.
options read_options(int argc, char** argv);

}  // namespace hvdrun
