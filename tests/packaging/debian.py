#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""debian.py SOURCE_ROOT BUILD_ROOT VERSION: the Debian packages are built from the source archive in a new tree, which has what their build needs
and no more. lintian finds nothing. In another new tree, where they are installed, debian/tests compiles and runs the README's programs."""

import os
import pathlib
import sys
import tempfile

from archive import made_archive, run
from trees import in_new_tree, in_tree, own_suite, require


def built_packages(archive, work, version):
    jobs = os.environ.get("HVD_JOBS") or len(os.sched_getaffinity(0))
    in_new_tree(own_suite(), f'mkdir "$1/root/build" && cp {archive} "$1/root/build/hvd_{version}.orig.tar.xz"',
                in_tree(f"cd /root/build; tar -xf hvd_{version}.orig.tar.xz; apt-get update -qq; apt-get build-dep -y -qq --no-install-recommends ./hvd-{version} >/dev/null"),
                in_tree(f"cd /root/build/hvd-{version}; DEB_BUILD_OPTIONS=parallel={jobs} dpkg-buildpackage -us -uc >../log 2>&1 || {{ tail -n 100 ../log; exit 1; }}"),
                f'cp "$1"/root/build/*.* {work}')


def main(source, build, version):
    require(source, "mmdebstrap", "lintian")
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
