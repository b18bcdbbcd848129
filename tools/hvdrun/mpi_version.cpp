// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include "mpi_version.hpp"

#include <cstdio>

#include "shell.hpp"

namespace hvdrun {

std::string version_of(const std::string& program) {
    const std::string line = for_shell(program) + " --version 2>&1 </dev/null";
    FILE* const pipe = ::popen(line.c_str(), "r");
    if (pipe == nullptr) return "";
    std::string all;
    char bytes[512];
    while (const std::size_t n = std::fread(bytes, 1, sizeof bytes, pipe)) all.append(bytes, n);
    if (::pclose(pipe) != 0) return "";
    // Hydra says its number in the second line.
    const bool is_hydra = all.find("HYDRA") != std::string::npos;
    const std::size_t at = is_hydra ? all.find("Version:") : std::string::npos;
    if (at == std::string::npos) return all.substr(0, all.find('\n'));
    const std::size_t number = all.find_first_not_of(" \t", at + 8);
    return "MPICH (HYDRA) " + all.substr(number, all.find('\n', number) - number);
}

std::string bare_version(const std::string& version) {
    const std::string mpi = mpi_of(version);
    const std::size_t number = version.find_first_of("0123456789");
    if (mpi.empty() || number == std::string::npos) return version;
    return mpi + " " + version.substr(number, version.find_first_of(" ,\n", number) - number);
}

std::string mpi_of(const std::string& version) {
    const auto has = [&](const char* part) { return version.find(part) != std::string::npos; };
    if (has("slurm")) return "Slurm";
    if (has("Intel(R) MPI")) return "Intel MPI";
    if (has("HYDRA") || has("MPICH")) return "MPICH";
    // Where the name is not mpirun, Open MPI 4 calls itself OpenRTE.
    return has("Open MPI") || has("OpenRTE") ? "Open MPI" : "";
}

}  // namespace hvdrun
