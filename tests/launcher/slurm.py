# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Programs start under srun, without hvdrun, in a Slurm of one node that this script starts and ends."""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import unittest

import pages
import slurm_lab
from launching import HVDRUN, PATIENCE

TCP = os.environ["HVD_TCP_PROGRAM"]
MPI = os.environ.get("HVD_MPI_PROGRAM")
ELASTIC = os.environ["HVD_ELASTIC_WORKER"]
COMPUTE = os.environ.get("HVD_COMPUTE")
SLURM = None  # while the tests run


class UnderSrun(unittest.TestCase):
    def environment(self):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "SLURM_"))}
        return clean | SLURM.environment

    def run_it(self, *command, **more):
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * PATIENCE, env=self.environment() | more)

    def srun(self, *arguments, **more):
        return self.run_it("srun", "--quiet", "--immediate=60", "--kill-on-bad-exit=1", *map(str, arguments), **more)

    def with_secret(self):
        return {"HVD_SECRET": secrets.token_hex(32)}

    def assert_met(self, ended, size):
        """Ranks have met that are as many as there should be."""
        self.assertEqual(ended.returncode, 0, ended.stderr)
        total = size * (size - 1) // 2
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"rank {r} of {size}, local {r} of {size}, sum {total}" for r in range(size)])

    def test_the_ranks_of_a_step_find_each_other(self):
        for size in (1, 2, 3, 4):
            with self.subTest(size=size):
                self.assert_met(self.srun("-n", size, TCP, **self.with_secret()), size)

    def test_the_ranks_of_a_step_are_an_elastic_job(self):
        with tempfile.TemporaryDirectory() as folder:
            open(f"{folder}/go", "w").close()
            ended = self.srun("-n", 2, ELASTIC, f"{folder}/go", **self.with_secret())
            self.assertEqual((ended.returncode, sorted(os.listdir(folder))), (0, ["go", "go.2"]), ended.stderr)

    def test_the_script_of_the_page_starts_the_ranks(self):
        script = next(text for text, _ in pages.blocks("bash") if "HVD_SECRET" in text)
        self.assert_met(self.run_it("salloc", "--quiet", "-n", "2", "bash", "-c", script.replace("./train", TCP)), 2)

    def test_each_of_two_steps_at_once_is_a_job(self):
        one = f"srun --quiet --exact --overlap -n 2 {TCP}"
        ended = self.run_it("salloc", "--quiet", "-n", "4", "sh", "-c", f"{one} >{SLURM.folder}/first & {one}; wait $!", **self.with_secret())
        self.assert_met(ended, 2)
        self.assertEqual(sorted((SLURM.folder / "first").read_text().splitlines()), sorted(ended.stdout.splitlines()))

    def test_a_step_without_a_secret_is_refused_with_the_reason(self):
        ended = self.srun("-n", 2, TCP)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("HVD_SECRET_FILE, is missing", ended.stderr)

    def test_a_rank_that_ends_is_an_error_of_the_others(self):
        ended = self.srun("-n", 2, TCP, "ends", **self.with_secret())
        self.assertEqual(ended.returncode, 23, ended.stderr)

    def test_the_variables_of_hvdrun_win(self):
        ended = self.srun("-n", 1, HVDRUN, "-np", 2, TCP)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of \d", ended.stdout)), ["rank 0 of 2", "rank 1 of 2"])

    def test_hvdrun_starts_ranks_by_srun_in_the_place_of_ssh(self):
        # By the name of the node hvdrun would know its own host, and need no srun.
        ended = self.run_it("salloc", "--quiet", "-n", "2", HVDRUN, "-H", "elsewhere:2", "--network-interface", "lo", "--ssh-command",
                            f"srun --overlap --nodes=1 --ntasks=1 --nodelist={SLURM.node} --job-name={{host}} sh -c {{command}}",
                            "sh", "-c", f"echo $SLURM_STEP_NUM_TASKS task; exec {TCP}")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of \d|1 task", ended.stdout)), ["1 task", "1 task", "rank 0 of 2", "rank 1 of 2"])

    @unittest.skipUnless(COMPUTE, "hvd-compute is not built")
    def test_the_tasks_of_a_step_are_the_ranks_of_a_data_service(self):
        worker, trainer = os.environ["HVD_DATA_WORKER"], os.environ["HVD_DATA_TRAINER"]
        for size, options in ((1, ()), (2, ()), (4, ("--dispatchers", "2"))):
            with self.subTest(size=size), tempfile.TemporaryDirectory() as folder:
                config = f"{folder}/compute.json"
                step = subprocess.Popen(["srun", "--quiet", "--immediate=60", "-n", str(size), COMPUTE, *options, config, "--", worker], stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, env=self.environment())
                with step:
                    self.addCleanup(step.kill)
                    for rank in ("0", "1"):
                        ended = self.run_it(trainer, rank, "2", config, "0")
                        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                        self.assertEqual(ended.stdout, self.run_it(trainer, rank, "2").stdout)
                    # Tasks have no time for their end if srun itself gets a signal.
                    job = self.run_it("squeue", "--noheader", "--format=%A").stdout.strip()
                    self.assertEqual(self.run_it("scancel", "--signal=TERM", f"{job}.0").returncode, 0)
                    self.assertEqual(step.wait(timeout=PATIENCE), 0, step.stderr.read())
                self.assertEqual(os.listdir(folder), [])

    def test_programs_of_mpi_start(self):
        if MPI is None:
            self.skipTest("hvd was built without MPI")
        plugin = "pmix" if "Open MPI" in os.environ["HVD_MPI_VERSION"] else "pmi2"
        if plugin not in self.run_it("srun", "--mpi=list").stdout:
            self.skipTest(f"Slurm has no {plugin} here")
        ended = self.srun(f"--mpi={plugin}", "-n", 2, MPI)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of \d", ended.stdout)), ["rank 0 of 2", "rank 1 of 2"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hvd-slurm-") as folder:
        try:
            socket.gethostbyname(slurm_lab.node())
            with slurm_lab.Slurm(folder) as SLURM:
                unittest.main(exit=False).result.wasSuccessful() or sys.exit(1)
        except (slurm_lab.Unusable, OSError) as reason:
            print(f"skipped: {reason}")
            sys.exit(77)
