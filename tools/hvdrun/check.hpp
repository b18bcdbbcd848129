// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace hvdrun {

using row = std::vector<std::string>;
// The first row is the head.
void print_table(const std::vector<row>& rows);

// Asks each host what a job needs to know about it, and the processes of a data service if its file
// is given, and prints a table of each. Returns 0, or 1 if a host or a process cannot be reached or
// a host has not what the backend needs: tcp some programs, and mpi the MPI that hvdrun was
// compiled with.
int check_hosts(const options& o, const host_list& hosts);

}  // namespace hvdrun
