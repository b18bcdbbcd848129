#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""archive.py HOW SOURCE_ROOT BUILD_ROOT VERSION [MPIEXEC...]: the source archive of a release, as meson dist makes it of the last commit.

HOW is programs (its checksum is right, it has all files of the commit, and the README's programs are built from it by CMake, which fetches
it) or tests (./run test works in it alone, without git)."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

TESTS = ["unit.version", "run", "docs.links_lead_somewhere"]
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(train LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(hvd URL "file://{archive}" URL_HASH SHA256={sum})
FetchContent_MakeAvailable(hvd)
foreach(name {names})
  add_executable(${{name}} ${{name}}.cpp)
  target_link_libraries(${{name}} PRIVATE hvd::hvd)
endforeach()
"""


def run(*command, **keywords):
    print("$", *command, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **keywords)


def output_of(*command, **keywords):
    return run(*command, stdout=subprocess.PIPE, text=True, **keywords).stdout


def made_archive(source, build, version):
    """Returns the archive and its checksum, which the file beside it has as well."""
    run("meson", "dist", "-C", build, "--no-tests", "--allow-dirty", "--formats", "xztar", stdout=subprocess.DEVNULL)
    archive = build / f"meson-dist/hvd-{version}.tar.xz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    said = archive.with_name(archive.name + ".sha256sum").read_text().split()
    assert said == [found, "*" + archive.name], (said, found)
    return archive, found


def require_all_files(archive, source, version):
    tracked = set(output_of("git", "-C", source, "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0")) - {""}
    with tarfile.open(archive) as files:
        inside = {member.name.removeprefix(f"hvd-{version}/") for member in files if not member.isdir()}
    assert inside == tracked, f"only in the archive: {sorted(inside - tracked)}; missing there: {sorted(tracked - inside)}"


def unpacked(archive, folder, version):
    run("tar", "-xf", archive, "-C", folder)
    return folder / f"hvd-{version}"


def programs(archive, checksum, work, version, mpiexec):
    """Builds the programs of the archive's README, which names their output."""
    readme = (unpacked(archive, work, version) / "README.md").read_text()
    texts = [text for text in re.findall(r"^```cpp\n(.*?)^```$", readme, re.M | re.S) if "int main" in text]
    names = ["on_threads", "on_mpi"][:2 if mpiexec else 1]
    for name, text in zip(names, texts):
        (work / f"{name}.cpp").write_text(text)
    (work / "CMakeLists.txt").write_text(PROJECT.format(archive=archive, sum=checksum, names=" ".join(names)))
    run("cmake", "-S", work, "-B", work / "build", f"-DHVD_WITH_MPI={'ON' if mpiexec else 'OFF'}", stdout=subprocess.DEVNULL)
    run("cmake", "--build", work / "build", stdout=subprocess.DEVNULL)
    said = output_of(work / "build/on_threads")
    assert said == "w = 3\n", said
    if mpiexec:
        said = sorted(output_of(*mpiexec, "-n", "2", work / "build/on_mpi").splitlines())
        assert said == ["rank 0 of 2: 0.5", "rank 1 of 2: 0.5"], said


def tests(archive, work, version):
    root = unpacked(archive, work, version)
    without_git = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "MESON", "HVD_"))}
    said = output_of("./run", "test", *TESTS, cwd=root, env={**without_git, "HVD_JOBS": "1"})
    print(said)
    passed, failed = map(int, re.search(r"^(\d+) passed, (\d+) failed", said, re.M).groups())
    assert passed >= 3 and failed == 0, said


def main(how, source, build, version, *mpiexec):
    source, build = pathlib.Path(source), pathlib.Path(build)
    if not (source / ".git").exists():
        print("this is no checkout of git, of which meson dist makes the archive")
        sys.exit(77)
    archive, checksum = made_archive(source, build, version)
    require_all_files(archive, source, version)
    with tempfile.TemporaryDirectory(prefix="hvd-archive-") as work:
        if how == "programs":
            programs(archive, checksum, pathlib.Path(work), version, mpiexec)
        else:
            tests(archive, pathlib.Path(work), version)


if __name__ == "__main__":
    main(*sys.argv[1:])
