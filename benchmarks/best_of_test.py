#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Tests best_of.py on figures that are made up."""

import json
import pathlib
import sys
import tempfile

from best_of import Comparison


def write(folder, name, mpi, ratios, cores=None):
    rows = [{"path": "hvd plain", "type": "float", "size": size, "cores": cores, "in_place": {"ratio": ratio}} for size, ratio in ratios.items()]
    rows += [{"path": "mpi", "type": "float", "size": size, "in_place": {}} for size in ratios]
    (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps({"machine": {"mpi": mpi}, "rows": rows}))


def main():
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "some", "Open MPI v4.1.4", {4: 1.5, 1024: 0.9})
        write(folder, "some_intel", "Intel(R) MPI Library 2021.19 for Linux* OS", {4: 0.7, 1024: 2.0})
        found = Comparison(folder, "some")
        assert found.best("plain") == {4: (0.7, "Intel MPI 2021.19"), 1024: (0.9, "Open MPI 4.1.4")}, found.best("plain")
        assert found.best("arena") == {}
        assert found.missing() == ["Open MPI 5", "MPICH 5"], found.missing()
        assert found.states() == [None]
        write(folder, "far", "Open MPI v4.1.4", {4: 2.0}, "far")
        write(folder, "far_intel", "Intel(R) MPI Library 2021.19 for Linux* OS", {4: 1.0}, "near")
        found = Comparison(folder, "far")
        assert found.states() == ["near", "far"], found.states()
        assert found.best("plain", "far") == {4: (2.0, "Open MPI 4.1.4")}, found.best("plain", "far")
        assert found.best("plain", "near") == {4: (1.0, "Intel MPI 2021.19")}, found.best("plain", "near")
        assert Comparison(folder, "other").missing() == ["Open MPI 4", "Open MPI 5", "MPICH 5", "Intel MPI"]
    return 0


if __name__ == "__main__":
    sys.exit(main())
