// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace hvd_info {

// The place of this process in a job, as its launcher's variables tell it.
struct place_in_job {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    std::string variable;  // that told the size, or nothing for a process alone
    std::string launcher;  // "hvdrun", "Open MPI", "MPICH", "Slurm", or nothing

    bool is_alone() const { return size <= 1; }
    bool is_of_mpi() const { return !is_alone() && launcher != "hvdrun"; }
    static place_in_job of_environment();
};

// The name of this host.
std::string host_name();

}  // namespace hvd_info
