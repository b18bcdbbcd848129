#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The figures of a program are the same as JSON, as CSV, and in tables like OSU's: formats_test.py COLLECTIVES [OPTION...]"""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1:]


def tables_of(text):
    """Returns {heading: [the numbers of a line]}."""
    tables = {}
    for line in text.splitlines():
        if line.startswith("# OSU-like: "):
            rows = tables.setdefault(line.removeprefix("# OSU-like: "), [])
        elif line and not line.startswith("#"):
            rows.append([float(word) for word in line.split()])
    return tables


class Formats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            cls.printed = subprocess.run([*PROGRAM, "--collectives", "all_reduce,gather", "--min", "64", "--max", "4KiB", "--factor", "8", "--seconds", "0.001", "--rounds", "2",
                                          "--osu", "--json", folder / "f.json", "--csv", folder / "f.csv"], stdout=subprocess.PIPE, text=True, check=True).stdout
            cls.document = json.loads((folder / "f.json").read_text())
            with open(folder / "f.csv", newline="", encoding="utf-8") as text:
                cls.table = list(csv.DictReader(text))

    def test_csv_has_each_row_and_leaves_cells_empty_where_there_is_no_call(self):
        rows = self.document["rows"]
        self.assertEqual(len(self.table), len(rows))
        for cells, row in zip(self.table, rows):
            self.assertEqual((cells["collective"], cells["path"], int(cells["size"])), (row["collective"], row["path"], row["size"]))
            for place in ("in_place", "out_of_place"):
                self.assertEqual(float(cells[f"{place}.time"] or 0), row[place]["time"] if row[place] else 0)
        self.assertIn("", [cells["in_place.time"] for cells in self.table], "a gather has no call in place")

    def test_tables_like_osus_have_sizes_latencies_in_order_and_bandwidth(self):
        tables = tables_of(self.printed)
        figures = [(row["size"], row[place]) for row in self.document["rows"] for place in ("in_place", "out_of_place") if row[place]]
        self.assertEqual(sum(map(len, tables.values())), len(figures))
        self.assertIn("# Size", self.printed)
        self.assertIn("# The loop: ", self.printed)
        for heading, rows in tables.items():
            self.assertEqual([row[0] for row in rows], sorted({row[0] for row in rows}), heading)
            for size, average, least, most, rounds, bandwidth in rows:
                self.assertIn((int(size), f"{average:.2f}", f"{least:.2f}", f"{most:.2f}"),
                              [(s, f"{f['time']:.2f}", f"{f['min']:.2f}", f"{f['max']:.2f}") for s, f in figures])
                self.assertLessEqual(least, most + 0.01)
                self.assertGreaterEqual(rounds, 2)
                self.assertAlmostEqual(bandwidth * average / size, 1, delta=0.05)

    def test_the_program_prints_no_other_table(self):
        self.assertNotIn("busbw", self.printed)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
