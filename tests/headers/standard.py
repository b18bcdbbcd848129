#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Under a standard older than C++20 every header says so and stops, and so does a door for a compiler or a system that is not enough:
standard.py INCLUDE_DIR BUILD_ROOT TARGET

TARGET is the target of the build whose compiler and include paths are used. Headers whose library is absent are left out, and each
commit has its share of the others, as in alone.py."""

import concurrent.futures
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from alone import absent_library, those_of_this_commit
from compiler import Compiler, first_error
from floors import room
from includes import Headers

MOST_LINES = 12
MOST_LINES_INSIDE = 18  # of headers that no user includes: the compiler names every file between
WITHOUT = ("standard.hpp", "version.hpp", "library.hpp")  # they declare nothing by themselves
REMEDY = "compile with -std=c++20"
# The compiler takes itself for another one.
NOT_ENOUGH = {"on Windows, compile and run inside WSL2": ["-D_WIN32"],
              "clang 16 or newer": ["-D__clang__=1", "-U__clang_major__", "-D__clang_major__=14"],
              "g++ 12 or newer": ["-U__clang__", "-U__GNUC__", "-D__GNUC__=11"]}
DOOR = "threads.hpp"


def is_public(file):
    return room(file) in ("", "door", "interop", "observe")


def problem(compiler, file, remedy=REMEDY, options=("-std=c++17",)):
    result = compiler.compile(f"#include <hvd/{file}>\n", *options)
    most = MOST_LINES if is_public(file) else MOST_LINES_INSIDE
    if result.returncode == 0:
        return f"{file}: compiles with {' '.join(options)}"
    if remedy not in first_error(result.stdout):
        return f"{file}: the first error does not say '{remedy}':\n{result.stdout}"
    if (said := result.stdout.count("\n")) > most:
        return f"{file}: the compiler says {said} lines, more than {most}"
    return None


def main(include_dir, build_root, source):
    headers, compiler = Headers(include_dir), Compiler(build_root, source)
    files = [file for file in headers.files
             if file.endswith(".hpp") and file not in WITHOUT and not absent_library(headers, compiler, file)]
    files = those_of_this_commit(pathlib.Path(include_dir).parent, files)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for text in pool.map(lambda file: problem(compiler, file), files) if text]
        found += [text for text in pool.map(lambda what: problem(compiler, DOOR, *what), NOT_ENOUGH.items()) if text]
    print(*found, sep="\n")
    print(f"{len(files)} headers")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
