#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Compiles every header by itself, twice in one unit, with warnings as errors: alone.py INCLUDE_DIR BUILD_ROOT SOURCE

SOURCE is the file of the build whose compiler and include paths are used. A header whose library (interop/, JSON) is absent,
and one that needs MPI where there is none, are named and left out. Without MPI only those are compiled that ask for it:
the others are the same as with it."""

import concurrent.futures
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler
from floors import ONE_PLACE, is_standard
from includes import Headers

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def absent_library(headers, compiler, file):
    if file == "hvd.hpp":  # it works with MPI and without
        return None
    needed = {name for reached in headers.reach(file) for name in headers.foreign.get(reached, [])
              if reached.startswith("interop/") and not is_standard(name) or name in (*ONE_PLACE, "nlohmann/json.hpp")}
    return next((name for name in sorted(needed) if not compiler.has(name)), None)


def main(include_dir, build_root, source):
    headers, compiler = Headers(include_dir), Compiler(build_root, source)
    with_mpi = compiler.has("mpi.h")
    files = [file for file in headers.files if file.endswith(".hpp") and (with_mpi or "platform/has_mpi.hpp" in headers.reach(file))]

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
