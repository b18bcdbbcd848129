# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Counts the instructions that a call on direct<mpi> takes beyond the MPI call it makes (callgrind)."""

import re
import shutil
import subprocess
import sys

LIMIT = 42  # two of them bind the communicator to its thread
CALLS = 2000


def instructions(program: str, what: str, calls: int) -> int:
    run = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program, what, str(calls)],
        capture_output=True, text=True, check=True, timeout=250)
    return int(re.search(r"Collected : (\d+)", run.stderr).group(1))


def per_call(program: str, what: str) -> float:
    return (instructions(program, what, 2 * CALLS) - instructions(program, what, CALLS)) / CALLS


def main() -> int:
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return 77
    program, failed = sys.argv[1], False
    for name, hvd, raw in (("allreduce", "hvd", "raw"), ("broadcast", "broadcast-hvd", "broadcast-raw")):
        more = per_call(program, hvd) - per_call(program, raw)
        print(f"{name}: {more:.1f} instructions more than the raw call, at most {LIMIT} allowed")
        failed |= more > LIMIT
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
