# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Ranks of different versions of hvd don't begin: each says which rank has which."""

import os
import unittest

from launching import LauncherTest


class Versions(LauncherTest):
    def mixed(self, program, odd):
        """A command for all ranks, of which `odd` runs the program that was compiled as another version."""
        chosen = f'if [ "${{HVD_RANK:-$OMPI_COMM_WORLD_RANK$PMI_RANK}}" = {odd} ]; then exec {program}.other_version; else exec {program}; fi'
        return "sh", "-c", chosen

    def assert_mixed_is_refused(self, backend, program, **told):
        for ranks, odd in [(2, 1), (3, 0), (4, 2)]:
            with self.subTest(ranks=ranks, odd=odd):
                ended = self.run_it("--backend", backend, "-np", ranks, *self.mixed(os.environ[program], odd), **told)
                self.assertNotEqual(ended.returncode, 0)
                self.assertNotIn("sum", ended.stdout)
                self.assertIn("version of hvd", ended.stderr)
                self.assertRegex(ended.stderr, rf"rank {odd}: 0\.0\.9")

    def test_over_tcp(self):
        self.assert_mixed_is_refused("tcp", "HVD_TCP_PROGRAM")

    @unittest.skipUnless("HVD_MPI_PROGRAM" in os.environ, "without MPI")
    def test_over_mpi(self):
        # Open MPI may leave files of ranks that it has ended, where other tests look for those of hvdrun.
        self.assert_mixed_is_refused("mpi", "HVD_MPI_PROGRAM", TMPDIR=str(self.folder))


if __name__ == "__main__":
    unittest.main()
