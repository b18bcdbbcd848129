# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Every launcher with programs of every backend: the ranks are together, or they refuse to work alone and say what to do."""

import os
import pathlib
import subprocess
import sys
import unittest

from launching import LauncherTest, PATIENCE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "elastic/random"))
from drive import COLUMN, COLUMN_BYTES, SLOTS, free_port

TCP, ELASTIC_TCP = os.environ["HVD_TCP_PROGRAM"], os.environ["HVD_ELASTIC_WORKER"]
MPI, ELASTIC_MPI = os.environ.get("HVD_MPI_PROGRAM"), os.environ.get("HVD_ELASTIC_OVER_MPI")
MPIEXEC = os.environ.get("HVD_MPIEXEC")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def lines_of(ended):
    """The places that ranks have printed, whatever the launcher writes before them."""
    return sorted(line.rpartition(":")[2].partition(",")[0] for line in ended.stdout.splitlines())


class Pairs(LauncherTest):
    def run_without_launcher(self, *program, **told):
        return subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, env=self.environment(**AS_ROOT, **told))

    def assert_alone(self, ended):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(lines_of(ended), ["rank 0 of 1"])

    def assert_together(self, ended):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(lines_of(ended), ["rank 0 of 2", "rank 1 of 2"])

    def assert_refused(self, ended, variable, remedy):
        self.assertNotEqual(ended.returncode, 0)
        self.assertNotRegex(ended.stdout, "rank 0 of|steps")
        self.assertIn(f"has one rank, but {variable} says that 2 were started", ended.stderr)
        self.assertIn(remedy, ended.stderr)
        self.assertIn("HVD_ALONE=1", ended.stderr)

    def elastic_of_tcp(self):
        """A program that does one step. It leaves a file go.SIZE."""
        for file in self.folder.glob("go.*"):
            file.unlink()
        (self.folder / "go").touch()
        return ELASTIC_TCP, str(self.folder / "go")

    def assert_elastic_size(self, ended, size):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual([file.name for file in self.folder.glob("go.*")], [f"go.{size}"])

    def elastic_of_mpi(self):
        """A program that does five steps. Its ranks show the size of their last epoch."""
        (self.folder / "board").write_bytes(bytes(COLUMN_BYTES * SLOTS))
        return ELASTIC_MPI, str(self.folder / "board"), "0", "5", "0", "0"

    def assert_elastic_ranks_of_mpi(self, ended, size):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        board = (self.folder / "board").read_bytes()
        self.assertEqual([COLUMN.unpack_from(board, COLUMN_BYTES * rank)[3] for rank in range(3)], [size if rank < size else 0 for rank in range(3)])

    def mpiexec(self, *program, **told):
        return subprocess.run([MPIEXEC, "-n", "2", *program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
                              env=self.environment(**AS_ROOT, **told))

    def setUp(self):
        super().setUp()
        if MPI is None and "mpi" in self._testMethodName:
            self.skipTest("hvd was built without MPI")

    def test_hvdrun_starts_ranks_of_tcp(self):
        self.assert_together(self.run_it("-np", 2, TCP))

    def run_without_mpiexec(self, ranks, *program):
        # An Open MPI that is aborted leaves a folder of its own, which is no secret of hvdrun; two that make one folder at one time fail.
        in_its_folder = 'mkdir -p "$FOLDER/$HVD_RANK" && OMPI_MCA_orte_tmpdir_base="$FOLDER/$HVD_RANK" exec "$@"'
        return self.run_it("-np", ranks, "sh", "-c", in_its_folder, "rank", *program, FOLDER=str(self.folder), **AS_ROOT)

    def test_hvdrun_refuses_programs_of_mpi(self):
        self.assert_refused(self.run_without_mpiexec(2, MPI), "HVD_SIZE", "hvdrun --backend mpi")

    def test_hvdrun_starts_one_program_of_mpi(self):
        self.assert_alone(self.run_without_mpiexec(1, MPI))

    def test_hvdrun_over_mpi_starts_ranks_of_mpi(self):
        self.assert_together(self.run_it("--backend", "mpi", "-np", 2, MPI, **AS_ROOT))

    def test_hvdrun_over_mpi_refuses_programs_of_tcp(self):
        ended = self.run_it("--backend", "mpi", "-np", 2, TCP, **AS_ROOT)
        self.assertIn("were started", ended.stderr)
        self.assertNotIn("rank 0 of", ended.stdout)

    def test_mpiexec_starts_ranks_of_mpi(self):
        self.assert_together(self.mpiexec(MPI))

    def test_mpiexec_refuses_programs_of_tcp_that_have_no_place_to_meet(self):
        ended = self.mpiexec(TCP)
        self.assertNotIn("rank 0 of", ended.stdout)
        self.assertIn("says that 2 were started", ended.stderr)
        self.assertIn("HVD_RENDEZVOUS", ended.stderr)

    def test_hvdrun_starts_elastic_ranks_of_tcp(self):
        self.assert_elastic_size(self.run_it("-np", 2, "--min-np", 2, *self.elastic_of_tcp()), 2)

    def test_hvdrun_refuses_elastic_programs_of_mpi(self):
        self.assert_refused(self.run_without_mpiexec(2, *self.elastic_of_mpi()), "HVD_SIZE", "hvdrun --backend mpi")

    def test_hvdrun_over_mpi_starts_elastic_ranks_of_mpi(self):
        self.assert_elastic_ranks_of_mpi(self.run_it("--backend", "mpi", "-np", 2, *self.elastic_of_mpi(), **AS_ROOT), 2)

    def test_hvdrun_over_mpi_refuses_elastic_programs_of_tcp(self):
        ended = self.run_it("--backend", "mpi", "-np", 2, *self.elastic_of_tcp(), **AS_ROOT)
        self.assertIn("were started", ended.stderr)
        self.assertNotIn("steps", ended.stdout)

    def test_mpiexec_starts_elastic_ranks_of_mpi(self):
        self.assert_elastic_ranks_of_mpi(self.mpiexec(*self.elastic_of_mpi()), 2)

    def test_mpiexec_refuses_elastic_programs_of_tcp_that_have_no_place_to_meet(self):
        ended = self.mpiexec(*self.elastic_of_tcp())
        self.assertNotIn("steps", ended.stdout)
        self.assertIn("says that 2 were started", ended.stderr)
        self.assertIn("HVD_RENDEZVOUS", ended.stderr)

    def test_mpiexec_gives_elastic_ranks_of_tcp_their_places_if_they_can_meet(self):
        if MPIEXEC is None:
            self.skipTest("hvd was built without MPI")
        place = {"HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}", "HVD_SECRET": "0123456789abcdef" * 4}
        self.assert_elastic_size(self.mpiexec(*self.elastic_of_tcp(), **place), 2)

    def test_launchers_of_another_mpi_are_named(self):
        of_tcp, of_mpi = [(TCP,), self.elastic_of_tcp()], [(MPI,), self.elastic_of_mpi()] if MPI else []
        for variable, programs in (("OMPI_COMM_WORLD_SIZE", of_tcp + of_mpi), ("PMI_SIZE", of_tcp)):
            for program in programs:
                with self.subTest(variable=variable, program=program):
                    remedy = "HVD_RENDEZVOUS" if program in of_tcp else "start it by the launcher of its own MPI"
                    self.assert_refused(self.run_without_launcher(*program, **{variable: "2"}), variable, remedy)

    def test_the_three_mpis_are_named_where_they_do_not_fit(self):
        if MPI is None:
            self.skipTest("hvd was built without MPI")
        for variable, launcher in (("PMI_SIZE", "MPICH's or Intel MPI's"), ("OMPI_COMM_WORLD_SIZE", "Open MPI's")):
            if (variable == "PMI_SIZE") == os.environ["HVD_MPI_VERSION"].startswith("MPICH"):
                continue  # its own launcher's variables start it otherwise
            said = self.run_without_launcher(MPI, **{variable: "2"}).stderr
            self.assertIn(f"it is compiled with {os.environ['HVD_MPI_VERSION']}, the library that runs is ", said)
            self.assertIn(f"and the launcher is {launcher}", said)

    def test_a_step_of_slurm_is_a_launcher_and_its_batch_script_is_not(self):
        step, script = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
        for program in filter(None, (MPI, TCP)):
            with self.subTest(program=program):
                self.assert_refused(self.run_without_launcher(program, **step), "SLURM_STEP_NUM_TASKS", "")
                self.assert_alone(self.run_without_launcher(program, **script))
        self.assert_refused(self.run_without_launcher(*self.elastic_of_tcp(), **step), "SLURM_STEP_NUM_TASKS", "HVD_RENDEZVOUS")
        self.assert_elastic_size(self.run_without_launcher(*self.elastic_of_tcp(), **script), 1)
        if MPI is not None:
            self.assert_refused(self.run_without_launcher(*self.elastic_of_mpi(), **step), "SLURM_STEP_NUM_TASKS", "--mpi")
            self.assert_elastic_ranks_of_mpi(self.run_without_launcher(*self.elastic_of_mpi(), **script), 1)

    def test_a_program_that_a_rank_starts_may_work_alone(self):
        self.assert_alone(self.run_without_launcher(TCP, OMPI_COMM_WORLD_SIZE="2", HVD_ALONE="1"))
        self.assert_elastic_size(self.run_without_launcher(*self.elastic_of_tcp(), OMPI_COMM_WORLD_SIZE="2", HVD_ALONE="1"), 1)
        if MPI is not None:
            self.assert_alone(self.run_without_launcher(MPI, HVD_SIZE="2", HVD_RANK="1", HVD_ALONE="1"))


unittest.main()
