# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The tests of data services of processes share this: starting workers, dispatchers and trainers, and comparing batches."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

COMPUTE, WORKER, TRAINER = os.environ["HVD_COMPUTE"], os.environ["HVD_DATA_WORKER"], os.environ["HVD_DATA_TRAINER"]
PATIENCE = int(os.environ.get("HVD_TEST_TIMEOUT", "60"))  # seconds; a test fails after them, and none needs them
LAUNCHERS = ("HVD_", "OMPI_", "PMI_", "SLURM_")


def wait_until(condition, what):
    for _ in range(PATIENCE * 50):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def wait_for_end(process, seconds):
    """Waits for a process's end, at most so long."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass


def environment(**variables):
    """Returns the environment without those of launchers."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return plain | {name: str(value) for name, value in variables.items()}


def children_of(process):
    """Returns the numbers of a process's children."""
    try:
        return [int(number) for number in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []


def is_alive(number):
    """Tells whether a process runs or is stopped."""
    try:
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


EXPECTED = {}


def expected(rank, size):
    """Returns the lines of a trainer without the service."""
    if (rank, size) not in EXPECTED:
        EXPECTED[rank, size] = subprocess.run([TRAINER, str(rank), str(size)], env=environment(), check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    return EXPECTED[rank, size]


class ServiceTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.config = self.folder / "compute.json"
        times = tempfile.TemporaryDirectory()
        self.addCleanup(times.cleanup)
        self.times = pathlib.Path(times.name)
        self.started = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def start(self, *words, **variables):
        process = subprocess.Popen([str(word) for word in words], env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def start_rank(self, rank, size, *options, worker=WORKER, **where):
        """Starts one rank of hvd-compute, as a launcher would."""
        return self.start(COMPUTE, *options, self.config, "--", worker, HVD_RANK=rank, HVD_SIZE=size, **where)

    def start_service(self, size, *options):
        return [self.start_rank(rank, size, *options) for rank in range(size)]

    def start_trainer(self, number, size, milliseconds=0, **variables):
        """Starts a trainer that takes so long for a batch. It notes in a file when its batches came. Of several trainings, each of so many ranks, it is the one of that number."""
        return self.start(TRAINER, number % size, size, self.config, milliseconds, HVD_TEST_TIMES=self.times / str(number), **variables)

    def start_trainers(self, size, milliseconds=0, trainings=1):
        return [self.start_trainer(number, size, milliseconds) for number in range(size * trainings)]

    def wait_for_workers(self, rank, number):
        """Waits until the dispatcher of a rank with --progress has so many workers, and the trainers have had the time to ask for its list."""
        while f" {number} of " not in rank.stderr.readline():
            self.assertIsNone(rank.poll())
        time.sleep(0.5)

    def lines_of(self, trainer, number):
        return [trainer.stdout.readline() for _ in range(number)]

    def finish(self, trainers, begun=None, trainings=1):
        """Waits for trainers, and compares their batches with those without a service."""
        size = len(trainers) // trainings
        for number, trainer in enumerate(trainers):
            out = "".join((begun or {}).get(number, [])) + trainer.stdout.read()
            self.assertEqual((trainer.wait(timeout=PATIENCE), trainer.stderr.read()), (0, ""))
            self.assertEqual(out, expected(number % size, size))

    def came(self, rank):
        """Returns the moments at which batches of a trainer came, in seconds."""
        return [int(line) / 1e9 for line in (self.times / str(rank)).read_text().split()]

    def longest_wait(self, rank):
        came = self.came(rank)
        return max(after - before for before, after in zip(came, came[1:]))

    def end(self, ranks):
        """Ends ranks of hvd-compute in order."""
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for rank in ranks:
            out, err = rank.communicate(timeout=PATIENCE)
            self.assertEqual((rank.returncode, out), (0, ""), err)
