#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Draws mutants of the order of work on devices into ordering.json: draw_ordering.py SEED COUNT

One of them leaves out a wait, an event, a look, a poll, a lock or the end of something."""

import json
import pathlib
import random
import re
import sys

import changes
import draw
import scan

LIST = pathlib.Path(__file__).with_name("ordering.json")
DEVICE = draw.ROOT / "include/hvd/device"
ORDERS = re.compile(r"\b(?:make_wait|record|wait\w*|free\w*|reach\w*|follow\w*|leave|finish|stop_watching|cuda(?:Stream|Device)Synchronize|await\w*|lock|unlock|"
                    r"keep|hand_over|mark|notify_all|cuda_event|look_\w+|refuse_if_\w+|end)\(")
LOCK = re.compile(r"const (lock_guard|inside) (\w+)\((\*?\w+)\);$")


def of_lock(line):
    found = LOCK.match(line.code)
    if found:
        kind, name, what = found.groups()
        yield "lock", ";", f"std::optional<{kind}> {name}; if (!{changes.ON}) {name}.emplace({what});", f"no `{name}` of `{what}`"


def of_line(line):
    yield from of_lock(line)
    if ORDERS.search(line.code):
        yield from (change for change in changes.of_line(line) if change[0] in ("statement", "condition"))


def mutants():
    for file in sorted(DEVICE.rglob("*.hpp")):
        for line, occurrence in draw.lines_of(file.read_text()):
            for kind, becomes, planted, words in of_line(line):
                yield {"room": "device", "file": str(file.relative_to(draw.ROOT)), "line": line.line, "occurrence": occurrence, "becomes": becomes,
                       "planted": planted, "changes": f"In {scan.name_of(line.head)}: {words}: {line.line}", "kind": kind}


def main(seed, count):
    drawn = random.Random(int(seed)).sample(list(mutants()), int(count))
    drawn.sort(key=lambda mutant: mutant["file"])
    numbered = [{"number": 100 + n, **mutant} for n, mutant in enumerate(drawn, 1)]
    LIST.write_text(json.dumps({"seed": int(seed), "count": int(count), "mutants": numbered}, indent=1, ensure_ascii=False) + "\n")
    for m in numbered:
        print(f"{m['number']:3} {m['kind']:9} {m['file']}\n      {m['changes']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
