#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""alone.py PROGRAM [OPTION...]: a trainer whose ranks another MPI's launcher has started says so before it ends the job."""

import os
import subprocess
import sys

# One of a launcher, which is not that of the trainer's MPI: world() finds one rank, and these say two.
job = {"PMI_SIZE": "2", "PMI_RANK": "0", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ended = subprocess.run(sys.argv[1:], env={**os.environ, **job}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100)
print(ended.stdout)
assert ended.returncode != 0
assert "the launcher is MPICH's or Intel MPI's" in ended.stdout, "it does not say why"
