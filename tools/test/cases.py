#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Which test cases ran before a change of the tests, and run no more: cases.py TREE NAMES TREE NAMES

Each TREE is a checkout, before and after, and each NAMES a file with the names of the tests that run there, one a line (the second
word of ./run test --all --list). A case is told by its words. It runs if a test of its file does."""

import pathlib
import re
import sys

CASE = re.compile(r'TEST_CASE(?:_TEMPLATE)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', re.S)


def cases_of(tree):
    """The files with test cases: {tests/room/name.cpp: {case, …}}."""
    found = {}
    for file in sorted(pathlib.Path(tree, "tests").rglob("*.cpp")):
        cases = {"".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)) for text in CASE.findall(file.read_text())}
        if cases:
            found[file.relative_to(pathlib.Path(tree, "tests"))] = cases
    return found


def covers(name, file):
    """True if a test of that name runs the file: room.name of the file begins it, or the file is a part of a room's only program."""
    room, stem = file.parts[0], file.stem
    words = name.split(".")
    return words[0] == room and (words[1:2] == [stem] or any(part.startswith(stem) for part in words[1:])) or (
        (room, words[0]) in {("posix", "posix"), ("big", "big"), ("examples", "examples"), ("docs", "docs"), ("headers", "headers"), ("device", "device")} and stem in name)


def running(tree, names):
    listed = [line.split()[-1] for line in pathlib.Path(names).read_text().splitlines() if line.strip()]
    return {case: file for file, cases in cases_of(tree).items() if any(covers(name, file) for name in listed) for case in cases}


def main(before, names_before, after, names_after):
    old, new = running(before, names_before), running(after, names_after)
    gone = sorted((str(file), case) for case, file in old.items() if case not in new)
    for file, case in gone:
        print(f"{file}: {case}")
    print(f"{len(old)} cases before, {len(new)} now, {len(gone)} run no more")


if __name__ == "__main__":
    main(*sys.argv[1:])
