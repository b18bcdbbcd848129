#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that a file of static_asserts compiles, with the compiler and include paths of TARGET: compiles.py FILE BUILD_ROOT TARGET"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler

file, build_root, source = sys.argv[1:]
result = Compiler(build_root, source).compile(pathlib.Path(file).read_text(), "-Wall", "-Wextra")
print(result.stdout)
sys.exit(result.returncode)
