#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""tcp.py PROGRAM: the ranks of tcp.cpp on three hosts, of which one is lost: its process is killed, or its cable is cut.

The superuser runs it. It is skipped for others, and if the kernel allows no network namespace. All other ranks name the lost
one."""

import os
import secrets
import subprocess
import sys
import tempfile

import lab

SLOTS = [2, 1, 1]
PATIENCE = 60


class Rank:
    def __init__(self, made, rank, host, secret):
        self.rank, self.host = rank, host
        environment = os.environ | {"HVD_RANK": str(rank), "HVD_SIZE": str(sum(SLOTS)), "HVD_SECRET_FILE": secret,
                                    "HVD_RENDEZVOUS": f"{made.address(0)}:7000"}
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "timeout", str(PATIENCE), "nsenter", "--target", str(made.pid(host)), "--net", "--uts", "--", sys.argv[1]],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def await_work(self):
        line = self.process.stdout.readline()
        print(line, end="", flush=True)
        return line.startswith(f"rank {self.rank} works, ") and line.endswith(f" of {SLOTS[self.host]} on its host\n")

    def end(self):
        output = self.process.communicate()[0]
        print(output, end="", flush=True)
        return output


def kill(made, rank):
    # The process that runs in the namespace is a child of `timeout`.
    children = subprocess.run(["pgrep", "-P", str(rank.process.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(int(children.split()[0]), 9)


def cut(made, rank):
    made.cut(rank.host)


def check(name, strike, reason):
    print("====", name, flush=True)
    with tempfile.NamedTemporaryFile("w") as secret, lab.Lab(len(SLOTS), "1gbit") as made:
        secret.write(secrets.token_hex(32))
        secret.flush()
        hosts = [host for host, slots in enumerate(SLOTS) for _ in range(slots)]
        ranks = [Rank(made, rank, host, secret.name) for rank, host in enumerate(hosts)]
        good = all([rank.await_work() for rank in ranks])
        lost = ranks[-1]
        strike(made, lost)
        for rank in ranks[:-1]:
            said = rank.end()
            good &= said.startswith(f"rank {rank.rank} lost {lost.rank}: ") and reason in said and rank.process.returncode == 0
        lost.process.kill()
        lost.process.wait()
    return good


def main():
    lab.end_on_signals()
    good = check("a process is killed", kill, f"rank {sum(SLOTS) - 1} is gone (")
    good &= check("a cable is cut", cut, f"rank {sum(SLOTS) - 1} is gone (its host does not answer)")
    sys.exit(0 if good else 1)


try:
    main()
except lab.Unusable as reason:
    print(f"skipped: {reason}")
    sys.exit(77)
