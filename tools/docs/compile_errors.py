#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes docs/reference/compile_errors.md: what the compiler says about a wrong call, and the remedy: compile_errors.py

The messages and the lines are those of tests/compile_fail, whose tests compile them."""

import pathlib
import re

# The subjects, the most asked first. A case belongs to the first whose pattern is in its text.
SUBJECTS = [
    ("Compilers, standards and MPI", r"mpi_without_its_header|environment_without_mpi|without_its_(library|header)|removed_backend|foreign_backend|communicator_without"),
    ("Parameters and optimizers", r"parameter|optimizer|gradients_applied|grouped|fused_step|uneven|local_object|engine_without"),
    ("Devices", r"device|nccl|staged"),
    ("Results and requests that are lost", r"discarded|temporary|copied"),
    ("Data", r"stage_|equal_batches|data"),
    ("Calls", r""),
]
BEGIN = """# Compile errors
<!-- search: compile error, compiler error, does not compile, static_assert, no matching function, template error, const, raw pointer, integer optimizer, mpi.h not found, old compiler, gcc 11, clang 14, C++17 -->

hvd refuses a call that cannot work when the program is compiled. The first line with `error:` has a text that begins with `hvd:`. This page has these texts, a line that brings each, and a line that works.
`tools/docs/compile_errors.py` makes it of the tests in `tests/compile_fail`, which compile both lines.

## Old compilers

| the compiler says | do |
|---|---|
| hvd needs C++20: compile with -std=c++20 or newer | add `-std=c++20` |
| hvd needs clang 16 or newer, or g++ 12: this clang is older | Debian's `clang` is version 14: install `clang-16`, and call `clang++-16` |
| hvd needs g++ 12 or newer, or clang 16: this g++ is older | install `g++-12`, or compile on a newer distribution |
| hvd needs the calls of Linux: on Windows, compile and run inside WSL2 | use WSL2 |

The line after each, about a header `hvd_needs_…` that is not found, only stops the compiler.

## Errors in the compiler's own words

| the compiler says | do |
|---|---|
| narrowing conversion of `rate` from `double` to `float` | an optimizer of floats has a rate of `float`: `.rate = float(rate)` or `0.1f` |
| no matching function, no known conversion from a brace-enclosed list to `reduce_options`, `optimizer_options` or the like | the struct has no such member: [Options](options.md) lists them |
| designator order does not match declaration order | members of options stand in the order of [Options](options.md): `{.bucket_bytes = 1 << 20, .codec = …}` |
| `hvd::arena`, `hvd::engine` or another type of hvd is incomplete | include its header: `hvd/arena.hpp`, `hvd/engine.hpp`; [each name](../surface.md) has its own |
| use of deleted function `communicator(const communicator&)` | take it by reference: `void train(hvd::communicator<hvd::mpi>& world)` |

Undefined references to `hvd::…` come from the linker: a file was compiled with `HVD_COMPILED`, and the program is not linked with [what it holds](../guide/compiled_form.md).
"""


def cases(root):
    """Yields (name, texts, bad line, good line) of each case."""
    for file in sorted((root / "tests/compile_fail").glob("*.cpp")):
        text = file.read_text()
        texts = re.findall(r"^// EXPECT: (.*)$", text, re.M)
        bad, good = (re.search(rf"^(.*?)\s*// {mark}$", text, re.M) for mark in ("BAD", "GOOD"))
        if texts and bad and good:
            yield file.stem, texts, bad[1].strip(), good[1].strip()


def page(root):
    sections = {title: [] for title, _ in SUBJECTS}
    for case in cases(root):
        sections[next(title for title, pattern in SUBJECTS if re.search(pattern, case[0]))].append(case)
    parts = [BEGIN]
    for title, found in sections.items():
        parts.append(f"\n## {title}\n")
        for name, texts, bad, good in found:
            words = [text for text in texts if text.startswith("hvd")] or texts
            parts.append(f"\n**{name.replace('_', ' ').capitalize()}**\n\n```text\n" + "\n".join(words) + "\n```\n\n"
                         f"- no: `{bad}`\n- yes: `{good}`\n")
    return "".join(parts)


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    (root / "docs/reference").mkdir(exist_ok=True)
    (root / "docs/reference/compile_errors.md").write_text(page(root))
