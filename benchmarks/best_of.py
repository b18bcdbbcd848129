#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Compares hvd with the best of all MPIs that it was measured beside: best_of.py RESULTS NAME

hvd and one MPI take turns in one process, so a ratio is theirs alone. The best MPI of a size is the one with the smallest
ratio. NAME.json is the file of the distribution's Open MPI, NAME_MPI.json that of another one."""

import json
import pathlib
import sys

# The end of a file's name, and how its MPI is called where it was not measured.
WANTED = {"": "Open MPI 4", "_openmpi5": "Open MPI 5", "_mpich5": "MPICH 5", "_intel": "Intel MPI"}
ALSO = {"_mpich": "the distribution's MPICH"}


def short_name(version):
    """Returns 'Intel MPI 2021.19' for what the library says of itself."""
    words = version.replace("(R)", "").replace("Library", "").replace("Version:", "").split()
    words = words[:words.index("for")] if "for" in words else words
    return " ".join(word.removeprefix("v") if word[1:2].isdigit() else word for word in words)


class Comparison:
    """The speed of hvd over MPI_Allreduce in place, for each MPI."""

    def __init__(self, folder, name):
        self.documents = {}
        for end in WANTED | ALSO:
            file = pathlib.Path(folder) / f"{name}{end}.json"
            if file.exists():
                self.documents[end] = json.loads(file.read_text(encoding="utf-8"))

    def missing(self):
        return [title for end, title in WANTED.items() if end not in self.documents]

    def states(self):
        """Returns the distances of the cores that the runs saw: near, far or unknown; [None] if they do not know."""
        seen = {row.get("cores") for document in self.documents.values() for row in document["rows"]} - {None}
        return sorted(seen, key=["near", "far", "unknown"].index) or [None]

    def all_rows(self, memory):
        """Yields (row, name of the MPI), of all collectives."""
        for document in self.documents.values():
            name = short_name(document["machine"].get("mpi", "MPI"))
            yield from ((row, name) for row in document["rows"] if row["path"] == f"hvd {memory}" and row["type"] == "float")

    def rows(self, memory, cores=None):
        """Yields (size, ratio, name of the MPI) of averages, of the rows that were measured in that state of the cores."""
        for row, name in self.all_rows(memory):
            if row["collective"] == "all_reduce" and (row["in_place"] or {}).get("ratio") and cores in (None, row.get("cores")):
                yield row["size"], row["in_place"]["ratio"], name

    def best(self, memory, cores=None):
        """Returns {size: (ratio to the best MPI, its name)}."""
        result = {}
        for size, ratio, name in self.rows(memory, cores):
            result[size] = min(result.get(size, (ratio, name)), (ratio, name))
        return result


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def main(folder, name):
    comparison = Comparison(folder, name)
    if not comparison.documents:
        print(f"{folder} has no {name}.json", file=sys.stderr)
        return 1
    plain, arena = comparison.best("plain"), comparison.best("arena")
    print(f"\n{'size':>8}  {'plain':>6}  {'best MPI':24}{'arena':>6}  best MPI")
    for size in sorted(plain):
        columns = [f"{ratio:6.2f}  {mpi:24}" for ratio, mpi in (plain[size], arena.get(size, (float("nan"), "")))]
        print(f"{size_name(size):>8}  {''.join(columns).rstrip()}")
    print("Speed of hvd over that of MPI_Allreduce in place, floats.")
    if comparison.missing():
        print(f"Not measured: {', '.join(comparison.missing())}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
