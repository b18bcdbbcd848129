#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Measures how long hvdrun takes to start and end jobs: launch.py HVDRUN [OPTION...]

Each job is H hosts of R ranks that run `true`. The hosts are this machine: a command in ssh's place starts a shell here, or --ssh 'ssh {host} {command}' logs in where
--host says. The jobs take turns, and the table has the median of the rounds."""

import argparse
import statistics
import subprocess
import time


def seconds_of(hvdrun, ssh, host, hosts, ranks):
    """Returns the time from the start of hvdrun to its end."""
    names = f"{host}:{ranks}" if host else ",".join(f"nobody@{i}:{ranks}" for i in range(hosts))  # the addresses of these are not looked up
    begin = time.perf_counter()
    subprocess.run([hvdrun, "-H", names, "--start-timeout", "600", "--ssh-command", ssh, "true"], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("hvdrun")
    words.add_argument("--ssh", default="sh -c {command}", help="hvdrun's --ssh-command")
    words.add_argument("--host", help="the one host of real logins")
    words.add_argument("--hosts", default="1,8,32,128")
    words.add_argument("--ranks", default="1,4,16")
    words.add_argument("--rounds", type=int, default=5)
    o = words.parse_args()
    ranks = [int(text) for text in o.ranks.split(",")]
    hosts = [1] if o.host else [int(text) for text in o.hosts.split(",")]
    taken = {(h, r): [] for h in hosts for r in ranks}
    for _ in range(o.rounds):
        for job in taken:
            taken[job].append(seconds_of(o.hvdrun, o.ssh, o.host, *job))
    print("| hosts | " + " | ".join(f"{r} ranks each" for r in ranks) + " |")
    print("|" + "---:|" * (1 + len(ranks)))
    for h in hosts:
        print(f"| {h} | " + " | ".join(f"{statistics.median(taken[h, r]):.2f} s" for r in ranks) + " |")


if __name__ == "__main__":
    main()
