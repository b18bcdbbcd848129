# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The report of `./run test --gpu` says of each promise what the program has said of it."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/test"))
import gpu_report  # noqa: E402


def report(output, result="OK"):
    return gpu_report.report([{"result": result, "stdout": output, "stderr": ""}], "a card", "abc", "2026-01-01")


def cells(text, name):
    row = next(line for line in text.splitlines() if line.startswith(f"| {gpu_report.PROMISES[name]} |"))
    return [cell.strip() for cell in row.split("|")[2:-1]]


class Report(unittest.TestCase):
    def test_each_promise_has_what_was_said_of_it(self):
        text = report("healthy, 1 ranks on one GPU: held\nhealthy, 2 ranks on one GPU: failed\nwrong on rank 1 of 2: a split\n", "FAIL")
        self.assertEqual(cells(text, "healthy"), ["held", "failed", "–", "–"])
        self.assertEqual(cells(text, "abort"), ["–"] * 4)
        self.assertIn("- wrong on rank 1 of 2: a split", text)
        self.assertIn("ended with FAIL", text)
        self.assertIn("2026-01-01, commit abc, a card", text)

    def test_without_a_gpu_it_says_why_nothing_was_run(self):
        text = report("hvd: no usable GPU or driver was found\n", "SKIP")
        self.assertIn("Not run: hvd: no usable GPU or driver was found", text)
        self.assertNotIn("held", text)

    def test_it_knows_every_part_of_the_program(self):
        program = (ROOT / "tests/device/gpu.cpp").read_text()
        said = set(re.findall(r'right_on_processes\(\s*"([^"]+)"', program)) | set(re.findall(r'printf\("(\w+), \d ranks', program))
        self.assertEqual(said, set(gpu_report.PROMISES))

    def test_a_part_without_a_promise_is_named(self):
        self.assertIn("Without a promise here: something new.", report("something new, 2 ranks on one GPU: held\n"))


if __name__ == "__main__":
    unittest.main()
