// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hvdrun {

// An end of hvdrun with a message for the user and the exit code of the program.
class failure : public std::runtime_error {
public:
    failure(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
    int code() const { return code_; }

private:
    int code_;
};

// A command line or a file that cannot be used.
class usage_failure : public failure {
public:
    explicit usage_failure(const std::string& what) : failure(2, what) {}
};

// An error of a write to the standard output.
inline failure output_failure(int error) {
    if (error == EPIPE) return {128 + SIGPIPE, "ended, since nobody reads the output any more"};
    return {1, std::string("the output cannot be written: ") + strerror(error)};
}

// Writes what is printed by now. A full disk is an error.
inline void flush_output() {
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw output_failure(errno);
}

}  // namespace hvdrun
