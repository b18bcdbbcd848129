#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Runs tests of a planted tree with one mutant after another: try.py BUILD_FOLDER [NUMBER...] [--only FILE] [--rest] [--jobs N] [--results FILE]

A mutant is noticed by the first test that fails with it and passes without. Results are kept in BUILD_FOLDER/mutants.json."""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import uuid

VARIABLE = "MUTANT_OF_HVD"  # hvd refuses variables that begin with HVD_ and that it does not know, and tests of hvdrun remove them
RUN = "RUN_OF_MUTANT"  # in the environment of all processes of a test, so that those that outlive it are found
SKIPPED = 77
# These read sources, or compile programs of their own: a mutant is only in what the folder has built.
BLIND = ["headers.*", "compile_fail.*", "concepts.*", "consumer.*", "device.compiles_*", "device.the_kernel*", "device.on_a_gpu", "interop.torch_cuda*",
         "*.package", "overhead.instructions", "big.*",
         *(f"docs.{word}_*" for word in ("code", "commands", "headers", "links", "pictures", "programs", "settings", "snippets", "tests", "the"))]
# The tests of a room, the likely ones first.
HOST = ["collective.*.others.threads", "collective.*.threads", "collective.*.neighbours", "collective.*.apart", "collective.*.queues", "fault.threads"]
MPI = ["collective.*.mpi.np3", "collective.*.mpi.np2", "fault.*.mpi.np3*", "fault.*.nodes_of_2", "device.*.mpi.np2"]
TCP = ["tcp.*", "collective.*.tcp.np*", "collective.*.gloo.np*", "collective.*.encrypted.*", "elastic.messages", "elastic.coordination", "elastic.runs*",
       "launcher.tcp_jobs", "elastic.hosts", "network.tcp"]
ROOMS = {
    "core": ["unit.settings", "unit.vocabulary", "unit.half", "unit.*", "interop.options_file", "docs.error_texts.*", *HOST],
    "platform": ["unit.process", "unit.segments", "unit.waiting", "unit.sleepers", "unit.*", "collective.cpus.*", *HOST, "fault.without_memory.*", *MPI],
    "observe": ["unit.statistics", "unit.timeline", "engine.timeline.*", "engine.statistics.*", "engine.observed_tensors.*", "engine.traces.*", "interop.nvtx",
                "engine.autotune.threads", "train.callbacks.threads", "train.reports.threads", "unit.*", "engine.*.threads", "docs.snippets.*"],
    "kernel": ["unit.kernel*", "unit.half", "unit.packing", "unit.codec", "unit.update", "unit.*", "collective.codecs.threads", "train.feedback.threads",
               *HOST, "device.reductions.*", "device.updates.*"],
    "fusion": ["unit.codec", "unit.packing", "collective.fused.*", "collective.codecs.threads", "unit.*", *HOST, "train.fused_step.threads"],
    "protocol": ["unit.agreement", "unit.packed_header", "unit.digest", "collective.disagreement.*", "fault.threads", "fault.notices", "fault.giving_up",
                 "tcp.faults*", *HOST, *MPI],
    "transport": [*HOST, "collective.windows", "unit.*", *MPI],
    "shm": ["unit.segments", "unit.sleepers", "unit.waiting", "collective.windows", *HOST, "overhead.no_allocation.threads", "posix.threads", *MPI],
    "multinode": ["collective.*.neighbours", "collective.nodes.*", "collective.*.gloo.np4", "fault.*.nodes_of_2", *HOST, *MPI],
    "tcp": [*TCP, "fault.notices", "fault.giving_up", "fault.is_stopped*tcp", "train.*.tcp.*", "engine.*.tcp.*", "network.*", "launcher.elastic*"],
    "backend": ["collective.communicators.*", "collective.handles.*", "collective.paths.*", "unit.handles", *HOST, *MPI, *TCP],
    "execution": ["unit.handles", "collective.asynchronous.*", "collective.one_thread.*", "collective.waiting.*", "collective.plans.*", "fault.threads",
                  "fault.giving_up", *HOST, *MPI],
    "collective": ["collective.arguments.threads", "collective.codecs.threads", "collective.disagreement.threads", "docs.error_texts.threads", *HOST, *MPI],
    "comm": ["collective.communicators.*", "collective.policies.*", "collective.thread_group.*", "collective.objects.*", "unit.handles", "interop.*",
             "docs.behaviours.*", *HOST, *MPI],
    "device": ["device.nccl.emulated", "device.policies.emulated", "device.host_memory.emulated", "device.making.emulated", "device.faults.emulated",
               "device.streams.emulated", "device.*.emulated", "train.device_*", "device.*.mpi.*"],
    "engine": ["engine.negotiation", "engine.connections", "engine.search", "engine.stall_watch", "engine.*.threads", "device.engine*", "train.engine*.threads",
               "engine.*.mpi.np3", "engine.*.mpi.np2", "engine.*.tcp.*", "engine.*", "fault.engine_*"],
    "train": ["train.optimizer.threads", "train.reports.threads", "train.checkpoint*.threads", "train.*.threads", "train.device_*", "interop.torch_state.*",
              "docs.snippets.threads", "train.*.mpi.np3", "train.*.mpi.np2", "train.*.tcp.np3", "train.killed*", "train.safetensors*"],
    "elastic": ["elastic.coordination", "elastic.messages", "elastic.membership", "elastic.runs*", "elastic.slow_files", "elastic.*", "launcher.elastic*", "device.elastic.*",
                "elastic.random*", "launcher.restart", "examples.*.elastic"],
    "hvdrun": ["launcher.slots", "launcher.options", "launcher.jobs", "launcher.output", "launcher.elastic*", "launcher.*", "network.*"],
}


def introspect(folder, what):
    return json.loads((folder / "meson-info" / f"intro-{what}.json").read_text())


def is_built(folder, test, files):
    return all((folder / file).exists() for target in test["depends"] for file in files.get(target, []))


def tests_of(folder, only):
    """The tests that can notice a mutant and whose programs are built."""
    files = {target["id"]: target["filename"] for target in introspect(folder, "targets")}
    names = set(only.read_text().split()) if only else None
    all_tests = [test for test in introspect(folder, "tests") if not any(fnmatch.fnmatch(test["name"], p) for p in BLIND)]
    wanted = [test for test in all_tests if names is None or test["name"] in names]
    built = [test for test in wanted if is_built(folder, test, files)]
    print(f"{len(built)} tests; {len(wanted) - len(built)} that are not built", flush=True)
    return built


def in_order(tests, room, rest):
    """The tests of a room, and all others behind them if that is asked for, or if the room has no table."""
    chosen = {}
    for pattern in ROOMS.get(room, []) + ["*"] * (rest or room not in ROOMS):
        chosen.update({test["name"]: test for test in tests if fnmatch.fnmatch(test["name"], pattern) and test["name"] not in chosen})
    return list(chosen.values())


def end_group(process):
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(3)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def end_what_is_left(run):
    """Ends the processes of a test that have left its group: a mutant may forget them."""
    mark = f"{RUN}={run}".encode()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is somebody else's


def require_null_device(number, name):
    if not stat.S_ISCHR(os.stat("/dev/null").st_mode):
        print(f"mutant {number} has replaced /dev/null in {name}: rm /dev/null; mknod -m 666 /dev/null c 1 3", file=sys.stderr, flush=True)
        os._exit(3)


class Runner:
    def __init__(self, folder, tests, limit):
        self.folder, self.tests, self.limit = folder, tests, limit
        self.logs = folder / "mutant-logs"
        self.logs.mkdir(exist_ok=True)
        self.alone, self.checking, self.without = threading.Lock(), threading.Lock(), {}

    def run(self, test, number):
        """None if the test passes or skips itself, or else how it failed."""
        if test.get("is_parallel", True):
            return self.run_now(test, number)
        with self.alone:
            return self.run_now(test, number)

    def run_now(self, test, number):
        run = uuid.uuid4().hex
        environment = os.environ | test["env"] | {VARIABLE: str(number), RUN: run}
        limit = min(self.limit, test["timeout"] or self.limit)
        with open(self.logs / f"{number}.{test['name']}.txt", "wb") as log:
            process = subprocess.Popen(test["cmd"], cwd=test["workdir"] or self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(limit)
                how = None if code in (0, SKIPPED) else f"exit {code}" if code > 0 else f"signal {-code}"
            except subprocess.TimeoutExpired:
                how = f"more than {limit} s"
            end_group(process)
            end_what_is_left(run)
        if how is None:
            pathlib.Path(log.name).unlink()
        require_null_device(number, test["name"])
        return how

    def fails_anyway(self, test):
        """True if the test fails without a mutant; it is run once."""
        with self.checking:
            if test["name"] not in self.without:
                self.without[test["name"]] = self.run(test, 0) is not None
            return self.without[test["name"]]

    def try_mutant(self, mutant, rest):
        tried = 0
        for test in in_order(self.tests, mutant["room"], rest):
            if self.without.get(test["name"]):
                continue
            tried += 1
            how = self.run(test, mutant["number"])
            if how is not None and not self.fails_anyway(test):
                return {"noticed": test["name"], "how": how, "tests": tried}
        return {"noticed": None, "how": f"survived {tried} tests", "tests": tried}


def report(mutants, results):
    for mutant in mutants:
        result = results.get(str(mutant["number"]))
        if result:
            said = f"{result['noticed']} ({result['how']})" if result["noticed"] else f"{result['how']}: {mutant['changes']}"
            print(f"{mutant['number']:3}  {mutant['room']:10}  {said}")
    known = [results[str(m["number"])] for m in mutants if str(m["number"]) in results]
    print(f"{sum(result['noticed'] is not None for result in known)} of {len(known)} noticed")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("numbers", type=int, nargs="*", help="all if none is given")
    parser.add_argument("--only", type=pathlib.Path, help="a file with the names of the tests that may run")
    parser.add_argument("--rest", action="store_true", help="after the tests of the room, run all others")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=60, help="seconds for a test")
    parser.add_argument("--results", type=pathlib.Path)
    return parser.parse_args()


def main():
    given = arguments()
    folder = given.folder.resolve()
    source = pathlib.Path(json.loads((folder / "meson-info/meson-info.json").read_text())["directories"]["source"])
    planted = json.loads((source / "mutants.json").read_text())
    mutants = [mutant for mutant in planted if not given.numbers or mutant["number"] in given.numbers]
    path = given.results or folder / "mutants.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    runner = Runner(folder, tests_of(folder, given.only), given.limit)

    writing = threading.Lock()

    def try_one(mutant):
        result = {"room": mutant["room"], **runner.try_mutant(mutant, given.rest)}
        with writing:
            results[str(mutant["number"])] = result
            path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{mutant['number']:3}  {result['noticed'] or 'SURVIVED'}  ({result['how']})", file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(try_one, mutants))
    report(mutants, results)
    if fails := sorted(name for name, failed in runner.without.items() if failed):
        print("without a mutant these fail, or take too long, so that they do not count:", *fails)


if __name__ == "__main__":
    main()
