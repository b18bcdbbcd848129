#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The rules of the house, read from the #include lines: floors.py INCLUDE_DIR"""

import collections
import pathlib
import posixpath
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tools/docs")]
from includes import Headers  # noqa: E402
from rooms import FOLDERS as ROOMS  # noqa: E402  a room includes itself and those before it

NAMES_ONLY = ["version.hpp", "fwd.hpp", "standard.hpp"]
SYSTEM = {"cxxabi.h", "dirent.h", "fcntl.h", "ifaddrs.h", "immintrin.h", "net/if.h", "netdb.h", "netinet/in.h", "netinet/tcp.h", "poll.h", "pthread.h", "sched.h", "signal.h", "time.h", "unistd.h", "x86intrin.h"}
# The libraries that a header outside interop/ is there for; no door includes it.
# Only these doors bring it.
OWN_DOORS = ("checkpoint.hpp", "data_service.hpp")
OWN_LIBRARY = {file: "nlohmann/json.hpp" for file in ("train/checkpoint/safetensors_file_inline.hpp",
                                                      "train/checkpoint/write_safetensors_inline.hpp",
                                                      "data/service/service_config_inline.hpp")}
# The second parts of a header x.hpp, which includes them: x_inline.hpp unless HVD_COMPILED, x_library.hpp if so, and
# x_bodies.hpp, the bodies of a long template, always.
SECOND_PARTS = ("_inline.hpp", "_library.hpp", "_bodies.hpp")
SLOW_TO_COMPILE = {"algorithm", "atomic", "complex", "functional", "future", "iostream", "iterator", "map", "memory", "regex", "string", "thread"}
LISTS = "library.hpp"  # the instantiations of libhvd for the doors that a program includes; only of the compiled form
LEAN_DOORS = ("hvd.hpp", "mpi.hpp", "threads.hpp")  # the docs promise their time to compile
ONE_PLACE = ("mpi.h", "cuda_runtime_api.h", "cuda_fp8.h", "nccl.h")  # each included by one file, in platform/
MANY_LINES = 500
MANY_HEADERS = 16  # of one folder


def room(file):
    """The folder of a header: "" for those that only name things, "door" for those that only include."""
    if file in NAMES_ONLY:
        return ""
    return posixpath.dirname(file) if "/" in file else "door"


def may_include(file, other):
    here, there = room(file), room(other)
    if here == "door" or there == "":
        return True
    if there == "door" or here == "":
        return False
    return ROOMS.index(there) <= ROOMS.index(here)


def first_part(file):
    """x.hpp of x_inline.hpp and x_library.hpp."""
    return next((file.removesuffix(end) + ".hpp" for end in SECOND_PARTS if file.endswith(end)), file)


def circle(headers, file):
    """Returns true if a header reaches itself. A header and its second parts include each other and count as one."""
    if file == LISTS:
        return False  # it has no guard: every door includes it once more
    parts = {other for other in headers.files if first_part(other) == first_part(file)} | {file}
    others = {other for part in parts for other in headers.own[part]} - parts
    return any(not parts.isdisjoint(headers.reach(other)) for other in others)


def reach_without(headers, file, left_out):
    """What a header includes but for what it includes by one file."""
    seen, todo = {left_out}, [file]
    while todo:
        here = todo.pop()
        if here not in seen:
            seen.add(here)
            todo += headers.own.get(here, [])
    return seen


def is_standard(name):
    return "/" not in name and "." not in name or name in SYSTEM or name.startswith(("sys/", "linux/"))


def offences(headers):
    behind_doors = set().union(*(reach_without(headers, door, LISTS) for door in headers.doors() if door not in (LISTS, *OWN_DOORS)))
    lean = set().union(*(reach_without(headers, door, LISTS) for door in LEAN_DOORS))
    for library in ONE_PLACE:
        includers = [file for file in headers.files if library in headers.foreign[file]]
        if len(includers) > 1:
            yield f"more than one file includes <{library}>: {', '.join(includers)}"
    mpi_includers = [file for file in headers.files if "mpi.h" in headers.foreign[file]]
    for file in headers.files:
        text = (headers.root / file).read_text()
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
            yield f"{file}: does not begin with its licence"
        if "#pragma once\n" not in text and file != LISTS:
            yield f"{file}: no #pragma once"
        if room(file) not in ROOMS + ["", "door"]:
            yield f"{file}: in a folder that is no room in the list of tools/docs/rooms.py"
            continue
        for other in headers.own[file]:
            if other not in headers.files:
                yield f"{file}: includes {other}, which does not exist"
            elif room(other) not in ROOMS + ["", "door"]:
                continue  # reported for that header
            elif not may_include(file, other):
                yield f"{file}: includes the later room {other}"
            if other == "comm/default.hpp" and file != "hvd.hpp":
                yield f"{file}: includes comm/default.hpp, which is for hvd.hpp alone"
        for name in headers.foreign[file]:
            if name in ONE_PLACE and room(file) == "platform":
                continue
            if OWN_LIBRARY.get(file) == name:
                continue
            if name.startswith("cuda_") and file.endswith(".cuh"):
                continue
            if not is_standard(name) and room(file) != "interop":
                yield f"{file}: includes the library <{name}>"
            if name in SLOW_TO_COMPILE and file in lean:
                yield f"{file}: includes <{name}>, which everyone behind a door would compile"
        if file.endswith(("_inline.hpp", "_bodies.hpp")):
            for other in headers.files:
                if file in headers.own[other] and other != first_part(file):
                    yield f"{other}: includes {file}, which is a part of {first_part(file)}"
        if circle(headers, file):
            yield f"{file}: includes itself in a circle"
    for empty in sorted(set(ROOMS) - {room(file) for file in headers.files}):
        yield f"{empty}: a room without headers, in the list of tools/docs/rooms.py"
    for file in headers.files:
        if (room(file) == "interop" or file in OWN_LIBRARY) and file in behind_doors:
            yield f"{file}: is behind a door"
        if room(file) == "backend" and "threads" in file and any(f in mpi_includers for f in headers.reach(file)):
            yield f"{file}: reaches <mpi.h>"


def smells(headers):
    """What a reader judges: the sizes of files and folders."""
    for file in headers.files:
        if (lines := (headers.root / file).read_text().count("\n")) > MANY_LINES:
            yield f"{file}: {lines} lines; is it one idea?"
    for folder, number in collections.Counter(map(posixpath.dirname, headers.files)).items():
        if number > MANY_HEADERS:
            yield f"{folder or 'the doors'}: {number} headers; is there a house inside?"


if __name__ == "__main__":
    headers = Headers(sys.argv[1])
    found = list(offences(headers))
    print(*smells(headers), *found, sep="\n")
    sys.exit(1 if found else 0)
