#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Fresh trees of distributions by mmdebstrap, and what is done in them. For the superuser, with Debian's mirror and Ubuntu's.

trees.py demo SOURCE_ROOT SUITE: the demo and a few tests, as a newcomer runs them"""

import os
import pathlib
import shutil
import subprocess
import sys

UBUNTU = ("jammy", "noble")  # 22.04 and 24.04
KEYS_OF_UBUNTU = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
TESTS = ["unit.version", "docs.links_lead_somewhere", "consumer.an_include_path_is_enough_for_threads"]


def run(*command, **keywords):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **keywords)


def require(source, *programs):
    """Installs the packages of these tests. The test is skipped where that can't be."""
    if os.geteuid() != 0:
        print("only the superuser makes trees of distributions")
        sys.exit(77)
    subprocess.run(["bash", "-c", "source tools/setup.sh && need packaging"], cwd=source)
    if missing := [program for program in programs if shutil.which(program) is None]:
        print(f"not installed, and not to be had: {', '.join(missing)}")
        sys.exit(77)


def own_suite():
    """The name of this machine's release, such as bookworm."""
    words = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return words.get("VERSION_CODENAME", "stable").strip('"')


def plain_environment():
    """The environment without what ./run test gives its tests: a new tree has the compiler of its distribution."""
    return {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "CXX_LD") and not name.startswith(("HVD_", "MESON", "NINJA", "OMPI_"))}


def in_new_tree(suite, *hooks, packages=("ca-certificates",)):
    """Makes a tree, runs the hooks, in which "$1" is its folder, and removes it."""
    components = "main,universe" if suite in UBUNTU else "main"
    run("mmdebstrap", "--variant=apt", f"--components={components}", f"--include={','.join(packages)}", *(f"--customize-hook={hook}" for hook in hooks), "--format=null", suite,
        "/dev/null", env=plain_environment())


def in_tree(command):
    return f"""chroot "$1" env HOME=/root sh -ec '{command}'"""


def demo(source, suite):
    """A copy of the commit, as an archive has it, and the commands that docs/install.md has for the suite."""
    files = f'mkdir "$1/root/hvd" && git -C {source} archive HEAD | tar -x -C "$1/root/hvd"'
    jobs = f"export HVD_JOBS={os.environ.get('HVD_JOBS') or 2}"
    # Its meson, g++ and clang are too old.
    before = "apt-get update -qq; apt-get install -y -qq g++-12 python3-pip >/dev/null; pip install -q meson; export CXX=g++-12; " if suite == "jammy" else ""
    tests = [] if suite == "jammy" else [in_tree(f"cd /root/hvd; {jobs}; ./run test {' '.join(TESTS)}")]
    in_new_tree(suite, files, in_tree(f"cd /root/hvd; {jobs}; {before}./run demo --epochs 2"), *tests)


if __name__ == "__main__":
    require(sys.argv[2], "mmdebstrap", "git")
    if sys.argv[3] in UBUNTU and not os.path.exists(KEYS_OF_UBUNTU):
        print("the keys of Ubuntu's archive are not installed")
        sys.exit(77)
    {"demo": demo}[sys.argv[1]](*sys.argv[2:])
