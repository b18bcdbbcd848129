# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The lines by which MPI jobs start, for launchers that only print their version, and with the MPI of this machine."""

import os
import signal
import unittest

from launching import PATIENCE, LauncherTest, wait_until, with_defaults

OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.7\n\nReport bugs to https://www.open-mpi.org/community/help/"
MPICH = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: Thu Apr  7 12:34:45 CDT 2022"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\nCopyright 2003-2023, Intel Corporation."
SLURM = "slurm-wlm 22.05.8"
AS_ROOT = "--allow-run-as-root " if os.geteuid() == 0 else ""


class Lines(LauncherTest):
    def fake(self, name, version):
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n[ \"$*\" = --version ] && cat <<'END' && exit\n{version}\nEND\nenv; echo \"$0 $*\"; exit 5\n")
        file.chmod(0o755)

    def line(self, version, *arguments, name="mpirun", **more):
        self.fake(name, version)
        ended = self.run_it("--backend", "mpi", "--dry-run", *arguments, "./train", "a b", PATH=f"{self.folder}:/usr/bin:/bin", **more)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return ended.stdout.removesuffix("\n").removesuffix(" ./train 'a b'")

    def test_open_mpi_4(self):
        self.assertEqual(self.line(OPEN_MPI_4, "-np", 3),
                         f"mpirun {AS_ROOT}-np 3 -H localhost:3 --bind-to none --map-by slot --mca btl ^openib --tag-output")
        self.assertEqual(
            self.line(OPEN_MPI_4, "-np", 3, "-H", "a:2,b:2", "--network-interface", "eth1", "--timestamp", "--output-filename", "out",
                      "-x", "A=1 2", "--mpi-args", "--mca pml 'ob1'", HVD_TUNING="x"),
            f"A='1 2' mpirun {AS_ROOT}-np 3 -H a:2,b:1 --bind-to none --map-by slot --mca btl_tcp_links 2 --mca btl ^openib "
            "--mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 -x A -x HVD_TUNING --tag-output --timestamp-output "
            "--output-filename out --mca pml ob1")

    def test_the_users_secret_goes_along(self):
        seals = f"HVD_ELASTIC_SEAL_STATES=1 HVD_SECRET_FILE={self.folder}/mine "
        self.assertEqual(self.line(OPEN_MPI_5, "-np", 2, "--secret-file", "mine"),
                         f"{seals}mpirun {AS_ROOT}-n 2 --host localhost:2 --bind-to none --map-by slot -x HVD_ELASTIC_SEAL_STATES -x HVD_SECRET_FILE --output tag")

    def test_open_mpi_4_on_many_hosts(self):
        line = self.line(OPEN_MPI_4, "-H", ",".join(f"h{i}:1" for i in range(64)))
        self.assertIn(" --mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64 ", line)

    def test_open_mpi_5(self):
        self.assertEqual(
            self.line(OPEN_MPI_5, "-H", "a:2,b:1", "--timestamp", "--output-filename", "out", "-x", "A=1", "--network-interface", "eth1"),
            f"A=1 mpirun {AS_ROOT}-n 3 --host a:2,b:1 --bind-to none --map-by slot --mca btl_tcp_links 2 --mca btl_tcp_if_include eth1 "
            "--prtemca prte_if_include eth1 -x A --output tag,timestamp,dir=out")

    def test_open_mpi_bears_the_loss_of_ranks_of_elastic_jobs(self):
        for version, more in ((OPEN_MPI_4, ""), (OPEN_MPI_5, "--runtime-options error-nonzero-status=0 ")):
            line = self.line(version, "-np", 3, "--min-np", 2)
            self.assertIn(f" --enable-recovery {more}-x HVD_ELASTIC_MIN_SIZE=2 ", line)
            self.assertNotIn("--enable-recovery", self.line(version, "-np", 3))
        self.assert_mpi_refused(MPICH, ["-np", 3, "--min-np", 2], "--max-restarts starts it again")
        self.assert_mpi_refused(SLURM, ["-np", 3, "--min-np", 2], "--max-restarts starts it again")
        self.assert_mpi_refused(OPEN_MPI_4, ["-np", 3, "--min-np", 2, "--max-np", 4], "MPI takes no new ranks")
        self.assert_mpi_refused(OPEN_MPI_4, ["-np", 3, "--min-np", 2, "--max-restarts", 1], "only one of them")

    def test_a_job_that_fails_is_started_again(self):
        self.assertIn(" --mca odls_base_sigkill_timeout 0 ", self.line(OPEN_MPI_4, "-np", 3, "--max-restarts", 1))
        count = self.folder / "count"
        self.fake("mpirun", MPICH)
        launcher = self.folder / "mpirun"
        launcher.write_text(launcher.read_text().replace("exit 5", f"echo run >>{count}; [ $(wc -l <{count}) -ge 3 ] || kill -9 $$"))
        for restarts, code, runs in ((0, -9, 1), (1, 137, 2), (2, 0, 3), (5, 0, 3)):
            count.unlink(missing_ok=True)
            ended = self.run_it("--backend", "mpi", "-np", 2, "--max-restarts", restarts, "./train", PATH=f"{self.folder}:/usr/bin:/bin")
            self.assertEqual((ended.returncode, count.read_text().count("run")), (code, runs), ended.stderr)
            self.assertEqual(ended.stderr.count("the job ended with 137; it is started again"), runs - 1)

    def test_a_signal_ends_a_job_that_may_be_started_again(self):
        self.fake("mpirun", MPICH)
        launcher, here = self.folder / "mpirun", self.folder / "here"
        launcher.write_text(launcher.read_text().replace("exit 5", f"touch {here}; exec sleep 100"))
        job = self.start_it("--backend", "mpi", "-np", 2, "--max-restarts", 9, "./train", PATH=f"{self.folder}:/usr/bin:/bin")
        wait_until(here.exists, "the job runs")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_nothing_outlives_hvdrun_that_may_start_a_job_again(self):
        self.fake("mpirun", MPICH)
        launcher, here = self.folder / "mpirun", self.folder / "here"
        text = launcher.read_text()
        for number, script in ((signal.SIGKILL, "sleep 1000 & wait"), (signal.SIGKILL, "trap '' TERM; sleep 1000 & while :; do wait; sleep 1; done"), (signal.SIGQUIT, "exec sleep 1000"),
                               (signal.SIGALRM, "exec sleep 1000")):
            launcher.write_text(text.replace("exit 5", f"touch {here}; {script}"))
            job = self.start_it("--backend", "mpi", "-np", 2, "--max-restarts", 9, "--kill-after", 0.5, "./train", before=with_defaults, PATH=f"{self.folder}:/usr/bin:/bin")
            wait_until(here.exists, "the job runs")
            job.send_signal(number)
            self.assertEqual(job.wait(PATIENCE), -number if number == signal.SIGKILL else 128 + number)
            self.assert_nothing_is_left()
            here.unlink()

    def test_a_signal_for_the_ranks_goes_to_the_launcher(self):
        self.fake("mpirun", MPICH)
        launcher, here, got = self.folder / "mpirun", self.folder / "here", self.folder / "got"
        launcher.write_text(launcher.read_text().replace("exit 5", f"trap 'touch {got}; exit 0' USR1; touch {here}; while :; do sleep 0.02; done"))
        job = self.start_it("--backend", "mpi", "-np", 2, "--max-restarts", 9, "./train", before=with_defaults, PATH=f"{self.folder}:/usr/bin:/bin")
        wait_until(here.exists, "the job runs")
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(PATIENCE), 0)
        self.assertTrue(got.exists())

    def test_a_signal_between_two_runs_ends_the_job(self):
        self.fake("mpirun", MPICH)
        launcher = self.folder / "mpirun"
        launcher.write_text(launcher.read_text().replace("exit 5", "echo run >>count; exit 5"))
        code = self.end_while_it_says_something("--backend", "mpi", "-np", 2, "--max-restarts", 9, "./train", PATH=f"{self.folder}:/usr/bin:/bin")
        self.assertEqual((code, (self.folder / "count").read_text()), (143, "run\n"))

    def test_mpich(self):
        self.assertEqual(self.line(MPICH, "-np", 2), "mpirun -n 2 -bind-to none -prepend-rank")
        self.assertEqual(
            self.line(MPICH, "-H", "a:2,b:1", "-x", "A=1", "-x", "B=2", "--output-filename", "out", "--network-interface", "eth1"),
            "A=1 B=2 mpirun -n 3 -hosts a:2,b:1 -bind-to none -iface eth1 -prepend-rank -outfile-pattern out/rank.%r.stdout "
            "-errfile-pattern out/rank.%r.stderr -genvlist A,B")
        self.assert_mpi_refused(MPICH, ["-np", 2, "--network-interface", "eth1,ib0"], "eth1,ib0", "one interface")

    def test_intel_mpi(self):
        self.assertEqual(self.line(INTEL, "-H", "a:2,b:2", "-x", "A=1"), "A=1 mpirun -n 4 -hosts a,b -ppn 2 -prepend-rank -genvlist A")
        self.assert_mpi_refused(INTEL, ["-H", "a:2,b:1"], "equal numbers of ranks", "a:2,b:1")

    def test_slurm(self):
        self.assertEqual(self.line(SLURM, "-np", 4, name="srun", SLURM_JOB_ID="7"),
                         "srun --ntasks=4 --kill-on-bad-exit=1 --cpu-bind=none --label --export=ALL")
        self.assertEqual(
            self.line(SLURM, "-H", "a:2,b:1", "-x", "A=1", "--output-filename", "out", name="srun", SLURM_JOB_ID="7"),
            "A=1 srun --ntasks=3 --nodelist=a,a,b --distribution=arbitrary --kill-on-bad-exit=1 --cpu-bind=none --label "
            "--output=out/rank.%t.stdout --error=out/rank.%t.stderr --export=ALL,A")

    def test_srun_is_for_allocations_alone(self):
        self.fake("srun", SLURM)
        self.assertTrue(self.line(MPICH, "-np", 2).startswith("mpirun "))
        self.assertTrue(self.line(MPICH, "-np", 2, SLURM_JOB_ID="7").startswith("srun "))

    def test_the_launcher_can_be_named(self):
        self.fake("mpiexec.other", MPICH)
        self.assertTrue(self.line(OPEN_MPI_4, "-np", 2, "--mpi-launcher", "mpiexec.other").startswith("mpiexec.other -n 2 "))

    def assert_mpi_refused(self, version, arguments, *words, code=2):
        self.fake("mpirun", version)
        ended = self.run_it("--backend", "mpi", *arguments, "./train", PATH=f"{self.folder}:/usr/bin:/bin")
        self.assertEqual(ended.returncode, code, ended.stderr)
        for word in words:
            self.assertIn(word, ended.stderr)

    def test_what_cannot_be_is_refused(self):
        self.assert_mpi_refused(MPICH, ["-np", 2, "--timestamp"], "--timestamp", "print no times")
        self.assert_mpi_refused(OPEN_MPI_4, ["-np", 2, "--event-log", "log"], "--event-log")
        self.assert_mpi_refused("mpirun of nobody 1.0", ["-np", 2], 'its version is "mpirun of nobody 1.0"', code=1)
        ended = self.run_it("--backend", "mpi", "-np", 2, "--mpi-launcher", "absent", "./train")
        self.assertEqual(ended.returncode, 127)
        self.assertIn("absent", ended.stderr)

    def test_no_launcher_starts_inside_a_rank(self):
        for inside in ("OMPI_COMM_WORLD_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            self.fake("mpirun", OPEN_MPI_4)
            ended = self.run_it("--backend", "mpi", "-np", 2, "./train", PATH=f"{self.folder}:/usr/bin:/bin", **{inside: "2"})
            self.assertEqual((ended.returncode, ended.stderr),
                             (2, f"hvdrun: --backend mpi: this is a rank of another job ({inside} is set), and no launcher of MPI starts inside of one\n"))
        for name in ("HVD_RENDEZVOUS_SERVED", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            self.assertIn("mpirun", self.line(OPEN_MPI_4, "-np", 2, **{name: "1"}))

    def test_the_folder_of_output_is_made(self):
        self.fake("mpirun", MPICH)
        self.run_it("--backend", "mpi", "-np", 2, "--output-filename", "deep/out", "./train", PATH=f"{self.folder}:/usr/bin:/bin")
        self.assertTrue((self.folder / "deep/out").is_dir())

    def test_hvdrun_becomes_the_launcher(self):
        self.fake("mpirun", MPICH)
        ended = self.run_it("--backend", "mpi", "-np", 2, "-x", "A=1 2", "--verbose", "./train", PATH=f"{self.folder}:/usr/bin:/bin", HVD_RANK="3")
        self.assertEqual(ended.returncode, 5)
        self.assertIn("\nA=1 2\n", ended.stdout)
        self.assertNotIn("HVD_RANK", ended.stdout)
        self.assertIn("mpirun -n 2 -bind-to none -prepend-rank -genvlist A ./train\n", ended.stdout)
        self.assertEqual(ended.stderr, "hvdrun: A='1 2' mpirun -n 2 -bind-to none -prepend-rank -genvlist A ./train\n")


@unittest.skipUnless(os.environ.get("HVD_MPI_PROGRAM"), "this build has no MPI")
class WithMpi(LauncherTest):
    """A program of MPI, by the launcher of this build."""

    def run_program(self, *arguments):
        return self.run_it("--backend", "mpi", "--mpi-launcher", os.environ["HVD_MPIEXEC"], "-np", 2, "-x", "MINE=7", os.environ["HVD_MPI_PROGRAM"],
                           *arguments)

    def test_ranks_meet_and_have_the_variables(self):
        ended = self.run_program()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        for rank in range(2):
            self.assertRegex(ended.stdout, rf"(?m)\b{rank}\].*rank {rank} of 2, sum 1, MINE 7$")

    def test_the_exit_code_is_that_of_the_rank_that_failed(self):
        self.assertEqual(self.run_program("19").returncode, 19)


if __name__ == "__main__":
    unittest.main()
