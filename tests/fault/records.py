#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A rank that is held in its 40th call is named from outside: records.py HVD_TRACE BACKEND RUNS COMMAND...

BACKEND is threads, tcp or mpi. The processes of tcp are started here; COMMAND starts those of mpi, and the threads.
A rank is held before the call, inside it, in the call of a subset, before a tensor of an engine. hvd-trace reads the
records of all processes, of which one is stopped, and names the rank with the call and its size."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

TRACE, BACKEND, RUNS, *COMMAND = sys.argv[1:]
RANKS = 3
MODES = ["before", "inside", "subset", "engine"]
PATIENCE = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(mode, held):
    """The processes that this test has started."""
    tail = [mode, str(held)] + ([str(RANKS)] if BACKEND == "threads" else [])
    if BACKEND != "tcp":
        return [subprocess.Popen([*COMMAND, *tail], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)]
    place = {"HVD_SIZE": str(RANKS), "HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}", "HVD_SECRET": "0123456789abcdef" * 4}
    return [subprocess.Popen([*COMMAND, *tail], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             env=os.environ | place | {"HVD_RANK": str(r)}) for r in range(RANKS)]


def ranks_of(started):
    """The processes of the ranks, as they say it."""
    found = {}
    while len(found) < RANKS:
        for p in started:
            if len(found) == RANKS:
                break
            line = p.stdout.readline()
            assert line, "a rank has ended"
            rank, process = re.fullmatch(r"rank (\d+) is process (\d+)\n", line).groups()
            found[int(rank)] = int(process)
    return [found[r] for r in range(RANKS)]


def end(started, processes):
    for process in set(processes):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for p in started:
        try:
            p.wait(timeout=10)  # mpiexec cleans up
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        p.stdout.close()


def trace(*arguments):
    done = subprocess.run([TRACE, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected(mode, held):
    """What hvd-trace concludes."""
    call = {"inside": f"=> rank {held} is in it, and held",
            "engine": f"=> rank {held} has not submitted 'g40', allreduce of 1024 bytes"}
    return call.get(mode, f"=> rank {held} has not come to call \\d+, allreduce 'g40' of 1024 bytes")


def is_told(text, mode, held):
    if not re.search(expected(mode, held) + "$", text, re.MULTILINE):
        return False
    others = [r for r in range(RANKS) if r != held]
    if mode == "engine":
        ranks = ", ".join(map(str, others))
        return f"submitted on ranks {ranks}, and not on rank {held}" in text and f"'g39' last, its tensor 39, which is complete" in text
    if mode == "inside" and "allreduce 'g40' of 1024 bytes:\n" not in text:
        return False
    return all(re.search(rf"rank {r} \(process \d+\) waits in it for .*, for rank {held}$", text, re.MULTILINE) for r in others)


def check(mode, held):
    started = start(mode, held)
    processes = []
    try:
        processes = ranks_of(started)
        limit, text = time.monotonic() + PATIENCE, ""
        while not is_told(text, mode, held):
            assert time.monotonic() < limit, f"{mode}, rank {held}: {expected(mode, held)} is missing in\n{text}"
            time.sleep(0.05)
            text = trace(*sorted(set(processes)), os.getpid())  # as a launcher, which has no record
        with open("/dev/full", "w") as full:
            lost = subprocess.run([TRACE, str(processes[0])], stdout=full, stderr=subprocess.PIPE, text=True)
        assert (lost.returncode, lost.stderr) == (1, "hvd-trace: the output can't be written\n"), lost
        if BACKEND != "threads":
            assert re.search(rf"rank {held} \(process \d+, stopped\)", text), text
            without = trace(*[p for r, p in enumerate(processes) if r != held])
            assert f"\n  rank {held}: no record is given\n" in without, without
    finally:
        end(started, processes)


def main():
    for run in range(int(RUNS)):
        for i, mode in enumerate(MODES):
            check(mode, (run + i) % RANKS)
    refused = subprocess.run([TRACE, "1"], capture_output=True, text=True)
    assert refused.returncode == 1 and "process 1: it" in refused.stderr, refused.stderr


if __name__ == "__main__":
    main()
