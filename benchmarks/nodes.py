#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Measures collectives of hvd and MPI over several hosts, which are made on this machine with shaped cables between them
(tests/network/lab.py). Open MPI runs as it comes, with a second connection between hosts, and without its own way of writing into
the receiver's memory; each of the last two lets it fill a wire. The column `tcp` is hvd without MPI, `tls` the same with encrypted connections, and `gloo` hvd with Gloo as the
carrier, beside the algorithms of Gloo itself. The superuser runs it:

    nodes.py build/bench/benchmarks/nodes [--hosts 2] [--slots 2] [--rate 1gbit] [--max 16MiB]

It ends with 77 if no hosts can be made."""

import argparse
import datetime
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "network"))
import lab

CANDIDATES = {"mpi": "MPI", "hvd by_library": "by libr.", "tcp": "tcp", "encrypted": "tls", "gloo": "gloo", "plain gloo ring": "its ring", "plain gloo bcube": "its bcube"}
SETTINGS = {"as it comes": [], "btl_tcp_links 2": ["--mca", "btl_tcp_links", "2"], "btl_tcp_flags 1": ["--mca", "btl_tcp_flags", "1"]}


def measure(given, options):
    with lab.folder_for_agent() as folder, lab.Lab(given.hosts, given.rate) as made:
        file = pathlib.Path(folder) / "figures.json"
        command = [pathlib.Path(given.program).resolve(), "--min", given.min, "--max", given.max, "--factor", given.factor,
                   "--seconds", given.seconds, "--rounds", "3", "--json", file]
        process = made.launch([given.slots] * given.hosts, command, folder, options=options, stdout=lab.subprocess.DEVNULL)
        if process.wait() != 0:
            sys.exit(f"nodes: the launch ended with {process.returncode}")
        return json.loads(file.read_text())["rows"]


def print_rows(name, rows):
    """Prints one line for each collective and size: hvd's time, and the others' over it."""
    lines = {}
    for row in rows:
        who = row["path"].removeprefix(row["collective"] + " ")
        lines.setdefault((row["collective"], row["size"]), {})[who] = row["in_place"]
    for (collective, size), by in lines.items():
        hvd = by["hvd"]["time"]
        cells = [f"{by[who]['time'] / 1000:9.2f} {by[who]['time'] / hvd:5.2f}x" if who in by else " " * 16
                 for who in CANDIDATES]
        wrong = sum(one["wrong"] for one in by.values())
        print(f"{name:16} {collective:10} {size:>9} {hvd / 1000:9.2f}  {'  '.join(cells)}  {wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="ranks on each host")
    parser.add_argument("--rate", default="1gbit", help="of every cable; '' for no limit")
    parser.add_argument("--min", default="1KiB")
    parser.add_argument("--max", default="16MiB")
    parser.add_argument("--factor", default="8")
    parser.add_argument("--seconds", default="2")
    given = parser.parse_args()
    lab.end_on_signals()
    print(f"# {given.hosts} hosts of {given.slots} ranks, cables of {given.rate or 'no limit'}, float, "
          f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")
    columns = "  ".join(f"{name:>9} {'/hvd':>6}" for name in CANDIDATES.values())
    print(f"{'Open MPI':16} {'':10} {'bytes':>9} {'hvd, ms':>9}  {columns}  #wrong")
    for name, options in SETTINGS.items():
        print_rows(name, measure(given, options))


try:
    main()
except lab.Unusable as reason:
    print(f"skipped: {reason}")
    sys.exit(77)
