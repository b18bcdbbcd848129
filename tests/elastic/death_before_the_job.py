#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""death_before_the_job.py WORKER MPIEXEC OPTION...: a rank of MPI dies before the others have made an elastic job with it, or its first communicator.

MPI does not tell of it. Before the job the others end at the timeout, with an error and without MPI_Finalize, which would wait for the dead one. Then
they go on without it, also without the first coordinator."""

import os
import struct
import subprocess
import sys
import tempfile

WORKER, *MPIEXEC = sys.argv[1:]


def played(**variables):
    """The errors of three ranks, and the codes of those that have ended by themselves."""
    with tempfile.NamedTemporaryFile() as board:
        board.truncate(64 * 128)
        ended = subprocess.run([*MPIEXEC, "-n", "3", WORKER, board.name, "0", "5", "0", "0"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               timeout=50, env=dict(os.environ, **variables))
        columns = [struct.unpack("16q", board.read(128)) for _ in range(3)]
        return ended.stderr, [column[7] - 1 for column in columns if column[7]]


def complaints_about(victim):
    said, _ = played(HVD_TEST_DIES=str(victim), HVD_START_TIMEOUT="500ms")
    if said.count("other ranks did not come in time") != 2:
        yield f"rank {victim} died before the job, and the others said: {said}"
    said, codes = played(HVD_TEST_DIES_IN_MAKING=str(victim), HVD_ELASTIC_TIMEOUT="20")
    if codes != [0, 0]:
        yield f"rank {victim} died in the making of a communicator, and the others ended with {codes}: {said}"


found = [complaint for victim in (0, 2) for complaint in complaints_about(victim)]
print("\n".join(found) or "the others have ended with an error, or gone on")
sys.exit(1 if found else 0)
