#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Compiles programs whose include path for hvd is a plain -I, with the warnings of strict projects, and fails where one
comes from a header of hvd: warnings.py SOURCE_ROOT BUILD_ROOT TARGET

TARGET is the target of the build whose compiler and include paths are used. The programs are the doors, every call of
every_call.cpp, and the snippets of the documentation, which take turns."""

import concurrent.futures
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler
from includes import Headers
from turns import has_turn

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow"]
NEEDS = {"mpi.hpp": "mpi.h", "elastic_mpi.hpp": "mpi.h", "cuda.hpp": "cuda_runtime_api.h", "train_device.hpp": "cuda_runtime_api.h",
         "engine_device.hpp": "cuda_runtime_api.h", "data_device.hpp": "cuda_runtime_api.h", "nccl.hpp": "nccl.h", "elastic_nccl.hpp": "nccl.h", "checkpoint.hpp": "nlohmann/json.hpp", "data_service.hpp": "nlohmann/json.hpp"}
EVERY_CALL = "tests/headers/every_call.cpp"
SNIPPETS = {"tests/docs/snippets.cpp": (), "tests/train/snippets.cpp": (), "tests/train/engine_snippets.cpp": (), "tests/device/snippets.cpp": ("cuda_runtime_api.h", "nccl.h"),
            "tests/train/device_snippets.cpp": ("cuda_runtime_api.h", "nccl.h")}
# The tests' own headers are not looked at.
FOLDERS = ("tests/support", "tests/emulation", "tests/headers")


def programs(root, compiler):
    """Name, text and flags of each."""
    doors = [door for door in Headers(root / "include").doors() if door not in NEEDS or compiler.has(NEEDS[door])]
    text = "".join(f"#include <hvd/{door}>\n" for door in doors)
    yield "the doors", text, ()
    yield EVERY_CALL, f'#include "{root / EVERY_CALL}"\n', ("-DHVD_TEST_COMPILES_ONLY",)
    for file, needed in SNIPPETS.items():
        if has_turn(file, len(SNIPPETS), root) and all(map(compiler.has, needed)) and compiler.has("doctest/doctest.h"):
            yield file, f'#include "{root / file}"\n', ("-DHVD_TEST_BACKEND_THREADS",)


def main(source_root, build_root, like):
    root, compiler = pathlib.Path(source_root).resolve(), Compiler(build_root, like)
    folders = [word for folder in FOLDERS for word in ("-isystem", str(root / folder))]
    of_hvd = re.compile(rf"^{re.escape(str(root / 'include'))}/\S+ (warning|error|fatal error):", re.M)

    def check(program):
        name, text, flags = program
        result = compiler.compile(text, *WARNINGS, *folders, *flags)
        lines = [line for line in result.stdout.splitlines() if of_hvd.match(line)]
        return [f"{name}: {line}" for line in lines] or ([f"{name}: {result.stdout}"] if result.returncode else [])

    chosen = list(programs(root, compiler))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(check, chosen) for line in lines]
    print(*dict.fromkeys(found), sep="\n")
    print(f"{len(chosen)} programs")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
