#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Starts the ranks of a job of hvd::tcp on this machine: join.py [--rate RATE] RANKS PER_NODE PROGRAM [OPTION...]

The ranks of a node share its memory, and those of different ones do not, though all are here. With --rate (1gbit) each node is
a network namespace with a shaped cable, which the superuser makes; it ends with 77 where that can't be had."""

import contextlib
import os
import pathlib
import resource
import secrets
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "network"))
import lab


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(arguments):
    rate = arguments[1] if arguments[0] == "--rate" else None
    ranks, per_node = (int(a) for a in arguments[2 * bool(rate):][:2])
    command = arguments[2 * bool(rate):][2:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with lab.Lab(ranks // per_node, rate) if rate else contextlib.nullcontext() as made:
        place = f"{made.address(0)}:7000" if made else f"127.0.0.1:{free_port()}"
        common = {**os.environ, "HVD_SIZE": str(ranks), "HVD_RENDEZVOUS": place, "HVD_SECRET": secrets.token_hex(32),
                  "HVD_START_TIMEOUT": "600"}
        started = []
        for rank in range(ranks):
            node = rank // per_node
            enter = ["nsenter", "--target", str(made.pid(node)), "--net", "--uts", "--"] if made else []
            started.append(subprocess.Popen(enter + command, env={**common, "HVD_RANK": str(rank),
                                                                  "HVD_HOST_ID": f"node{node}"}))
        dying = int(command[command.index("--lose") + 1]) if "--lose" in command else 0
        return max(abs(p.wait()) for p in started[:ranks - dying])


try:
    sys.exit(main(sys.argv[1:]))
except lab.Unusable as reason:
    print(f"skipped: {reason}")
    sys.exit(77)
