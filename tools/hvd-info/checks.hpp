// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "place.hpp"
#include "report.hpp"
#include "system_files.hpp"

namespace hvd_info {

// All that the checks look at beside the system itself.
struct context {
    system_files files;
    place_in_job place;
};

// The remedy where a launcher is not of the MPI that hvd was compiled with.
std::string pair_of(const std::string& mpi);

// Each check is one function, which returns facts and findings and changes nothing.
check_report check_build(const context&);
check_report check_mpi(const context&);
check_report check_cores(const context&);
check_report check_caches(const context&);
check_report check_memory(const context&);
check_report check_disk(const context&);
check_report check_gpu(const context&);
check_report check_network(const context&);
check_report check_variables(const context&);
check_report check_self_test(const context&);

}  // namespace hvd_info
