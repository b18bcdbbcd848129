#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that every kernel loads and stores 16 bytes at once, and keeps nothing in local memory: wide_accesses.py NVCC [OPTION...] SOURCE

It reads PTX, and the machine code as well where cuobjdump is beside nvcc."""

import pathlib
import re
import subprocess
import sys
import tempfile

KERNELS = ("copy_tiles", "update_tiles", "look_at_tiles", "feed_back")
PTX = (r"\bld\.(?!param)[\w.:]*(v2\.[ubf]64|v4\.[ubf]32)", r"\bst\.[\w.:]*(v2\.[ubf]64|v4\.[ubf]32)", r"\.local\b")
CODE = (r"\bLD\w*\.[\w.]*128\b", r"\bST\w*\.[\w.]*128\b", r"\b(LDL|STL)\b")


def narrow(functions, patterns):
    """Returns the kernels that lack a wide load or store, or use local memory. Looking at gradients and measuring them store next to nothing."""
    load, store, local = (re.compile(p) for p in patterns)
    return [name for name, body in functions
            if not load.search(body) or local.search(body) or (not store.search(body) and not re.search("(look_at|measure)_tiles", name))]


def check(what, text, begin, patterns):
    parts = re.split(begin, text)[1:]
    functions = list(zip(parts[::2], parts[1::2]))
    absent = [k for k in KERNELS if not any(k in name for name, _ in functions)]
    wrong = narrow(functions, patterns)
    print(f"{what}: {len(functions)} kernels; absent: {absent}; without accesses of 16 bytes, or with local memory: {wrong}")
    return not absent and not wrong


nvcc, *options = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    ptx, code = pathlib.Path(folder, "kernels.ptx"), pathlib.Path(folder, "kernels.cubin")
    subprocess.run([nvcc, *options, "-ptx", "-o", ptx], check=True)
    right = check("PTX", ptx.read_text(), r"\.entry (\w+)", PTX)
    cuobjdump = pathlib.Path(nvcc).with_name("cuobjdump")
    if cuobjdump.exists():
        subprocess.run([nvcc, *options, "-cubin", "-o", code], check=True)
        listing = subprocess.run([cuobjdump, "-sass", code], check=True, stdout=subprocess.PIPE, text=True).stdout
        right = check("machine code", listing, r"Function : (\w+)", CODE) and right
    else:
        print("there is no cuobjdump: the machine code is not checked")
sys.exit(not right)
