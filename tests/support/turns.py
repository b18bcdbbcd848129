# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""What is tested in turns: each commit has a share of it, and ./run test --soak, or a name, the whole."""

import functools
import os
import subprocess
import zlib


def git(root, *words):
    try:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


@functools.cache
def number_of_commit(root):
    """A shallow clone has no numbers of commits, but their names. Without git it is the first."""
    if git(root, "rev-parse", "--is-shallow-repository") == "false":
        return int(git(root, "rev-list", "--count", "HEAD") or 0)
    return int(git(root, "rev-parse", "HEAD")[:8] or "0", 16)


def has_turn(name, shares, root, every=1):
    """True if it is the name's turn, one commit in `shares`, of which only each `every`-th asks."""
    return shares == 1 or bool(os.environ.get("HVD_TEST_WHOLE")) or (zlib.crc32(name.encode()) + number_of_commit(root) // every) % shares == 0
