# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Jobs of this build's MPI that hvdrun starts again: they go on from the state that was in shared memory when a rank was killed."""

import mmap
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "elastic/random"))
from drive import COLUMN, COLUMN_BYTES, SLOTS
from launching import PATIENCE, LauncherTest, wait_until

MPIEXEC, WORKER = os.environ["HVD_MPIEXEC"], os.environ["HVD_ELASTIC_OVER_MPI"]
STEPS = 60
EPOCHS, BEGAN_AT, PROCESS = 2, 5, 6


class Restart(LauncherTest):
    def start_job(self, size, kept):
        """Starts a job whose ranks show their steps on a board."""
        (self.folder / "board").write_bytes(bytes(COLUMN_BYTES * SLOTS))
        with open(self.folder / "board", "r+b") as file:
            self.board = mmap.mmap(file.fileno(), 0)
        self.addCleanup(self.board.close)
        options = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        return self.start_it("--backend", "mpi", "--mpi-launcher", MPIEXEC, "-np", size, "--max-restarts", 1, "-x", f"HVD_TEST_KEEP={kept}",
                             WORKER, self.folder / "board", 0, STEPS, 5000, 0, **options)

    def shown(self, rank):
        return COLUMN.unpack_from(self.board, COLUMN_BYTES * rank)

    def kill_at_step(self, victim, step, size):
        """Kills a rank. What others show of their epochs is that of the next run then."""
        wait_until(lambda: self.shown(victim)[0] >= step, f"step {step} of rank {victim}")
        for rank in range(size):
            self.board[COLUMN_BYTES * rank + 8 * EPOCHS] = 0
        os.kill(self.shown(victim)[PROCESS], signal.SIGKILL)

    def test_a_rank_that_is_killed_costs_no_step_that_is_in_shared_memory(self):
        for size, victim in ((1, 0), (2, 1), (3, 0), (4, 2)):
            with self.subTest(size=size, victim=victim), tempfile.TemporaryDirectory(dir="/dev/shm") as kept:
                job = self.start_job(size, kept)
                self.kill_at_step(victim, 10, size)
                out, err = job.communicate(timeout=PATIENCE)
                self.assertEqual((job.returncode, err.count("it is started again (1 of 1)")), (0, 1), out + err)
                for rank in range(size):
                    self.assertEqual(self.shown(rank)[0], STEPS)
                    self.assertGreater(self.shown(rank)[BEGAN_AT], 0)
                self.assert_nothing_is_left()


if __name__ == "__main__":
    unittest.main()
