#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Writes docs/scaling.md and its pictures from runs of `simulated`: scaling.py PROGRAM DOCS"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

MODELS = {"inception_v3_aux": "Inception V3", "resnet101": "ResNet-101", "vgg16": "VGG-16"}
RANKS = [4, 16, 64, 128, 512]
# 512 GPUs take most of the time, so that they are run for the cable of the published figures alone.
RANKS_AT = {10: RANKS[:-1], 25: RANKS, 100: RANKS[:-1]}
# Horovod's images/s over those of one GPU, divided by the ranks: 16 with RDMA and NCCL, then the
# efficiencies that its pages state.
PUBLISHED = {"inception_v3_aux": {16: 2022.6 / 134.4 / 16, 128: 0.90, 512: 0.90},
             "resnet101": {16: 1746.2 / 119.4 / 16, 128: 0.90, 512: 0.90},
             "vgg16": {16: 1787.4 / 130.9 / 16, 128: 0.79, 512: 0.68}}
COLOURS = {"inception_v3_aux": "#1f77b4", "resnet101": "#2ca02c", "vgg16": "#d62728"}
KINDS = {"overlapped": [], "overlapped, bf16": ["--bf16"]}


def run(program, *arguments):
    command = [program, "--counted", "256", *[str(a) for a in arguments]]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ended.stdout)


def many(program, calls):
    """Runs calls (name -> arguments), as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {name: pool.submit(run, program, *a) for name, a in calls.items()}
        return {name: future.result() for name, future in futures.items()}


def calibrated_losses(program):
    """Returns by how much a step of the 16-GPU table is longer than the simulated one."""
    rows = many(program, {m: ["--model", m, "--ranks", 16] for m in MODELS})
    return {m: rows[m]["efficiency"] / PUBLISHED[m][16] - 1 for m in MODELS}


def picture(rows, gigabits):
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
    for ranks in RANKS:
        parts.append(f'<text x="{x(ranks) - 8}" y="300">{ranks}</text>')
    for i, (m, name) in enumerate(MODELS.items()):
        for value, dash in (("efficiency", ""), ("limit", ' stroke-dasharray="4 3"')):
            points = " ".join(f"{x(r)},{y(rows[m, r, gigabits, 'overlapped'][value]):.1f}"
                              for r in RANKS_AT[gigabits])
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[m]}"{dash}/>')
        if gigabits == 25:
            parts += [f'<circle cx="{x(r)}" cy="{y(e):.1f}" r="4" fill="{COLOURS[m]}"/>'
                      for r, e in PUBLISHED[m].items()]
        parts.append(f'<text x="490" y="{40 + 20 * i}" fill="{COLOURS[m]}">{name}</text>')
    parts += ['<text x="490" y="110">dashed: the cable</text>',
              '<text x="490" y="130">dots: Horovod</text>' if gigabits == 25 else "",
              f'<text x="200" y="316">GPUs, {gigabits} Gbit/s</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def percent(value):
    return f"{100 * value:.1f} %"


def table(head, lines):
    out = "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
    return out + "".join("| " + " | ".join(str(c) for c in line) + " |\n" for line in lines)


def main(program, docs):
    begun = time.time()
    losses = calibrated_losses(program)
    calls = {(m, r, g, kind): ["--model", m, "--ranks", r, "--gigabits", g, *a]
             for m in MODELS for g in RANKS_AT for r in RANKS_AT[g]
             for kind, a in KINDS.items()}
    calls |= {(m, r, 25, how): ["--model", m, "--ranks", r, "--how", how]
              for m in MODELS for r in (4, 16, 128) for how in ("plain", "fused")}
    calls |= {("flat", m, r): ["--model", m, "--ranks", r, "--flat"]
              for m in MODELS for r in (4, 16)}
    calls |= {("check", m, r): ["--model", m, "--ranks", r, "--loss", losses[m]]
              for m in MODELS for r in (16, 128, 512)}
    calls |= {("rank", m): ["--model", m, "--ranks", 512, "--slow-rank", 1.3] for m in MODELS}
    calls |= {("cable", m): ["--model", m, "--ranks", 512, "--slow-cable", 0.1] for m in MODELS}
    calls |= {("small", r): ["--ranks", r, "--bytes", 1024, "--counted", 1] for r in RANKS}
    rows = many(program, calls)
    with open(os.path.join(docs, "scaling.json"), "w", encoding="utf-8") as file:
        json.dump([{"case": [str(k) for k in name], **row} for name, row in rows.items()], file,
                  indent=1)
        file.write("\n")
    for gigabits in (10, 25, 100):
        with open(os.path.join(docs, "images", f"scaling_{gigabits}.svg"), "w",
                  encoding="utf-8") as file:
            file.write(picture(rows, gigabits))
    with open(__file__.replace(".py", ".md.in"), encoding="utf-8") as file:
        text = file.read()
    tables = {
        "EFFICIENCY": table(["model", "Gbit/s", "GPUs", *KINDS,
                             "the cable allows", "share reached"],
                            [[MODELS[m], g, r, *(percent(rows[m, r, g, k]["efficiency"])
                                                 for k in KINDS),
                              percent(rows[m, r, g, "overlapped"]["limit"]),
                              percent(rows[m, r, g, "overlapped"]["efficiency"] /
                                      rows[m, r, g, "overlapped"]["limit"])]
                             for m in MODELS for g in RANKS_AT for r in RANKS_AT[g]]),
        "PLAIN": table(["model", "GPUs", "a call for each tensor", "one call", "overlapped, flat"],
                       [[MODELS[m], r, percent(rows[m, r, 25, "plain"]["efficiency"]),
                         percent(rows[m, r, 25, "fused"]["efficiency"]),
                         percent(rows["flat", m, r]["efficiency"]) if r <= 16 else "not run"]
                        for m in MODELS for r in (4, 16, 128)]),
        "ERRORS": table(["model", "GPUs", "published", "simulated", "error, points", "use"],
                        [[MODELS[m], r, percent(PUBLISHED[m][r]),
                          percent(rows["check", m, r]["efficiency"]),
                          f"{100 * (rows['check', m, r]['efficiency'] - PUBLISHED[m][r]):+.1f}",
                          "calibration" if r == 16 else "validation"]
                         for m in MODELS for r in (16, 128, 512)]),
        "LOSSES": ", ".join(f"{MODELS[m]} {percent(losses[m])}" for m in MODELS),
        "MESSAGES": table(["call", "GPUs", "messages a rank", "peers a rank", "bytes a rank sends"],
                          [[MODELS[m], r, rows[m, r, 25, "overlapped"]["messages"],
                            rows[m, r, 25, "overlapped"]["peers"],
                            rows[m, r, 25, "overlapped"]["bytes"]]
                           for m in MODELS for r in (16, 512)]),
        "SMALL": table(["GPUs", "µs", "messages a rank"],
                       [[r, f"{1e6 * rows['small', r]['seconds']:.1f}",
                         rows["small", r]["messages"]] for r in RANKS]),
        "FAULTS": table(["model", "efficiency", "one rank 30 % slower", "one cable of a tenth"],
                        [[MODELS[m], percent(rows[m, 512, 25, "overlapped"]["efficiency"]),
                          percent(rows["rank", m]["efficiency"]),
                          percent(rows["cable", m]["efficiency"])] for m in MODELS]),
    }
    for name, value in tables.items():
        text = text.replace(f"@{name}@", value.rstrip("\n"))
    text = text.replace("@TIME@", f"{time.time() - begun:.0f}")
    with open(os.path.join(docs, "scaling.md"), "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
