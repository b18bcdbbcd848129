# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""by_mpi.py PROGRAM MPIEXEC OPTION...: runs the program by MPI's launcher, if `PROGRAM look` finds a GPU.

A launcher would print more about a program that exits with 77."""

import subprocess
import sys

PROGRAM, *MPIEXEC = sys.argv[1:]

looked = subprocess.run([PROGRAM, "look"], text=True, capture_output=True)
if looked.returncode == 0:
    sys.exit(subprocess.run([*MPIEXEC, PROGRAM]).returncode)
print(f"over MPI: not shown: {(looked.stdout.strip().splitlines() or ['there is no GPU'])[-1]}")
sys.exit(looked.returncode)
