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
        text = report("healthy, 1 ranks on 1 GPUs: held\nhealthy, 2 ranks on 1 GPUs: failed\nwrong on rank 1 of 2: a split\n", "FAIL")
        self.assertEqual(cells(text, "healthy"), ["held", "failed", "–", "–"])
        self.assertIn(f"- {gpu_report.PROMISES['abort']}: its program said nothing of it", text)
        self.assertIn("- wrong on rank 1 of 2: a split", text)
        self.assertIn("ended with FAIL", text)
        self.assertIn("2026-01-01, commit abc, a card", text)

    def test_without_a_gpu_it_says_why_nothing_was_run(self):
        text = report("hvd: no usable GPU or driver was found\n", "SKIP")
        self.assertIn("Not run: hvd: no usable GPU or driver was found", text)
        self.assertNotIn("held", text)
        self.assertIn(f"- {gpu_report.PROMISES['healthy']}: its program did not run", text)

    def test_what_a_program_can_not_show_has_its_reason(self):
        records = [{"result": "OK", "stdout": "healthy, 4 ranks on 1 GPUs: held\ncuda_aware over MPI: not shown: it takes none\ntime: a call takes 1 us\n"},
                   {"result": "SKIP", "stdout": "LibTorch: not shown: there is none\n"}]
        text = gpu_report.report(records, "a card", "abc", "2026-01-01")
        self.assertIn(f"- {gpu_report.PROMISES['cuda_aware over MPI']}: it takes none", text)
        self.assertIn(f"- {gpu_report.PROMISES['LibTorch over nccl']}: there is none", text)
        self.assertIn("- a call takes 1 us", text)
        self.assertNotIn("Not run", text)

    def test_several_gpus_are_shown_by_ranks_with_one_each(self):
        self.assertIn("NVLink, peer access, multicast windows: this machine has 1", report("healthy, 4 ranks on 1 GPUs: held\n"))
        self.assertIn("NVLink", report("healthy, 1 ranks on 4 GPUs: held\n"))
        self.assertNotIn("NVLink", report("healthy, 2 ranks on 4 GPUs: held\n"))

    def test_it_knows_every_part_of_the_programs(self):
        program = "\n".join(path.read_text() for path in [*(ROOT / "tests/device").glob("gpu*.cpp"), ROOT / "tests/interop/torch_on_a_gpu.cpp"])
        said = set(re.findall(r'(?:right_on_processes|right_in_a_process|say|play|end)\(\s*"([^"]+)"', program)) | set(re.findall(r'\{"(elastic, [^"]+)"', program))
        said |= set(re.findall(r'\{"([^"]+)",\s*\[\]\(World', (ROOT / "tests/device/gpu_suite.hpp").read_text()))
        said |= {f"compute-sanitizer {tool}" for tool in ("memcheck", "racecheck")}
        self.assertEqual(said, set(gpu_report.PROMISES))

    def test_a_part_without_a_promise_is_named(self):
        self.assertIn("Without a promise here: something new.", report("something new, 2 ranks on 1 GPUs: held\n"))


if __name__ == "__main__":
    unittest.main()
