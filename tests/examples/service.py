#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that fashion_mnist learns the same, bit for bit, from its own augmented images and from those of workers: service.py FASHION_MNIST HVD_COMPUTE"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

SAME = ["--limit", "2000", "--global-batch", "100", "--seed", "7"]


def trained(program, folder, *options):
    file = pathlib.Path(folder) / "trained"
    subprocess.run([program, "--threads", "2", "--epochs", "2", *SAME, "--checkpoint", file, *options], check=True, timeout=120)
    return file.read_bytes()


def is_refused(program, *options):
    return subprocess.run([program, *options], capture_output=True).returncode != 0


def main(program, compute):
    if not pathlib.Path("/usr/share/datasets/fashion-mnist").is_dir():
        print("skipped: the package dataset-fashion-mnist is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        plain, alone = trained(program, folder), trained(program, folder, "--augment")
        config = pathlib.Path(folder) / "compute.json"
        ranks = [subprocess.Popen([compute, config, "--", program, "--serve", *SAME], env=os.environ | {"HVD_RANK": str(rank), "HVD_SIZE": "2"}) for rank in range(2)]
        try:
            served = trained(program, folder, "--data-service", config)
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
            for rank in ranks:
                rank.wait()
    assert plain != alone, "the images were not augmented"
    assert served == alone, "workers gave other images"
    assert is_refused(program, "--data-service", "compute.json"), "the workers need to know the size of batches"
    assert is_refused(program, "--serve", "--global-batch", "100"), "hvd-compute starts workers"
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
