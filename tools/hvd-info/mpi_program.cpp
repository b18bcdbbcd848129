// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "mpi_program.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <unistd.h>

namespace hvd_info {

child_end run_mpi_program(const std::vector<std::string>& arguments, double seconds,
                          const std::string& input) {
    std::error_code failed;
    const std::string own =
        std::filesystem::read_symlink("/proc/self/exe", failed).string() + "-mpi";
    std::vector<char*> words{const_cast<char*>(own.c_str())};
    for (const std::string& one : arguments) words.push_back(const_cast<char*>(one.c_str()));
    words.push_back(nullptr);
    return in_child(
        [&] {
            ::execv(own.c_str(), words.data());
            std::fprintf(stderr, "%s: %s\n", own.c_str(), std::strerror(errno));
            return 127;
        },
        seconds, input);
}

}  // namespace hvd_info
