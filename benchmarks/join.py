#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Starts the ranks of a job of hvd::tcp on this machine: join.py RANKS PER_NODE PROGRAM [OPTION...]

The ranks of a node share its memory, and those of different ones do not, though all are here."""

import os
import resource
import secrets
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(ranks, per_node, *command):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    common = {**os.environ, "HVD_SIZE": ranks, "HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}",
              "HVD_SECRET": secrets.token_hex(32), "HVD_START_TIMEOUT": "600"}
    started = [subprocess.Popen(command, env={**common, "HVD_RANK": str(r),
                                              "HVD_HOST_ID": f"node{r // int(per_node)}"})
               for r in range(int(ranks))]
    return max(abs(p.wait()) for p in started)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
