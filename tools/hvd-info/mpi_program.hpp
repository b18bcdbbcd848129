// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>
#include <vector>

#include "child.hpp"
#include "report.hpp"

namespace hvd_info {

// Tells if hvd-info-mpi is not there, and returns whether it is.
bool has_mpi_program(check_report& report);

// Runs hvd-info-mpi, which is beside this program. It alone is linked with MPI: hvd-info starts
// without it, and lives on if it fails.
child_end run_mpi_program(const std::vector<std::string>& arguments, double seconds,
                          const std::string& input = "");

}  // namespace hvd_info
