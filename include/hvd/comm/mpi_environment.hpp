// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cstdlib>
#include <exception>

#include <unistd.h>

#include "../core/tuning.hpp"
#include "../platform/clock.hpp"
#include "../platform/mpi_api.hpp"

namespace hvd {
inline namespace v0 {

/// What a program promises MPI about its threads (MPI standard, "MPI and Threads").
enum class thread_level { single, funneled, serialized, multiple };

/// What an `mpi_environment` is told.
struct environment_options {
    thread_level threads = thread_level::
        multiple;  ///< asked for; asynchronous calls progress in a thread with `multiple`
    message_sink sink = &detail::write_to_stderr;  ///< where the last words of a failing rank go
};

/// Starts MPI if nobody has, and ends only what it started.
///
/// Destroyed while an exception unwinds, it says so with rank, gives the peers a moment to report
/// their own `hvd::peer_error`, and calls `MPI_Abort`: one rank's exception does not hang the
/// others. An exception that nobody catches is reported with its text and aborts the job as well.
/// Declare it before every communicator. Not movable. A child that was forked leaves MPI alone.
/// Features A1, A9.
/// @throws hvd::usage_error if MPI has been finalised; hvd::mpi_error if it can't be started.
/// @snippet tests/docs/snippets.cpp mpi_environment
class mpi_environment {
public:
    mpi_environment(int& argc, char**& argv, const environment_options& options = {})
        : options_(options) {
        start(&argc, &argv);
    }

    explicit mpi_environment(const environment_options& options = {}) : options_(options) {
        start(nullptr, nullptr);
    }

    mpi_environment(const mpi_environment&) = delete;
    mpi_environment& operator=(const mpi_environment&) = delete;

    ~mpi_environment() {
        if (terminate_ != nullptr) std::set_terminate(terminate_);
        if (getpid() != process_ || !detail::mpi_is_running()) return;
        if (std::uncaught_exceptions() > exceptions_) abort_job();
        if (owner_) MPI_Finalize();
    }

    /// What MPI gave, which may be less than what was asked for.
    thread_level threads() const {
        switch (detail::mpi_thread_level()) {
            case MPI_THREAD_SINGLE: return thread_level::single;
            case MPI_THREAD_FUNNELED: return thread_level::funneled;
            case MPI_THREAD_SERIALIZED: return thread_level::serialized;
            default: return thread_level::multiple;
        }
    }

    /// Whether this object started MPI, and so will end it.
    bool owns_mpi() const noexcept { return owner_; }

private:
    void start(int* argc, char*** argv) {
        int initialized = 0, finalized = 0;
        MPI_Finalized(&finalized);
        if (finalized != 0)
            throw usage_error(-1, "hvd: MPI has been finalised; it can't be started again");
        MPI_Initialized(&initialized);
        if (initialized != 0) return;
        constexpr int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                  MPI_THREAD_MULTIPLE};
        int given = MPI_THREAD_SINGLE;
        detail::check_mpi(MPI_Init_thread(argc, argv, levels[int(options_.threads)], &given),
                          "MPI_Init_thread", -1);
        owner_ = true;
        started() = {process_, options_.sink};
        terminate_ = std::set_terminate(&report_and_abort);
    }

    // What a terminate handler can't be told.
    struct starter {
        pid_t process = 0;
        message_sink sink = &detail::write_to_stderr;
    };
    static starter& started() {
        static starter last;
        return last;
    }

    // For an exception that nobody catches: nothing unwinds then, but its text is at hand.
    [[noreturn]] static void report_and_abort() noexcept {
        try {
            if (const std::exception_ptr failure = std::current_exception())
                std::rethrow_exception(failure);
            last_words(started().sink, "std::terminate was called");
        } catch (const std::exception& e) {
            last_words(started().sink, e.what());
        } catch (...) {
            last_words(started().sink, "an exception that is no std::exception");
        }
        end_job();
    }

    static void last_words(message_sink sink, const char* reason) {
        int rank = -1;
        if (detail::mpi_is_running()) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        sink(detail::text("hvd: rank ", rank, " aborts the job: ", reason));
    }

    [[noreturn]] static void end_job() noexcept {
        if (getpid() == started().process && detail::mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, 1);
        std::abort();
    }

    [[noreturn]] void abort_job() noexcept {
        try {
            last_words(options_.sink, "an exception unwinds past its mpi_environment");
        } catch (...) {
        }
        // Peers that wait inside a node have seen this rank's communicators die, and now report it.
        detail::sleep_for(detail::tuning::abort_patience);
        end_job();
    }

    environment_options options_;
    pid_t process_ = getpid();
    int exceptions_ = std::uncaught_exceptions();
    bool owner_ = false;
    std::terminate_handler terminate_ = nullptr;  // what it was before
};

}  // namespace v0
}  // namespace hvd
