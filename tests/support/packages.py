# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Packages of Python that a test needs and the machine lacks."""

import pathlib
import subprocess
import sys


def environment_with(folder, *packages):
    """Makes a virtual environment with the packages, and without what they need themselves, and returns its folder. The test is skipped
    if they can't be had."""
    folder = pathlib.Path(folder)
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--disable-pip-version-check", *packages],
                       check=True, timeout=240)
    except (subprocess.SubprocessError, OSError) as reason:
        print(f"{', '.join(packages)} cannot be had: {reason}")
        sys.exit(77)
    return folder
