#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""check.py INCLUDE_DIR COMPILER...: runs program.cpp, in which Relacy drives the ranks of a node under the memory model of C++.

The program includes hvd's headers, of which a copy is made here: the headers of atomics, futexes and copies are replaced by those
beside this file. HVD_MEMORY_MODEL_ITERATIONS sets how many interleavings are tried, 300 by default. If a scenario does not hold,
HVD_MEMORY_MODEL_HISTORY=1 prints the steps that led there."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REPLACED = {"atomic.hpp": "core/lean/atomic.hpp", "futex.hpp": "platform/futex.hpp", "copy.hpp": "kernel/copy.hpp"}
LIMIT = 300  # seconds


def main(include_dir, *compiler):
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "include"
        shutil.copytree(pathlib.Path(include_dir) / "hvd", tree / "hvd")
        for ours, theirs in REPLACED.items():
            (tree / "hvd" / theirs).stat()  # the header that is replaced is there
            shutil.copy(HERE / ours, tree / "hvd" / theirs)
        program = pathlib.Path(folder) / "program"
        # Relacy replaces operator new, of which the program and the library have to have one.
        subprocess.run([*compiler, "-std=c++20", "-w", "-I", tree, "-isystem", HERE, HERE / "program.cpp", "-static-libstdc++", "-o", program],
                       check=True, timeout=LIMIT)
        iterations = os.environ.get("HVD_MEMORY_MODEL_ITERATIONS", "300")
        return subprocess.run([program, iterations], timeout=LIMIT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
