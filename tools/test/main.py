#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""./run test: the stages of stages.py, each while the last tests of the one before it run; see ./run help."""

import itertools
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[up] / folder) for up, folder in ((0, ""), (2, "tests/support"))]
from ahead import Ahead  # noqa: E402
from build import ROOT, Broken, Build, matches  # noqa: E402
import gpu_report  # noqa: E402
from packages import Packages  # noqa: E402
from results import ENDING, Results  # noqa: E402
from stages import BUILDS, STAGES  # noqa: E402
from turns import has_turn, number_of_commit  # noqa: E402

LEVELS = ["test", "all", "soak"]
STAGE_LIMIT = 20 * 60  # seconds; under --soak there is none
SOAK_PATIENCE = 4  # a soak takes hours, in which others use the machine, too: its tests may take so many times as long
OVER_CPU, OVER_UNITS = 1.5, 1.05
TESTS_AT_THE_END = 2  # for each processor, so that the next stage begins: some of them wait
TURNS = 4  # commits, until each test of the suite `turns` has run


class Stopped(BaseException):
    """Somebody asks this run to end."""


def stop(number, _):
    raise Stopped(signal.Signals(number).name)


def keep_folder_of_open_mpi():
    """Jobs of Open MPI share a folder. The last one would remove it, maybe while the next one makes its own folder in it: it stays while something is there."""
    shared = pathlib.Path(tempfile.gettempdir()) / f"ompi.{os.uname().nodename.split('.')[0]}.{os.getuid()}"
    shared.mkdir(mode=0o700, exist_ok=True)
    (shared / "kept").mkdir(exist_ok=True)


class Made:
    """What make() made of a stage: its tests and their targets, or the reason why there is none."""

    def __init__(self):
        self.build, self.tests, self.targets, self.cpu = None, [], [], 0.0
        self.impossible = ""


class Arguments:
    """./run test [--all | --soak | --gpu] [--stages 'S …'] [--list] [NAME…]"""

    def __init__(self, words):
        self.level, self.stages, self.names, self.list = "test", None, [], False
        words = list(words)
        while words:
            word = words.pop(0)
            if word in ("--all", "--soak"):
                self.level = word[2:]
            elif word == "--gpu":
                self.stages = ["gpu"]
            elif word == "--stages" and words:
                self.stages = words.pop(0).split()
            elif word == "--list":
                self.list = True
            elif word.startswith("-"):
                sys.exit(f"run: test: no such option: {word} (see ./run help)")
            else:
                self.names.append(word)
        unknown = set(self.stages or []) - {stage["name"] for stage in STAGES}
        if unknown:
            sys.exit(f"run: test: no such stage: {', '.join(sorted(unknown))}; there are: {', '.join(stage['name'] for stage in STAGES)}")

    def chosen(self):
        """The stages that run. With names, those that could have such a test."""
        if self.stages is not None:
            return [stage for stage in STAGES if stage["name"] in self.stages]
        allowed = LEVELS[:LEVELS.index(self.level) + 1]
        stages = [stage for stage in STAGES if stage.get("level", "test") in allowed]
        if self.level == "all" and not self.names:
            return [stage for stage in stages if is_due(stage)]
        if self.names and self.level == "test":
            # Only one stage of --all is told by a name alone: the one that has no other place.
            stages = [stage for stage in STAGES if stage["build"] in ("gcc", "clang", "bench") and stage["name"] != "g++"]
        return [stage for stage in stages if not self.names or any(may_have(stage, name) for name in self.names)]

    def complete(self):
        return self.stages is None and not self.names


def is_due(stage):
    """False if the stage has its turn with another commit."""
    turn, of = stage.get("turn", (0, 1))
    return number_of_commit(ROOT) % of == turn


def in_order_of_making(stages):
    """The stages in the order in which they are compiled: one with `made_before` comes before that stage."""
    order = list(stages)
    for stage in stages:
        behind = next((other for other in order if other["name"] == stage.get("made_before")), None)
        if behind:
            order.remove(stage)
            order.insert(order.index(behind), stage)
    return order


def at_once(stages):
    """The stages in groups: those that follow one another and wait more than they compute, or a single one."""
    groups = []
    for waits, some in itertools.groupby(stages, lambda stage: bool(stage.get("waits"))):
        groups += [list(some)] if waits else [[stage] for stage in some]
    return groups


def room_of(test):
    return test["name"].split(".")[0]


def may_have(stage, name):
    """True if a name could be a test of the stage. The first part of a test's name is its room; suites have no points."""
    rooms = {pattern.split(".")[0] for pattern in stage["tests"]}
    room = name.split(".")[0]
    return room in rooms or "*" in room or ("." not in name and name not in ALL_ROOMS)


ALL_ROOMS = {pattern.split(".")[0] for stage in STAGES for pattern in stage["tests"]}


class Run:
    def __init__(self, arguments):
        self.arguments, self.results, self.packages = arguments, Results(), Packages()
        self.patience = SOAK_PATIENCE if arguments.level == "soak" else 1
        self.jobs = int(os.environ.get("HVD_JOBS") or len(os.sched_getaffinity(0)))
        self.begun, self.times, self.listed = time.monotonic(), [], []
        budget = os.environ.get("HVD_TEST_BUDGET")
        self.until = self.begun + 60 * float(budget) if budget else None
        self.ahead = Ahead([], self.make, self.jobs)
        self.ready = {}  # build folders that are configured
        self.changed = threading.Condition()
        self.left, self.ended = {}, []  # the tests that are left of each stage that runs, and the stages that have ended since
        self.over = []  # stages that took more CPU seconds than allowed
        (ROOT / "build").mkdir(exist_ok=True)
        keep_folder_of_open_mpi()

    # ---- what a stage is made of --------------------------------------------------------------------------------------

    def groups(self, stage):
        """The packages that must be there to build the stage, and those without which some of its tests are skipped."""
        required = BUILDS[stage["build"]]["packages"]
        if not self.with_mpi(stage):
            required = [group for group in required if group not in ("mpi", "libraries")]
        optional = list(stage.get("packages", []))
        if self.arguments.level != "test" or self.arguments.names:
            optional += stage.get("packages_of_all", [])
        return required, optional

    def with_mpi(self, stage):
        """A few names without MPI in one stage do not wait for it."""
        names = self.arguments.names
        return not names or not all(name.split(".")[0] in stage.get("without_mpi", []) for name in names)

    def tests_of(self, stage, build):
        held = {"test": ["all", "soak"], "all": ["soak"], "soak": []}[self.arguments.level]
        if self.arguments.names or stage.get("level") == "named":
            held = []
        chosen = build.select(stage["tests"], [*stage.get("but", []), *held], self.arguments.names)
        if self.arguments.level == "soak" or self.arguments.names:
            return chosen
        core_of, in_turns = stage.get("core_of", []), stage.get("in_turns", {})
        chosen = [test for test in chosen if room_of(test) not in core_of or matches(test, ["core"])]
        shares = {test["name"]: TURNS if matches(test, ["turns"]) else max((of for pattern, of in in_turns.items() if matches(test, [pattern])), default=1)
                  for test in chosen}
        every = stage.get("turn", (0, 1))[1]
        return [test for test in chosen if has_turn(f"{stage['name']}: {test['name']}", shares[test["name"]], ROOT, every)]

    # ---- running it ---------------------------------------------------------------------------------------------------
    #
    # While the tests of a stage run, the next ones are made: compilers get what the tests leave of the processors.

    def make(self, stage, jobs):
        """Installs, configures and compiles what a stage needs."""
        made = Made()
        required, optional = self.groups(stage)
        if absent := self.packages.need(required):
            made.impossible = f"its packages can't be had: {', '.join(absent)}"
        else:
            self.packages.need(optional)
            made.build = self.configured(stage, made)
        if made.build:
            made.tests = self.tests_of(stage, made.build)
            made.targets = made.build.targets(made.tests)
            if not self.arguments.list:
                made.cpu = made.build.compile(made.targets, made.build.folder / f"build-{stage['name']}.log", jobs)
        return made

    def stage(self, stage, beside=1):
        """Runs a stage's tests, beside those of others if it is one of several, and returns its account: what say_time() takes."""
        name, begun = stage["name"], time.monotonic()
        if self.until and stage.get("optional") and time.monotonic() > self.until:
            return self.results.skip(f"{name}: all tests", f"there was no time; run {self.command_for(stage)}")
        made = self.ahead.result(stage)
        if made.impossible:
            return self.cannot(name, made.impossible)
        if self.arguments.list:
            self.listed += [(name, test) for test in made.tests]
            return None
        if not made.tests:
            return None if self.arguments.names else self.results.fail(f"{name}: finding tests", "it has none")
        built = time.monotonic() - begun
        self.has_left(stage, lambda _: len(made.tests))

        def seen(test, result):
            self.results.seen(name, test, result)
            self.has_left(stage, lambda left: left - 1)
        records, cpu = made.build.run(made.tests, self.limits_of(stage), name, self.parallel(stage, beside), seen)
        self.results.stage_ended(name, records)
        if name == "gpu":
            gpu_report.write(records, made.build.folder / "report.md")
        self.judge_missing(name, made.tests, records)
        return stage, made, time.monotonic() - begun, built, made.cpu + cpu

    def limits_of(self, stage):
        return {**stage, "slower": self.patience * stage.get("slower", 1)}

    def parallel(self, stage, beside=1):
        return max(1, round(self.jobs * stage.get("parallel", 1) / beside))

    def configured(self, stage, made):
        name = stage["build"]
        if name not in self.ready:
            # A build without MPI does not take the folder of the one with it.
            folder = name if self.with_mpi(stage) else name + "-alone"
            build, extra = Build(folder, BUILDS[name], self.jobs), []
            if BUILDS[name].get("torch_with_cuda"):
                folder = subprocess.run(["bash", "-c", "source tools/setup.sh && torch_with_cuda build/packages/torch"], cwd=ROOT, text=True, capture_output=True).stdout.strip()
                if not folder:
                    made.impossible = "Python's package torch can't be had here with CUDA: see build/packages/torch.log"
                    return None
                extra = [f"-Dtorch_root={folder}"]
            build.configure(self.with_mpi(stage), extra)
            build.variables = {**self.variables_of_tests(), **build.variables}
            self.ready[name] = build
        return self.ready[name]

    def variables_of_tests(self):
        """What is a part of the work without --soak is the whole with it, and where a test is named."""
        if self.arguments.level == "soak":
            return {"HVD_TEST_WHOLE": "1", "HVD_TEST_FUZZ_SECONDS": "600", "HVD_FAULT_RUNS": "10", "HVD_ELASTIC_RUNS": "20", "HVD_TEST_DATA_RUNS": "200",
                    "HVD_TEST_TIMEOUT": str(120 * self.patience)}
        # Five and seven threads take turns on a few processors.
        return {"HVD_TEST_WHOLE": "1"} if self.arguments.names else {"HVD_TEST_RANKS": "1,2,3,4"}

    def cannot(self, name, reason):
        """What CI could install must not be skipped there in silence."""
        if self.arguments.complete() and self.arguments.level != "test":
            self.results.fail(f"{name}: all tests", "not run", [reason])
        else:
            self.results.skip(f"{name}: all tests", reason)

    def judge_missing(self, name, tests, records):
        if len(records) < len(tests):
            self.results.fail(f"{name}: running its tests", f"{len(tests) - len(records)} of {len(tests)} did not end")

    def say_time(self, stage, made, wall, built, spent):
        name, column = stage["name"], LEVELS.index(self.arguments.level)
        judged = self.arguments.complete() and column < 2 and "cpu" in stage
        units = made.build.units(made.targets)
        allowed, most = (stage["cpu"][column], stage["units"][column]) if judged else (None, None)
        text = f"{name} {wall:.0f} s ({built:.0f} of it to build), {spent:.0f}{f' of {allowed}' if judged else ''} CPU s ({made.cpu:.0f} to build), {units}{f' of {most}' if judged else ''} units"
        print(text, flush=True)
        self.times.append(text)
        if judged and units > OVER_UNITS * most:
            self.results.fail(f"{name}: translation units", f"{units}, and tools/test/stages.py has {most}")
        if judged and spent > OVER_CPU * allowed:
            self.over.append((stage, made, spent, allowed))

    def judge_times(self):
        """Runs those stages a second time whose first one took too long. Nothing else runs any more."""
        for stage, made, spent, allowed in self.over:
            again = self.second_time(stage, made)
            if again > OVER_CPU * allowed:
                self.results.fail(f"{stage['name']}: CPU seconds", f"{spent:.0f} and {again:.0f}, and tools/test/stages.py has {allowed}")

    def second_time(self, stage, made):
        """Does the stage's work once more from nothing, and returns its CPU seconds."""
        build = made.build
        build.forget(made.targets)
        cpu = build.compile(made.targets, build.folder / f"build-{stage['name']}-again.log", self.jobs, {"CCACHE_RECACHE": "1"})
        return cpu + build.run(made.tests, stage, stage["name"] + "-again", self.parallel(stage), lambda *_: None)[1]

    def command_for(self, stage):
        level = f" --{self.arguments.level}" if self.arguments.level != "test" else ""
        return f"./run test{level} --stages {stage['name']}"

    def all_stages(self):
        self.waiting = self.arguments.chosen()
        if self.arguments.complete() and self.arguments.level == "all":
            self.times += [f"{stage['name']} has its turn with another commit: {self.command_for(stage)}" for stage in STAGES if not is_due(stage)]
        if not self.waiting:
            self.results.fail("finding tests", f"no stage has one of {', '.join(self.arguments.names)}")
            return
        self.packages.need(self.groups(self.waiting[0])[0])
        self.packages.fetch_meanwhile([[*self.groups(stage)[0], *self.groups(stage)[1]] for stage in self.waiting])
        self.ahead = Ahead(in_order_of_making(self.waiting), self.make, self.jobs)
        try:
            self.run_stages()
            self.judge_times()
        except Stopped as stopped:
            first = self.waiting[0]["name"] if self.waiting else "times"
            self.results.fail(f"{first}: the run", f"was stopped by {stopped}")
            for stage in self.waiting[1:]:
                self.not_reached(stage)

    def not_reached(self, stage):
        if stage.get("optional"):
            self.results.skip(f"{stage['name']}: all tests", f"not reached; run {self.command_for(stage)}")
        else:
            self.results.fail(f"{stage['name']}: all tests", "not reached")

    # ---- stages side by side ------------------------------------------------------------------------------------------
    #
    # Each stage runs in a thread. The next one begins when so few tests are left that a processor may have nothing to do.

    def run_stages(self):
        for group in at_once(self.waiting):
            self.wait_until(lambda: self.tests_left() <= TESTS_AT_THE_END * self.jobs)
            for stage in group:
                self.left[stage["name"]] = math.inf  # until it is made
                threading.Thread(target=self.run_one, args=(stage, len(group)), daemon=True).start()
        self.wait_until(lambda: not self.left)

    def tests_left(self):
        return sum(self.left.values())

    def wait_until(self, condition):
        """Waits for the stages that run, and tells of those that have ended."""
        until, is_met = time.monotonic() + STAGE_LIMIT, False
        while not is_met:
            with self.changed:
                self.changed.wait_for(lambda: self.ended or condition(), 1)
                ended, self.ended, is_met = self.ended, [], condition()
            for stage, account, failure in ended:
                if failure:
                    raise failure
                self.waiting.remove(stage)
                if account:
                    self.say_time(*account)
                until = time.monotonic() + STAGE_LIMIT
            if self.arguments.level != "soak" and time.monotonic() > until:
                return self.give_up(f"no stage has ended for {STAGE_LIMIT} s")

    def give_up(self, why):
        """Tells that the stages that run are broken, and goes on without them."""
        with self.changed:
            running, self.left = [stage for stage in self.waiting if stage["name"] in self.left], {}
        for stage in running:
            self.tell_broken(stage, Broken(why, None))
            self.waiting.remove(stage)

    def run_one(self, stage, beside):
        """Runs a stage, and leaves its account, or what is wrong beside its tests, to wait_until()."""
        print(f"==== {stage['name']}", flush=True)
        account = failure = None
        try:
            account = self.stage(stage, beside)
        except Broken as broken:
            self.tell_broken(stage, broken)
        except BaseException as other:  # noqa: BLE001  it is raised where the stages are awaited
            failure = other
        with self.changed:
            if stage["name"] in self.left:  # it has not been given up
                del self.left[stage["name"]]
                self.ended.append((stage, account, failure))
            self.changed.notify_all()

    def has_left(self, stage, change):
        """Notes a number of tests: `change` maps the old one to it."""
        with self.changed:
            if stage["name"] in self.left:
                self.left[stage["name"]] = change(self.left[stage["name"]])
            self.changed.notify_all()

    def tell_broken(self, stage, broken):
        text = pathlib.Path(broken.log).read_text(errors="replace").splitlines() if broken.log else []
        self.results.fail(f"{stage['name']}: {broken.step}", "failed", [line for line in text if "error:" in line][:20] + text)
        print(f"{broken.step} failed: {broken.log}", flush=True)


def end_children():
    """Asks what this run has started to end."""
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                os.kill(int(folder.name), signal.SIGTERM)
        except (OSError, ValueError, IndexError):
            pass


def main(words):
    arguments = Arguments(words)
    run = Run(arguments)
    for number in ENDING:
        signal.signal(number, stop)
    run.results.start_guard()
    try:
        run.all_stages()
    except Stopped as stopped:  # between two stages
        run.results.fail("the run", f"was stopped by {stopped}")
    except Exception:  # noqa: BLE001  the closing line is the last, whatever is wrong
        run.results.fail("the run", "a fault of its own", traceback.format_exc().splitlines())
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        run.ahead.stop()
        end_children()
        if arguments.list:
            print(*(f"{stage} {test['name']}" for stage, test in run.listed), sep="\n")
        print("==== time", *run.times, f"all {time.monotonic() - run.begun:.0f} s", sep="\n")
        status = run.results.summary()
        run.results.dismiss_guard()
    return status


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # a thread may still wait for a compiler that was stopped
