#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Kills rank 0 of a training that saves all the time, KILLS times, each later within a save: killed.py KILLS COMMAND...

After each there is the old checkpoint or the new one: whole, and never older than the one before."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

SAVE = 0.012  # seconds that a save may take on a slow disk; the kills are spread over it


def step_of(path):
    """The step that a whole checkpoint is of; every number in it is that step."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    step = int(header["__metadata__"]["progress.step"])
    count = (len(data) - 8 - length) // 8
    assert set(struct.unpack(f"<{count}d", data[8 + length:])) == {float(step)}, f"step {step} is mixed with another"
    for name in ("model.weight", "optimizer.velocity.0"):
        assert header[name]["shape"] == [1 << 15], name
    return step


def killed_after(seconds, command, path):
    with subprocess.Popen([*command, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        rank_0 = int(job.stdout.readline())
        time.sleep(seconds)
        os.kill(rank_0, signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    return step_of(path)


def main(kills, *command):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint"
        steps = [killed_after(SAVE * k / kills, command, path) for k in range(kills)]
        leftovers = {file.name for file in path.parent.iterdir()} - {"checkpoint", "checkpoint.tmp"}
        assert not leftovers, leftovers
        print(f"{kills} kills, after steps {min(steps)} to {max(steps)}")
        assert max(steps) > 1, "it was never killed later than in its second save"


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
