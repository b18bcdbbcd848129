// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>

#include <unistd.h>

#include "../core/compiled.hpp"
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
class HVD_API mpi_environment {
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

    ~mpi_environment();

    /// What MPI gave, which may be less than what was asked for.
    thread_level threads() const;

    /// Whether this object started MPI, and so will end it.
    bool owns_mpi() const noexcept { return owner_; }

private:
    void start(int* argc, char*** argv);

    // What a terminate handler can't be told.
    struct starter {
        pid_t process = 0;
        message_sink sink = &detail::write_to_stderr;
    };
    static starter& started();

    // For an exception that nobody catches: nothing unwinds then, but its text is at hand.
    [[noreturn]] static void report_and_abort() noexcept;
    static void last_words(message_sink sink, const char* reason);
    [[noreturn]] static void end_job() noexcept;
    [[noreturn]] void abort_job() noexcept;

    environment_options options_;
    pid_t process_ = getpid();
    int exceptions_ = std::uncaught_exceptions();
    bool owner_ = false;
    std::terminate_handler terminate_ = nullptr;  // what it was before
};

}  // namespace v0
}  // namespace hvd

#ifndef HVD_COMPILED
#include "mpi_environment_inline.hpp"
#endif
