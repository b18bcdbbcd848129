#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""drive.py PLACE FIRST COUNT PROGRAM [MPIEXEC ARGUMENT...]: plays runs of random calls in which something fails.

PLACE is threads, node, nodes, hosts, tcp or tcp_hosts; a run is decided by its place and its seed, FIRST and those after it. A rank that is
stopped is continued from here. The complaints of the ranks are printed with the plan of the run and the command that
repeats it. HVD_FAULT_RUNS multiplies COUNT. On tcp, unauthenticated connections bring noise
to the ports of the ranks in most runs."""

import ctypes
import glob
import mmap
import os
import pathlib
import random
import secrets
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "network"))
import lab  # noqa: E402

HANGS_AFTER = float(os.environ.get("HVD_TEST_TIMEOUT", "40"))
COLUMN = struct.Struct("10q")  # board.hpp
COLUMN_BYTES, RANKS = 128, 8
PATIENCE = "HVD_FAULT_PATIENCE"
DIE = (" is killed in ", " exits in ")


class Board:
    """What the ranks show of themselves."""

    def __init__(self, path):
        path.write_bytes(bytes(COLUMN_BYTES * RANKS))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.continued = set()
        self.cut = set()

    def columns(self):
        return [COLUMN.unpack_from(self.memory, COLUMN_BYTES * rank) for rank in range(RANKS)]

    def attend(self, cut):
        """Continues ranks that were stopped long enough, and pulls cables."""
        for rank, (process, wakes, resumed, wants_cut, *_) in enumerate(self.columns()):
            if wakes and not resumed and time.monotonic_ns() >= wakes:
                kill(process, signal.SIGCONT)
            if wants_cut and rank not in self.cut:
                self.cut.add(rank)
                cut(rank)
                self.show_cut(rank)

    def show_cut(self, rank):
        struct.pack_into("q", self.memory, COLUMN_BYTES * rank + 3 * 8, 2)

    def have_ended(self, ranks):
        columns = self.columns()
        return all(columns[rank][9] for rank in ranks)

    def processes(self):
        return [column[0] for column in self.columns() if column[0]]


def kill(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def ask_for_stacks(processes):
    """Every thread of every process prints its stack."""
    tgkill = 234 if os.uname().machine == "x86_64" else 131
    libc = ctypes.CDLL(None)
    for process in processes:
        kill(process, signal.SIGCONT)
        for task in glob.glob(f"/proc/{process}/task/*"):
            libc.syscall(tgkill, process, int(os.path.basename(task)), signal.SIGUSR2)
    time.sleep(1)


def end(process, ranks):
    """All processes of a run are gone afterwards."""
    for rank in ranks:
        kill(rank, signal.SIGKILL)
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def with_lines(text, program):
    """Names the functions of a stack's addresses. The frames of the signal, and those below a thread's function, are left out."""
    lines = []
    for line in text.splitlines():
        if "(+0x" in line or line.startswith("/lib"):
            if not line.startswith(program):
                continue_with = line.split("[")[0].rsplit("/", 1)[-1]
                if "libc.so" not in continue_with or "libc.so.6(+" not in continue_with:
                    lines.append("    " + continue_with)
                continue
            offset = line.split("(+")[1].split(")")[0]
            named = subprocess.run(["addr2line", "-Cfpse", program, offset], capture_output=True, text=True, check=False).stdout.strip()
            if not any(part in named for part in ("print_stack", "install_handlers", "std::", "_start")):
                lines.append("    " + named[:60] + " … " + named.split(" at ")[-1])
        else:
            lines.append(line)
    return "\n".join(lines)


def going_on(folder):
    """A launcher ends a job when one of its processes dies, unless it is told not to. It leaves its files in the folder."""
    return ["--enable-recovery", "--mca", "orte_tmpdir_base", str(folder)]


class Place:
    """The ways in which a run is started."""

    def __init__(self, name, program, mpiexec):
        self.name, self.program, self.mpiexec = name, program, mpiexec

    def start(self, seed, ranks, hosts, folder, **pipes):
        command = [self.program, self.name, str(seed), str(folder)]
        if self.name != "threads":
            command = self.mpiexec + going_on(folder) + ["-n", str(ranks), *command]
        return subprocess.Popen(command, start_new_session=True, **pipes), lambda rank: None

    def close(self):
        pass


class Hosts(Place):
    def start(self, seed, ranks, hosts, folder, **pipes):
        self.close()
        self.made = lab.Lab(len(hosts))
        self.made.__enter__()
        host_of = [host for host, n in enumerate(hosts) for _ in range(n)]
        process = self.made.launch(hosts, [self.program, self.name, str(seed), str(folder)], folder, mpirun=self.mpiexec[0],
                                   options=going_on(folder), environment={PATIENCE: os.environ[PATIENCE]}, start_new_session=True, **pipes)
        return process, lambda rank: self.made.cut(host_of[rank])

    def close(self):
        if getattr(self, "made", None):
            self.made.__exit__()
            self.made = None


class Tcp(Place):
    """Processes without MPI. Rank 0 serves their rendezvous."""

    def start(self, seed, ranks, hosts, folder, **pipes):
        host_of = [host for host, n in enumerate(hosts) for _ in range(n)]
        job = {"HVD_SIZE": ranks, "HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}", "HVD_SECRET": secrets.token_hex(32), "HVD_START_TIMEOUT": "20"}
        words = shlex.join([self.program, self.name, str(seed), str(folder)])
        each = "".join(f"HVD_RANK={rank} HVD_HOST_ID=host{host} {words} &\n" for rank, host in enumerate(host_of))
        process = subprocess.Popen(["sh", "-c", each + "wait"], start_new_session=True, env={**os.environ, **{name: str(value) for name, value in job.items()}}, **pipes)
        return process, lambda rank: None


def free_port():
    """One that no outgoing connection takes meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Noise:
    """Unauthenticated connections to all ports of the ranks."""

    def __init__(self, board, seed):
        self.board, self.dice, self.over, self.open = board, random.Random(seed), threading.Event(), []
        self.thread = threading.Thread(target=self.come, daemon=True)
        self.thread.start()

    def come(self):
        while not self.over.wait(0.01):
            for port in ports_of(self.board.processes()):
                self.disturb(port)

    def disturb(self, port):
        try:
            one = socket.create_connection(("127.0.0.1", port), timeout=0.2)
            one.setblocking(False)
            one.send(self.dice.randbytes(self.dice.choice([0, 1, 12, 36, 200, 5000])))
        except OSError:
            return
        self.open.append(one)
        while len(self.open) > 40 or (self.open and self.dice.random() < 0.5):
            self.open.pop(self.dice.randrange(len(self.open))).close()

    def end(self):
        self.over.set()
        self.thread.join()
        for one in self.open:
            one.close()


def ports_of(processes):
    """Where they listen."""
    sockets = set()
    for process in processes:
        for path in glob.glob(f"/proc/{process}/fd/*"):
            try:
                sockets.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                pass
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in sockets]


def busy():
    """By how much timeouts are longer on a busy machine, where a rank is late through no fault of its own."""
    load, _, _, running, *_ = pathlib.Path("/proc/loadavg").read_text().split()
    return max(1, min(16, int(max(float(load), int(running.split("/")[0]))) // (3 * len(os.sched_getaffinity(0)))))


def is_held_up_by_mpi(texts):
    """True if these ranks are in calls of MPI that have no timeout, and in which a dead rank holds the others up, as docs/reference/errors.md says."""
    return all(any(f"PMPI_Comm_{call}+" in text for call in ("create_group", "split")) for text in texts)


def play(place, seed):
    """Returns the complaints about a run, and everything that was said."""
    os.environ[PATIENCE] = str(busy())
    described = subprocess.run([place.program, place.name, str(seed)], capture_output=True, text=True, check=True).stdout
    numbers, plan = described.split("\n", 1)
    ranks, *hosts = map(int, numbers.split())
    dead = {int(line.split()[1]) for line in plan.splitlines() if any(how in line for how in DIE)}
    with tempfile.TemporaryDirectory(prefix="hvd-faults-") as path:
        folder = pathlib.Path(path)
        board = Board(folder / "board")
        with open(folder / "output", "w+") as output:
            process, cut = place.start(seed, ranks, hosts, folder, stdout=output, stderr=subprocess.STDOUT)
            limit = time.monotonic() + HANGS_AFTER
            complaints = []
            noise = Noise(board, seed) if "noise at" in plan else None
            while process.poll() is None and not complaints:
                board.attend(cut)
                time.sleep(0.005)
                # A launcher may wait for ranks that are dead, and its daemons miss a cable, too.
                if (dead or board.cut) and board.have_ended(set(range(ranks)) - dead):
                    break
                if time.monotonic() > limit:
                    complaints.append(f"it hangs: no end within {HANGS_AFTER:.0f} s")
                    ask_for_stacks(board.processes() if place.name != "threads" else [process.pid])
            if noise:
                noise.end()
            end(process, board.processes() if place.name != "threads" else [])
        said = [f"plan of {place.name} {seed}: {plan}"]
        files = [folder / f"rank.{rank}" for rank in range(ranks)]
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in files]
        is_allowed = bool(complaints and dead) and is_held_up_by_mpi(texts[rank] for rank in range(ranks) if rank not in dead)
        for rank, text in enumerate(texts):
            complaints += [f"rank {rank}: {line}" for line in text.splitlines() if line.startswith("FAIL")]
            if "\nend after" not in "\n" + text and rank not in dead and not complaints:
                complaints.append(f"rank {rank} has not ended")
            said.append(f"---- rank {rank}\n{text}")
        said.append("---- output\n" + (folder / "output").read_text(errors="replace"))
    place.close()
    return [] if is_allowed else complaints, with_lines("\n".join(said), place.program)


def main():
    name, first, count, program, *mpiexec = sys.argv[1:]
    lab.end_on_signals()
    place = {"hosts": Hosts, "tcp": Tcp, "tcp_hosts": Tcp}.get(name, Place)(name, program, mpiexec)
    failed, begun = [], time.monotonic()
    runs = int(count) * int(os.environ.get("HVD_FAULT_RUNS", "1"))
    for seed in range(int(first), int(first) + runs):
        try:
            complaints, said = play(place, seed)
        except lab.Unusable as reason:
            print(f"skipped: {reason}")
            return 77
        if complaints or runs == 1:
            print(said)
        if complaints:
            failed.append(seed)
            print(*complaints, sep="\n")
            print("repeat:", shlex.join([sys.executable, sys.argv[0], name, str(seed), "1", program, *mpiexec]), flush=True)
    print(f"{runs} runs in {time.monotonic() - begun:.0f} s; failed seeds of {name}: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
