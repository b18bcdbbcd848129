# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The report of `./run test --gpu`: promise by promise, held, failed, or not shown on this many GPUs."""

import datetime
import re
import shutil
import subprocess

# A line of tests/device/gpu.cpp.
LINE = re.compile(r"^(.+), (\d+) ranks on one GPU: (held|failed)$", re.M)
RANKS = range(1, 5)
# The parts of tests/device/gpu_suite.hpp, by the name in those lines.
PROMISES = {
    "healthy": "sums, means, maxima, movements, packed and cast plans, a captured plan, an arena, parts of a communicator, an engine; the caller's errors and "
               "captures stay as they are",
    "abort": "`abort()` ends the calls of a rank",
    "timeout": "a call without one rank ends at its timeout, and the communicator refuses further ones",
    "timeout of a stream": "a stream that waits for such a call goes on after its timeout",
    "timeout beside a free, the host waits": "the timeout holds while another thread of the process frees memory",
    "timeout beside a free, a stream waits": "also if only a stream waits",
    "a killed rank": "a rank that is killed is noticed, and the others go on without it",
    "staged": "`staged<threads>` against a serial reference",
}
# One GPU and one host show none of these.
NOT_SHOWN = [
    "several GPUs of a node: NVLink, peer access, multicast windows",
    "several hosts: InfiniBand, GPUDirect RDMA",
    "`elastic::run<hvd::nccl>` with GPUs that leave and come",
    "MIG, MPS and exclusive compute mode",
]


def said_by(command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, text=True, capture_output=True).stdout.strip()


def table(output):
    held = {(what, int(ranks)): result for what, ranks, result in LINE.findall(output)}
    rows = ["| promise | " + " | ".join(f"{n} ranks" for n in RANKS) + " |", "|---" * (1 + len(RANKS)) + "|"]
    for name, promise in PROMISES.items():
        rows.append(f"| {promise} | " + " | ".join(held.get((name, n), "–") for n in RANKS) + " |")
    unknown = sorted({what for what, _ in held} - PROMISES.keys())
    return rows + [f"\nWithout a promise here: {', '.join(unknown)}." for _ in unknown[:1]]


def report(records, card, commit, date):
    """Returns the text, from the records of the stage's tests."""
    lines = ["# The device path on a GPU", "", f"{date}, commit {commit or 'unknown'}, {card or 'no GPU'}. By `./run test --gpu`.", ""]
    for record in records:
        output = (record.get("stdout") or "") + (record.get("stderr") or "")
        if record["result"] == "SKIP":
            lines += [f"Not run: {(output.strip().splitlines() or ['it gave no reason'])[-1]}", ""]
            continue
        lines += [*table(output), ""]
        lines += [f"- {line}" for line in output.splitlines() if line.startswith(("wrong on rank", "rank "))]
        if record["result"] != "OK":
            lines += ["", f"The program ended with {record['result']}."]
    return "\n".join([*lines, "", "Not shown on one GPU:", "", *[f"- {what}" for what in NOT_SHOWN], ""])


def write(records, path):
    card = said_by(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).replace("\n", "; ")
    commit = said_by(["git", "-C", str(path.parents[2]), "rev-parse", "--short=12", "HEAD"])
    path.write_text(report(records, card, commit, datetime.date.today().isoformat()))
    print(f"the report is {path}")
