// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// Makes a communicator for each of Open MPI's allreduce algorithms, so that all of them run in one
// process. coll_tuned reads the forced algorithm when a communicator is made.
#include <hvd/hvd.hpp>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// Allows algorithms to be forced. Call it before MPI starts. Without a forced algorithm, Open MPI
/// decides as usual.
inline void allow_forced_algorithms() { setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1); }

/// Returns names and communicators, or nothing if this MPI has no such choice. The communicators
/// live until MPI ends. **Collective**.
inline std::vector<std::pair<std::string, MPI_Comm>> forced_algorithms(MPI_Comm comm) {
    static constexpr const char* names[] = {"linear", "nonoverlapping", "recursive_doubling",
                                            "ring",   "segmented_ring", "rabenseifner"};
    std::vector<std::pair<std::string, MPI_Comm>> result;
    int level = 0, variable = 0, count = 0;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return result;
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    if (MPI_T_cvar_get_index("coll_tuned_allreduce_algorithm", &variable) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(variable, nullptr, &handle, &count) == MPI_SUCCESS) {
        for (int algorithm = 1; algorithm <= int(std::size(names)); ++algorithm) {
            MPI_Comm own = MPI_COMM_NULL;
            if (MPI_T_cvar_write(handle, &algorithm) == MPI_SUCCESS &&
                MPI_Comm_dup(comm, &own) == MPI_SUCCESS)
                result.emplace_back(names[algorithm - 1], own);
        }
        const int none = 0;
        MPI_T_cvar_write(handle, &none);
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return result;
}

}  // namespace bench
