#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that sources are formatted as by ./run format, and that comments are narrow and plain: formatted.py SOURCE_DIR"""

import pathlib
import shutil
import subprocess
import sys

FORMATTER = "clang-format-19"  # versions differ in details
COLUMNS = 100
FOLDERS = ("include", "src", "tests", "examples", "benchmarks")
KINDS = (".hpp", ".cpp", ".cuh", ".cu")
ONE_LINE = "// EXPECT: "  # words of a compiler, read by tests/compile_fail


def too_wide(file):
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > COLUMNS and not line.startswith(ONE_LINE):
            yield f"{file}:{number}: {len(line)} columns, more than {COLUMNS}"


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    files = [f for folder in FOLDERS for f in sorted((root / folder).rglob("*")) if f.suffix in KINDS]
    wide = [line for file in files for line in too_wide(file)]
    print(*wide, sep="\n")
    if wide:
        sys.exit(1)
    if not shutil.which(FORMATTER):
        print(f"{FORMATTER} is not installed")
        sys.exit(77)
    sys.exit(subprocess.run([FORMATTER, "--dry-run", "--Werror", *files], check=False).returncode)
