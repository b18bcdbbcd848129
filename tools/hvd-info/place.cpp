// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "place.hpp"

#include <cstdlib>

#include <unistd.h>

#include <hvd/core/settings/launched_ranks.hpp>

namespace hvd_info {
namespace {

struct variables_of_launcher {
    const char *launcher, *size, *rank, *local_rank, *local_size;
};

// The names of the ranks by those of the sizes that launched_ranks.hpp knows. Hydra is the launcher
// of MPICH and of Intel MPI.
constexpr variables_of_launcher known[] = {
    {"hvdrun", "HVD_SIZE", "HVD_RANK", "HVD_LOCAL_RANK", "HVD_LOCAL_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};

}  // namespace

place_in_job place_in_job::of_environment() {
    using hvd::detail::number_in;
    place_in_job result;
    const hvd::detail::launched_ranks launched = hvd::detail::ranks_of_launcher(true);
    if (launched.count <= 1) return result;
    result.variable = launched.variable;
    result.size = launched.count;
    for (const variables_of_launcher& one : known) {
        if (result.variable != one.size) continue;
        result.launcher = one.launcher;
        result.rank = number_in(one.rank);
        result.local_rank = number_in(one.local_rank);
        result.local_size = std::max(1, number_in(one.local_size));
    }
    return result;
}

std::string host_name() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace hvd_info
