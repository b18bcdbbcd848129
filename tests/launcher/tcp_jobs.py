# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Jobs of hvd::tcp by hvdrun: the ranks meet at its rendezvous."""

import json
import os
import signal
import unittest

from launching import FAKE_SSH, LauncherTest

PROGRAM = os.environ["HVD_TCP_PROGRAM"]


class TcpJobs(LauncherTest):
    def events(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def assert_sums(self, ended, size):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(ended.stdout.splitlines()),
                         [f"[{r}]<stdout>:rank {r} of {size}, local {r} of {size}, sum {size * (size - 1) // 2}" for r in range(size)])

    def test_ranks_of_this_host_meet(self):
        for size in (1, 2, 4):
            self.assert_sums(self.run_it("-np", size, "--event-log", "log", PROGRAM), size)
            self.assertEqual([e["event"] for e in self.events()].count("met"), int(size > 1))

    def test_ranks_of_other_hosts_meet_them(self):
        # Host and rendezvous have another address, and the secret another file; the machine is this one.
        self.assert_sums(self.run_it("-H", "a:2,localhost:1", "--ssh-command", FAKE_SSH, PROGRAM), 3)

    def test_they_meet_by_the_named_interface(self):
        self.assert_sums(self.run_it("-H", "a:1,localhost:1", "--network-interface", "lo", "--ssh-command", FAKE_SSH, PROGRAM), 2)

    def test_the_users_secret_serves(self):
        file = self.folder / "mine"
        file.write_text("0123456789abcdef" * 4)
        file.chmod(0o600)
        self.assert_sums(self.run_it("-np", 2, "--secret-file", file, PROGRAM), 2)

    def test_a_rank_with_another_secret_does_not_take_part(self):
        ended = self.run_it("-np", 2, "-x", "HVD_RENDEZVOUS_DEADLINE=500ms", "sh", "-c",
                            f'[ $HVD_RANK = 0 ] || {{ umask 077; printf %064d 7 >other; export HVD_SECRET_FILE=other; }}\nexec {PROGRAM}')
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("]<stderr>:hvd: ", ended.stderr)
        self.assertEqual(ended.stdout, "")

    def test_the_rank_that_fails_is_named_and_not_those_that_notice_it(self):
        # Rank 0 notices it within microseconds, and also fails.
        ended = self.run_it("-np", 3, "--event-log", "log", PROGRAM, "fail")
        self.assertEqual(ended.returncode, 23)
        self.assertIn("rank 1 on localhost failed with exit code 23", ended.stderr)
        self.assertEqual(next((e["rank"], e["code"]) for e in self.events() if e["event"] == "failed"), (1, 23))

    def test_a_rank_that_fails_before_all_have_met_ends_those_that_wait(self):
        ended = self.run_it("-np", 3, "--event-log", "log", "sh", "-c", f"[ $HVD_RANK = 2 ] || exec {PROGRAM}\nsleep 0.3; kill -KILL $$")
        self.assertEqual(ended.returncode, 128 + signal.SIGKILL)
        self.assertIn("rank 2 on localhost failed with signal 9 (SIGKILL)", ended.stderr)
        self.assertNotIn("met", [e["event"] for e in self.events()])


if __name__ == "__main__":
    unittest.main()
