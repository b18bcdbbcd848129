#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that hvd compiles with older headers of NCCL, and that a program starts with an older library than its header: older_nccl.py BUILD_ROOT TARGET

The older headers are cut from the one that the compiler finds: what later versions brought is removed. TARGET is the
target of the build whose compiler and include paths are used."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler

# What each version brought: functions, members of ncclConfig_t, and other lines.
BROUGHT = {
    (2, 24, 3): ([], [], [r"#include <cuda_fp8\.h>"]),
    (2, 26, 2): ([], ["trafficClass"], []),
    (2, 27, 3): (["ncclCommWindowRegister", "ncclCommWindowDeregister", "ncclCommShrink"],
                 ["commName", "collnetEnable", "CTAPolicy", "shrinkShare", "nvlsCTAs"],
                 [r"#define NCCL_(WIN|SHRINK|CTA_POLICY)_\w+ ", r"typedef struct \w+\* ncclWindow_t;"]),
    (2, 28, 3): (["ncclAlltoAll", "ncclGather", "ncclScatter"], ["nChannelsPerNetPeer", "nvlinkCentricSched"], []),
    (2, 28, 7): (["ncclCommRevoke"], [], [r"#define NCCL_REVOKE_\w+ "]),
    (2, 29, 2): (["ncclCommGetUniqueId", "ncclCommGrow"], [], []),
}
OLDEST = (2, 19, 1)

PROGRAM = """
#include <hvd/nccl.hpp>
#include <hvd/threads.hpp>

static_assert(NCCL_VERSION_CODE == NCCL_VERSION({0}, {1}, {2}));
void make(hvd::communicator<hvd::threads>& world, float* x) {{
    hvd::nccl_options options;
    options.config.maxCTAs = 4;
    hvd::communicator<hvd::nccl> gpus(world, {{}}, options);
    hvd::device_arena arena(gpus, 1);
    gpus.allreduce(hvd::device_view(x, 1), hvd::average);
    auto rest = gpus.shrink({{1}});
}}
"""


def found_header(compiler):
    listed = subprocess.run(compiler.command + ["-E", "-x", "c++", "-"], input="#include <nccl.h>\n", text=True,
                            capture_output=True, check=True, cwd=compiler.folder).stdout
    return pathlib.Path(re.search(r'^# \d+ "([^"]*/nccl\.h)"', listed, re.MULTILINE).group(1))


def cut(text, version):
    """Returns the header as of `version`."""
    for since, (functions, members, lines) in BROUGHT.items():
        if since <= version:
            continue
        for name in functions:
            text = re.sub(rf"ncclResult_t\s+p?{name}\([^;]*;", "", text)
        for name in members:
            text = re.sub(rf"^[^\n]*\b{name}(;| \*/)[^\n]*\n", "", text, flags=re.MULTILINE)
        for line in lines:
            text = re.sub(rf"^{line}[^\n]*\n", "", text, flags=re.MULTILINE)
        left = [name for name in functions + members if re.search(rf"^[^/*]*\bp?{name}\b", text, re.MULTILINE)]
        if left:
            sys.exit(f"the header still has {left}: its form has changed")
    numbers = dict(zip(("MAJOR", "MINOR", "PATCH"), version), VERSION_CODE=version[0] * 10000 + version[1] * 100 + version[2])
    for name, number in numbers.items():
        text = re.sub(rf"#define NCCL_{name} \d+", f"#define NCCL_{name} {number}", text)
    return text


def starts_with_an_older_library(compiler, folder):
    """Links a program against a library with all functions, and starts it with one that lacks the newer ones."""
    newer = pathlib.Path(__file__).parent.parent / "emulation" / "newer_nccl.hpp"
    source = f'#include "{newer}"\n' + PROGRAM.format(2, 29, 2) + "int main() {}\n"

    def run(*command, text=None, **options):
        return subprocess.run(command, input=text, text=True, capture_output=True, check=True, cwd=folder, **options).stdout

    run(*compiler.command, "-c", "-o", "program.o", "-x", "c++", "-", text=source)
    needed = [line.split()[-1] for line in run("nm", "-u", "program.o").splitlines()]
    needed = [name for name in needed if re.match("p?(nccl|cuda|cu)[A-Z]", name)]
    brought = {name for functions, _, _ in BROUGHT.values() for name in functions}
    missing = brought - set(needed)
    if missing:
        sys.exit(f"the program does not use {missing}")
    for library, names in (("all", needed), ("older", [name for name in needed if name not in brought])):
        (pathlib.Path(folder) / library).mkdir()
        stubs = "".join(f'extern "C" void {name}() {{}}\n' for name in names)
        run(*compiler.command, "-shared", "-fPIC", "-o", library + "/libstubs.so", "-x", "c++", "-", text=stubs)
    run(*compiler.command, "-o", "program", "program.o", "-Lall", "-lstubs", "-lrt", "-Wl,-z,now")
    started = subprocess.run(["./program"], cwd=folder, env=dict(os.environ, LD_LIBRARY_PATH="older"), text=True, capture_output=True)
    print(started.stderr, end="")
    return started.returncode == 0


def version_of(header):
    return tuple(int(re.search(rf"#define NCCL_{name} (\d+)", header).group(1)) for name in ("MAJOR", "MINOR", "PATCH"))


def main():
    compiler = Compiler(*sys.argv[1:])
    newest = found_header(compiler).read_text()
    failed = False
    for version in [OLDEST, *(v for v in BROUGHT if v <= version_of(newest))]:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "nccl.h").write_text(cut(newest, version))
            compiled = compiler.compile(PROGRAM.format(*version), "-I" + folder, "-Werror", "-Wall", "-Wextra")
        if compiled.returncode != 0:
            failed = True
            print(f"with the header of NCCL {version}:\n{compiled.stdout}")
    with tempfile.TemporaryDirectory() as folder:
        failed = not starts_with_an_older_library(compiler, folder) or failed
    sys.exit(failed)


if __name__ == "__main__":
    main()
