#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""drive.py WORKER FIRST COUNT: plays elastic jobs in which processes are killed, stopped or added at any moment, or all are
killed and others go on with the state that is kept in a file.

A seed decides a job. Its steps must all be done once, by whoever lives. HVD_ELASTIC_RUNS multiplies COUNT. The times from a
kill to the next step that is committed are printed, and not judged."""

import mmap
import os
import pathlib
import random
import secrets
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HANGS_AFTER = float(os.environ.get("HVD_TEST_TIMEOUT", "60"))
COLUMN = struct.Struct("11q")
KEPT = struct.Struct("<8sq")  # the head of a file
COLUMN_BYTES, SLOTS = 128, 64


def free_port():
    """A port that no outgoing connection takes meanwhile."""
    while True:
        port = random.SystemRandom().randint(20000, 32000)
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
                return port
            except OSError:
                continue


def local_objects(dice):
    """The variables of a job that has some: its copies go to the same node or another one, in no time or in that of a step."""
    return {"HVD_TEST_LOCAL": dice.choice(["0", "20000", "200000"]), "HVD_NODE_SIZE": dice.choice(["1", "2", "4"])}


class Job:
    """The processes of one job, by slot, and what they show."""

    address = "127.0.0.1"  # of the coordinator
    steps = 0  # as many as the dice say
    may_miss = False  # local objects: two ranks were lost at once, or one after the other without a commit

    def __init__(self, worker, dice, folder, size, has_launcher):
        self.worker, self.folder, self.dice = worker, folder, dice
        self.steps = self.steps or dice.randint(60, 160)
        self.pause = dice.choice([200, 1000, 3000])
        self.neighbours = dice.choice([0, 0, 1])
        self.open_board()
        self.environment = dict(os.environ, HVD_ELASTIC_MIN_SIZE="1", HVD_ELASTIC_TIMEOUT="30", HVD_START_TIMEOUT="1")
        self.processes, self.killed, self.launcher = [], set(), None
        self.kept = folder / "kept"
        if dice.random() < 0.5:
            self.environment["HVD_TEST_KEEP"] = str(self.kept)
        elif dice.random() < 0.7:
            self.environment |= local_objects(dice)
        self.begin(size, has_launcher)

    def begin(self, size, has_launcher):
        """Begins a job, the first one or another one with its state."""
        secret = self.folder / f"secret.{len(self.processes)}"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        self.environment |= {"HVD_SECRET_FILE": str(secret), "HVD_SIZE": str(size)}
        if has_launcher:
            self.launcher = subprocess.Popen([*self.on_host(0), self.worker, "coordinate"], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            port = self.launcher.stdout.readline().strip()
            self.environment["HVD_RENDEZVOUS_SERVED"] = "1"
        else:
            port = free_port()
        self.environment["HVD_RENDEZVOUS"] = f"{self.address}:{port}"
        self.first = len(self.processes)
        for _ in range(size):
            self.add()

    def open_board(self):
        self.board = self.folder / "board"
        self.board.write_bytes(bytes(COLUMN_BYTES * SLOTS))
        with open(self.board, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)

    def on_host(self, _slot):
        """The words before a command that runs it on the host of a slot."""
        return []

    def add(self):
        slot = len(self.processes)
        output = open(self.folder / f"output.{slot}", "w")
        self.processes.append(subprocess.Popen(
            [*self.on_host(slot), self.worker, str(self.board), str(slot), str(self.steps), str(self.pause), str(self.neighbours)],
            env=dict(self.environment, HVD_RANK=str(slot - self.first)), stdout=output, stderr=subprocess.STDOUT))
        output.close()

    def shown(self, slot):
        """Steps, the time of the last one, epochs, ranks, thrown back, the step at the begin, the process, 1 and its exit code,
        local objects that were lost, how often it went back by a step, the steps of this epoch."""
        return COLUMN.unpack_from(self.memory, COLUMN_BYTES * slot)

    def kept_step(self):
        """The step of the state in the file, 0 if there is none."""
        return max((KEPT.unpack(path.read_bytes()[: KEPT.size])[1] for path in self.kept.glob("*.hvd_state")), default=0)

    def has_ended(self, slot):
        return self.processes[slot].poll() is not None

    def living(self):
        return [s for s in range(len(self.processes)) if s not in self.killed and not self.has_ended(s)]

    def signal(self, slot, number):
        if number == signal.SIGKILL:
            self.killed.add(slot)
        self.processes[slot].send_signal(number)

    def close(self):
        for process in [*self.processes, *filter(None, [self.launcher])]:
            process.kill()
            process.wait()


def recovered_after(job, killed_at, slots, limit):
    """Seconds from a kill until all have committed a step in a later epoch; None if the job has ended before."""
    epochs = {slot: job.shown(slot)[2] for slot in slots}
    while time.monotonic() < limit:
        if any(job.has_ended(slot) for slot in slots):
            return None
        shown = [job.shown(slot) for slot in slots]
        if all(s[2] > epochs[slot] and s[10] > 0 for slot, s in zip(slots, shown)):
            return max(s[1] for s in shown) / 1e9 - killed_at
        time.sleep(0.001)
    return None


def kill_all(job, limit):
    """Kills all processes at once, and lets others go on, under the same launcher or in another job. Returns what is wrong then."""
    if not any(job.shown(s)[0] > 0 for s in job.living()):
        return []
    for slot in job.living():
        job.signal(slot, signal.SIGKILL)
    for process in job.processes:
        process.wait()
    kept, first, size = job.kept_step(), len(job.processes), job.dice.randint(1, 4)
    if job.launcher and job.dice.random() < 0.5:
        for _ in range(size):
            job.add()
    else:
        if job.launcher:
            job.launcher.kill()
            job.launcher.wait()
        job.begin(size, bool(job.launcher))
    slots = range(first, len(job.processes))
    while not any(job.shown(s)[2] > 0 for s in slots) and any(job.processes[s].poll() is None for s in slots) and time.monotonic() < limit:
        time.sleep(0.001)
    # The launcher of a job that has ended takes nobody.
    begun = min((job.shown(s)[5] for s in slots if job.shown(s)[2] > 0), default=kept)
    return [] if begun == kept else [f"step {kept} was kept, and the others began at {begun}"]


def disturb(job, what, limit, times):
    """One event in a running job."""
    living, dice = job.living(), job.dice
    if what == "grow":
        for _ in range(dice.randint(1, 2)):
            job.add()
    elif what == "stop" and living:
        slot, span = dice.choice(living), dice.choice([0.05, 0.3, 1])
        job.signal(slot, signal.SIGSTOP)
        time.sleep(span)
        job.signal(slot, signal.SIGCONT)
    elif what.startswith("kill"):
        count = 2 if what == "kill two" else 1
        settled = all(job.shown(s)[0] > 0 for s in living)
        # Without a launcher the first process is the coordinator.
        if what == "kill the first" or (0 in living and not job.launcher):
            if not settled or 0 not in living:
                return
        if len(living) <= count:
            return
        slots = dice.sample(living, count) if what != "kill the first" else [0]
        if not job.launcher and 2 * (len(living) - count) <= len(living) and count > 1:
            return  # the others would be no majority
        killed_at = time.monotonic()
        for slot in slots:
            job.signal(slot, signal.SIGKILL)
        took = recovered_after(job, killed_at, [s for s in living if s not in slots], limit) if settled else None
        if took is not None:
            times.append(took)
        job.may_miss = job.may_miss or took is None or count > 1


def missing_objects(job):
    """Complains about local objects that were lost, though only one rank at a time was."""
    missed = [slot for slot in range(SLOTS) if job.shown(slot)[8]]
    return [f"processes {missed} miss objects of one lost rank"] if missed and not job.may_miss else []


def play(worker, seed, times):
    """Returns the complaints about a job, and what its processes said."""
    dice = random.Random(seed)
    size, has_launcher = dice.randint(2, 4), dice.random() < 0.6
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as path:
        folder = pathlib.Path(path)
        job = Job(worker, dice, folder, size, has_launcher)
        local = job.environment.get("HVD_TEST_LOCAL")
        said = [f"job {seed}: {size} ranks, launcher: {has_launcher}, {job.steps} steps of {job.pause} us, {job.neighbours} threads beside, local objects: {local}"]
        limit = time.monotonic() + HANGS_AFTER
        try:
            for _ in range(dice.randint(1, 3)):
                time.sleep(dice.uniform(0, 0.25))
                what = dice.choice(["kill", "kill", "kill the first", "kill two", "grow", "stop"])
                # Newcomers find the job by its first process, where there is no launcher.
                if what == "grow" and not has_launcher:
                    continue
                said.append(f"{what} at {[job.shown(s)[0] for s in range(len(job.processes))]}")
                disturb(job, what, limit, times)
            complaints = []
            if "HVD_TEST_KEEP" in job.environment:
                said.append(f"kill all at {[job.shown(s)[0] for s in range(len(job.processes))]}")
                complaints = kill_all(job, limit)
            for slot, process in enumerate(job.processes):
                try:
                    code = process.wait(max(0.1, limit - time.monotonic()))
                except subprocess.TimeoutExpired:
                    complaints.append(f"process {slot} hangs at {job.shown(slot)}")
                    continue
                too_late = slot >= size and job.shown(slot)[2] == 0 and code == 5
                if code != 0 and slot not in job.killed and not too_late:
                    complaints.append(f"process {slot} ended with {code}")
            complaints += missing_objects(job)
        finally:
            job.close()
        for slot in range(len(job.processes)):
            said.append(f"---- process {slot}: {job.shown(slot)}\n{(folder / f'output.{slot}').read_text(errors='replace')}")
    return complaints, "\n".join(said)


def play_all(play, worker, first, count, *more):
    """Plays play(worker, seed, *more, times) for each seed. Returns the exit code."""
    failed, times, begun = [], [], time.monotonic()
    runs = count * int(os.environ.get("HVD_ELASTIC_RUNS", "1"))
    for seed in range(first, first + runs):
        complaints, said = play(worker, seed, *more, times)
        if complaints or runs == 1:
            print(said)
        if complaints:
            failed.append(seed)
            print(*complaints, sep="\n")
            print("repeat:", shlex.join([sys.executable, sys.argv[0], worker, str(seed), "1", *(word for words in more for word in words)]), flush=True)
    if times:
        print(f"recovered {len(times)} times: median {1000 * statistics.median(times):.0f} ms, longest {1000 * max(times):.0f} ms")
    print(f"{runs} jobs in {time.monotonic() - begun:.0f} s; failed seeds: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(play_all(play, sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
