#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""./run test ends with its closing line whatever ends it, and judges what was not reached: closing_line.py SOURCE_ROOT

The stages are made up: each has a few tests that take moments, and two of them run at once. The run is ended by signals at random moments, SIGKILL among them."""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(, \d+ skipped)?$")
TESTS = 4


class MadeUp:
    """A build whose tests end one after the other."""

    b_has_begun = threading.Event()

    def __init__(self, name, table, jobs):
        self.folder, self.variables = pathlib.Path(), {}

    def configure(self, *_):
        pass

    def select(self, tests, but, names):
        return [{"name": f"{tests[0]}.{number}", "suite": [], "depends": []} for number in range(TESTS)]

    def targets(self, tests):
        return []

    def units(self, targets):
        return 1

    def compile(self, *_):
        time.sleep(0.02)
        return 0.0

    def run(self, tests, stage, parallel, slower, seen):
        if tests[0]["name"] == "b.0":
            MadeUp.b_has_begun.set()
        for test in tests:
            time.sleep(0.02)
            if "OVERLAPS" in os.environ and test["name"] == f"a.{TESTS - 1}":
                assert MadeUp.b_has_begun.wait(20), "the next stage does not begin with the last test of this one"
            seen(test["name"], "OK")
        return [{"name": test["name"], "result": "OK"} for test in tests], 0.0


class AllThere:
    def need(self, groups):
        return []

    def fetch_meanwhile(self, groups):
        pass


def play(root, words):
    """A run of the real script with made-up stages."""
    sys.path.insert(0, str(pathlib.Path(root) / "tools/test"))
    import main
    main.Build, main.Packages, main.BUILDS = MadeUp, AllThere, {"one": {"packages": []}}
    main.STAGES[:] = [{"name": name, "build": "one", "tests": [name], "optional": name == "c", "waits": name != "a"} for name in "abc"]
    ended = main.main(words)
    sys.stdout.flush()
    os._exit(ended)


def started(root, *words, **environment):
    return subprocess.Popen([sys.executable, __file__, root, "play", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, **environment})


def closing_of(process):
    output = process.communicate(timeout=30)[0]
    last = output.splitlines()[-1] if output else ""
    found = CLOSING.match(last)
    assert found, f"the last line is no closing line:\n{output}"
    return int(found[1]), int(found[2]), output


def main_test(root):
    passed, failed, _ = closing_of(started(root))
    assert (passed, failed) == (3 * TESTS, 0), (passed, failed)

    passed, failed, output = closing_of(started(root, HVD_TEST_BUDGET="0"))
    assert (passed, failed) == (2 * TESTS, 0) and "run ./run test --stages c" in output, output

    passed, failed, output = closing_of(started(root, OVERLAPS="1", HVD_JOBS="2"))
    assert (passed, failed) == (3 * TESTS, 0), output

    moments = random.Random(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        seen = set()
        for _ in range(6):
            process = started(root)
            first = process.stdout.readline()  # it has begun
            time.sleep(moments.uniform(0, 0.3))
            process.send_signal(number)
            output = first + process.communicate(timeout=30)[0]
            found = CLOSING.match(output.splitlines()[-1])
            assert found, f"after {number.name} the last line is no closing line:\n{output}"
            passed, failed = int(found[1]), int(found[2])
            assert failed > 0 or passed == 3 * TESTS, f"after {number.name} nothing has failed:\n{output}"
            seen.add(passed)
        print(f"{number.name}: after {sorted(seen)} tests")


if __name__ == "__main__":
    if sys.argv[2:3] == ["play"]:
        play(sys.argv[1], sys.argv[3:])
    main_test(sys.argv[1])
