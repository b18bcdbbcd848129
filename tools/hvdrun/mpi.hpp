// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <map>
#include <string>
#include <vector>

#include "options.hpp"
#include "restart.hpp"

namespace hvdrun {

enum class mpi_kind { open_mpi_4, open_mpi_5, mpich, intel, slurm };

// The program that starts the ranks of an MPI job.
struct mpi_launcher {
    mpi_kind kind;
    std::string program;
};

// Asks the launcher of the command line, else srun inside an allocation of Slurm, else mpirun and
// mpiexec which MPI they belong to.
mpi_launcher find_mpi_launcher(const std::string& wanted);

// A command that replaces hvdrun.
struct mpi_launch {
    words command;
    std::map<std::string, std::string> variables;  // set before
    std::string folder;                            // made before, unless it is empty

    // As a shell reads it.
    std::string line() const;
};
mpi_launch launch_by_mpi(const options& o, const std::vector<placement>& places);

[[noreturn]] void become(const mpi_launch& launch, bool verbose);

// Runs the command. A signal that ends hvdrun goes to it, and is for good. So is one that came
// after an earlier run.
run_end run_once(const mpi_launch& launch, const options& o);

}  // namespace hvdrun
