#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""hosts.py WORKER COUNT: pulls the cable of one of three hosts of an elastic job, COUNT times.

The others go on. Then the launcher is killed, and the process behind the cable gives up by itself. The times from the cut to the next step that is committed are
printed, and not judged."""

import pathlib
import random
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
        self.environment |= {"HVD_ELASTIC_DEADLINE": "600", "HVD_ELASTIC_CUT_OFF": "3"}
        super().begin(*arguments)

    def on_host(self, slot):
        return ["nsenter", "--target", str(self.made.pid(slot)), "--net", "--uts", "--", "env", f"HVD_HOST_ID=host{slot}"]


def play(worker, seed, times):
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="hvd-elastic-") as path, lab.Lab(3) as made:
        job = JobOnHosts(made, worker, dice, pathlib.Path(path), 3, True)
        limit = time.monotonic() + HANGS_AFTER
        try:
            while any(job.shown(slot)[0] < 20 for slot in range(3)):
                if time.monotonic() > limit:
                    return "the job does not begin"
                time.sleep(0.01)
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
            done = job.shown(cut)[:7]
            if done != last[:7]:
                return f"host {cut} has no cable, and does steps"
            steps = {slot: job.shown(slot)[0] for slot in others}
            while any(job.shown(slot)[0] == steps[slot] for slot in others):
                if time.monotonic() > limit:
                    return "the others do not go on without a launcher"
                time.sleep(0.01)
            return ""
        finally:
            job.close()


def main():
    worker, count = sys.argv[1], int(sys.argv[2])
    lab.end_on_signals()
    times, failed = [], 0
    for seed in range(count):
        try:
            complaint = play(worker, seed, times)
        except lab.Unusable as reason:
            print(f"skipped: {reason}")
            return 77
        if complaint:
            failed += 1
            print(complaint)
    if times:
        print(f"cables pulled {len(times)} times: median {statistics.median(times):.2f} s, longest {max(times):.2f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
