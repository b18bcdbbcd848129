#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Draws mutants into list.json: draw.py SEED COUNT, or draw.py --reject NUMBER REASON, which draws another in its place.

A mutant is a small change of one expression. Its line is found by its text, so that it survives changes around it."""

import collections
import json
import pathlib
import random
import sys

import changes
import scan

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("list.json")
# Where the code of a room is, and how many of forty mutants it gets.
ROOMS = {
    "core": (["include/hvd/core/**/*.hpp"], 1), "platform": (["include/hvd/platform/**/*.hpp"], 1),
    "observe": (["include/hvd/observe/*.hpp"], 3), "kernel": (["include/hvd/kernel/*.hpp", "include/hvd/kernel/simd/*.hpp"], 1),
    "fusion": (["include/hvd/fusion/*.hpp"], 1), "protocol": (["include/hvd/protocol/*.hpp"], 1),
    "transport": (["include/hvd/transport/*.hpp"], 1), "shm": (["include/hvd/transport/shm/*.hpp"], 1),
    "multinode": (["include/hvd/transport/multinode/*.hpp"], 1),
    "tcp": (["include/hvd/transport/tcp/*.hpp", "include/hvd/transport/frames/*.hpp"], 4),
    "backend": (["include/hvd/backend/*.hpp"], 1), "execution": (["include/hvd/execution/*.hpp"], 1),
    "collective": (["include/hvd/collective/**/*.hpp"], 1), "comm": (["include/hvd/comm/*.hpp"], 1),
    "device": (["include/hvd/device/**/*.hpp"], 4), "engine": (["include/hvd/engine/**/*.hpp"], 5),
    "train": (["include/hvd/train/**/*.hpp"], 4), "elastic": (["include/hvd/elastic/**/*.hpp"], 4),
    "hvdrun": (["tools/hvdrun/*.cpp"], 4),
}
# How often a kind of change is drawn. Tests seldom see that a guard or a statement is missing, and almost always an inverted result.
WEIGHTS = {"condition": 3, "statement": 3, "relation": 2, "offset": 2, "logic": 2, "extreme": 2, "truth": 1, "negation": 1, "equality": 1, "result": 0.5}
LEFT_OUT = ("HVD_KERNEL_HOST_DEVICE",)  # what nvcc compiles for the device


def lines_of(text):
    """Yields the lines of a file for changes.py, with their occurrence among equal ones."""
    code = scan.without_texts(text)
    inside = scan.bodies(code)
    seen, start, before = collections.Counter(), 0, ""
    codes = code.split("\n")
    for number, line in enumerate(text.split("\n")):
        bare = line.strip()
        first = start + len(line) - len(line.lstrip())
        heads = inside[first:first + len(bare)]
        after = next((c.strip() for c in codes[number + 1:] if c.strip()), "")
        if any(heads):
            own = codes[number][first - start:first - start + len(bare)]
            yield changes.Line(bare, own, before, after, heads, next(filter(None, heads))), seen[bare]
        seen[bare] += 1
        before = codes[number].strip() or before
        start += len(line) + 1


def mutants_of(room, file):
    text = file.read_text()
    if any(word in text or word in str(file) for word in LEFT_OUT):
        return
    for line, occurrence in lines_of(text):
        for kind, becomes, planted, words in changes.of_line(line):
            yield {"room": room, "file": str(file.relative_to(ROOT)), "line": line.line, "occurrence": occurrence, "becomes": becomes,
                   "planted": planted, "changes": f"In {scan.name_of(line.head)}: {words}.", "kind": kind}


def identity(mutant):
    return mutant["file"], mutant["line"], mutant["occurrence"], mutant["becomes"]


def in_drawn_order(room, seed):
    """All mutants of a room. It is the kind that counts, not how often the code has it."""
    files = sorted({file for pattern in ROOMS[room][0] for file in ROOT.glob(pattern)})
    found = [mutant for file in files for mutant in mutants_of(room, file)]
    number_of = collections.Counter(mutant["kind"] for mutant in found)
    dice = random.Random(f"{seed} {room}")
    return sorted(found, key=lambda mutant: -dice.random() ** (number_of[mutant["kind"]] / WEIGHTS[mutant["kind"]]))


def draw_room(room, seed, count, rejected):
    """The first that aren't rejected, one of each file as long as there are files."""
    order = [mutant for mutant in in_drawn_order(room, seed) if identity(mutant) not in rejected]
    files, lines, first, others = set(), set(), [], []
    for mutant in order:
        line = identity(mutant)[:3]
        if line in lines:  # two mutants of one line can't be planted together
            continue
        (others if mutant["file"] in files else first).append(mutant)
        lines.add(line)
        files.add(mutant["file"])
    return (first + others)[:count]


def shares(count):
    """How many mutants each room gets: its part, rounded down, and the rest to those that lose most by that."""
    parts = {room: count * part / 40 for room, (_, part) in ROOMS.items()}
    result = {room: int(part) for room, part in parts.items()}
    for room in sorted(parts, key=lambda room: result[room] - parts[room])[:count - sum(result.values())]:
        result[room] += 1
    return result


def draw(seed, count, old):
    rejected = {identity(mutant) for mutant in old["rejected"]}
    words = {identity(mutant): mutant["changes"] for mutant in old["mutants"]}
    drawn = [mutant for room, share in shares(count).items() for mutant in draw_room(room, seed, share, rejected)]
    for number, mutant in enumerate(drawn, 1):
        mutant["changes"] = words.get(identity(mutant), mutant["changes"])
    return {"seed": seed, "count": count, "mutants": [{"number": n, **mutant} for n, mutant in enumerate(drawn, 1)], "rejected": old["rejected"]}


def reject(old, number, reason):
    mutant = next(mutant for mutant in old["mutants"] if mutant["number"] == int(number))
    kept = {name: mutant[name] for name in ("file", "line", "occurrence", "becomes")}
    return {**old, "rejected": old["rejected"] + [{**kept, "reason": reason}]}


def main(*arguments):
    old = json.loads(LIST.read_text()) if LIST.exists() else {"mutants": [], "rejected": []}
    if arguments[0] == "--reject":
        old = reject(old, *arguments[1:])
        arguments = old["seed"], old["count"]
    new = draw(int(arguments[0]), int(arguments[1]), old)
    LIST.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n")
    for m in new["mutants"]:
        print(f"{m['number']:3} {m['room']:10} {m['kind']:9} {m['file']}\n      {m['line']}\n      {m['becomes']}\n      {m['planted']}\n      {m['changes']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
