// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <cstring>

#include "../core/lean/text.hpp"
#include "mpi_api.hpp"

// The names of three MPIs: that of the headers, that of the library, and the launcher's. In a
// container they may be of two systems.
namespace hvd::inline v0::detail {

inline message compiled_mpi() {
#if defined(OMPI_MAJOR_VERSION)
    return text("Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".",
                OMPI_RELEASE_VERSION);
#elif defined(I_MPI_VERSION)
    return text("Intel MPI ", I_MPI_VERSION);
#elif defined(MPICH_VERSION)
    return text("MPICH ", MPICH_VERSION);
#else
    return text("MPI ", MPI_VERSION, ".", MPI_SUBVERSION);
#endif
}

// "Open MPI v4.1.4, package: …" and "MPICH Version:\t4.0.2\n…" begin with all that is wanted.
inline message running_mpi() {
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(all, &length);
    all[std::strcspn(all, ",\n")] = '\0';
    for (char& c : all)
        if (c == '\t') c = ' ';
    return text(static_cast<const char*>(all));
}

// The launcher that sets a variable. Hydra starts programs of MPICH and of Intel MPI.
inline const char* launcher_that_sets(const char* variable) {
    switch (variable[0]) {
        case 'O': return "Open MPI's";
        case 'P':
            return std::getenv("SLURM_PROCID") != nullptr ? "Slurm's, as for MPICH"
                                                          : "MPICH's or Intel MPI's";
        case 'S': return "Slurm's";
        default: return "hvdrun";
    }
}

}  // namespace hvd::inline v0::detail
