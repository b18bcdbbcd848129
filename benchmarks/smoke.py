#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Runs a benchmark and reads its output: smoke.py COMMAND... (--json is added)

It has to end well, write JSON with rows, and count no wrong element."""

import json
import os
import subprocess
import sys
import tempfile


def wrong_counts(value):
    """Yields every "wrong" in a document, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "wrong":
                yield inner
            else:
                yield from wrong_counts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from wrong_counts(inner)


def main(command):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "figures.json")
        ended = subprocess.run([*command, "--json", file], check=False)
        if ended.returncode != 0:
            print(f"ended with {ended.returncode}")
            return 1
        with open(file, encoding="utf-8") as text:
            document = json.load(text)
    wrong = list(wrong_counts(document))
    print(f"{len(document['rows'])} rows, {len(wrong)} verified, {sum(wrong)} wrong elements")
    return int(not document["rows"] or any(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
