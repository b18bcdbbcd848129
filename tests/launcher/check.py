# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""hvdrun --check: a table of the hosts."""

import os
import re
import shutil
import unittest

from launching import FAKE_SSH, LauncherTest

COMPILED_WITH = os.environ["HVD_MPI_VERSION"] or "no MPI"


class Check(LauncherTest):
    def setUp(self):
        super().setUp()
        tools = self.folder / "tools"
        tools.mkdir()
        self.tool("mpirun", f"echo '{COMPILED_WITH}'")
        self.tool("nvidia-smi", "echo NVIDIA H100; echo NVIDIA H100")

    def tool(self, name, script):
        file = self.folder / "tools" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def table(self, *arguments, ssh=FAKE_SSH, code=0):
        ended = self.run_it("--check", "--ssh-command", ssh, *arguments, PATH=f"{self.folder}/tools:/usr/bin:/bin:/usr/sbin:/sbin")
        self.assertEqual((ended.returncode, ended.stderr), (code, ""), ended.stdout)
        first, head, *rows = ended.stdout.splitlines()
        self.assertEqual(first, f"compiled with {COMPILED_WITH}")
        self.assertEqual(re.split(r"  +", head), ["host", "reached", "MPI", "GPUs", "NCCL", "interfaces", "clock"])
        return [re.split(r"  +", row) for row in rows]

    @unittest.skipUnless(os.environ["HVD_MPI_VERSION"], "this build has no MPI")
    def test_each_host_has_a_row(self):
        rows = self.table("-H", "a:2,localhost:4,b")
        self.assertEqual([row[:4] for row in rows], [[host, "yes", COMPILED_WITH, "2 NVIDIA H100"] for host in ("a", "localhost", "b")])
        for row in rows:
            offset, uncertainty = map(float, re.fullmatch(r"([+-]\d+\.\d) ms ± (\d+\.\d)", row[6]).groups())
            self.assertLessEqual(abs(offset), uncertainty + 0.2)  # it is the same clock

    def test_another_clock_is_seen(self):
        self.tool("date", "echo $(( $(/bin/date +%s%N) + 5000000000 ))")
        (row,) = self.table("-H", "a")
        self.assertAlmostEqual(float(row[6].split()[0]), 5000, delta=1000)

    def test_another_mpi_is_told_and_is_wrong_for_jobs_of_mpi(self):
        wrong = 1 if COMPILED_WITH != "no MPI" else 0
        for script, shown in (("echo 'mpirun (Open MPI) 9.9.9'", "Open MPI 9.9.9 (differs)"),
                              ("echo 'HYDRA build details:'; echo '    Version:     9.0.2'", "MPICH 9.0.2 (differs)"), ("exit 1", None)):
            self.tool("mpirun", script)
            self.tool("mpiexec", "exit 1")
            for backend, code in (([], 0), (["--backend", "tcp"], 0), (["--backend", "mpi"], wrong)):
                (row,) = self.table("-H", "a", *backend, code=code)
                self.assertEqual(row[2], shown or "-")

    def test_a_host_without_the_programs_of_a_remote_rank_is_told(self):
        bare = self.folder / "bare"
        bare.mkdir()
        for name in ("sh", "sed", "head", "sort", "uniq", "cat", "date", "setsid", "xargs"):
            (bare / name).symlink_to(shutil.which(name))
        (row,) = self.table("-H", "a", ssh=f"env PATH={bare} sh -c {{command}}", code=1)
        self.assertEqual(row[1], "yes, without flock mkfifo dd")
        (row,) = self.table("-H", "localhost")
        self.assertEqual(row[1], "yes")

    def test_a_host_that_is_not_reached_has_the_reason(self):
        (self.folder / "rsh").write_text('#!/bin/sh\necho "ssh: connect to $1: No route to host" >&2\nexit 255\n')
        (self.folder / "rsh").chmod(0o755)
        (row,) = self.table("-H", "a", ssh="./rsh {host} {command}", code=1)
        self.assertEqual(row[:2], ["a", "not reached: ssh: connect to a: No route to host"])
        (row,) = self.table("-H", "a", "--start-timeout", "0.3", ssh="sh -c 'sleep 1000' {command}", code=1)
        self.assertEqual(row[1], "not reached: no answer in time")

    def test_a_talk_that_breaks_off_is_told_from_a_host_that_is_not_reached(self):
        (self.folder / "rsh").write_text('#!/bin/sh\necho "reached yes"\necho "ssh: connection reset" >&2\nexit 255\n')
        (self.folder / "rsh").chmod(0o755)
        (row,) = self.table("-H", "a", ssh="./rsh {host} {command}", code=1)
        self.assertEqual(row[1], "broken off: ssh: connection reset")


if __name__ == "__main__":
    unittest.main()
