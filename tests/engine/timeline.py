#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""What hvd-trace makes of timelines: timeline.py CASE PROGRAM HVD_TRACE

merged    the trace of all ranks is strict JSON, its spans nest, and ranks are processes on one clock
killed    a process that is killed at any moment leaves files that can be merged
refused   files that are no traces, or do not belong together, are refused with their names and places
"""

import fcntl
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

CASE, PROGRAM, TRACE = sys.argv[1:]
RANKS = 3


def merge(*files, expect=0):
    done = subprocess.run([TRACE, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == expect, (done.returncode, done.stderr)
    return done.stdout, done.stderr


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def refuse_twice(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), f"a key stands twice: {pairs}"
    return dict(pairs)


def strict(text):
    return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_twice)


def ns(microseconds):
    return round(microseconds * 1000)


def spans(events, unfinished=False):
    """The spans of each track, as (begin, end, category, name). Spans that overlap are inside each other."""
    tracks, opened = {}, {}
    for e in events:
        place = e["pid"], e["tid"]
        if e["ph"] == "X":
            tracks.setdefault(place, []).append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["cat"], e["name"]))
        if e["ph"] == "B":
            opened.setdefault(place, []).append(e)
        if e["ph"] == "E":
            b = opened[place].pop()
            tracks.setdefault(place, []).append((ns(b["ts"]), ns(e["ts"]), b["cat"], b["name"]))
    assert unfinished or not any(opened.values()), "a span does not end"
    for place, own in tracks.items():
        own.sort(key=lambda s: (s[0], -s[1], s[2] == "phase"))
        inside = []
        for s in own:
            while inside and inside[-1][1] <= s[0] and s[1] > inside[-1][1]:
                inside.pop()
            assert not inside or s[1] <= inside[-1][1], f"{s} overlaps {inside[-1]} on track {place}"
            assert s[2] != "phase" or inside or unfinished, f"{s} is in nothing"
            inside.append(s)
    return tracks


def record(folder, steps):
    subprocess.run([PROGRAM, str(RANKS), folder / "run.json", str(steps)], check=True)
    return [folder / f"run.{r}.json" for r in range(RANKS)]


def merged(folder):
    files = record(folder, 30)
    for file in files:
        strict(file.read_text())
    text, remarks = merge(*files)
    assert remarks == "", remarks
    events = strict(text)
    # The first event of each file is about its clock.
    assert len(events) == sum(len(json.loads(f.read_text())) - 1 for f in files)
    tracks = spans(events)
    assert {pid for pid, _ in tracks} == set(range(RANKS))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    for rank in range(RANKS):
        own = {names[p]: own for p, own in tracks.items() if p[0] == rank}
        for k in range(5):
            assert {"queue", "communicate"} <= {s[3] for s in own[f'layer "{k}"']}, own.keys()
        phases = {s[3] for s in own["calls, queue 1"] if s[2] == "phase"}
        assert phases == {"queue", "pack", "communicate", "unpack"}, phases
        assert any(s[3] == "negotiate" for k in range(5) for s in own[f'layer "{k}"'])
    # All ranks leave the last call after all have entered it.
    loss = [[s for s in tracks[p] if s[3] == "loss"] for p in sorted(tracks) if names[p] == "calls"]
    assert [len(own) for own in loss] == [30] * RANKS
    for step in zip(*loss):
        assert max(s[0] for s in step) <= min(s[1] for s in step)
    # A rank whose clock is ahead is shifted.
    one = files[1].read_text()
    assert '"clock_offset_ns":0' in one
    files[1].write_text(one.replace('"clock_offset_ns":0', '"clock_offset_ns":2500000'))
    shifted = [e for e in strict(merge(*files)[0]) if e["pid"] == 1 and "ts" in e]
    before = [e for e in events if e["pid"] == 1 and "ts" in e]
    assert {ns(a["ts"]) - ns(b["ts"]) for a, b in zip(before, shifted)} == {2500000}


def await_events(files):
    """Waits until each of these files that are being written has some events."""
    while not all(f.exists() and f.read_bytes().count(b"\n") > 50 for f in files):
        time.sleep(0.01)


def killed(folder):
    seed = time.time_ns()
    print("seed", seed)
    draw = random.Random(seed)
    for attempt in range(8):
        files = [folder / f"run{attempt}.{r}.json" for r in range(RANKS)]
        process = subprocess.Popen([PROGRAM, str(RANKS), folder / f"run{attempt}.json", "0"], stdout=subprocess.PIPE)
        process.stdout.readline()
        await_events(files)
        time.sleep(draw.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        text, remarks = merge(*files)
        assert remarks.count("its process was killed") == RANKS, remarks
        events = strict(text)
        assert len(events) > 100
        spans(events, unfinished=True)
    # Wherever the kernel cut the last write, hvd-trace reads what is whole.
    whole = (folder / "run0.0.json").read_bytes()
    first = whole.index(b"\n", 2) + 1
    for cut in [first, first + 1, *(draw.randrange(first, len(whole)) for _ in range(30)), len(whole)]:
        (folder / "cut.json").write_bytes(whole[:cut])
        text, remarks = merge(folder / "cut.json")
        assert len(strict(text)) >= whole[:cut].count(b"\n") - 2
        assert "no end" in remarks


def refused(folder):
    files = record(folder, 3)
    whole = files[0].read_bytes()
    lines = whole.split(b"\n")
    at = len(b"\n".join(lines[:4])) + 1
    bad = {
        "empty": (b"", 0, "it is empty"),
        "text": (b"no trace\n", 0, "does not begin with a line '['"),
        "array": (b'[\n{"name":"x"}\n]\n', 2, "not 'hvd_timeline'"),
        "begin": (b"[\n", 2, "ends before its first event"),
        "middle": (b"\n".join([*lines[:4], b'{"ph":"X"', *lines[4:]]), at + 9, "no event of a trace"),
        "large": (b"\n".join([*lines[:4], b'{"ph":"X","pid":1e3001},', *lines[4:]]), at, "no event of a trace"),
        "name": (b"\n".join([*lines[:4], b'{"ph":"X","pid":0,"name":1},', *lines[4:]]), at, "no event of a trace"),
        "number": (b"\n".join([*lines[:4], b"17,", *lines[4:]]), at, "no event of a trace"),
        "deep": (b"\n".join([*lines[:4], b'{"ph":"X","pid":0,"ts":0,"args":' + 100_000 * b"[" + 100_000 * b"]" + b"},", *lines[4:]]), at, "no event of a trace"),
        "time": (b"\n".join([*lines[:4], b'{"ph":"X","pid":0,"ts":1e300},', *lines[4:]]), at, "no event of a trace"),
        "dropped": (b"\n".join([*lines[:4], b'{"name":"hvd_timeline_end","ph":"M","pid":0,"args":{"dropped":-1}},', *lines[4:]]), at, "no event of a trace"),
        "after": (whole + b"more\n", len(whole), "something follows the end"),
        "rank": (whole.replace(b'"rank":0', b'"rank":4294967296', 1), 2, "lacks a fact: rank"),
        "size": (whole.replace(b'"size":3', b'"size":1e300', 1), 2, "lacks a fact: size"),
        "clock": (whole.replace(b'"clock_offset_ns":', b'"clock_offset_ns":-9223372036854775808,"x":', 1), 2, "lacks a fact: clock_offset_ns"),
        "version": (whole.replace(b'"version":1', b'"version":9'), 2, "version 9"),
    }
    for name, (content, offset, why) in bad.items():
        file = folder / name
        file.write_bytes(content)
        text, error = merge(file, expect=1)
        assert f"{file}: byte {offset}: " in error and why in error, (name, error)
    for arguments, why in [((files[0], files[0]), "are both of rank 0"), ((folder,), "it is a folder"),
                           ((folder / "nothing",), "can't be opened")]:
        assert why in merge(*arguments, expect=1)[1]
    other = folder / "other"
    other.write_bytes(files[1].read_bytes().replace(b'"size":3', b'"size":4'))
    assert "of different runs" in merge(files[0], other, expect=1)[1]
    assert "files of 1 of 3 ranks are missing" in merge(*files[:2])[1]
    # A failure leaves no half of a trace.
    done = subprocess.run([TRACE, files[0], folder / "middle", "-o", folder / "out.json"], capture_output=True)
    assert done.returncode == 1 and not list(folder.glob("out.json*"))
    assert subprocess.run([TRACE, *files, "-o", folder / "out.json"]).returncode == 0
    strict((folder / "out.json").read_text())
    # A link stays, and the file behind it is replaced. A pipe, as /dev/stdout may be, is written to.
    (folder / "link").symlink_to(files[0])
    assert subprocess.run([TRACE, *files, "-o", folder / "link"]).returncode == 0
    assert (folder / "link").is_symlink() and files[0].read_text() == (folder / "out.json").read_text()
    files[0].write_bytes(whole)
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    assert subprocess.run([TRACE, *files, "-o", folder / "pipe"]).returncode == 0
    assert (folder / "pipe").is_fifo() and os.read(reader, 1 << 20).decode() == (folder / "out.json").read_text()
    os.close(reader)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"merged": merged, "killed": killed, "refused": refused}[CASE](pathlib.Path(name))
