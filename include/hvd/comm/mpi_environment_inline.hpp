// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>

#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "mpi_environment.hpp"

namespace hvd::inline v0 {

HVD_INLINE void mpi_environment::end() {
    if (terminate_ != nullptr) std::set_terminate(terminate_);
    if (getpid() != process_ || !detail::mpi_is_running()) return;
    if (detail::mpi_ranks_end_apart) return;
    if (std::uncaught_exceptions() > exceptions_) abort_job();
    if (!owner_) return;
    if (detail::mpi_rank_has_died.load()) return leave_mpi();
    MPI_Finalize();
}

HVD_INLINE void mpi_environment::leave_mpi() noexcept {
    int rank = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    try {
        detail::write_line(detail::text("hvd: rank ", rank,
                                        " ends without MPI_Finalize, which would wait for a rank "
                                        "whose process has ended"));
    } catch (...) {
    }
}

HVD_INLINE hvd::thread_level mpi_environment::thread_level() const {
    switch (detail::mpi_thread_level()) {
        case MPI_THREAD_SINGLE: return hvd::thread_level::single;
        case MPI_THREAD_FUNNELED: return hvd::thread_level::funneled;
        case MPI_THREAD_SERIALIZED: return hvd::thread_level::serialized;
        default: return hvd::thread_level::multiple;
    }
}

HVD_INLINE void mpi_environment::start(int* argc, char*** argv, hvd::thread_level level) {
    int initialized = 0, finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0)
        throw usage_error(-1, "hvd: MPI has been finalised; it can't be started again");
    MPI_Initialized(&initialized);
    if (initialized != 0) return;
    constexpr int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                              MPI_THREAD_MULTIPLE};
    int given = MPI_THREAD_SINGLE;
    detail::check_mpi(MPI_Init_thread(argc, argv, levels[int(level)], &given), "MPI_Init_thread",
                      -1);
    owner_ = true;
    starter() = process_;
    terminate_ = std::set_terminate(&report_and_abort);
}

HVD_INLINE pid_t& mpi_environment::starter() {
    static pid_t last = 0;
    return last;
}

HVD_INLINE void mpi_environment::report_and_abort() noexcept {
    try {
        if (const std::exception_ptr failure = std::current_exception())
            std::rethrow_exception(failure);
        last_words("std::terminate was called");
    } catch (const std::exception& e) {
        last_words(e.what());
    } catch (...) {
        last_words("an exception that is no std::exception");
    }
    end_job();
}

HVD_INLINE void mpi_environment::last_words(const char* reason) {
    int rank = -1;
    if (detail::mpi_is_running()) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* const does = detail::mpi_ranks_end_apart ? " leaves" : " aborts";
    detail::write_line(detail::text("hvd: rank ", rank, does, " the job: ", reason));
}

HVD_INLINE void mpi_environment::end_job() noexcept {
    if (getpid() == starter() && detail::mpi_is_running() && !detail::mpi_ranks_end_apart)
        MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

HVD_INLINE void mpi_environment::abort_job() noexcept {
    try {
        last_words("an exception unwinds past its mpi_environment");
    } catch (...) {
    }
    // Peers that wait inside a node have seen this rank's communicators die, and now report it.
    detail::sleep_for(detail::tuning::abort_patience);
    end_job();
}

}  // namespace hvd::inline v0
