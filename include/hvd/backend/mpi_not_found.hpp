// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "refused.hpp"

// The names of mpi.hpp in a program without MPI. Using one is an error that says how to get MPI.
// They are aliases: units of one program may be compiled with and without MPI.
#define HVD_NO_MPI                                                                            \
    __attribute__((unavailable(                                                               \
        "hvd: there is no MPI here: <mpi.h> is not on the include path (compile with mpicxx " \
        "or add the flags of your MPI), or HVD_WITH_MPI is 0")))

namespace hvd {
inline namespace v0 {
namespace detail {

struct mpi_not_found : refused_backend {};

struct environment_not_found {
    template <class... A>
    explicit environment_not_found(const A&...) {}
};

}  // namespace detail

template <>
struct direct<detail::mpi_not_found> : detail::refused_backend {};

using mpi HVD_NO_MPI = detail::mpi_not_found;
using mpi_environment HVD_NO_MPI = detail::environment_not_found;

}  // namespace v0
}  // namespace hvd

#undef HVD_NO_MPI
