#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""death_before_the_job.py WORKER MPIEXEC OPTION...: a rank of MPI dies before the others have made an elastic job with it.

MPI does not tell of it. The others end at the timeout, with an error and without MPI_Finalize, which would wait for the dead one."""

import os
import subprocess
import sys
import tempfile

WORKER, *MPIEXEC = sys.argv[1:]


def complaints_about(victim):
    with tempfile.NamedTemporaryFile() as board:
        board.truncate(64 * 128)
        ended = subprocess.run([*MPIEXEC, "-n", "3", WORKER, board.name, "0", "5", "0", "0"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               timeout=50, env=dict(os.environ, HVD_TEST_DIES=str(victim), HVD_START_TIMEOUT="500ms"))
    if ended.stderr.count("other ranks did not come in time") != 2:
        yield f"rank {victim} died, and the others said: {ended.stderr}"


found = [complaint for victim in (0, 2) for complaint in complaints_about(victim)]
print("\n".join(found) or "the others have ended with an error")
sys.exit(1 if found else 0)
