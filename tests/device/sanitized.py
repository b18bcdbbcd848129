#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""sanitized.py PROGRAM TOOL: runs `PROGRAM kernels` under a tool of compute-sanitizer, which comes with the CUDA Toolkit.

A line says what held, for the report of ./run test --gpu. HVD_COMPUTE_SANITIZER names another sanitizer."""

import os
import pathlib
import shutil
import subprocess
import sys

PROGRAM, TOOL = sys.argv[1:]


def sanitizer():
    named = os.environ.get("HVD_COMPUTE_SANITIZER") or shutil.which("compute-sanitizer")
    beside = pathlib.Path("/usr/local/cuda/bin/compute-sanitizer")
    return named or (str(beside) if beside.exists() else None)


def skip(why):
    print(f"compute-sanitizer {TOOL}: not shown: {why}")
    sys.exit(77)


# Without a GPU the program says so, and exits with 77.
plain = subprocess.run([PROGRAM, "kernels"], text=True, capture_output=True)
if plain.returncode == 77:
    skip((plain.stdout.strip().splitlines() or ["there is no GPU"])[-1])
if sanitizer() is None:
    skip("the CUDA Toolkit has no compute-sanitizer here")
ended = subprocess.run([sanitizer(), "--tool", TOOL, "--error-exitcode", "3", "--target-processes", "all", PROGRAM, "kernels"], text=True, capture_output=True)
right = plain.returncode == 0 and ended.returncode == 0
print(f"compute-sanitizer {TOOL}, 2 ranks on 1 GPUs: {'held' if right else 'failed'}")
if not right:
    print(plain.stdout, plain.stderr, ended.stdout, ended.stderr, sep="\n")
sys.exit(0 if right else 1)
