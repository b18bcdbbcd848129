#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""mpi.py WORKER FIRST COUNT MPIEXEC OPTION...: plays elastic jobs over MPI in which ranks are killed or stopped at any moment.

As drive.py does, but the ranks are started by the MPI's launcher, and nobody comes. HVD_ELASTIC_RUNS multiplies COUNT."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from drive import HANGS_AFTER, Job, disturb, local_objects, missing_objects, play_all, recovered_after  # noqa: E402


class MpiJob(Job):
    """The ranks of one job, as slots."""

    left = None  # the slot that was to leave by an exception
    launcher = None  # that would coordinate

    def __init__(self, worker, dice, folder, size, mpiexec):
        self.dice, self.folder, self.size, self.killed = dice, folder, size, set()
        self.open_board()
        steps, pause = dice.randint(60, 160), dice.choice([200, 1000, 3000])
        variables = {"HVD_ELASTIC_TIMEOUT": "30", **dice.choice([{}, {}, {"HVD_NODE_SIZE": "1"}, {"HVD_NODE_SIZE": "2"}])}
        if dice.random() < 0.6:
            variables |= local_objects(dice)
        # Messages of MPI are slow where threads compute beside.
        neighbours = dice.choice([0, 0, 1]) if "HVD_NODE_SIZE" not in variables else 0
        self.what = f"{size} ranks, {steps} steps of {pause} us, {neighbours} threads beside, {variables}"
        with open(folder / "output", "w") as output:
            self.mpirun = subprocess.Popen(
                [*mpiexec, "-n", str(size), worker, str(self.board), "0", str(steps), str(pause), str(neighbours)],
                env=dict(os.environ, **variables), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)

    def process(self, slot):
        return self.shown(slot)[6]

    def exit_code(self, slot):
        """None before its end."""
        ended = self.shown(slot)[7]
        return ended - 1 if ended else None

    def has_ended(self, slot):
        return self.mpirun.poll() is not None or self.exit_code(slot) is not None

    def living(self):
        return [slot for slot in range(self.size) if slot not in self.killed and not self.has_ended(slot)]

    def signal(self, slot, number):
        if number == signal.SIGKILL:
            self.killed.add(slot)
        try:
            os.kill(self.process(slot), number)
        except ProcessLookupError:
            pass  # it has come to its end

    def close(self):
        for slot in range(self.size):
            if self.mpirun.poll() is None and self.process(slot) > 0:
                self.signal(slot, signal.SIGKILL)
        try:
            self.mpirun.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.mpirun.pid, signal.SIGKILL)
            self.mpirun.wait()


def complaints_about(job, limit):
    try:
        job.mpirun.wait(max(0.1, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        yield f"the job hangs at {[job.shown(slot) for slot in range(job.size)]}"
        return
    for slot in range(job.size):
        # Who leaves may have done all its steps before.
        codes = (0, 5) if slot == job.left else (0,)
        if slot not in job.killed and job.exit_code(slot) not in codes:
            yield f"rank {slot} ended with {job.exit_code(slot)}"


def play(worker, seed, mpiexec, times):
    """Returns the complaints about a job, and what its ranks said."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as path:
        folder = pathlib.Path(path)
        job = MpiJob(worker, dice, folder, dice.randint(2, 4), mpiexec)
        said = [f"job {seed}: {job.what}"]
        limit = time.monotonic() + HANGS_AFTER
        try:
            while job.mpirun.poll() is None and any(job.shown(slot)[0] == 0 for slot in range(job.size)) and time.monotonic() < limit:
                time.sleep(0.002)  # MPI_Init bears no loss
            for _ in range(dice.randint(1, 3)):
                time.sleep(dice.uniform(0, 0.15))
                what = dice.choice(["kill", "kill", "kill the first", "stop", "leave"])
                said.append(f"{what} at {[job.shown(slot)[0] for slot in range(job.size)]}")
                if what != "leave":
                    disturb(job, what, limit, times)
                elif job.left is None and len(job.living()) > 2:
                    living = job.living()
                    job.left = dice.choice(living)
                    job.signal(job.left, signal.SIGUSR1)
                    took = recovered_after(job, time.monotonic(), [slot for slot in living if slot != job.left], limit)
                    job.may_miss = job.may_miss or took is None
            complaints = list(complaints_about(job, limit)) + missing_objects(job)
        finally:
            job.close()
        said += [f"rank {slot}: {job.shown(slot)}" for slot in range(job.size)]
        said.append((folder / "output").read_text(errors="replace"))
    return complaints, "\n".join(said)


if __name__ == "__main__":
    sys.exit(play_all(play, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
