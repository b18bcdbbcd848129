// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <cstring>

#include "mpi_api.hpp"

// Open MPI and MPICH have this function; others need not.
extern "C" [[gnu::weak]] int MPIX_Query_cuda_support(void);

namespace hvd::inline v0::detail {

// Reads the info of MPI-4.1 about memory kinds, which is present if the launcher asked for it.
inline bool names_device_memory() {
    MPI_Info info = MPI_INFO_NULL;
    if (MPI_Comm_get_info(MPI_COMM_WORLD, &info) != MPI_SUCCESS || info == MPI_INFO_NULL)
        return false;
    char kinds[MPI_MAX_INFO_VAL + 1] = {};
    int found = 0;
    MPI_Info_get(info, "mpi_memory_alloc_kinds", MPI_MAX_INFO_VAL, kinds, &found);
    MPI_Info_free(&info);
    return found != 0 && std::strstr(kinds, "cuda:device") != nullptr;
}

// Returns whether this MPI takes device memory. The user's environment variable decides first, then
// the MPI's answer. A trial is no option: an MPI that does not take device memory would crash.
inline bool is_cuda_aware() {
    if (const char* const said = std::getenv("HVD_MPI_CUDA_AWARE");
        said != nullptr && *said != '\0')
        return *said != '0';
    return names_device_memory() ||
           (&MPIX_Query_cuda_support != nullptr && MPIX_Query_cuda_support() == 1);
}

}  // namespace hvd::inline v0::detail
