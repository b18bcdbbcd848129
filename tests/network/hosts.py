#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""hosts.py MPIRUN PROGRAM: the tests of hosts.cpp on hosts with shaped cables between them.

The superuser runs it. It is skipped for others, and if the kernel allows no network namespace. The hosts are removed at the end
(lab.py)."""

import os
import subprocess
import sys

import lab

MIB = 1 << 20
LAUNCHES = {
    "two hosts of two ranks": ([2, 2], []),
    "hosts of two ranks and of one": ([2, 1], []),
    "ranks dealt out to two hosts": ([2, 2], ["--map-by", "node"]),
    "three hosts": ([1, 2, 1], []),
}
# An allreduce of n bytes on two hosts: half of it goes to the other host to be reduced, and half comes back, whatever
# the number of ranks of a host. Between all ranks by themselves it would be twice as much.
CALLS, BYTES, SLACK = 2, 16 * MIB, 1.25


def run(made, slots, options, arguments):
    ranks = sum(slots)
    environment = {"HVD_TEST_NP": str(ranks), "HVD_TEST_TIMEOUT": os.environ.get("HVD_TEST_TIMEOUT", "60")}
    with lab.folder_for_agent() as folder:
        process = made.launch(slots, arguments, folder, mpirun=sys.argv[1], options=options, environment=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output = process.communicate(timeout=90)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            output = process.communicate()[0] + "\nit hangs: no end within 90 s"
            process.returncode = 1
    print(output, flush=True)
    return process.returncode == 0


def check_launch(name, slots, options):
    print("====", name, flush=True)
    with lab.Lab(len(slots), "1gbit") as made:
        return run(made, slots, options, [sys.argv[2]])


def check_traffic():
    print("==== what crosses", flush=True)
    with lab.Lab(2) as made:
        before = [made.sent(host) for host in range(2)]
        good = run(made, [2, 2], [], [sys.argv[2], "--no-skip", "--test-case=two allreduces*"])
        for host in range(2):
            sent = made.sent(host) - before[host]
            print(f"host {host} sent {sent / MIB:.1f} MiB for {CALLS} allreduces of {BYTES / MIB:.0f} MiB")
            good = good and CALLS * BYTES < sent < SLACK * CALLS * BYTES
    return good


def main():
    lab.end_on_signals()
    try:
        failed = [name for name, launch in LAUNCHES.items() if not check_launch(name, *launch)]
        if not check_traffic():
            failed.append("what crosses")
    except lab.Unusable as reason:
        print(f"skipped: {reason}")
        return 77
    print("failed:", ", ".join(failed) or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
