#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""hosts.py WORKER COUNT: harms one of three hosts of an elastic job, COUNT times each. HVD_ELASTIC_RUNS multiplies COUNT.

- Its cable is pulled. The others go on. Then the launcher is killed, and the process behind the cable gives up by itself.
- Nothing goes from the coordinator to the others any more, while it hears them. The others go on, and it does not.
- A process is killed, without a launcher. The others go on.

The times from the harm to the next step that is committed are printed, and not judged."""

import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "network"))
import lab  # noqa: E402
from drive import HANGS_AFTER, Job, recovered_after  # noqa: E402


class JobOnHosts(Job):
    """Each process is on a host of its own. The launcher is on the first."""

    steps = 1000000  # it is ended before

    def __init__(self, made, *arguments):
        self.made, self.address = made, made.address(0)
        super().__init__(*arguments)

    def begin(self, *arguments):
        self.environment |= {"HVD_ELASTIC_TIMEOUT": "600", "HVD_ELASTIC_LAUNCHER_TIMEOUT": "3"}
        super().begin(*arguments)

    def on_host(self, slot):
        return ["nsenter", "--target", str(self.made.pid(slot)), "--net", "--uts", "--", "env", f"HVD_HOST_ID=host{slot}"]


def has_begun(job, limit):
    while any(job.shown(slot)[0] < 20 for slot in range(3)):
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def pull_cable(made, job, dice, limit, times):
    cut = dice.choice([1, 2])
    others = [slot for slot in range(3) if slot != cut]
    made.cut(cut)
    took = recovered_after(job, time.monotonic(), others, limit)
    if took is None:
        return f"host {cut} has no cable, and the others do not go on: {[job.shown(s) for s in range(3)]}"
    times.append(took)
    last = job.shown(cut)
    job.launcher.kill()
    while not job.has_ended(cut):
        if time.monotonic() > limit:
            return f"host {cut} has no cable, and its process lives on"
        time.sleep(0.01)
    if job.shown(cut)[:7] != last[:7]:
        return f"host {cut} has no cable, and does steps"
    steps = {slot: job.shown(slot)[0] for slot in others}
    while any(job.shown(slot)[0] == steps[slot] for slot in others):
        if time.monotonic() > limit:
            return "the others do not go on without a launcher"
        time.sleep(0.01)
    return ""


def lose_one_way(made, job, dice, limit, times):
    """Two parts that hold each other for dead must not both go on. Systems that give their connections up reset them, which the coordinator hears."""
    time.sleep(dice.uniform(0, 1))  # keepalives come each second
    epochs = job.shown(0)[2]
    for other in (1, 2):
        made.mislead(0, other)
    took = recovered_after(job, time.monotonic(), [1, 2], limit)
    if took is None:
        return f"host 0 is not heard, and the others do not go on: {[job.shown(s) for s in range(3)]}"
    times.append(took)
    time.sleep(2)
    return f"host 0 is not heard, and goes on, as the others do: {[job.shown(s) for s in range(3)]}" if job.shown(0)[2] > epochs else ""


def kill_one(_, job, dice, limit, times):
    dead = dice.randrange(3)  # the coordinator, too
    killed_at = time.monotonic()
    job.signal(dead, signal.SIGKILL)
    took = recovered_after(job, killed_at, [slot for slot in range(3) if slot != dead], limit)
    if took is None:
        return f"process {dead} is dead, and the others do not go on: {[job.shown(s) for s in range(3)]}"
    times.append(took)
    return ""


def play(fault, has_launcher, worker, seed, times):
    """Returns the complaint about a job with a fault, or nothing."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as path, lab.Lab(3) as made:
        job = JobOnHosts(made, worker, dice, pathlib.Path(path), 3, has_launcher)
        limit = time.monotonic() + HANGS_AFTER
        try:
            return fault(made, job, dice, limit, times) if has_begun(job, limit) else "the job does not begin"
        finally:
            job.close()


def play_all(name, fault, has_launcher, worker, count):
    """Returns how many have failed."""
    times, failed = [], 0
    for seed in range(count):
        complaint = play(fault, has_launcher, worker, seed, times)
        if complaint:
            failed += 1
            print(complaint)
    if times:
        print(f"{name} {len(times)} times: median {statistics.median(times):.3f} s, longest {max(times):.3f} s", flush=True)
    return failed


def main():
    worker, count = sys.argv[1], int(sys.argv[2]) * int(os.environ.get("HVD_ELASTIC_RUNS", "1"))
    lab.end_on_signals()
    try:
        failed = play_all("cables pulled", pull_cable, True, worker, count)
        failed += play_all("one direction lost", lose_one_way, False, worker, count)
        failed += play_all("processes killed", kill_one, False, worker, count)
    except lab.Unusable as reason:
        print(f"skipped: {reason}")
        return 77
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
