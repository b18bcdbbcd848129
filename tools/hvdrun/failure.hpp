// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

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

}  // namespace hvdrun
