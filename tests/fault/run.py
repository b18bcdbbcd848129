#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Runs a program that is meant to fail, and requires that it ends soon, fails and says what it should:
run.py SOURCE COMMAND...

SOURCE states `// EXPECT: text` (one or more). In MPI programs the launcher kills what does not end by itself."""

import pathlib
import subprocess
import sys

PATIENCE = 60  # seconds

source, *command = sys.argv[1:]
expected = [line.split("EXPECT:", 1)[1].strip() for line in pathlib.Path(source).read_text().splitlines()
            if line.startswith("// EXPECT:")]
try:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
except subprocess.TimeoutExpired as expired:
    sys.exit(f"{(expired.output or b'').decode(errors='replace')}\nstill running after {PATIENCE} s")

print(result.stdout)
problems = [f"it does not say: {text}" for text in expected if text not in result.stdout]
if result.returncode == 0:
    problems.append("it ended as if nothing had happened")
print(*problems, sep="\n")
sys.exit(1 if problems or not expected else 0)
