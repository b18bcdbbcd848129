// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <exception>

#include <unistd.h>

#include "../core/compiled.hpp"
#include "../core/message_sink.hpp"
#include "../platform/mpi_api.hpp"

namespace hvd::inline v0 {

/// The program's promise to MPI about its threads (MPI standard, "MPI and Threads").
enum class thread_level { single, funneled, serialized, multiple };

/// Options of an `mpi_environment`.
struct environment_options {
    /// requested level; with `multiple` asynchronous calls progress in a thread
    hvd::thread_level thread_level = hvd::thread_level::multiple;
};

/// Starts MPI if nobody has, and ends only what it started.
///
/// If it is destroyed while an exception unwinds, it writes the rank to the sink of
/// `set_message_sink`, gives the peers a moment to report their own `hvd::peer_error`, and calls
/// `MPI_Abort`. So one rank's exception does not hang the others. An uncaught exception is written
/// with its text and aborts the job as well. If a call has found that the process of another rank
/// has ended, it writes a line and leaves MPI as it is, since `MPI_Finalize` would wait for that
/// rank. Declare it before every communicator. Not movable. A forked child does not use MPI.
/// @throws hvd::usage_error if MPI has been finalised; hvd::mpi_error if it can't be started.
/// @snippet tests/docs/snippets.cpp mpi_environment
class [[nodiscard("hvd: MPI ends with its environment: keep it in a variable to the end of main"),
        gnu::visibility("default")]] mpi_environment {  // g++ takes no HVD_API behind [[…]]
public:
    [[nodiscard("hvd: MPI ends with its environment: keep it in a variable to the end of main")]]
    mpi_environment(int& argc, char**& argv, const environment_options& options = {}) {
        start(&argc, &argv, options.thread_level);
    }

    [[nodiscard("hvd: MPI ends with its environment: keep it in a variable to the end of main")]]
    explicit mpi_environment(const environment_options& options = {}) {
        start(nullptr, nullptr, options.thread_level);
    }

    mpi_environment(const mpi_environment&) = delete;
    mpi_environment& operator=(const mpi_environment&) = delete;

    ~mpi_environment() { end(); }

    /// The level that MPI provides, which may be less than requested.
    hvd::thread_level thread_level() const;

    /// True if this object started MPI, and so will end it.
    bool owns_mpi() const noexcept { return owner_; }

private:
    void start(int* argc, char*** argv, hvd::thread_level level);
    void end();
    void leave_mpi() noexcept;

    // The process that started MPI last, for the terminate handler, which has no arguments.
    static pid_t& starter();

    // Reports an uncaught exception. Nothing unwinds then, but its text is available.
    [[noreturn]] static void report_and_abort() noexcept;
    static void last_words(const char* reason);
    [[noreturn]] static void end_job() noexcept;
    [[noreturn]] void abort_job() noexcept;

    pid_t process_ = getpid();
    int exceptions_ = std::uncaught_exceptions();
    bool owner_ = false;
    std::terminate_handler terminate_ = nullptr;  // the earlier handler
};

}  // namespace hvd::inline v0

#ifndef HVD_COMPILED
#include "mpi_environment_inline.hpp"
#endif
