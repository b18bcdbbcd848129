# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Jobs of hvd::tcp by hvdrun: the ranks meet at its rendezvous."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from launching import FAKE_SSH, HVDRUN, LauncherTest, PATIENCE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "network"))
import lab

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "elastic/random"))
from drive import free_port

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

    def test_mpiexec_gives_ranks_their_places_if_they_can_meet(self):
        mpiexec = os.environ.get("HVD_MPIEXEC")
        if mpiexec is None:
            self.skipTest("hvd was built without MPI")
        for told, size in (({"HVD_ALONE": "1"}, 1), ({"HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}", "HVD_SECRET": "0123456789abcdef" * 4}, 2)):
            told |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
            ended = subprocess.run([mpiexec, "-n", "2", PROGRAM], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, env=self.environment(**told))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            ranks = (0, 0) if size == 1 else (0, 1)
            self.assertEqual(sorted(ended.stdout.splitlines()), [f"rank {r} of {size}, local {r} of {size}, sum {size - 1}" for r in ranks])

    def test_the_users_secret_serves(self):
        file = self.folder / "mine"
        file.write_text("0123456789abcdef" * 4)
        file.chmod(0o600)
        self.assert_sums(self.run_it("-np", 2, "--secret-file", file, PROGRAM), 2)
        self.assert_sums(self.run_it("-np", 2, "--secret-file", "mine", "sh", "-c", f"cd / && exec {PROGRAM}"), 2)

    def test_the_file_of_the_secret_is_found_from_every_folder(self):
        self.assert_sums(self.run_it("-np", 2, "sh", "-c", f"cd / && exec {PROGRAM}", TMPDIR="secrets"), 2)
        self.assertRegex(self.run_it("-np", 1, "sh", "-c", "echo $HVD_SECRET_FILE", TMPDIR="").stdout, r":/tmp/hvdrun\.\w+\n$")

    def test_a_rank_with_another_secret_does_not_take_part(self):
        ended = self.run_it("-np", 2, "-x", "HVD_START_TIMEOUT=500ms", "sh", "-c",
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


class OnHosts(LauncherTest):
    """hvdrun on one of two hosts: namespaces of the network, with a cable between them, and a shell in ssh's place."""

    def setUp(self):
        super().setUp()
        self.lab = lab.Lab(2)
        try:
            self.lab.__enter__()
        except lab.Unusable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.lab.__exit__)
        (self.folder / "agent").write_text(lab.AGENT)
        (self.folder / "agent").chmod(0o755)

    def run_on_hosts(self, *arguments):
        ssh = f"{self.folder}/agent {{host}} {{command}}"
        hosts = f"{self.lab.address(0)}:1,{self.lab.address(1)}:2"
        ended = subprocess.run(["nsenter", "--target", str(self.lab.pid(0)), "--net", "--uts", "--", HVDRUN, "-H", hosts, "--ssh-command", ssh,
                                *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder,
                               env=self.environment(HVD_LAB_PIDS=self.lab.environment("")["HVD_LAB_PIDS"]))
        self.assert_nothing_is_left()
        return ended

    def test_ranks_of_two_hosts_meet(self):
        before = self.lab.sent(1)
        ended = self.run_on_hosts(PROGRAM)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(sorted(ended.stdout.splitlines()),
                         ["[0]<stdout>:rank 0 of 3, local 0 of 1, sum 3", "[1]<stdout>:rank 1 of 3, local 0 of 2, sum 3", "[2]<stdout>:rank 2 of 3, local 1 of 2, sum 3"])
        self.assertGreater(self.lab.sent(1) - before, 400_000)  # the tensor has passed the cable

    def test_a_failure_on_the_other_host_ends_the_job(self):
        ended = self.run_on_hosts(PROGRAM, "fail")
        self.assertIn(ended.returncode, (1, 23), ended.stderr)  # rank 0 here notices it, and may be heard of earlier
        self.assertIn(f"rank 1 on {self.lab.address(1)} failed with exit code 23", ended.stderr)


if __name__ == "__main__":
    unittest.main()
