#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Copies a checkout and plants the mutants of list.json in it: plant.py SOURCE_TREE DESTINATION [LIST...]

Other lists may be named, whose numbers differ. Files whose content is as before keep their time, so that a build in DESTINATION compiles again only what needs it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
HEADER = "include/hvd/mutant.hpp"
PLANTED = "mutants.json"  # in DESTINATION, for try.py


def files_of(source):
    listed = subprocess.run(["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True)
    return sorted({name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(source / name)})


def is_same(a, b):
    return b.is_file() and not b.is_symlink() and a.read_bytes() == b.read_bytes() and a.stat().st_mode == b.stat().st_mode


def copy(source, destination, left_out):
    for name in files_of(source):
        a, b = source / name, destination / name
        if a.is_dir() or name in left_out or (not a.is_symlink() and is_same(a, b)):
            continue
        b.parent.mkdir(parents=True, exist_ok=True)
        b.unlink(missing_ok=True)
        shutil.copy(a, b, follow_symlinks=False)


def line_of(lines, mutant):
    """The number of a mutant's line, or None if it is gone."""
    found = [i for i, line in enumerate(lines) if line.strip() == mutant["line"]]
    return found[mutant["occurrence"]] if mutant["occurrence"] < len(found) else None


def with_include(lines, name):
    """The header comes first: after #pragma once, or before the first #include."""
    path = os.path.relpath(HEADER, os.path.dirname(name))
    at = next((i + 1 for i, line in enumerate(lines) if line == "#pragma once"), None)
    if at is None:
        at = next(i for i, line in enumerate(lines) if re.match(r"#\s*include\b", line))
    return lines[:at] + [f'#include "{path}"'] + lines[at:]


def planted(source, name, mutants):
    """The file's text with its mutants, and those that are gone."""
    lines = (source / name).read_text().split("\n") if (source / name).exists() else []
    found = [(line_of(lines, mutant), mutant) for mutant in mutants]  # before a line changes
    for at, mutant in found:
        if at is not None:
            indentation = lines[at][:len(lines[at]) - len(lines[at].lstrip())]
            lines[at] = indentation + mutant["planted"].replace("on(#)", f"on({mutant['number']})")
    gone = [mutant for at, mutant in found if at is None]
    return None if len(gone) == len(found) else "\n".join(with_include(lines, name)), gone


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(source, destination, *lists):
    source, destination = pathlib.Path(source).resolve(), pathlib.Path(destination).resolve()
    mutants = [mutant for name in lists or [HERE / "list.json"] for mutant in json.loads(pathlib.Path(name).read_text())["mutants"]]
    texts, all_gone = {HEADER: (HERE / "mutant.hpp").read_text()}, []
    for name in sorted({mutant["file"] for mutant in mutants}):
        text, gone = planted(source, name, [mutant for mutant in mutants if mutant["file"] == name])
        all_gone += gone
        if text is not None:
            texts[name] = text
    copy(source, destination, texts)
    for name, text in texts.items():
        write(destination / name, text)
    write(destination / PLANTED, json.dumps([mutant for mutant in mutants if mutant not in all_gone], indent=1, ensure_ascii=False) + "\n")
    for mutant in all_gone:
        print(f"gone: {mutant['number']} {mutant['file']}: {mutant['line']}")
    print(f"{len(mutants) - len(all_gone)} of {len(mutants)} mutants are planted in {destination}")


if __name__ == "__main__":
    main(*sys.argv[1:])
