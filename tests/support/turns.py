# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""What is tested in turns: each commit has a share of it, and ./run test --soak, or a name, the whole."""

import functools
import os
import subprocess
import zlib


@functools.cache
def number_of_commit(root):
    """Without git it is the first."""
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    return int(head[:8] or "0", 16)


def has_turn(name, shares, root):
    """True if it is the name's turn, one commit in `shares`."""
    return bool(os.environ.get("HVD_TEST_WHOLE")) or (zlib.crc32(name.encode()) + number_of_commit(root)) % shares == 0
