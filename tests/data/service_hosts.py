# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A data service on hosts with cables between them, for the superuser: the cable of a worker or of a trainer is cut, and the others go on."""

import pathlib
import sys
import threading
import unittest

from services import PATIENCE, TRAINER, ServiceTest, children_of, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "network"))
import lab


def is_connected(process, address):
    """Tells if a process's host has a connection to an address that nobody has ended."""
    wanted = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    lines = pathlib.Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2].startswith(wanted) and line.split()[3] == "01" for line in lines)


def threads_of(process):
    return len(list(pathlib.Path(f"/proc/{process}/task").iterdir()))


class Hosts(ServiceTest):
    def setUp(self):
        super().setUp()
        try:
            self.lab = lab.Lab(3)
            self.lab.__enter__()
        except lab.Unusable as reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        self.addCleanup(self.lab.__exit__)

    def start(self, *words, host=0, **variables):
        return super().start("setpriv", "--pdeathsig", "KILL", "nsenter", "--target", self.lab.pid(host), "--net", "--uts", "--", *words, **variables)

    def cut_off(self, hosts):
        """Cuts the cable of host 1 while a trainer on host 0 asks ranks on hosts."""
        service = [self.start_rank(rank, 2, "--progress", host=host) for rank, host in enumerate(hosts)]
        self.wait_for_workers(service[0], 2)
        trainers = self.start_trainers(1, milliseconds=20)
        begun = {0: self.lines_of(trainers[0], 50)}
        self.lab.cut(1)
        # Others make the batches of a late worker, and a lost one is let go.
        wait_until(lambda: not is_connected(trainers[0].pid, self.lab.address(1)), "the trainer leaves the host that is gone")
        self.assertIsNone(trainers[0].poll())
        # The service waits for answers of a worker for 60 s, and this test for less.
        limit = threading.Timer(PATIENCE / 2, trainers[0].kill)
        limit.start()
        self.finish(trainers, begun)
        limit.cancel()
        print(f"longest wait for a batch: {self.longest_wait(0):.1f} s")
        return service

    def test_a_trainer_goes_on_without_the_worker_whose_cable_is_cut(self):
        self.cut_off((2, 1))

    def test_a_trainer_goes_on_without_the_worker_and_the_dispatcher_of_a_host_whose_cable_is_cut(self):
        service = self.cut_off((1, 2))
        (worker,) = children_of(service[1])
        wait_until(lambda: not is_connected(worker, self.lab.address(1)), "the other worker leaves the dispatcher")

    def test_a_worker_forgets_the_trainer_whose_cable_is_cut_while_a_batch_is_under_way(self):
        service = self.start_rank(0, 1, "--progress", host=0)
        self.wait_for_workers(service, 1)
        (worker,) = children_of(service)
        alone = threads_of(worker)
        trainer = self.start(TRAINER, 0, 1, self.config, 0, host=1)  # faster than the worker, so that it always waits for one
        self.lines_of(trainer, 50)
        self.assertGreater(threads_of(worker), alone)
        self.lab.cut(1)
        # The system would send the batch again for a quarter of an hour.
        wait_until(lambda: threads_of(worker) <= alone, "the end of the thread for the trainer")


if __name__ == "__main__":
    lab.end_on_signals()
    unittest.main()
