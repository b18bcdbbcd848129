#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that sources are formatted as by ./run format, and that comments are narrow and plain: formatted.py SOURCE_DIR"""

import pathlib
import re
import shutil
import subprocess
import sys

FORMATTER = "clang-format-19"  # versions differ in details
COLUMNS = 100
FOLDERS = ("include", "src", "tests", "tools", "examples", "benchmarks")
KINDS = (".hpp", ".cpp", ".cuh", ".cu")
ONE_LINE = "// EXPECT: "  # words of a compiler, read by tests/compile_fail
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"')
QUOTED = re.compile(r'"[^"]*"|`[^`]*`')
RIDDLE = re.compile(r"(?:^|[.:!?] )(What|Whether|Of) ")  # see CONTRIBUTING.md, "Style"


def too_wide(file):
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > COLUMNS and not line.startswith(ONE_LINE):
            yield f"{file}:{number}: {len(line)} columns, more than {COLUMNS}"


def comments(text):
    """Yields the paragraphs of comments, each with the number of its first line."""
    number, words = 0, []
    for line, content in enumerate([*text.splitlines(), ""], 1):
        code, slashes, comment = LITERAL.sub('""', content).partition("//")
        comment = "" if content.startswith(ONE_LINE) else comment.lstrip("/!<").strip()
        if words and (not comment or code.strip()):
            yield number, " ".join(words)
            words = []
        if slashes and comment:
            number = number if words else line
            words.append(comment)
            if code.strip():
                yield number, " ".join(words)
                words = []


def riddles(file):
    for number, comment in comments(file.read_text(encoding="utf-8")):
        if found := RIDDLE.search(QUOTED.sub("", comment)):
            yield f"{file}:{number}: a sentence of this comment opens with {found[1]}: {comment[:60]}"


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    files = [f for folder in FOLDERS for f in sorted((root / folder).rglob("*")) if f.suffix in KINDS]
    wrong = [line for file in files for check in (too_wide, riddles) for line in check(file)]
    print(*wrong, sep="\n")
    if wrong:
        sys.exit(1)
    if not shutil.which(FORMATTER):
        print(f"{FORMATTER} is not installed")
        sys.exit(77)
    sys.exit(subprocess.run([FORMATTER, "--dry-run", "--Werror", *files], check=False).returncode)
