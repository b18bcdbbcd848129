#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The implementation of a communicator is compiled in one file of a program, if the others declare it `extern template`:
one_file.py BUILD_ROOT TARGET

TARGET is the target of the build whose compiler and include paths are used. one_file.hpp and one_file.cpp are of a program
on MPI; on threads they say `threads` instead."""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler

HERE = pathlib.Path(__file__).parent
MAKERS = {
    "threads": "hvd::run_threads(2, [](hvd::communicator<hvd::threads>& world) { world.barrier(); });",
    "mpi": "hvd::communicator<hvd::mpi>::world().barrier();",
}


def symbols(compiler, folder, text):
    """Returns two sets: the names that an optimised file needs, and those that it defines."""
    made = pathlib.Path(folder, "made.o")
    subprocess.run([*compiler.command, "-O1", "-c", "-x", "c++", "-", "-o", made], input=text, text=True, check=True)
    lines = subprocess.run(["nm", "--demangle", made], capture_output=True, text=True, check=True).stdout.splitlines()
    split = [line[17:].split(" ", 1) for line in lines]
    return {name for kind, name in split if kind == "U"}, {name for kind, name in split if kind != "U"}


def check(compiler, folder, backend):
    declared, compiled = ((HERE / file).read_text().replace("mpi", backend) for file in ("one_file.hpp", "one_file.cpp"))
    needed, brought = symbols(compiler, folder, declared + f"void make() {{ {MAKERS[backend]} }}\n")
    behind = sorted(name for name in brought if "transport" in name or "backend_session" in name)
    if behind:
        yield f"{backend}: a file that only declares the communicator compiles\n  " + "\n  ".join(behind)
    wanted = {name for name in needed if "hvd::" in name}
    if not wanted:
        yield f"{backend}: a file that makes a communicator needs nothing of another file"
    _, given = symbols(compiler, folder, compiled.replace('#include "one_file.hpp"', declared))
    missing = sorted(wanted - given)
    if missing:
        yield f"{backend}: the file that compiles the communicator lacks\n  " + "\n  ".join(missing)


def main(build_root, source):
    compiler = Compiler(build_root, source)
    backends = ["threads"] + ["mpi"] * compiler.has("mpi.h")
    with tempfile.TemporaryDirectory() as folder:
        wrong = [text for backend in backends for text in check(compiler, folder, backend)]
    print(*wrong, sep="\n")
    print(f"{len(backends)} backends")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
