#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""What takes turns has its turn: each stage of ./run test --all belongs to some commit, and so does each test of a stage whose tests
take turns, too."""

import os
import pathlib
import sys

os.environ.pop("HVD_TEST_WHOLE", None)
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tools/test", "tests/support")]
import main as run  # noqa: E402
import turns  # noqa: E402
from stages import STAGES  # noqa: E402


class Commits:
    """Takes the place of the number of the commit."""

    def __init__(self):
        self.number = 0
        run.number_of_commit = turns.number_of_commit = lambda _: self.number


class Selected:
    """Takes the place of a build: its tests are those that are given, whatever the patterns say."""

    def __init__(self, names):
        self.names = names

    def select(self, *_):
        return [{"name": name, "suite": ["hvd:" + name.split(".")[0], "hvd:core", "hvd:turns"]} for name in self.names]


def main():
    commits, wrong = Commits(), []
    runner = run.Run.__new__(run.Run)
    runner.arguments = run.Arguments(["--all"])
    names = [f"{room}.{subject}" for room in ("collective", "device", "consumer") for subject in ("a", "b", "c", "d")]
    ran = {stage["name"]: set() for stage in STAGES if stage.get("level", "test") in ("test", "all")}
    with_sanitizer = []
    for commits.number in range(1000, 1048):
        due = [stage for stage in STAGES if stage["name"] in ran and run.is_due(stage)]
        with_sanitizer.append({(stage["build"]) for stage in due} & {"asan", "tsan"})
        for stage in due:
            ran[stage["name"]] |= {test["name"] for test in runner.tests_of(stage, Selected(names))}
    wrong += [f"{stage}: never {', '.join(sorted(set(names) - tests))}" for stage, tests in ran.items() if tests != set(names)]
    wrong += [f"commit {1000 + i}: {', '.join(sorted(builds)) or 'no sanitizer'}" for i, builds in enumerate(with_sanitizer) if len(builds) != 2]
    chosen = {stage["name"] for stage in run.Arguments(["--all"]).chosen()}
    wrong += [f"chosen out of its turn: {stage['name']}" for stage in STAGES if stage["name"] in chosen and not run.is_due(stage)]
    by_name = {stage["name"] for stage in run.Arguments(["--all", "--stages", "asan asan-ranks"]).chosen()}
    wrong += ["a stage that is named waits for its turn"] if by_name != {"asan", "asan-ranks"} else []
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
