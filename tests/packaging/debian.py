#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""debian.py SOURCE_ROOT BUILD_ROOT VERSION: the Debian packages are built from the source archive, lintian finds nothing, and in a new tree, where
they are installed, debian/tests compiles and runs the README's programs."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from archive import made_archive, run, unpacked
from trees import in_new_tree, in_tree, own_suite, require


def build_dependencies(source):
    """Installs them, as apt-get build-dep does for a folder."""
    subprocess.run(["apt-get", "build-dep", "-y", "-qq", "--no-install-recommends", source], stdout=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=True)


def built_packages(archive, work, version):
    shutil.copy(archive, work / f"hvd_{version}.orig.tar.xz")
    tree = unpacked(archive, work, version)
    build_dependencies(tree)
    jobs = os.environ.get("HVD_JOBS") or len(os.sched_getaffinity(0))
    with open(work / "build.log", "w") as log:
        if subprocess.run(["dpkg-buildpackage", "-us", "-uc"], cwd=tree, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "DEB_BUILD_OPTIONS": f"parallel={jobs}"}).returncode:
            sys.exit((work / "build.log").read_text()[-6000:])


def main(source, build, version):
    require(source, "mmdebstrap", "dpkg-buildpackage", "dh", "lintian")
    archive, _ = made_archive(pathlib.Path(source), pathlib.Path(build), version)
    with tempfile.TemporaryDirectory(prefix="hvd-debian-") as folder:
        work = pathlib.Path(folder)
        built_packages(archive, work, version)
        (changes,) = work.glob("*.changes")
        run("lintian", "--allow-root", "--fail-on", "error,warning", changes)
        install_and_test(work, source)


def install_and_test(work, source):
    in_new_tree(own_suite(), f'mkdir "$1/root/debs" && cp {work}/*.deb {source}/debian/tests/programs-of-the-readme "$1/root/debs"',
                in_tree("apt-get update -qq; apt-get install -y -qq --no-install-recommends /root/debs/*.deb g++ mpi-default-bin python3 cmake pkg-config >/dev/null"),
                in_tree("/root/debs/programs-of-the-readme"))


if __name__ == "__main__":
    main(*sys.argv[1:])
