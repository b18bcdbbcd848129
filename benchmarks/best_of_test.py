#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Tests best_of.py and ratios.py on figures that are made up."""

import json
import pathlib
import sys
import tempfile

from best_of import Comparison
from ratios import ratios_of, size_text, verdict


def write(folder, name, mpi, ratios, cores=None, collective="all_reduce"):
    rows = [{"collective": collective, "path": "hvd plain", "type": "float", "size": size, "cores": cores, "in_place": {"ratio": ratio}} for size, ratio in ratios.items()]
    rows += [{"collective": collective, "path": "mpi", "type": "float", "size": size, "in_place": {}} for size in ratios]
    (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps({"machine": {"mpi": mpi}, "rows": rows}))


def check_ratios():
    times = {"hvd plain": {4: 1, 65536: 8}, "mpi": {4: 0.5, 65536: 40}, "mpi ring": {4: 9, 65536: 16}}
    rows = [{"collective": "all_reduce", "path": path, "type": "float", "size": size, "in_place": None, "out_of_place": {"time": time}}
            for path, line in times.items() for size, time in line.items()]
    assert ratios_of({"rows": rows}, "all_reduce") == {"hvd plain": [(4, 0.5), (65536, 2.0)]}
    assert list(verdict({"rows": rows}, "all_reduce")) == [
        "hvd plain is faster than the best peer at 1 of 2 sizes: 0.50 times as fast at 4 B, 2.00 times at 64 KiB."]
    assert [size_text(size) for size in (4, 1024, 1 << 24, 1 << 30)] == ["4 B", "1 KiB", "16 MiB", "1 GiB"]


def main():
    check_ratios()
    with tempfile.TemporaryDirectory() as folder:
        write(folder, "some", "Open MPI v4.1.4", {4: 1.5, 1024: 0.9})
        write(folder, "some_mpich", "MPICH 4.0.2", {4: 0.1}, collective="broadcast")
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
