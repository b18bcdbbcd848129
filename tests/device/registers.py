#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that no kernel spills or uses a stack, and that four blocks of each fit a multiprocessor: registers.py NVCC [OPTION...] SOURCE"""

import re
import subprocess
import sys

command = [*sys.argv[1:], "-Werror", "all-warnings", "-Xptxas", "-v", "-c", "-o", "/dev/null"]
result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(result.stdout)
clean = re.findall(r"0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", result.stdout)
registers = [int(n) for n in re.findall(r"Used (\d+) registers", result.stdout)]
sys.exit(not (result.returncode == 0 and registers and len(clean) == len(registers) and max(registers) <= 64))
