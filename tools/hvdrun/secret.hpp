// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <string>

#include "process.hpp"

namespace hvdrun {

// Hexadecimal digits that nobody can guess, 32 of them.
std::string random_digits();

// The secret of a job, and the file of mode 0600 by which ranks on this host get it.
class job_secret {
public:
    // Makes a new secret and a file for it, or reads the file of the user.
    explicit job_secret(const std::string& users_file);
    job_secret(const job_secret&) = delete;
    job_secret& operator=(const job_secret&) = delete;
    ~job_secret();

    const std::string& digits() const { return digits_; }
    const std::string& path() const { return path_; }
    pid_t remover() const { return remover_.id; }
    bool is_temporary() const { return is_temporary_; }

private:
    std::string digits_, path_;
    bool is_temporary_ = false;
    process remover_;
};

}  // namespace hvdrun
