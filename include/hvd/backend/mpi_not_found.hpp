// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "refused.hpp"

// The names of mpi.hpp in a file that is compiled without MPI. Every use of one is an error that
// says how to get MPI. No code uses them, so that files with and without MPI still link.
#define HVD_NO_MPI                                                                            \
    __attribute__((unavailable(                                                               \
        "hvd: there is no MPI here: <mpi.h> is not on the include path (compile with mpicxx " \
        "or add the flags of your MPI), or HVD_WITH_MPI is 0")))

namespace hvd::inline v0 {

struct HVD_NO_MPI mpi;
class HVD_NO_MPI mpi_environment;

#undef HVD_NO_MPI

struct mpi : detail::refused_backend {};

class [[nodiscard(
    "hvd: MPI ends with its environment: keep it in a variable to the end of "
    "main")]] mpi_environment {
public:
    template <class... A>
    explicit mpi_environment(const A&...) {}
};

}  // namespace hvd::inline v0
