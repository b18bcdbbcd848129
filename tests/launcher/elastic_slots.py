# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Elastic jobs by hvdrun: they grow and shrink with the slots that there are, while they run."""

import os
import signal
import time
import unittest

from elastic_jobs import ElasticTest, SOON, WORKER
from launching import PATIENCE, wait_until


class Slots(ElasticTest):
    def test_another_slot_takes_the_place_of_one_that_cools_down(self):
        job = self.start_elastic("-np", 2, "--min-np", 1, "-H", "localhost:3", "--blacklist-cooldown-range", 1000, 2000)
        self.wait_for_size(2)
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(self.wait_for_epoch(lambda epoch: 2 in epoch["joined"], "with rank 2")["size"], 2)
        self.assert_ends_well(job, (1, 2))

    def test_the_limit_of_resets_ends_the_job(self):
        never = ("--blacklist-cooldown-range", 1000, 2000)
        for size, limit in ((2, 0), (3, 1), (4, 2)):
            with self.subTest(size=size, limit=limit):
                job = self.start_elastic("-np", size, "--min-np", 1, "--reset-limit", limit, *never)
                for lost in range(limit + 1):
                    self.wait_for_size(size - lost)
                    os.kill(self.pid_of(lost), signal.SIGKILL)
                out, err = job.communicate(timeout=PATIENCE)
                self.assertEqual(job.returncode, 128 + signal.SIGKILL, err)
                self.assertIn(f"hvdrun: the ranks of the job have changed more than {limit} time{'' if limit == 1 else 's'} (--reset-limit): rank {limit}: signal 9 (SIGKILL)", err)
                self.assertEqual(len(self.events("epoch")), limit + 2)
                self.assert_nothing_is_left()
                for file in self.folder.glob("go*"):
                    file.unlink()

    def test_a_rank_that_joins_is_a_reset(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 3, "--reset-limit", 1, "--host-discovery-script", "cat shown")
        for size in (1, 2):
            self.show(f"localhost:{size}\n")
            self.wait_for_size(size)
        self.show("localhost:3\n")
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertIn("changed more than 1 time (--reset-limit): rank 2 joined", job.stderr.read())

    def test_failures_without_a_change_of_ranks_are_no_resets(self):
        ended = self.run_elastic("-np", 2, "--min-np", 1, "--reset-limit", 0, *SOON, "sh", "-c",
                                 "[ $HVD_RANK = 1 ] && exit 9\nwhile [ $(grep -c failed log) -lt 3 ]; do sleep 0.01; done")
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_failure_that_a_job_has_survived_is_not_the_reason_for_its_end(self):
        # hvdrun has gone on with the job when it passes on what a rank writes after the failure.
        ended = self.run_elastic("-np", 2, "--min-np", 1, "--blacklist-cooldown-range", 1000, 2000, "--output-filename", "out", "sh", "-c",
                                 '[ $HVD_RANK = 1 ] && exit 9\nwhile ! grep -q \'"failed", "rank": 1\' log; do sleep 0.01; done\necho seen\n'
                                 "while ! grep -rq seen out; do sleep 0.01; done\nexit 5")
        self.assertEqual(ended.returncode, 5, ended.stderr)
        self.assertRegex(ended.stderr, r"(?m)^hvdrun: rank 0 on localhost failed with exit code 5, ")

    def test_a_slot_that_fails_again_and_again_is_given_up(self):
        ended = self.run_elastic("-np", 2, "--min-np", 2, "--blacklist-cooldown-range", 0.01, 60, "sh", "-c", "[ $HVD_RANK = 0 ] && exit 9\nexec sleep 1000")
        self.assertEqual(ended.returncode, 9)
        self.assertIn("only 1 of at least 2 slots (--min-np) can be used", ended.stderr)
        self.assertEqual([event["rank"] for event in self.events("failed")], [0] * 5)

    def test_newcomers_do_not_begin_anew_when_all_who_have_the_state_are_lost(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 2, "--host-discovery-script", "cat shown",
                                 program=("sh", "-c", f"[ $HVD_RANK = 0 ] || sleep 1000\nexec {WORKER} go"))
        self.wait_for_size(1)
        self.show("localhost:2\n")
        wait_until(lambda: len(self.events("started")) == 2, "a second process")
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertIn("no rank is left that has the job's state", job.stderr.read())

    def test_a_newcomer_that_waits_gets_no_epoch_when_all_who_have_the_state_are_lost(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 2, "--host-discovery-script", "cat shown", "--output-filename", "out")
        self.wait_for_size(1)
        os.kill(self.pid_of(0), signal.SIGSTOP)
        self.show("localhost:2\n")
        wait_until(lambda: any(file.read_text() for file in self.folder.glob("out/rank.1/stdout")), "a second process")
        time.sleep(0.3)  # it joins
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertIn("no rank is left that has the job's state", job.stderr.read())
        self.assertEqual([epoch["epoch"] for epoch in self.events("epoch")], [1])


if __name__ == "__main__":
    unittest.main()
