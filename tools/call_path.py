#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Prints the functions of hvd that one call enters, as a tree, with the file of each: ./tools/call_path.py [--help]

The call is a blocking allreduce of 8 floats with hvd::average, on hvd::threads with 2 ranks, in a program without
optimisation. The path is that of rank 0, which comes last and does not wait; with --late it comes first and waits 50 ms.
A function is printed where it is entered first. The compiler needs -finstrument-functions; addr2line finds names and
files."""

import argparse
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = r"""
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include <hvd/threads.hpp>

#define OUTSIDE __attribute__((no_instrument_function))

struct entry {
    void* function;
    int depth;
};
static entry entries[1 << 20];
static int count = 0;
static thread_local int depth = -1;  // -1: not in the call

extern "C" {
OUTSIDE void __cyg_profile_func_enter(void* function, void*) {
    if (depth >= 0 && count < 1 << 20) entries[count++] = {function, depth++};
}
OUTSIDE void __cyg_profile_func_exit(void*, void*) {
    if (depth > 0) --depth;
}
}

OUTSIDE static void work(hvd::communicator<hvd::threads>& world) {
    std::vector<float> x(8, float(world.rank()));
    world.barrier();
    if (world.rank() == LATE_RANK) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    depth = world.rank() == 0 ? 0 : -1;
    world.allreduce(x, hvd::average);
    depth = -1;
}

OUTSIDE int main() {
    hvd::run_threads(2, work);
    for (int i = 0; i < count; ++i) std::printf("%p %d\n", entries[i].function, entries[i].depth);
}
"""


def run(command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def build(compiler, folder, late_rank):
    source, program = folder / "call.cpp", folder / "call"
    source.write_text(PROGRAM)
    flags = ["-std=c++20", "-O0", "-g1", "-no-pie", "-pthread", "-finstrument-functions", f"-I{ROOT / 'include'}",
             f"-DLATE_RANK={late_rank}"]
    run([*compiler, *flags, str(source), "-o", str(program)])
    return program


def entered(program):
    """The functions that were entered, in order: address and depth."""
    rows = [line.split() for line in run([str(program)], timeout=60).splitlines()]
    return [(address, int(depth)) for address, depth in rows]


def places(program, addresses):
    """The name of each function and the header of hvd that it is in; None if it is in none."""
    lines = run(["addr2line", "-fC", "-e", str(program)], input="\n".join(addresses)).splitlines()
    result = {}
    for address, name, place in zip(addresses, lines[::2], lines[1::2]):
        path = posixpath.normpath(place.split(":")[0])
        header = path.split("/include/hvd/", 1)[1] if "/include/hvd/" in path else None
        result[address] = (name, header)
    return result


def without_templates(name):
    """A name that fits into a line: without its namespace, arguments, result and template parameters."""
    plain = name.replace("hvd::v0::", "").replace("detail::", "")
    plain = re.sub(r"\(anonymous namespace\)", "", plain).replace("operator()", "operator_call")
    for brackets in (r"<[^<>]*>", r"\([^()]*\)"):
        while (shorter := re.sub(brackets, "", plain)) != plain:
            plain = shorter
    plain = plain.replace("operator_call", "operator()").replace(" const", "")
    return plain.split(" ")[-1] if "operator" not in plain else plain[plain.rfind(" ", 0, plain.find("operator")) + 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late", action="store_true", help="rank 1 comes 50 ms late: the path of waiting, too")
    parser.add_argument("--functions", type=int, help="fail if there are more functions")
    parser.add_argument("--headers", type=int, help="fail if they are in more headers")
    parser.add_argument("compiler", nargs="*", default=os.environ.get("CXX", "g++").split(), help="default: $CXX or g++")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = build(options.compiler or ["g++"], pathlib.Path(folder), 1 if options.late else 0)
        # On a busy machine rank 1 may come last in spite of the 50 ms: then the path is that of waiting.
        rows = entered(program)
        for _ in range(0 if options.late else 4):
            rows = min(rows, entered(program), key=lambda r: len({address for address, _ in r}))
        known = places(program, sorted({address for address, _ in rows}))
    seen, headers, depths = set(), set(), []
    for address, depth in rows:
        name, header = known[address]
        if header is None:
            continue
        while depths and depths[-1] >= depth:
            depths.pop()
        if address not in seen:
            print(f"{'  ' * len(depths)}{without_templates(name)}  [{header}]")
        depths.append(depth)
        seen.add(address)
        headers.add(header)
    print(f"{len(seen)} functions in {len(headers)} headers")
    too_many = (options.functions is not None and len(seen) > options.functions) or (
        options.headers is not None and len(headers) > options.headers)
    if too_many:
        print(f"more than {options.functions} functions or {options.headers} headers", file=sys.stderr)
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
