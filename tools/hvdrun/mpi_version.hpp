// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

namespace hvdrun {

// The first line that a program prints for --version, or an empty string.
std::string version_of(const std::string& program);

// The name and the number of an MPI: "mpirun (Open MPI) 4.1.4" and "Open MPI 4.1.4" are the same.
std::string bare_version(const std::string& version);

// The MPI that a version speaks of: "Open MPI", "MPICH", "Intel MPI", "Slurm", or nothing.
std::string mpi_of(const std::string& version);

}  // namespace hvdrun
