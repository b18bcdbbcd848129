#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The rules of the house, read from the #include lines: floors.py INCLUDE_DIR"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from includes import Headers

# A floor includes itself and those before it. detail/ is beside them: used by all but core, using only core.
FLOORS = ["", "core", "observe", "kernel", "fusion", "backend", "comm", "engine", "train", "elastic", "data", "interop"]
NAMES_ONLY = ["version.hpp", "fwd.hpp"]
SYSTEM = {"cxxabi.h", "fcntl.h", "immintrin.h", "pthread.h", "sched.h", "signal.h", "time.h", "unistd.h", "x86intrin.h"}
# The libraries that a header outside interop/ is there for; no door includes it.
OWN_LIBRARY = {file: "nlohmann/json.hpp" for file in ("train/safetensors_file.hpp", "train/write_safetensors.hpp")}
SLOW_TO_COMPILE = {"algorithm", "atomic", "complex", "functional", "future", "iostream", "map", "memory", "regex", "string", "thread"}
LEAN_DOORS = ("hvd.hpp", "mpi.hpp", "threads.hpp")  # whose time to compile is promised
ONE_PLACE = ("mpi.h", "cuda_runtime_api.h", "nccl.h")  # each included by one file, in detail/
MOST_LINES = 500


def floor(file):
    if file in NAMES_ONLY:
        return ""
    return file.split("/")[0] if "/" in file else "door"


def may_include(file, other):
    here, there = floor(file), floor(other)
    if here == "door":
        return True
    if there == "door":
        return False
    if here == there or there == "":
        return True
    if there == "detail":
        return here not in ("core", "")
    if here == "detail":
        return there == "core"
    return FLOORS.index(there) < FLOORS.index(here)


def is_standard(name):
    return "/" not in name and "." not in name or name in SYSTEM or name.startswith(("sys/", "linux/"))


def offences(headers):
    behind_doors = set().union(*(headers.reach(door) for door in headers.doors()))
    lean = set().union(*(headers.reach(door) for door in LEAN_DOORS))
    for library in ONE_PLACE:
        includers = [file for file in headers.files if library in headers.foreign[file]]
        if len(includers) > 1:
            yield f"more than one file includes <{library}>: {', '.join(includers)}"
    mpi_includers = [file for file in headers.files if "mpi.h" in headers.foreign[file]]
    for file in headers.files:
        text = (headers.root / file).read_text()
        lines = text.count("\n")
        if lines > MOST_LINES:
            yield f"{file}: {lines} lines, more than {MOST_LINES}"
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            yield f"{file}: does not begin with its licence"
        if "#pragma once\n" not in text:
            yield f"{file}: no #pragma once"
        if floor(file) not in FLOORS + ["door", "detail"]:
            yield f"{file}: in a folder that is no floor of the house"
            continue
        for other in headers.own[file]:
            if other not in headers.files:
                yield f"{file}: includes {other}, which does not exist"
            elif not may_include(file, other):
                yield f"{file}: includes the later floor {other}"
            if other == "comm/default.hpp" and file != "hvd.hpp":
                yield f"{file}: includes comm/default.hpp, which is for hvd.hpp alone"
        for name in headers.foreign[file]:
            if name in ONE_PLACE and floor(file) == "detail":
                continue
            if OWN_LIBRARY.get(file) == name:
                continue
            if not is_standard(name) and floor(file) != "interop":
                yield f"{file}: includes the library <{name}>"
            if name in SLOW_TO_COMPILE and file in lean:
                yield f"{file}: includes <{name}>, which everyone behind a door would compile"
    for file in headers.files:
        if (floor(file) == "interop" or file in OWN_LIBRARY) and file in behind_doors:
            yield f"{file}: is behind a door"
        if floor(file) == "backend" and "threads" in file and any(f in mpi_includers for f in headers.reach(file)):
            yield f"{file}: reaches <mpi.h>"


if __name__ == "__main__":
    found = list(offences(Headers(sys.argv[1])))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
