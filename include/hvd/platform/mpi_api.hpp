// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

// This is the one file that includes <mpi.h>. It leaves out the MPI-2 C++ bindings, which cost
// every including file half a second and 8 kB.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#if !__has_include(<mpi.h>)
#error "hvd: <mpi.h> was not found: compile with mpicxx, or add the flags of your MPI"
#include <hvd_needs_the_header_of_MPI>  // stops g++, which goes on after __has_include(<mpi.h>)
#endif
#include <mpi.h>

#include <climits>
#include <source_location>

#include "../core/error.hpp"
#include "../core/lean/atomic.hpp"

// Open MPI has it from version 5 on, whatever the header that a program was compiled with.
#ifdef OPEN_MPI
extern "C" [[gnu::weak]] int MPIX_Comm_failure_ack(MPI_Comm);
#endif

namespace hvd::inline v0::detail {

// An MPI that knows of lost ranks (ULFM) answers questions about messages of any rank after this
// again. Others have nothing to take note of.
inline void acknowledge_lost_ranks([[maybe_unused]] MPI_Comm comm) {
#ifdef OPEN_MPI
    if (MPIX_Comm_failure_ack != nullptr) MPIX_Comm_failure_ack(comm);
#endif
}

[[noreturn]] inline void throw_mpi_error(int code, const char* api, int rank,
                                         std::source_location where) {
    char message[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, message, &length);
    throw mpi_error(rank, api, code, message, where);
}

inline void check_mpi(int code, const char* api, int rank,
                      std::source_location where = std::source_location::current()) {
    if (code != MPI_SUCCESS) [[unlikely]]
        throw_mpi_error(code, api, rank, where);
}

inline bool mpi_is_running() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

// True if the ranks of MPI_COMM_WORLD end each by itself, since some may be lost: MPI_Finalize
// might wait for them, and MPI_Abort would end those that go on.
[[gnu::visibility("default")]] inline constinit bool mpi_ranks_end_apart = false;

// True if the process of a rank has ended, as a call has found: MPI_Finalize would wait for it.
[[gnu::visibility("default")]] inline constinit atomic<bool> mpi_rank_has_died{false};

inline int mpi_thread_level() {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level;
}

}  // namespace hvd::inline v0::detail
