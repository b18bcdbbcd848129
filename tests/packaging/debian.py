#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""debian.py SOURCE_ROOT BUILD_ROOT VERSION: the Debian packages are built from the source archive by the commands of docs/install.md in a new tree,
which gets what the build asks for and no more. lintian finds nothing. In another new tree, where they are installed, debian/tests compiles and
runs the README's programs."""

import os
import pathlib
import re
import sys
import tempfile

from archive import made_archive, run
from trees import in_new_tree, in_tree, own_suite, require

FRESH_LISTS = "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq"


def commands_of_the_page(source):
    """Those that build, and the one that installs, for a superuser who is asked nothing."""
    block = re.search(r"^```text\n(tar -xf hvd-.*?)^```$", pathlib.Path(source, "docs/install.md").read_text(), re.M | re.S)[1]
    *build, install = block.replace("sudo apt-get", "apt-get -y -qq").splitlines()
    assert " install " in install, block
    return build, install


def built_packages(archive, work, version, commands):
    jobs = os.environ.get("HVD_JOBS") or len(os.sched_getaffinity(0))
    files = f'mkdir "$1/root/build" && cp {archive} "$1/root/build" && ln -s {archive.name} "$1/root/build/hvd_{version}.orig.tar.xz"'
    build = " && ".join([f"export DEB_BUILD_OPTIONS=parallel={jobs}", *commands, "dpkg-buildpackage -S -us -uc"])
    in_new_tree(own_suite(), files, in_tree(f"{FRESH_LISTS}; cd /root/build; ({build}) >log 2>&1 || {{ tail -n 100 log; exit 1; }}"), f'cp "$1"/root/build/*_* {work}',
                packages=("ca-certificates", "xz-utils"))


def main(source, build, version):
    require(source, "mmdebstrap", "lintian")
    archive, _ = made_archive(pathlib.Path(source), pathlib.Path(build), version)
    commands, install = commands_of_the_page(source)
    with tempfile.TemporaryDirectory(prefix="hvd-debian-") as folder:
        work = pathlib.Path(folder)
        built_packages(archive, work, version, commands)
        changes = sorted(work.glob("*.changes"))
        assert len(changes) == 2, changes  # of the binary packages and of the source package
        run("lintian", "--allow-root", "--fail-on", "error,warning", *changes)
        install_and_test(work, source, install)


def install_and_test(work, source, install):
    in_new_tree(own_suite(), f'mkdir -p "$1/root/debs/hvd" && cp {work}/*.deb {source}/debian/tests/programs-of-the-readme "$1/root/debs"',
                in_tree(f"{FRESH_LISTS}; cd /root/debs/hvd; {install} >/dev/null"),
                in_tree("apt-get install -y -qq --no-install-recommends g++ make mpi-default-bin python3 cmake pkg-config >/dev/null"),
                in_tree("/root/debs/programs-of-the-readme"))


if __name__ == "__main__":
    main(*sys.argv[1:])
