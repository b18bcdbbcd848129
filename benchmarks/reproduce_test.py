#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The commands of docs/guide/reproduce.md run, with the smallest sizes: reproduce_test.py SOURCE BUILD each|check [MPIEXEC...]

`each` runs the commands of one subject and those for a cluster, `check` the one that makes the table. What needs other packages, and `./run demo`, which has tests
of its own, is left out, and the test says so."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

LEFT_OUT = {"./run bench --peers": "it installs other MPIs", "./run bench --check --record": "it writes a page", "./run demo": "it has tests of its own"}
SMALLEST = ["--min", "64", "--max", "4KiB", "--factor", "64", "--seconds", "0.001", "--rounds", "2"]


def commands_of(page):
    lines = [line.partition("#")[0].strip() for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.M | re.S) for line in block.splitlines()]
    return [line for line in lines if line]


def run(command, folder):
    print("$", *command, flush=True)
    ended = subprocess.run([str(word) for word in command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(ended.stdout, flush=True)
    return ended


def bench(source, build, words):
    """Runs ./run bench with the programs of this build. The figures of --check fail with the smallest sizes, and nothing else may."""
    ended = run([source / "benchmarks/run.sh", build.name, "--quick", *words], build.parent)
    allowed = "bench: failed: check" if "--check" in words else ""
    said = (re.findall(r"^bench: failed: .*$", ended.stdout, re.M) or [""])[0]
    if said != allowed or (ended.returncode != 0 and not allowed):
        yield said or f"bench ended with {ended.returncode}"
    yield from (f"./run bench {word} runs nothing" for word in words if not word.startswith("-") and f"==== {word}" not in ended.stdout)


def faults_of_report(build):
    """The page has what an engineer looks for: sizes in KiB, ratios with their line, a sentence, and a dark mode."""
    page = (build / "report/index.html").read_text()
    pictures = sorted((build / "report").glob("*.svg"))
    said = re.findall(r"<p class='verdict'>([^<]+)</p>", page)
    if not any("times as fast" in sentence for sentence in said):
        yield "the report has no verdict"
    if "prefers-color-scheme: dark" not in page or not all(f"{picture.stem}_dark.svg" in page for picture in pictures if not picture.stem.endswith("_dark")):
        yield "the report has no dark mode"
    drawn = "".join(picture.read_text() for picture in pictures)
    yield from (f"the report does not show: {text}" for text in ("KiB -->", "times as fast as the best peer -->", "#d62728") if text not in drawn)


def on_a_cluster(build, launcher, words, folder):
    """Runs the program of a command with this machine's launcher on two ranks."""
    at = next(i for i, word in enumerate(words) if "/benchmarks/" in word)
    return run([*launcher, "-n", "2", build / words[at].removeprefix("build/bench/"), *words[at + 1:], *SMALLEST], folder).returncode == 0


def is_about(command, what):
    return ("--check" in command) == (what == "check")


def faults(source, build, what, launcher, folder):
    commands = [command for command in commands_of(source / "docs/guide/reproduce.md") if is_about(command, what)]
    benches = []
    for command in commands:
        words = command.split()
        if command in LEFT_OUT:
            print(f"left out: {command}: {LEFT_OUT[command]}")
        elif words[:2] == ["./run", "bench"]:
            benches.append(words[2:])
        elif words[0] in ("mpiexec", "srun"):
            if not on_a_cluster(build, launcher, words, folder):
                yield command
        elif words[0] == "python3":
            if run(["/usr/bin/python3", source / words[1], *words[2:]], folder).returncode != 0:
                yield command
        else:
            yield f"no way to run it here: {command}"
    # one run of all sweeps, since each draws the whole report
    if what == "each":
        benches = [sorted({word for words in benches for word in words})]
    for words in benches:
        yield from bench(source, build, words)
    if what == "each":
        yield from faults_of_report(build)


def main(source, build, what, *launcher):
    with tempfile.TemporaryDirectory() as folder:
        failed = list(faults(source, build, what, launcher, folder))
    print(*(f"failed: {one}" for one in failed), sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    if subprocess.run(["/usr/bin/python3", "-c", "import matplotlib"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("python3-matplotlib is not installed")
        sys.exit(77)
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(os.path.abspath(sys.argv[2])), *sys.argv[3:]))
