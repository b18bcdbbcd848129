#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that a case does not compile and says why on one screen: check.py CASE BUILD_ROOT TARGET

A case has one line ending in `// BAD`, and one ending in `// GOOD` that replaces it in its twin, which compiles.
The first `// EXPECT: text` is in the first line of the compiler's output that has `error:`, others are anywhere in it.
The output has at most 12 lines; `// LINES: gcc 18, why` allows one compiler more. `// FLAGS: …` are added to both
compilations. TARGET is the target of the build whose compiler and include paths are used."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler, first_error

MOST_LINES = 12
DOOR = "hvd/threads.hpp"  # most cases include it
TOKEN = re.compile(r"\w+|[^\w\s]")


def without(lines, marker):
    """Returns the lines, with the marked one left empty so that line numbers stay."""
    return "\n".join("" if line.rstrip().endswith(marker) else line for line in lines) + "\n"


def tokens_apart(bad, good):
    """Returns the number of tokens between the common beginning and the common end of the two lines."""
    bad, good = ([token for token in TOKEN.findall(line.rsplit("//", 1)[0])] for line in (bad, good))
    front = 0
    while front < min(len(bad), len(good)) and bad[front] == good[front]:
        front += 1
    back = 0
    while back < min(len(bad), len(good)) - front and bad[-1 - back] == good[-1 - back]:
        back += 1
    return max(len(bad), len(good)) - front - back


def most_lines(lines, compiler):
    allowed = [line.split()[2:4] for line in lines if line.startswith("// LINES:")]
    name = "gcc" if compiler.is_gcc else "clang"
    return next((int(number.rstrip(",")) for who, number in allowed if who == name), MOST_LINES)


def problems(case, compiler, build_root):
    lines = pathlib.Path(case).read_text().splitlines()
    expected = [line.split("EXPECT:", 1)[1].strip() for line in lines if line.startswith("// EXPECT:")]
    flags = [flag for line in lines if line.startswith("// FLAGS:") for flag in line.split(":", 1)[1].split()]
    bad = [line for line in lines if line.rstrip().endswith("// BAD")]
    good = [line for line in lines if line.rstrip().endswith("// GOOD")]
    if not expected or len(bad) != 1 or len(good) != 1:
        yield "the case needs one line // BAD, one line // GOOD and at least one // EXPECT: text"
        return

    # A precompiled header with other flags would not be taken.
    if not flags and f"#include <{DOOR}>" in lines:
        flags = compiler.precompiled(pathlib.Path(build_root) / "tests/compile_fail/precompiled", DOOR)
    twin = compiler.compile(without(lines, "// BAD"), *flags)
    if twin.returncode != 0:
        yield f"the twin does not compile:\n{twin.stdout}"
    failing = compiler.compile(without(lines, "// GOOD"), *flags)
    if failing.returncode == 0:
        yield "the case compiles"
        return
    if expected[0] not in first_error(failing.stdout):
        yield f"the compiler's first error does not say: {expected[0]}"
    for text in expected[1:]:
        if text not in failing.stdout:
            yield f"the compiler does not say: {text}"
    most = most_lines(lines, compiler)
    said = failing.stdout.count("\n")
    if said > most:
        yield f"the compiler says {said} lines, more than {most}"
    print(f"{said} lines; twin {tokens_apart(bad[0], good[0])} tokens away")
    print(failing.stdout)


if __name__ == "__main__":
    case, build_root, source = sys.argv[1:]
    found = list(problems(case, Compiler(build_root, source), build_root))
    print(*found, sep="\n")
    sys.exit(1 if found else 0)
