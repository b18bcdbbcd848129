// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include <sys/types.h>

#include "file_descriptor.hpp"

namespace hvdrun {

// A process beside hvdrun that ends what the ranks have left if hvdrun itself is killed: process
// groups, and the file of the secret. The kernel ends the ranks themselves.
class guard {
public:
    // It gives the groups so many seconds after SIGTERM.
    explicit guard(double patience);
    guard(const guard&) = delete;
    guard& operator=(const guard&) = delete;
    ~guard();

    pid_t id() const { return id_; }
    void watch(pid_t group) { tell('+', group); }
    void forget(pid_t group) { tell('-', group); }
    void watch_file(const std::string& path);

private:
    void tell(char what, pid_t group);

    file_descriptor line_;
    pid_t id_ = -1;
};

}  // namespace hvdrun
