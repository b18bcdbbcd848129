# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The report of `./run test --gpu`: promise by promise, held, failed, or not shown on this many GPUs."""

import datetime
import re
import shutil
import subprocess

# The lines of tests/device/gpu*.cpp, sanitized.py and tests/interop/torch_on_a_gpu.cpp.
LINE = re.compile(r"^(.+), (\d+) ranks on (\d+) GPUs: (held|failed)$", re.M)
NOT_SHOWN_LINE = re.compile(r"^(.+): not shown: (.+)$", re.M)
TIME = re.compile(r"^time: (.+)$", re.M)
RANKS = range(1, 5)
KILLED = "`elastic::run<hvd::nccl>` goes on when a process is killed by SIGKILL {}, the last one or the coordinator; alone, from its files"
# By the name in those lines.
PROMISES = {
    "healthy": "sums, means, maxima, movements of every kind",
    "plans": "packed and cast plans",
    "graph": "a captured plan is replayed",
    "arena": "an arena, whose plans copy nothing",
    "split": "`split`, `subset` and `local`",
    "engine": "an engine with tensors of the host and of the device, and `join`",
    "default streams": "calls on the legacy default stream and on that of the thread are ordered with their work, and calls that name none come after both",
    "errors of the caller": "an error that the caller has not looked at stays, and gives nothing up",
    "capture of the caller": "a capture that the caller has begun goes on beside calls",
    "contexts": "a process has a context on the GPU of its communicator alone, after communicators, plans, an engine and a watcher",
    "shrink": "`shrink` without a rank that lives, and parts of what it makes",
    "graph after an error": "a given-up communicator with a captured plan ends, and the next one is captured",
    "abort": "`abort()` ends the calls of a rank",
    "timeout": "a call without one rank ends at its timeout, and the communicator refuses further ones",
    "timeout of a stream": "a stream that waits for such a call goes on after its timeout",
    "timeout beside a free, the host waits": "the timeout holds while another thread of the process frees memory",
    "timeout beside a free, a stream waits": "also if only a stream waits",
    "timeout beside ends": "also while a plan and another communicator of the process end",
    "first launches": "all kernels are loaded when a communicator is made: no first launch waits for a call whose peers are late",
    "memory after an error": "a rank that gives up ends arenas, plans and registrations beside the calls of others, and no GPU fails",
    "a killed rank": "a rank that is killed is noticed, and the others go on without it",
    "staged": "`staged<threads>` against a serial reference",
    "elastic, killed before a call": KILLED.format("before a call"),
    "elastic, killed in a call": "also in a call",
    "elastic, killed before a commit": "also between a call and its commit",
    "elastic, killed while NCCL joins the ranks": "also while NCCL joins the ranks",
    "nccl": "`nccl` against a serial reference, on forked processes",
    "staged over processes": "also `staged<…>`, with the bits of the host",
    "per_operation": "also `per_operation<nccl, staged, staged>`",
    "hierarchical": "also `hierarchical<nccl, …>`, on one node",
    "staged over TCP": "also `staged<tcp>`",
    "nccl over MPI": "`nccl` against a serial reference, on processes of MPI",
    "staged over MPI": "also `staged<mpi>`",
    "per_operation over MPI": "also `per_operation<nccl, staged<mpi>, staged<mpi>>`",
    "hierarchical over MPI": "also `hierarchical<nccl, mpi>`, on one node",
    "cuda_aware over MPI": "also `cuda_aware<mpi>`",
    "LibTorch over nccl": "a trainer of LibTorch over `nccl` has the parameters of LibTorch alone",
    "LibTorch over staged": "also over `staged<…>`",
    "LibTorch over per_operation": "also over `per_operation<nccl, staged, staged>`",
    "LibTorch over hierarchical": "also over `hierarchical<nccl, …>`",
    "compute-sanitizer memcheck": "compute-sanitizer's memcheck finds nothing in hvd's kernels",
    "compute-sanitizer racecheck": "nor does its racecheck",
    "times": "the times below were measured",
}
# A machine with several GPUs shows the first one.
SEVERAL_GPUS = "several GPUs of a node: NVLink, peer access, multicast windows"
NEVER_SHOWN = [
    "several hosts: InfiniBand, GPUDirect RDMA, nodes of `hierarchical`",
    "MIG, MPS and exclusive compute mode",
]


def said_by(command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, text=True, capture_output=True).stdout.strip()


def output_of(record):
    return (record.get("stdout") or "") + (record.get("stderr") or "")


def table(output):
    """The table, and what nothing was said of."""
    said = {(what, int(ranks)): result for what, ranks, _, result in LINE.findall(output)}
    rows = ["| promise | " + " | ".join(f"{n} ranks" for n in RANKS) + " |", "|---" * (1 + len(RANKS)) + "|"]
    silent = []
    for name, promise in PROMISES.items():
        results = [said.get((name, n), "–") for n in RANKS]
        if set(results) == {"–"}:
            silent.append(name)
        else:
            rows.append(f"| {promise} | " + " | ".join(results) + " |")
    unknown = sorted({what for what, _ in said} - PROMISES.keys())
    return rows + [f"\nWithout a promise here: {', '.join(unknown)}." for _ in unknown[:1]], silent


def not_shown(output, silent, is_complete):
    """What this machine has not shown, with the reason where one was given."""
    reasons = dict(NOT_SHOWN_LINE.findall(output))
    gpus = max((int(n) for _, _, n, _ in LINE.findall(output)), default=0)
    used = max((min(int(ranks), int(n)) for _, ranks, n, _ in LINE.findall(output)), default=0)

    def reason(name):
        of_group = next((why for part, why in reasons.items() if name == part or name.endswith(part) or name.startswith(part)), None)
        return of_group or ("its program said nothing of it" if is_complete else "its program did not run")
    lines = [f"- {PROMISES[name]}: {reason(name)}" for name in silent]
    if used < 2:
        lines.append(f"- {SEVERAL_GPUS}: this machine has {gpus}")
    return lines + [f"- {what}" for what in NEVER_SHOWN]


def report(records, card, commit, date):
    """Returns the text, from the records of the stage's tests."""
    lines = ["# The device path on a GPU", "", f"{date}, commit {commit or 'unknown'}, {card or 'no GPU'}. By `./run test --gpu`.", ""]
    outputs = [output_of(record) for record in records]
    ran = [(record, output) for record, output in zip(records, outputs) if record["result"] != "SKIP"]
    all_output = "\n".join(outputs)
    if not ran:
        reasons = sorted({(output.strip().splitlines() or ["it gave no reason"])[-1] for output in outputs if not NOT_SHOWN_LINE.search(output)})
        lines += [f"Not run: {reason}" for reason in reasons] + [""]
    rows, silent = table(all_output)
    if ran:
        lines += [*rows, ""]
    for record, output in ran:
        lines += [f"- {line}" for line in output.splitlines() if line.startswith(("wrong on rank", "rank "))]
        if record["result"] != "OK":
            lines += ["", f"{record.get('name', 'The program')} ended with {record['result']}.", ""]
    lines += [f"- {what}" for what in TIME.findall(all_output)]
    return "\n".join([*lines, "", "Not shown on this many GPUs:", "", *not_shown(all_output, silent, bool(ran)), ""])


def write(records, path):
    card = said_by(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).replace("\n", "; ")
    commit = said_by(["git", "-C", str(path.parents[2]), "rev-parse", "--short=12", "HEAD"])
    path.write_text(report(records, card, commit, datetime.date.today().isoformat()))
    print(f"the report is {path}")
