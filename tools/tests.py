#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Reads Meson's files for `./run test`: which tests there are, which targets they need, how they ended."""

import fnmatch
import json
import pathlib
import sys

TAIL = 60  # lines of a failed test's output


def introspect(folder, what):
    return json.loads((pathlib.Path(folder) / "meson-info" / f"intro-{what}.json").read_text())


def matches(test, pattern):
    names = [test["name"]] + [suite.split(":")[-1] for suite in test["suite"]]
    return any(fnmatch.fnmatch(name, pattern) for name in names)


def select(folder, suites, *names):
    """Prints the tests of a stage that match a name, if names are given. Suites: "a" is a alone, "!b" all but b,
    "a !b" all but b, and a in any case; with "!!c" c is in none."""
    excluded = [s.lstrip("!") for s in suites.split() if s.startswith("!")]
    never = [s[2:] for s in suites.split() if s.startswith("!!")]
    included = [s for s in suites.split() if not s.startswith("!")]
    for test in introspect(folder, "tests"):
        in_stage = any(matches(test, s) for s in included) or (
            not any(matches(test, s) for s in excluded) and (not included or bool(excluded)))
        in_stage = in_stage and not any(matches(test, s) for s in never)
        if in_stage and (not names or any(matches(test, name) for name in names)):
            print(test["name"])


def targets(folder, *names):
    """Prints the files that Ninja must build for these tests."""
    files = {target["id"]: target["filename"] for target in introspect(folder, "targets")}
    root = pathlib.Path(folder).resolve()
    needed = {pathlib.Path(file).resolve().relative_to(root)
              for test in introspect(folder, "tests") if test["name"] in names
              for target in test["depends"] for file in files[target]}
    for target in sorted(map(str, needed)):
        print(target)


def broken(step, log):
    """Prints the record of a test that failed because its stage could not be configured or built."""
    print(json.dumps({"name": step, "result": "FAIL", "stdout": pathlib.Path(log).read_text(errors="replace")}))


def skipped(reason):
    """Prints the record of a stage that cannot run here."""
    print(json.dumps({"name": "all tests", "result": "SKIP", "stdout": reason}))


def output_of(test):
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    return [line for line in text.splitlines() if line.strip()]


def summary(*logs):
    """Prints the failed and skipped tests with their reasons, and the closing line."""
    passed, failed, skipped = 0, [], []
    for log in map(pathlib.Path, logs):
        stage = log.stem.removeprefix("testlog-")
        for test in map(json.loads, log.read_text().splitlines() if log.exists() else []):
            name = f"{stage}: {test['name'].split(' / ')[-1]}"
            if test["result"] in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif test["result"] == "SKIP":
                skipped.append((name, (output_of(test) or ["it gave no reason"])[-1]))
            else:
                failed.append((name, test))
    for name, test in failed:
        print(f"\n==== FAILED {name} ({test['result']})", *output_of(test)[-TAIL:], sep="\n")
    if failed or skipped:
        print()
    for name, test in failed:
        print(f"failed: {name}")
    for name, reason in skipped:
        print(f"skipped: {name}: {reason}")
    if not passed and not failed:
        print("no test ran")
    print(f"{passed} passed, {len(failed)} failed" + (f", {len(skipped)} skipped" if skipped else ""))
    if skipped and not passed and not failed:
        return 77
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    commands = {"select": select, "targets": targets, "broken": broken, "skipped": skipped, "summary": summary}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
