#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that the example programs do what their pages say: programs.py WHAT PROGRAM... -- COMMAND...

COMMAND starts the (first) program on {n} ranks: "mpiexec -n {n} custom_engine", or "word2vec --threads {n}".
It ends with 77 if the distribution's data is missing."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def run(command):
    print("$", *command, flush=True)
    ended = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    print(ended.stdout, flush=True)
    return ended.stdout


def on(ranks, command, *options):
    return run([*(word.replace("{n}", str(ranks)) for word in command), *options])


def tensors(path):
    """Returns name → floats, read as the format is described, without hvd or its packages."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    result = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        assert tensor["dtype"] == "F32", name
        first, last = tensor["data_offsets"]
        count = 1
        for extent in tensor["shape"]:
            count *= extent
        assert last - first == 4 * count, name
        result[name] = struct.unpack(f"<{count}f", data[8 + length + first:8 + length + last])
    return result


def accuracy(text):
    return float(re.search(r"test accuracy ([\d.]+) %", text)[1])


def fashion_mnist(command, inference):
    """1 and 2 ranks train 2,000 images to the same network, which a program without hvd takes from its file."""
    if not IMAGES.is_dir():
        skip("the package dataset-fashion-mnist is not installed")
    with tempfile.TemporaryDirectory() as folder:
        scores, files = [], []
        for ranks in (1, 2):
            files.append(pathlib.Path(folder) / f"on{ranks}.ckpt")
            scores.append(accuracy(on(ranks, command, "--model", "cnn", "--limit", 2000, "--epochs", 1, "--global-batch", 80,
                                      "--lr", 0.01, "--checkpoint", files[-1])))
        assert scores[0] > 30, "it learns"  # 10 by guessing
        assert abs(scores[0] - scores[1]) <= 0.5
        one, two = map(tensors, files)
        assert one.keys() == two.keys() and "model.conv1.weight" in one and "optimizer.velocity.conv1.weight" in one
        for name, values in one.items():
            apart = max(abs(a - b) for a, b in zip(values, two[name], strict=True))
            # A velocity is a sum of gradients. Where they cancel, the rounding errors remain. A maximum that changes its pixel moves a bias more.
            most = (5e-3 if name.startswith("model.") else 2e-2) * max(map(abs, values))
            assert apart <= most, f"{name}: {apart} apart, more than {most}"
        assert accuracy(run([inference, files[1]])) == scores[1]
        torn = pathlib.Path(folder) / "torn"
        torn.write_bytes(files[1].read_bytes()[:5000])
        refused = subprocess.run([inference, torn], stderr=subprocess.PIPE, text=True, check=False)
        assert refused.returncode != 0 and "torn" in refused.stderr


def custom_engine(command):
    """Any number of ranks gives the result of one rank."""
    errors = [re.search(r"error ([\d.]+), after \d+ steps ([\d.]+);", on(ranks, command, 2)).groups() for ranks in (1, 2, 3)]
    assert errors[0] == errors[1] == errors[2]
    assert float(errors[0][1]) < 0.5 * float(errors[0][0])


def word2vec(command):
    """1 and 2 ranks learn the same, and neighbours are printed."""
    if not any(pathlib.Path("/usr/share/perl").glob("*/pod/perlfunc.pod")):
        skip("the package perl-doc is not installed")
    short = ["--limit", 40000, "--epochs", 2, "--dimensions", 16, "--least", 5, "--words", "file,nosuchword"]
    losses = []
    for ranks in (1, 2):
        text = on(ranks, command, *short)
        losses.append([float(loss) for loss in re.findall(r"epoch \d, loss ([\d.]+)", text)])
        assert re.search(r"^file:( [a-z]+){6}$", text, re.M) and "nosuchword" not in text
    assert losses[0][1] < losses[0][0]
    assert all(abs(a - b) < 0.005 for a, b in zip(*losses, strict=True))
    wide = on(2, command, *short[:-1], "file", "--rows", 50000)  # rows that no word has change nothing
    assert [float(loss) for loss in re.findall(r"epoch \d, loss ([\d.]+)", wide)] == losses[1]


def dlib_mnist(command):
    """dlib's own trainer learns on 1 and 2 ranks, about as well."""
    if not IMAGES.is_dir():
        skip("the package dataset-fashion-mnist is not installed")
    scores = [accuracy(on(ranks, command, "--limit", 1000, "--epochs", 1)) for ranks in (1, 2)]
    assert min(scores) > 25, "it learns"  # 10 by guessing
    assert abs(scores[0] - scores[1]) < 10


def torch_mnist(command):
    """LibTorch's own data parallelism, if present, gives the same network. GPUs train, or their absence is told."""
    started = subprocess.run([command[-1], "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if "shared libraries" in started.stderr:  # Python's package has LibTorch without the libraries that it needs
        skip("the program is linked, but " + started.stderr.strip())
    if not IMAGES.is_dir():
        skip("the package dataset-fashion-mnist is not installed")
    short = ["--limit", 640, "--epochs", 1, "--batch", 32]
    text = on(2, command, *short)
    assert re.search(r"^2 ranks, hvd: test accuracy [\d.]+ %, \d+ images/s", text, re.M) and accuracy(text) > 12
    if "c10d" in text:
        assert float(re.search(r"at most ([\d.e+-]+) apart", text)[1]) < 1e-4

    absent = subprocess.run([command[-1], "--device", "cuda", *map(str, short)], stderr=subprocess.PIPE, text=True, check=False)
    if absent.returncode != 0:
        print(absent.stderr)
        assert absent.returncode == 2
        assert re.match(r"torch_mnist: --device cuda: (this LibTorch was built without CUDA|this build has no|LibTorch finds no)", absent.stderr)
        return
    for backend, ranks in (("nccl", 1), ("staged", 2)):
        text = on(ranks, command, *short, "--device", "cuda", "--backend", backend)
        assert f"{ranks} ranks, hvd's {backend}: " in text and accuracy(text) > 12


if __name__ == "__main__":
    what, *programs = sys.argv[1:sys.argv.index("--")]
    globals()[what](sys.argv[sys.argv.index("--") + 1:], *programs)
