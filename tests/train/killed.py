#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Kills rank 0 of a training that saves all the time, KILLS times, each later within a save: killed.py KILLS COMMAND...

After each there is the old checkpoint or the new one: whole, and never older than the one that was said to be written.
The time of a save is measured anew each time: from the end of the first to the end of the second."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time


def step_of(path):
    """Returns the step of a whole checkpoint; every number in it is that step."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    step = int(header["__metadata__"]["progress.step"])
    count = (len(data) - 8 - length) // 8
    assert set(struct.unpack(f"<{count}d", data[8 + length:])) == {float(step)}, f"step {step} is mixed with another"
    for name in ("model.weight", "optimizer.velocity.weight"):
        assert header[name]["shape"] == [1 << 15], name
    return step


def killed_within(share, command, path):
    """Kills it in its third save after this part of it. Returns the step of the checkpoint, and true if it was in a save."""
    for unfinished in path.parent.glob("checkpoint.tmp-*"):
        unfinished.unlink()
    with subprocess.Popen([*command, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        rank_0 = int(job.stdout.readline())
        first = time.monotonic()
        job.stdout.readline()
        time.sleep(share * (time.monotonic() - first))
        os.kill(rank_0, signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    return step_of(path), any(path.parent.glob("checkpoint.tmp-*"))


def main(kills, *command):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint"
        ends = [killed_within(k / kills, command, path) for k in range(kills)]
        steps, in_a_save = zip(*ends)
        leftovers = [file.name for file in path.parent.iterdir() if file.name != "checkpoint"]
        assert len(leftovers) <= 1, leftovers
        print(f"{kills} kills, {sum(in_a_save)} of them in a save, after steps {min(steps)} to {max(steps)}")
        assert min(steps) > 1, "a checkpoint that was written is gone"
        assert any(in_a_save) or kills < 10, "it was never killed in a save"


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
