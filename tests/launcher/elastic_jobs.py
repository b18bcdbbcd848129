# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""What tests of elastic jobs share: jobs, their events, and workers that a test kills."""

import json
import os
import re
import signal

from launching import LauncherTest, PATIENCE, processes_with, wait_until

WORKER = os.environ["HVD_ELASTIC_WORKER"]
SOON = ("--blacklist-cooldown-range", 0.05, 60)


class ElasticTest(LauncherTest):
    def events(self, name=None, log="log"):
        try:
            lines = (self.folder / log).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event for event in map(json.loads, lines) if name in (None, event["event"])]

    def start_elastic(self, *arguments, program=(WORKER, "go")):
        return self.start_it("--event-log", "log", *arguments, *program)

    def run_elastic(self, *arguments):
        return self.run_it("--event-log", "log", *arguments)

    def wait_for_epoch(self, condition, what):
        """Returns the first epoch for which the condition holds."""
        wait_until(lambda: any(map(condition, self.events("epoch"))), f"an epoch {what}")
        return next(filter(condition, self.events("epoch")))

    def wait_for_size(self, size):
        """Returns the first epoch of so many ranks, which have done a step."""
        self.wait_for_files(f"go.{size}")
        return self.wait_for_epoch(lambda epoch: epoch["size"] == size, f"of {size} ranks")

    def kill_worker(self, rank):
        """Kills the program on the other host, not the shell that started it."""
        of_rank = [pid for pid in processes_with(f"HVD_RANK={rank}\0") if os.path.samefile(f"/proc/{pid}/exe", WORKER)]
        (worker,) = set(of_rank) & set(processes_with(self.mark))
        os.kill(worker, signal.SIGKILL)

    def pid_of(self, rank):
        return [event["pid"] for event in self.events("started") if event["rank"] == rank][-1]

    def show(self, hosts):
        """The script shows these from now on."""
        (self.folder / "new").write_text(hosts)
        (self.folder / "new").rename(self.folder / "shown")

    def assert_ends_well(self, job, ranks):
        """The program ends, and these ranks have done the same steps with right results."""
        (self.folder / "go").touch()
        out, err = job.communicate(timeout=PATIENCE)
        for file in self.folder.glob("go*"):
            file.unlink()
        self.assertEqual(job.returncode, 0, out + err)
        losses = [epoch for epoch in self.events("epoch") if epoch["epoch"] > 1 and "why" in epoch]
        self.assertEqual(err.splitlines(), [f"hvdrun: {epoch['why']}; {epoch['size']} rank{' goes' if epoch['size'] == 1 else 's go'} on from step {epoch['step']}" for epoch in losses])
        ends = dict(re.findall(r"(?m)^\[(\d+)\]<stdout>:(\d+ steps, \w+)$", out))
        self.assertEqual(set(map(int, ends)), set(ranks), out)
        self.assertEqual(len(set(ends.values())), 1, out)
        self.assertIn("right", out)
        self.assertEqual(f"{self.events('progress')[-1]['step']} steps, right", *set(ends.values()))
        steps = [epoch["step"] for epoch in self.events("epoch")]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([epoch["epoch"] for epoch in self.events("epoch")], list(range(1, len(steps) + 1)))
        self.assert_nothing_is_left()
