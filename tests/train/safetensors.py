#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Checks that other programs read hvd's files: safetensors.py plain|package PROGRAM. 77: the package cannot be had."""

import json
import os
import struct
import subprocess
import sys
import tempfile

import safetensors_corpus

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from packages import environment_with  # noqa: E402


def plain(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    assert header["__metadata__"] == {"epoch": "3"}
    weight = header["weight"]
    first, last = weight["data_offsets"]
    assert (weight["dtype"], weight["shape"]) == ("F32", [2, 3])
    assert struct.unpack("<6f", data[first:last]) == (1.5, -2, 3, 4, 5, 6)
    first, last = header["steps"]["data_offsets"]
    assert struct.unpack("<q", data[first:last]) == (-7,)
    assert header["half"]["dtype"] == "BF16" and (8 + length) % 8 == 0


PACKAGE = """
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="numpy") as file:
    assert file.metadata() == {"epoch": "3"}
    assert sorted(file.keys()) == ["half", "steps", "weight"]
    assert file.get_tensor("weight").tolist() == [[1.5, -2, 3], [4, 5, 6]]
    assert file.get_tensor("steps").tolist() == [-7]
"""


# Prints the numbers of the files that the package opens.
JUDGE = """
import os, sys
from safetensors import safe_open
for name in os.listdir(sys.argv[1]):
    try:
        with safe_open(os.path.join(sys.argv[1], name), framework="numpy") as file:
            file.keys(), file.metadata()
        print(name)
    except Exception:
        pass
"""


def package(path, folder):
    python = environment_with(os.path.join(folder, "environment"), "safetensors==0.8.0", "numpy") / "bin/python"
    subprocess.run([python, "-c", PACKAGE, path], check=True)
    files = os.path.join(folder, "files")
    os.mkdir(files)
    corpus = list(safetensors_corpus.corpus().items())
    for number, (_, content) in enumerate(corpus):
        with open(os.path.join(files, str(number)), "wb") as file:
            file.write(content)
    judged = [set(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ, HVD_TEST_CORPUS=files)).stdout.split("\n"))
              for command in ([python, "-c", JUDGE, files], [sys.argv[2], "--test-case=files that others judge too", "--no-version", "--minimal"])]
    differing = [(name, content) for number, (name, content) in enumerate(corpus) if (str(number) in judged[0]) != (str(number) in judged[1])]
    for name, content in differing:
        print(f"judged otherwise than by the package: {name}: {content!r}")
    accepted = sum(str(number) in judged[0] for number in range(len(corpus)))
    print(f"{len(corpus)} files, {accepted} of them accepted")
    assert not differing and 100 < accepted < len(corpus) - 100


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "file.safetensors")
    subprocess.run([sys.argv[2], "--test-case=a file for Python to read"], check=True,
                   env=dict(os.environ, HVD_TEST_SAFETENSORS=path))
    plain(path) if sys.argv[1] == "plain" else package(path, folder)
