#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that examples/augment learns the same, bit for bit, with and without workers: augment.py TRAIN WORKER HVD_COMPUTE"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile


def weights_of(command):
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    print(text, flush=True)
    accuracy = float(re.findall(r"accuracy ([\d.]+)", text)[-1])
    assert accuracy > 0.4, "four kinds: a guess has 0.25"
    return re.search(r"weights (\w+)", text).group(1)


def main(train, worker, compute):
    alone = weights_of([train])
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "compute.json"
        ranks = [subprocess.Popen([compute, config, "--", worker], env=os.environ | {"HVD_RANK": str(rank), "HVD_SIZE": "2"}) for rank in range(2)]
        try:
            served = weights_of([train, config])
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
            for rank in ranks:
                rank.wait()
    return int(alone != served)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
