// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <optional>

#include <sys/types.h>

#include "options.hpp"

namespace hvd_compute {

// The process of a worker program. It is ended with this object.
class worker_process {
public:
    // @throws std::runtime_error for a program that can't be started.
    explicit worker_process(const options& o);
    worker_process(const worker_process&) = delete;
    worker_process& operator=(const worker_process&) = delete;
    ~worker_process() { end(); }

    // The exit code, once it has ended: 128 and the signal's number for one that a signal ended.
    std::optional<int> exit_code();

    // Asks it to end, and kills it if it takes more than some seconds. Returns the exit code.
    int end();

private:
    pid_t id_ = -1;
    std::optional<int> code_;
};

// SIGTERM, SIGINT and SIGHUP ask this process to end.
void note_signals();
bool is_asked_to_end();

}  // namespace hvd_compute
