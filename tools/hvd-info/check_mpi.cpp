// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// The MPI that hvd was compiled with, the library that is loaded, and the launchers. They must be
// of one MPI: otherwise each process is rank 0 of 1.
#include <cstdlib>

#include <unistd.h>

#include "../hvdrun/mpi_version.hpp"
#include "../hvdrun/shell.hpp"
#include "checks.hpp"
#include "child.hpp"
#include "mpi_program.hpp"

namespace hvd_info {

std::string pair_of(const std::string& mpi) {
    if (mpi == "Open MPI")
        return "start by Open MPI's launcher (Debian: mpiexec.openmpi), or compile with the other "
               "MPI (mpicxx.mpich)";
    if (mpi == "MPICH")
        return "start by MPICH's launcher (Debian: mpiexec.mpich), or compile with the other MPI "
               "(mpicxx.openmpi)";
    return "start by the launcher in the folder bin of the MPI that it is compiled with";
}

namespace {

using hvdrun::bare_version;
using hvdrun::mpi_of;

// Hydra starts the programs of MPICH and of Intel MPI, and Slurm those of all.
bool are_a_pair(const std::string& mpi, const std::string& launcher) {
    const auto family = [](const std::string& name) {
        return name == "Intel MPI" ? std::string("MPICH") : name;
    };
    return launcher.empty() || launcher == "Slurm" || family(mpi) == family(launcher);
}

void judge_launchers(check_report& report, const std::string& compiled) {
    const std::string mpi = mpi_of(compiled);
    std::string first, path;  // the launcher that a user who thinks of none takes
    bool has_pair = false;
    for (const char* name :
         {"mpirun", "mpiexec", "mpiexec.openmpi", "mpiexec.mpich", "mpiexec.hydra", "srun"}) {
        const std::string file = hvdrun::find_program(name);
        if (file.empty()) continue;
        const std::string version = hvdrun::version_of(file), of = mpi_of(version);
        report.add(name,
                   (version.empty() ? "does not start" : bare_version(version)) + ", " + file);
        if (first.empty()) first = of, path = file;
        has_pair = has_pair || (!of.empty() && are_a_pair(mpi, of));
    }
    if (mpi.empty()) return;
    if (!has_pair)
        report.wrong("hvd was compiled with " + compiled + ", and PATH has none of its launchers",
                     "add the folder bin of " + mpi +
                         " to PATH; hvdrun starts programs of hvd::tcp without MPI");
    else if (!are_a_pair(mpi, first))
        report.wrong(path + " is of " + first + ", and hvd was compiled with " + compiled +
                         ": each process that it starts would be rank 0 of 1",
                     pair_of(mpi));
    if (mpi == "Open MPI" && compiled.find(" 4.") != std::string::npos &&
        hvdrun::find_program("orted").empty())
        report.wrong("Open MPI's orted is not in PATH: mpiexec starts nothing on other hosts",
                     "add the folder bin of Open MPI to PATH on each host, also for shells that "
                     "are no logins (~/.bashrc), or give mpiexec --prefix");
}

// The library that the loader finds may be another one than that of the header.
void judge_library(check_report& report, const std::string& compiled) {
    if (!has_mpi_program(report)) return;
    const child_end end = run_mpi_program({"--library"}, 20);
    const std::string said = end.output.substr(0, end.output.find('\n'));
    if (!end.is_good()) {
        report.wrong("the MPI library is not loaded: " + end.reason(),
                     "add its folder to LD_LIBRARY_PATH, or to /etc/ld.so.conf and run ldconfig");
        return;
    }
    const std::string library = bare_version(said);
    report.add_common("library", library);
    const auto major = [](const std::string& text) { return text.substr(0, text.find('.')); };
    if (major(library) != major(compiled))
        report.wrong(
            "hvd was compiled with " + compiled + ", and the library that is loaded is " + library,
            "take the other one out of LD_LIBRARY_PATH, or compile hvd with it");
}

}  // namespace

check_report check_mpi(const context&) {
    const std::string compiled = HVD_INFO_MPI;
    check_report report{"mpi", {}, {}};
    report.add_common("compiled with", compiled.empty() ? "none" : compiled);
    if (!compiled.empty()) judge_library(report, compiled);
    judge_launchers(report, compiled);
    return report;
}

}  // namespace hvd_info
