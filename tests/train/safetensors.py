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


def package(path, folder):
    python = environment_with(os.path.join(folder, "environment"), "safetensors", "numpy") / "bin/python"
    subprocess.run([python, "-c", PACKAGE, path], check=True)


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "file.safetensors")
    subprocess.run([sys.argv[2], "--test-case=a file for Python to read"], check=True,
                   env=dict(os.environ, HVD_TEST_SAFETENSORS=path))
    plain(path) if sys.argv[1] == "plain" else package(path, folder)
