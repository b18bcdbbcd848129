#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Kills a process of an elastic job of hvd, and of one of Horovod, and prints when the others go on.

    elastic_horovod.py BUILD_FOLDER [--jobs 10] [--ranks 2 3 4] [--json FILE]

BUILD_FOLDER has hvdrun and elastic.worker. Horovod is built once, with Gloo and Debian's torch (python3-torch), in
build/horovod; that takes ten minutes. Both train a state of 160 kB: an allreduce of it, a pause of 3 ms, a commit, again and again.
The jobs take turns. For Horovod each rank is a host of its own, since it gives up the host of a process that fails.

The time is that from the signal until all others have committed a step in a later epoch. Steps lost are those that were
committed and done again."""

import argparse
import datetime
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/elastic/random"))
from drive import COLUMN_BYTES, SLOTS, free_port  # noqa: E402

ENVIRONMENT = ROOT / "build/horovod"
VERSION = "horovod==0.28.1"
PARTS = {"HOROVOD_WITH_GLOO": "1", "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_MPI": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITHOUT_MXNET": "1"}
ELEMENTS, PAUSE = 20_000, 3_000  # of 8 bytes; microseconds
FOREVER, PATIENCE = 10_000_000, 90  # steps; seconds to begin, and to go on
COLUMN = struct.Struct("5q")  # of the board: the step, its time, epochs, ranks, steps lost


def horovod_trainer(board, slot):
    """One rank of Horovod, as tests/elastic/random/worker.cpp is one of hvd."""
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    with open(board, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    model = torch.nn.Linear(ELEMENTS, 1, bias=False, dtype=torch.float64)
    state = hvd.elastic.TorchState(model=model, step=0)
    shown = [0, 0, 0, 0, 0]
    (pathlib.Path(board).parent / f"pid.{slot}").write_text(str(os.getpid()))

    @hvd.elastic.run
    def train(state):
        shown[2] += 1
        shown[3] = hvd.size()
        shown[4] = max(shown[4], shown[0] - state.step)
        while state.step < FOREVER:
            gradient = torch.full((1, ELEMENTS), state.step % 11 + hvd.rank(), dtype=torch.float64)
            model.weight.data += hvd.allreduce(gradient, op=hvd.Sum, name="gradient")
            time.sleep(PAUSE / 1e6)
            state.step += 1
            state.commit()
            shown[0], shown[1] = state.step, time.monotonic_ns()
            COLUMN.pack_into(memory, COLUMN_BYTES * slot, *shown)

    train(state)


class Job:
    """A running job. Its processes show what they do on a board, by slots."""

    def __init__(self, folder, size):
        self.folder, self.size, self.board = folder, size, folder / "board"
        self.board.write_bytes(bytes(COLUMN_BYTES * SLOTS))
        with open(self.board, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.launcher = self.start()

    def launch(self, *command, **environment):
        with open(self.folder / "output", "w") as output:
            return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, command)], env=os.environ | environment, cwd=self.folder,
                                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def shown(self, slot):
        return COLUMN.unpack_from(self.memory, COLUMN_BYTES * slot)

    def close(self):
        pids = [pid for slot in range(self.size) if (pid := self.pid(slot))]
        self.launcher.kill()
        self.launcher.wait()
        for pid in pids:
            end_worker(pid, self.board)


class HvdJob(Job):
    def start(self):
        return self.launch(BUILD / "tools/hvdrun/hvdrun", "-np", self.size, "--min-np", 1, "--blacklist-cooldown-range", 1000, 2000, "--event-log", "log",
                           "sh", "-c", f"echo $$ >pid.$HVD_RANK; exec {BUILD / 'tests/elastic/elastic.worker'} {self.board} $HVD_RANK {FOREVER} {PAUSE} 0")

    def pid(self, slot):
        return read_number(self.folder / f"pid.{slot}")


class HorovodJob(HvdJob):
    def start(self):
        hosts = [f"127.0.0.{slot + 2}" for slot in range(self.size)]
        tools = self.folder / "tools"
        tools.mkdir()
        script(tools / "ssh", 'for last; do :; done\nexec sh -c "$last"')
        script(tools / "hosts", "\n".join(f"echo {host}:1" for host in hosts))
        return self.launch(ENVIRONMENT / "bin/horovodrun", "--gloo", "-np", self.size, "--min-np", 1, "--max-np", self.size, "--network-interfaces", "lo",
                           "--host-discovery-script", tools / "hosts", "sh", "-c",
                           f"exec {ENVIRONMENT / 'bin/python'} {__file__} --trainer {self.board} $((${{HOROVOD_HOSTNAME##*.}} - 2))",
                           PATH=f"{tools}:{ENVIRONMENT / 'bin'}:{os.environ['PATH']}", OMP_NUM_THREADS="1")


class HvdJobWithoutLauncher(Job):
    """Rank 0 coordinates."""

    def start(self):
        secret = self.folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(os.urandom(32).hex())
        told = {"HVD_SIZE": str(self.size), "HVD_ELASTIC_MIN_SIZE": "1", "HVD_SECRET_FILE": str(secret), "HVD_RENDEZVOUS": f"127.0.0.1:{free_port()}"}
        self.workers = [self.launch(BUILD / "tests/elastic/elastic.worker", self.board, slot, FOREVER, PAUSE, 0, HVD_RANK=str(slot), **told) for slot in range(self.size)]
        return self.workers[0]

    def pid(self, slot):
        return self.workers[slot].pid

    def close(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()


KINDS = [("worker", "hvd", HvdJob), ("worker", "Horovod", HorovodJob), ("first", "hvd, no launcher", HvdJobWithoutLauncher), ("first", "Horovod", HorovodJob),
         ("launcher", "hvd", HvdJob), ("launcher", "Horovod", HorovodJob), ("both", "hvd", HvdJob), ("both", "Horovod", HorovodJob)]
WITH_LAUNCHER = ("launcher", "both")  # these are played once for each size; both: the launcher, and a worker after it


def script(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def read_number(file):
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def end_worker(pid, board):
    """Ends a process if it is still one of the job with this board."""
    try:
        if str(board) in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def has_ended(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(seconds, condition):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.001)
    return False


def disturb(kind, size, dice, what):
    """Returns seconds until the others went on, None if they ended or hung, and the most steps that one of them lost."""
    with tempfile.TemporaryDirectory(prefix="hvd-horovod-") as path:
        job = kind(pathlib.Path(path), size)
        try:
            if not until(PATIENCE, lambda: all(job.shown(slot)[0] >= 20 and job.shown(slot)[3] == size for slot in range(size))):
                sys.exit(f"elastic_horovod: a job does not begin:\n{(job.folder / 'output').read_text()[-3000:]}")
            time.sleep(dice.uniform(0, 0.5))
            victim = {"worker": dice.randrange(size), "first": 0, "launcher": None, "both": size - 1}[what]
            others = [slot for slot in range(size) if slot != victim]
            epochs = {slot: job.shown(slot)[2] for slot in others}
            workers = [job.pid(slot) for slot in range(size)]
            if what in WITH_LAUNCHER:
                os.kill(job.launcher.pid, signal.SIGKILL)
                time.sleep(3)
            killed_at = time.monotonic()
            if victim is None:
                epochs = dict.fromkeys(others, -1)  # a step is enough
            else:
                end_worker(workers[victim], job.board)
            if not until(PATIENCE, lambda: all(has_ended(workers[s]) or (job.shown(s)[2] > epochs[s] and job.shown(s)[1] > killed_at * 1e9) for s in others)):
                return None, 0
            if any(has_ended(workers[s]) for s in others):
                return None, 0
            took = max(job.shown(slot)[1] for slot in others) / 1e9 - killed_at
            return took, max(job.shown(slot)[4] for slot in others)
        finally:
            job.close()


def make_environment():
    if (ENVIRONMENT / "made").exists():
        return
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    log = ENVIRONMENT.parent / "horovod.log"
    print(f"# building {VERSION} in {ENVIRONMENT}, see {log}", flush=True)
    pip = [ENVIRONMENT / "bin/pip", "install", "--no-cache-dir"]
    steps = [["/usr/bin/python3", "-m", "venv", "--system-site-packages", ENVIRONMENT],
             [*pip, "setuptools<70", "wheel", "cloudpickle", "cffi", "packaging", "psutil", "pyyaml"],
             [*pip, "--no-build-isolation", "--no-deps", "--no-binary", ":all:", VERSION]]
    with open(log, "w") as output:
        for step in steps:
            # Its sources rely on headers that g++ 12 does not include by the way. nvcc is not wanted.
            if subprocess.run(step, env={"MAKEFLAGS": "-j1"} | os.environ | PARTS | {"CXXFLAGS": "-include cstdint", "CUDA_HOME": ""}, stdout=output, stderr=output).returncode:
                sys.exit(f"elastic_horovod: Horovod can't be built: see {log}")
    (ENVIRONMENT / "made").touch()


def main():
    global BUILD
    if sys.argv[1:2] == ["--trainer"]:
        return horovod_trainer(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build")
    parser.add_argument("--jobs", type=int, default=10, help="of each kind and size")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--json", help="also writes each time into this file")
    given = parser.parse_args()
    BUILD = pathlib.Path(given.build).resolve()
    make_environment()
    dice, results, loads = random.Random(1), {}, []
    try:
        for number in range(given.jobs):
            for size in given.ranks:
                for what, name, kind in KINDS:
                    if what not in WITH_LAUNCHER or number == 0:
                        loads.append(os.getloadavg()[0])
                        results.setdefault((what, size, name), []).append(disturb(kind, size, dice, what))
    finally:
        show(results, loads)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps([[*key, ends] for key, ends in results.items()]))


def show(results, loads):
    print(f"# {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, load {min(loads):.0f} to {max(loads):.0f}")
    print(f"{'killed':9} {'ranks':>5}  {'job':17} {'jobs':>4} {'went on':>7} {'median, s':>9} {'longest':>8} {'steps lost':>10}")
    for (what, size, name), ends in sorted(results.items()):
        times = [took for took, _ in ends if took is not None]
        middle, longest = (f"{statistics.median(times):9.3f}", f"{max(times):8.3f}") if times and what not in WITH_LAUNCHER else ("-".rjust(9), "-".rjust(8))
        print(f"{what:9} {size:5}  {name:17} {len(ends):4} {len(times):7} {middle} {longest} {max(lost for _, lost in ends):10}")


if __name__ == "__main__":
    sys.exit(main())
