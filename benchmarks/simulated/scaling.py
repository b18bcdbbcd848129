#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes docs/scaling.md and its pictures from runs of `simulated` and of `join`: scaling.py BUILD DOCS [--quick]

BUILD is a build folder with both programs. --quick writes a page of a few small runs, for a test."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {"inception_v3_aux": "Inception V3", "resnet101": "ResNet-101", "vgg16": "VGG-16"}
# Horovod's images/s over those of one GPU, divided by the ranks: 16 with RDMA and NCCL, then the
# efficiencies that its pages state.
PUBLISHED = {"inception_v3_aux": {16: 2022.6 / 134.4 / 16, 128: 0.90, 512: 0.90},
             "resnet101": {16: 1746.2 / 119.4 / 16, 128: 0.90, 512: 0.90},
             "vgg16": {16: 1787.4 / 130.9 / 16, 128: 0.79, 512: 0.68}}
GOALS = {"inception_v3_aux": 0.93, "resnet101": 0.93, "vgg16": 0.85}
COLOURS = {"inception_v3_aux": "#1f77b4", "resnet101": "#2ca02c", "vgg16": "#d62728"}
KINDS = {"overlapped": [], "overlapped, bf16": ["--bf16"]}
# Chosen so that a ring fits the published figures: seconds from a GPU to the next, Gbit/s of a cable.
CABLES_OF_RING = ["--latency", 40e-6, "--lane-latency", 40e-6, "--gigabits", 22.5]
RING = ["--how", "ring", "--bucket", "64MiB", *CABLES_OF_RING]
FULL = {"models": list(MODELS), "ranks": [4, 16, 64, 128, 512], "rates": [10, 25, 100], "counted": 256,
        "join": [16, 64, 128, 256, 512], "lose": [16, 64, 128]}
QUICK = {"models": ["inception_v3_aux"], "ranks": [4, 16], "rates": [25], "counted": 4096, "join": [4], "lose": [8]}


class Runs:
    """Runs the programs of a build folder."""

    def __init__(self, build, counted):
        self.folder = pathlib.Path(build) / "benchmarks"
        self.counted = counted

    def one(self, *arguments):
        counted = [] if "--counted" in arguments else ["--counted", self.counted]
        command = [self.folder / "simulated" / "simulated", "--steps", 1, *counted, *arguments]
        ended = subprocess.run([str(a) for a in command], check=True, capture_output=True, text=True)
        return json.loads(ended.stdout)

    def many(self, calls):
        """Runs calls (name -> arguments), as many at a time as there are cores, the longest ones first."""
        def ranks(call):
            return call[call.index("--ranks") + 1]

        order = sorted(calls, key=lambda name: -ranks(calls[name]))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            futures = {name: pool.submit(self.one, *calls[name]) for name in order}
            return {name: futures[name].result() for name in calls}

    def join(self, ranks, *options):
        command = [sys.executable, HERE.parent / "join.py", str(ranks), "4", self.folder / "join", *options]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        return json.loads(ended.stdout) if ended.returncode == 0 else None


def losses_of_rings(runs, models):
    """Returns by how much a step is longer if a ring explains the rest of the 16-GPU table: the step grows with it."""
    losses = {m: 0.1 for m in models}
    for _ in range(4):
        rows = runs.many({m: ["--model", m, "--ranks", 16, "--loss", losses[m], *RING] for m in models})
        losses = {m: max(0, (1 + losses[m]) * rows[m]["efficiency"] / PUBLISHED[m][16] - 1) for m in models}
    return losses


def ranks_at(scope, gigabits):
    """512 GPUs take most of the time, so that they are run for the cable of the published figures alone."""
    return [r for r in scope["ranks"] if r <= 128 or gigabits == 25]


def calls_of(scope, losses, rings):
    """Returns the arguments of all runs, by name."""
    most = scope["ranks"][-1]
    calls = {}
    for m in scope["models"]:
        def add(name, ranks, *arguments, model=m):
            calls[name] = ["--model", model, "--ranks", ranks, *arguments]

        for g in scope["rates"]:
            for r in ranks_at(scope, g):
                for kind, a in KINDS.items():
                    add((m, r, g, kind), r, "--gigabits", g, *a)
        for r in (r for r in scope["ranks"] if r in (4, 16, 128)):
            add(("plain", m, r), r, "--how", "plain")
            add(("fused", m, r), r, "--how", "fused")
            add(("flat", m, r), r, "--flat")
        for r in (r for r in scope["ranks"] if r in PUBLISHED[m]):
            add(("check", m, r), r, "--loss", losses[m])
            add(("ring", m, r), r, "--loss", rings[m], *RING)
            add(("cables of the ring", m, r), r, "--loss", rings[m], *CABLES_OF_RING)
        add(("rank", m), most, "--slow-rank", 1.3)
        add(("half cable", m), most, "--slow-cable", 0.5)
        add(("cable", m), most, "--slow-cable", 0.1)
    for r in scope["ranks"]:
        small = ["--ranks", r, "--bytes", 1024, "--counted", 1]
        calls["small", r] = small
        calls["small flat", r] = [*small, "--flat"]
        calls["small busy", r] = [*small, "--overhead", 0.5e-6]
    return calls


def picture(scope, rows, gigabits):
    """Returns an SVG of efficiency over ranks."""
    def x(ranks):
        return 60 + 420 * (ranks.bit_length() - 3) / 7

    def y(efficiency):
        return 20 + 260 * (1 - efficiency)

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="640" height="320" '
             'font-family="sans-serif" font-size="12">', '<rect width="640" height="320" fill="white"/>']
    for tenth in range(0, 11, 2):
        parts.append(f'<path d="M60 {y(tenth / 10)}H480" stroke="#ddd"/>'
                     f'<text x="25" y="{y(tenth / 10) + 4}">{tenth * 10} %</text>')
    for ranks in scope["ranks"]:
        parts.append(f'<text x="{x(ranks) - 8}" y="300">{ranks}</text>')
    for i, m in enumerate(scope["models"]):
        for value, dash in (("efficiency", ""), ("limit", ' stroke-dasharray="4 3"')):
            points = " ".join(f"{x(r)},{y(rows[m, r, gigabits, 'overlapped'][value]):.1f}"
                              for r in ranks_at(scope, gigabits))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[m]}"{dash}/>')
        if gigabits == 25:
            parts += [f'<circle cx="{x(r)}" cy="{y(e):.1f}" r="4" fill="{COLOURS[m]}"/>'
                      for r, e in PUBLISHED[m].items() if r in scope["ranks"]]
        parts.append(f'<text x="490" y="{40 + 20 * i}" fill="{COLOURS[m]}">{MODELS[m]}</text>')
    parts += ['<text x="490" y="110">dashed: the cable</text>',
              '<text x="490" y="130">dots: Horovod</text>' if gigabits == 25 else "",
              f'<text x="200" y="316">GPUs, {gigabits} Gbit/s</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def percent(value):
    return f"{100 * value:.1f} %"


def points(value):
    return f"{100 * value:+.1f}"


def table(head, lines):
    out = "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
    return out + "".join("| " + " | ".join(str(c) for c in line) + " |\n" for line in lines)


def efficiency_tables(scope, rows):
    models, most = scope["models"], scope["ranks"][-1]

    def best(m, r, g):
        return rows[m, r, g, "overlapped"]

    return {
        "GOALS": table(["model", "goal", "hvd", "the cable allows", "share reached", "Horovod, published"],
                       [[MODELS[m], percent(GOALS[m]), percent(best(m, most, 25)["efficiency"]),
                         percent(best(m, most, 25)["limit"]),
                         percent(best(m, most, 25)["efficiency"] / best(m, most, 25)["limit"]),
                         percent(PUBLISHED[m][most])] for m in models]),
        "EFFICIENCY": table(["model", "Gbit/s", "GPUs", *KINDS, "the cable allows", "share reached"],
                            [[MODELS[m], g, r, *(percent(rows[m, r, g, k]["efficiency"]) for k in KINDS),
                              percent(best(m, r, g)["limit"]),
                              percent(best(m, r, g)["efficiency"] / best(m, r, g)["limit"])]
                             for m in models for g in scope["rates"] for r in ranks_at(scope, g)]),
        "PLAIN": table(["model", "GPUs", "a call for each tensor", "one call", "overlapped, flat", "overlapped"],
                       [[MODELS[m], r, *(percent(rows[how, m, r]["efficiency"])
                                         for how in ("plain", "fused", "flat")),
                         percent(best(m, r, 25)["efficiency"])]
                        for m in models for r in scope["ranks"] if ("plain", m, r) in rows]),
    }


def published_tables(scope, rows, losses, rings):
    return {
        "LOSSES": ", ".join(f"{MODELS[m]} {percent(losses[m])}" for m in scope["models"]),
        "RING_LOSSES": ", ".join(f"{MODELS[m]} {percent(rings[m])}" for m in scope["models"]),
        "ERRORS": table(["model", "GPUs", "published", "hvd", "error, points", "a ring", "error, points", "hvd on the ring's cables", "use"],
                        [[MODELS[m], r, percent(e), percent(rows["check", m, r]["efficiency"]),
                          points(rows["check", m, r]["efficiency"] - e), percent(rows["ring", m, r]["efficiency"]),
                          points(rows["ring", m, r]["efficiency"] - e),
                          percent(rows["cables of the ring", m, r]["efficiency"]),
                          "calibration" if r == 16 else "validation"]
                         for m in scope["models"] for r, e in PUBLISHED[m].items() if r in scope["ranks"]]),
    }


def other_tables(scope, rows, joined, lost):
    most = scope["ranks"][-1]
    return {
        "MESSAGES": table(["model", "GPUs", "messages a rank", "peers a rank", "MiB a rank sends"],
                          [[MODELS[m], r, row["messages"], row["peers"], f"{row['bytes'] / 2**20:.0f}"]
                           for m in scope["models"] for r in scope["ranks"] if r in (16, most)
                           for row in [rows[m, r, 25, "overlapped"]]]),
        "SMALL": table(["GPUs", "µs", "µs, 0.5 µs of the processor a message", "messages a rank", "µs, flat", "messages a rank"],
                       [[r, f"{1e6 * rows['small', r]['seconds']:.1f}", f"{1e6 * rows['small busy', r]['seconds']:.1f}",
                         rows["small", r]["messages"], f"{1e6 * rows['small flat', r]['seconds']:.1f}",
                         rows["small flat", r]["messages"]] for r in scope["ranks"]]),
        "JOIN": table(["ranks", "seconds until the last one has joined", "sockets a rank", "MiB a rank"],
                      [[r, f"{j['joined']:.2f}", int(j["sockets"]), f"{j['memory'] / 2**20:.1f}"] if j else
                       [r, "did not join", "", ""] for r, j in joined.items()]),
        "LOSE": table(["ranks", "die at once", "seconds until the next commit of the others"],
                      [[r, 4, f"{row['recovered']:.2f}" if row else "the job did not go on"] for r, row in lost.items()]),
        "FAULTS": table(["model", "no fault", "one rank 30 % slower", "one cable of a half", "one cable of a tenth"],
                        [[MODELS[m], *(percent(row["efficiency"]) for row in
                                       (rows[m, most, 25, "overlapped"], rows["rank", m], rows["half cable", m],
                                        rows["cable", m]))] for m in scope["models"]]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("build")
    parser.add_argument("docs", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    scope = QUICK if given.quick else FULL
    begun = time.time()
    runs = Runs(given.build, scope["counted"])
    sixteen = runs.many({m: ["--model", m, "--ranks", 16] for m in scope["models"]})
    losses = {m: sixteen[m]["efficiency"] / PUBLISHED[m][16] - 1 for m in scope["models"]}
    rings = losses_of_rings(runs, scope["models"])
    rows = runs.many(calls_of(scope, losses, rings))
    faster = [name for name, row in rows.items() if not name[0].startswith("small") and row["efficiency"] > row["limit"] + 1e-9]
    if faster:
        sys.exit(f"scaling: faster than the cable: {faster}")
    joined = {r: runs.join(r) for r in scope["join"]}
    lost = {r: runs.join(r, "--lose", "4") for r in scope["lose"]}
    (given.docs / "images").mkdir(parents=True, exist_ok=True)
    kept = [{"case": [str(k) for k in name], **row} for name, row in rows.items()]
    (given.docs / "scaling.json").write_text(json.dumps({"runs": kept, "rings": rings, "joined": joined, "lost": lost}, indent=1) + "\n",
                                             encoding="utf-8")
    for gigabits in scope["rates"]:
        (given.docs / "images" / f"scaling_{gigabits}.svg").write_text(picture(scope, rows, gigabits), encoding="utf-8")
    tables = {**efficiency_tables(scope, rows), **published_tables(scope, rows, losses, rings),
              **other_tables(scope, rows, joined, lost)}
    text = (HERE / "scaling.md.in").read_text(encoding="utf-8")
    for name, value in {**tables, "MOST": str(scope["ranks"][-1])}.items():
        text = text.replace(f"@{name}@", value.rstrip("\n"))
    text = text.replace("@TIME@", f"{time.time() - begun:.0f}")
    if missing := re.findall(r"@[A-Z_]+@", text):
        sys.exit(f"scaling: the page has no {missing}")
    (given.docs / "scaling.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
