#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Measures the CPU time of compiling one allreduce and one broadcast: hvd's doors beside Boost.MPI's and plain <mpi.h>.

Each is compiled as a whole program, as the main file of a program that compiles hvd's communicator in another of its files
(as Boost.MPI is compiled in its library), and as a function of a larger program, without and with optimisation. Candidates
take turns within a round, so that all see the same machine; figures are medians over the rounds."""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

# The limits of the project: a door's time over boost/mpi.hpp's.
LIMITS = {"hvd/mpi.hpp": 0.7, "hvd/hvd.hpp": 1.0}
PEER = "boost/mpi.hpp"

HVD = {
    "environment": "hvd::mpi_environment environment{argc, argv};",
    "world": "auto world = hvd::communicator<hvd::mpi>::world();",
    "communicator": "hvd::communicator<hvd::mpi>",
    "elsewhere": "extern template class hvd::communicator<hvd::mpi>;",
    "calls": "world.allreduce(gradient, hvd::average); world.broadcast(gradient, hvd::root{0});",
}
BOOST = {
    "environment": "boost::mpi::environment environment(argc, argv);",
    "world": "boost::mpi::communicator world;",
    "communicator": "boost::mpi::communicator",
    "calls": "boost::mpi::all_reduce(world, boost::mpi::inplace(gradient.data()), int(gradient.size()), std::plus<float>());"
             "for (float& g : gradient) g /= float(world.size());"
             "boost::mpi::broadcast(world, gradient.data(), int(gradient.size()), 0);",
}
RAW = {
    "environment": "MPI_Init(&argc, &argv);",
    "world": "MPI_Comm world = MPI_COMM_WORLD;",
    "communicator": "MPI_Comm",
    "calls": "int size; MPI_Comm_size(world, &size);"
             "MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(gradient.size()), MPI_FLOAT, MPI_SUM, world);"
             "for (float& g : gradient) g /= float(size);"
             "MPI_Bcast(gradient.data(), int(gradient.size()), MPI_FLOAT, 0, world);",
}

# name -> (header, flags, texts). Boost.MPI and hvd leave MPI's own C++ bindings out by themselves.
CANDIDATES = {
    "hvd/mpi.hpp": ("hvd/mpi.hpp", [], HVD),
    "hvd/hvd.hpp": ("hvd/hvd.hpp", [], HVD),
    PEER: (PEER, [], BOOST),
    "mpi.h": ("mpi.h", ["-DOMPI_SKIP_MPICXX=1", "-DMPICH_SKIP_MPICXX=1"], RAW),
}


def program(header, texts, declarations=""):
    return f"""#include <{header}>
#include <functional>
#include <vector>
{declarations}
int main(int argc, char** argv) {{
    {texts["environment"]}
    {texts["world"]}
    std::vector<float> gradient(1 << 20);
    {texts["calls"]}
}}
"""


def main_file(header, texts):
    return program(header, texts, texts.get("elsewhere", ""))


def function(header, texts):
    return f"""#include <{header}>
#include <functional>
#include <vector>
void step({texts["communicator"]}& world, std::vector<float>& gradient) {{
    {texts["calls"]}
}}
"""


def cpu_seconds(command, folder, source, optimisation, flags):
    """Returns the user and system time of the compiler and its children."""
    words = command + ["-std=c++20", optimisation, *flags, "-c", source, "-o", os.path.join(folder, "object.o")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"compile_time: {shlex.join(words)}\n{output}")
    return usage.ru_utime + usage.ru_stime


def measure(command, candidates, rounds):
    """Returns (candidate, form, optimisation) -> seconds of each round. The first round warms the file cache up."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds + 1):
            for form in (program, main_file, function):
                for optimisation in ("-O0", "-O2"):
                    for name in candidates:
                        header, flags, texts = CANDIDATES[name]
                        source = os.path.join(folder, "source.cpp")
                        with open(source, "w", encoding="utf-8") as file:
                            file.write(form(header, texts))
                        seconds = cpu_seconds(command, folder, source, optimisation, flags)
                        if round_ > 0:
                            times.setdefault((name, form.__name__, optimisation), []).append(seconds)
    return times


def rows_of(times):
    medians = {key: statistics.median(seconds) for key, seconds in times.items()}
    return [{"header": name, "form": form, "optimisation": optimisation, "seconds": seconds,
             "ratio": seconds / medians[PEER, form, optimisation] if (PEER, form, optimisation) in medians else None,
             "limit": LIMITS.get(name)} for (name, form, optimisation), seconds in medians.items()]


def usable(command, name):
    header, flags, _ = CANDIDATES[name]
    probe = subprocess.run([*command, "-std=c++20", *flags, "-fsyntax-only", "-x", "c++", "-"], text=True, check=False,
                           input=f"#if !__has_include(<{header}>)\n#error\n#endif\n", stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def default_command(include):
    """Returns $CXX (or g++) with this tree's headers and Open MPI's."""
    mpi = subprocess.run(["pkg-config", "--cflags", "ompi-c"], capture_output=True, text=True, check=False)
    return [*shlex.split(os.environ.get("CXX", "g++")), "-I", include, *shlex.split(mpi.stdout)]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", help="the command with its include paths (default: $CXX or g++, with Open MPI's)")
    parser.add_argument("--include", default=os.path.join(here, "..", "include"), help="where hvd's headers are")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=list(CANDIDATES), help="leave the others out; repeatable")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds takes a number from 1, got {arguments.rounds}")

    command = shlex.split(arguments.compiler) if arguments.compiler else default_command(arguments.include)
    wanted = arguments.only or list(CANDIDATES)
    candidates = [name for name in wanted if usable(command, name)]
    for name in wanted:
        if name not in candidates:
            print(f"left out, not installed: {name}")
    rows = rows_of(measure(command, candidates, arguments.rounds))

    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    print(f"CPU seconds, medians of {arguments.rounds} interleaved rounds, {version}")
    print(f"{'header':14} {'form':9} {'':4} {'seconds':>8} {'of Boost':>9} {'limit':>6}")
    for row in rows:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        limit = f"{row['limit']:.2f}" if row["limit"] else ""
        verdict = "" if not (row["limit"] and row["ratio"]) else "pass" if row["ratio"] <= row["limit"] else "FAIL"
        print(f"{row['header']:14} {row['form']:9} {row['optimisation']:4} {row['seconds']:8.2f} {ratio:>9} {limit:>6} {verdict}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "compile_time", "compiler": version, "machine": platform.machine(),
                       "rounds": arguments.rounds, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
