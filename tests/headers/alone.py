#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Compiles every header by itself, twice in one unit, with warnings as errors: alone.py INCLUDE_DIR BUILD_ROOT TARGET

TARGET is the target of the build whose compiler and include paths are used. A header whose library (interop/, JSON) is absent,
and one that needs MPI where there is none, are named and left out. Without MPI only those are compiled that ask for it:
the others are the same as with it.

All headers are compiled with HVD_TEST_WHOLE, as under ./run test --soak. Otherwise it is one of 32, another for each commit,
and those that the last commit or the working tree changed. A change deep in the house would else compile them all."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler
from floors import ONE_PLACE, is_standard
from includes import Headers
from turns import has_turn

SHARES = 32
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def absent_library(headers, compiler, file):
    if file == "hvd.hpp":  # it works with MPI and without
        return None
    needed = {name for reached in headers.reach(file) for name in headers.foreign.get(reached, [])
              if reached.startswith("interop/") and not is_standard(name) or name in (*ONE_PLACE, "nlohmann/json.hpp")}
    return next((name for name in sorted(needed) if not compiler.has(name)), None)


def git(root, *words):
    return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.split()


def changed(root):
    """The headers that the last commit or the working tree changed."""
    return {file.removeprefix("include/hvd/") for base in ("HEAD~1", "HEAD") for file in git(root, "diff", "--name-only", base, "--", "include/hvd")}


def those_of_this_commit(root, files):
    touched = changed(root)
    return [file for file in files if file in touched or has_turn(file, SHARES, root)]


def main(include_dir, build_root, source):
    headers, compiler = Headers(include_dir), Compiler(build_root, source)
    with_mpi = compiler.has("mpi.h")
    root = pathlib.Path(include_dir).parent
    files = [file for file in headers.files if file.endswith(".hpp") and (with_mpi or "platform/has_mpi.hpp" in headers.reach(file))]
    files = those_of_this_commit(root, files)

    def check(file):
        absent = absent_library(headers, compiler, file)
        if absent:
            return True, f"{file}: left out, there is no <{absent}>"
        result = compiler.compile(f"#include <hvd/{file}>\n" * 2, *WARNINGS)
        return result.returncode == 0, f"{file}: does not compile alone\n{result.stdout}" if result.stdout else None

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, files))
    print(*[text for _, text in results if text], sep="\n")
    print(f"{len(files)} headers")
    return not all(ok for ok, _ in results)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
