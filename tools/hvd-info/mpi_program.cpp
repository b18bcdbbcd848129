// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "mpi_program.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <unistd.h>

namespace hvd_info {
namespace {

std::string path_of_mpi_program() {
    std::error_code failed;
    return std::filesystem::read_symlink("/proc/self/exe", failed).string() + "-mpi";
}

}  // namespace

bool has_mpi_program(check_report& report) {
    const std::string path = path_of_mpi_program();
    if (::access(path.c_str(), X_OK) == 0) return true;
    report.wrong(path + ", which asks the MPI library, is not there",
                 "install hvd-info and hvd-info-mpi in one folder");
    return false;
}

child_end run_mpi_program(const std::vector<std::string>& arguments, double seconds,
                          const std::string& input) {
    const std::string own = path_of_mpi_program();
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
