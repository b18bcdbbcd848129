#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The rooms of include/hvd in their order, and the tables of them: rooms.py

Each folder is a room. tests/headers/floors.py checks that a room includes only itself and those before it. This program writes the
tables of CONTRIBUTING.md and docs/reference/code.md anew. Each stands below a line <!-- rooms NAME -->."""

import pathlib
import re
import typing


class Room(typing.NamedTuple):
    folder: str  # a room inside a room is named by its path
    holds: str
    unknown: str = ""  # what its code knows nothing of


ROOMS = [
    Room("core/lean", "small replacements for parts of the standard library that are slow to compile"),
    Room("core", "the vocabulary: element types, operations, views of tensors, options, thresholds, errors", "communicators"),
    Room("core/settings", "options from the environment and from files, by one table for each aggregate"),
    Room("platform", "one file for each foreign interface: MPI, CUDA, NCCL, shared memory, threads, clocks", "communicators"),
    Room("platform/network", "sockets, names of hosts, a descriptor that wakes a thread"),
    Room("observe", "what an observer is; statistics, the timeline", "who tells it"),
    Room("kernel/simd", "vectors of the host's processor, and the levels of its instructions"),
    Room("kernel", "arithmetic on bytes: reduce, cast, pack, update", "ranks"),
    Room("kernel/cuda", "the same on a GPU"),
    Room("fusion", "many tensors as one: lists, layouts, codecs", "ranks"),
    Room("protocol", "what ranks tell each other about a call: headers, their comparison, notices", "how they travel"),
    Room("transport", "how the bytes of a host call move: primitives, scripts of the collectives, messages alone", "types of the user; who waits"),
    Room("transport/shm", "inside a node, in memory that its ranks have mapped"),
    Room("transport/multinode", "between nodes: shared memory inside each, messages between them"),
    Room("transport/frames", "messages on a connection of hvd's own"),
    Room("transport/tcp", "how processes meet, authenticate each other and connect"),
    Room("backend", "the policies that a user names for the host, and their endpoints", "calls"),
    Room("execution", "the order of calls on a communicator, waiting, timeouts, the progress thread", "what a call does"),
    Room("collective/call", "what all collectives share: arguments, checks, types of results"),
    Room("collective/fused", "gathers, scatters and exchanges of lists"),
    Room("collective", "one file for each collective: its arguments and its result", "which backend runs it"),
    Room("comm", "what users hold: communicators, plans, arenas, objects", "how bytes move"),
    Room("device", "the same for tensors of a GPU: calls, plans, requests, sessions", "the host's transports"),
    Room("device/staged", "device tensors through pinned memory and a communicator of the host"),
    Room("device/nccl", "device tensors by NCCL"),
    Room("device/combined", "policies that combine others: by level, or by collective"),
    Room("engine/negotiation", "which tensors all ranks have submitted: a machine of states", "threads, clocks, connections"),
    Room("engine", "tensors by name: those submitted, the thread that negotiates, the units that it runs", "CUDA"),
    Room("engine/tuning", "the search for thresholds"),
    Room("engine/device", "device tensors of an engine"),
    Room("data", "orders of samples without a list, pipelines from a source to the batches of a rank, loaders", "how bytes move"),
    Room("data/formats", "files of samples, with their index", "pipelines"),
    Room("data/device", "batches in the memory of a GPU"),
    Room("train", "what a trainer needs beside an optimizer: metrics, schedules, batch norm, uneven data", "how bytes move"),
    Room("train/gradients", "parameters, the reports of their gradients, buckets"),
    Room("train/sparse", "gradients in rows"),
    Room("train/optimizer", "the distributed optimizer, and the optimizers inside"),
    Room("train/wrappers", "optimizers around optimizers: by reference, by groups, by rows"),
    Room("train/fused", "steps inside an allreduce, with their state in slices"),
    Room("train/checkpoint", "files of a training"),
    Room("train/input", "samplers and loaders"),
    Room("train/device", "the optimizer for device tensors"),
    Room("train/engine", "the optimizer on an engine"),
    Room("elastic/members", "who belongs to an elastic job: members, coordinators, epochs", "the objects of a state"),
    Room("elastic/kept", "files in which a state outlives all processes"),
    Room("elastic", "jobs that lose and win ranks: their state, and the loop around the user's function"),
    Room("data/service", "pipelines whose batches other processes make: workers, dispatchers, the trainer's side", "the stages of a pipeline"),
    Room("interop", "what needs another library: tensors of LibTorch and Eigen, TLS, Gloo, files of options"),
]
FOLDERS = [room.folder for room in ROOMS]


def houses():
    """The folders of include/hvd itself, in the order of their last rooms: each includes only those before it."""
    return list(dict.fromkeys(room.folder.split("/")[0] for room in ROOMS))


def rows_of_houses():
    yield from ("| room | what it holds | rooms in it |", "|---|---|---|")
    for house in houses():
        inside = ", ".join(f"`{folder.split('/')[1]}`" for folder in FOLDERS if folder.startswith(house + "/"))
        yield f"| `{house}` | {ROOMS[FOLDERS.index(house)].holds} | {inside} |"


def rows_of_rooms():
    yield from ("| room | what it holds | what it does not know |", "|---|---|---|")
    for room in ROOMS:
        yield f"| `{room.folder}` | {room.holds} | {room.unknown} |"


TABLES = {"houses": ("CONTRIBUTING.md", rows_of_houses), "rooms": ("docs/reference/code.md", rows_of_rooms)}


def with_tables(page, text):
    """Returns the text of a page with its tables as the list has them."""
    for name, (of_page, rows) in TABLES.items():
        if of_page == page:
            text = re.sub(rf"^<!-- rooms {name} -->\n(?:\|.*\n)*", lambda found: f"<!-- rooms {name} -->\n" + "\n".join(rows()) + "\n", text, flags=re.M)
    return text


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parents[2]
    for page in {page for page, _ in TABLES.values()}:
        (root / page).write_text(with_tables(page, (root / page).read_text()))
