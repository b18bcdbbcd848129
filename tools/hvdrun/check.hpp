// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "options.hpp"

namespace hvdrun {

// Asks each host what a job needs to know about it, and prints a table. Returns 0, or 1 if a host
// cannot be reached or has not what the backend needs: tcp some programs, and mpi the MPI that
// hvdrun was compiled with.
int check_hosts(const options& o, const host_list& hosts);

}  // namespace hvdrun
