#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""image.py HOW SOURCE_ROOT: images are built by buildah from a tree of mmdebstrap, without a registry, and train on two ranks.

HOW is dockerfile (also with Docker's limits, and with an MPI outside) or definition (that of Apptainer, which spython converts).
For the superuser. Set HVD_TEST_KEEP_IMAGE to keep the image localhost/hvd-test."""

import contextlib
import ctypes
import json
import os
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from recipes import python_with
from trees import own_suite, require, run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from control_group import control_group  # noqa: E402

BASE, IMAGE = "localhost/hvd-test-base", "localhost/hvd-test"
TRAIN = ["fashion_mnist", "--epochs", "1", "--limit", "12000"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
# The mounts of a container: proc, devices, a /dev/shm of Docker's size, and /tmp shared as Apptainer does. They end with the namespace.
MOUNTS = """set -e
mount -t proc proc "$TREE/proc"
mount --rbind /sys "$TREE/sys"
mount --rbind /dev "$TREE/dev"
mount -t tmpfs -o size=64m shm "$TREE/dev/shm"
mount --bind /tmp "$TREE/tmp"
"""
# Apptainer's images are read-only, but for /tmp.
READ_ONLY = """mount --rbind "$TREE" "$TREE"
mount -o remount,bind,ro "$TREE"
if touch "$TREE/usr/file" 2>/dev/null; then exit 1; fi
"""


def output_of(*command, **keywords):
    return run(*command, stdout=subprocess.PIPE, text=True, **keywords).stdout


def built(dockerfile, folder, tag, **arguments):
    more = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    run("buildah", "bud", "-q", "--isolation", "chroot", *more, "-t", tag, "-f", dockerfile, folder, stdout=subprocess.DEVNULL)


def image_by(dockerfile, source, work, tag):
    """Builds an image whose base is a new tree of this machine's release."""
    run("mmdebstrap", "--variant=apt", "--include=ca-certificates", own_suite(), work / "base.tar")
    base = output_of("buildah", "from", "scratch").strip()
    run("buildah", "add", "-q", base, work / "base.tar", "/", stdout=subprocess.DEVNULL)
    run("buildah", "commit", "-q", "--rm", base, BASE, stdout=subprocess.DEVNULL)
    (work / "base.tar").unlink()
    built(dockerfile, source, tag, BASE=BASE, JOBS=os.environ.get("HVD_JOBS", ""))


@contextlib.contextmanager
def container_of(tag):
    """A container of an image, and the folder of its files."""
    name = output_of("buildah", "from", tag).strip()
    try:
        yield name, output_of("buildah", "mount", name).strip()
    finally:
        subprocess.run(["buildah", "rm", name], stdout=subprocess.DEVNULL)


def without_ptrace():
    """Refuses what Docker's filter refuses: reading and tracing other processes."""
    numbers, allow, refuse = (101, 310, 311), 0x7FFF0000, 0x00050001  # ptrace, process_vm_readv and _writev of x86-64; EPERM
    code = struct.pack("HBBI", 0x20, 0, 0, 0)
    for left, number in zip(range(len(numbers), 0, -1), numbers):
        code += struct.pack("HBBI", 0x15, left, 0, number)
    code += struct.pack("HBBI", 0x06, 0, 0, allow) + struct.pack("HBBI", 0x06, 0, 0, refuse)
    program = ctypes.create_string_buffer(code)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, ctypes.byref(Filter(len(code) // 8, ctypes.addressof(program))), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")


def inside(tree, script, group=None, is_traceable=True, **more):
    """Runs a script of the shell in a mount namespace with the container's mounts."""
    def prepare():
        if group:
            (group / "cgroup.procs").write_text("0")
        if not is_traceable:
            without_ptrace()

    return subprocess.run(["unshare", "-m", "sh", "-c", MOUNTS + script], env={**os.environ, **AS_ROOT, "TREE": tree}, preexec_fn=prepare,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, **more)


def require_training(ended, what):
    print(f"---- {what}\n{ended.stdout}", flush=True)
    assert ended.returncode == 0 and "2 ranks: test accuracy" in ended.stdout, what


def judge_limits(tree):
    """Docker's defaults, and less memory than a rank wants."""
    two_ranks = f'chroot "$TREE" mpiexec -n 2 {" ".join(TRAIN)}'
    if platform.machine() == "x86_64":
        require_training(inside(tree, two_ranks, is_traceable=False), "64 MB in /dev/shm, no reading of other processes")
    said = inside(tree, 'chroot "$TREE" hvd-info --only memory || true').stdout
    assert "/dev/shm has room for 64 MiB" in said and "docker run --shm-size" in said, said
    with control_group(1024) as group:
        if group:
            require_training(inside(tree, two_ranks, group), "a control group of 1 GiB")
    with control_group(200) as group:
        if group:
            said = inside(tree, 'chroot "$TREE" hvd-info --only memory || true', group).stdout
            print(said)
            assert "by a control group's limit of 200 MiB" in said and "docker run --memory" in said, said


def judge_launchers(tree):
    """An MPI outside that fits, and one that does not."""
    program = f'-n 2 chroot "$TREE" {" ".join(TRAIN)}'
    if shutil.which("mpiexec.openmpi"):
        require_training(inside(tree, f"mpiexec.openmpi {program}"), "mpiexec outside, the program in the image")
    if shutil.which("mpiexec.mpich"):
        ended = inside(tree, f"mpiexec.mpich {program}")
        print(ended.stdout)
        assert ended.returncode != 0 and "the launcher is MPICH's or Intel MPI's" in ended.stdout, ended.stdout
        said = inside(tree, 'mpiexec.mpich -n 2 chroot "$TREE" hvd-info --only mpi,ranks').stdout
        print(said)
        assert "WRONG" in said and "Open MPI" in said, said


def judge_own_trainer(source, work):
    """The layer of docs/containers.md, with the program of the README."""
    layer = re.search(r"^```text\n(FROM hvd\n.*?)^```$", (source / "docs/containers.md").read_text(), re.M | re.S)[1]
    (work / "own").mkdir()
    (work / "own/Dockerfile").write_text(layer.replace("FROM hvd", f"FROM {IMAGE}"))
    (work / "own/train.cpp").write_text(re.search(r"^```cpp\n(#include <hvd/hvd.hpp>.*?)^```$", (source / "README.md").read_text(), re.M | re.S)[1])
    built(work / "own/Dockerfile", work / "own", IMAGE + "-own")
    with container_of(IMAGE + "-own") as (name, _):
        said = output_of("buildah", "run", "--isolation", "chroot", name, *json.loads(re.search(r"^CMD (.*)$", layer, re.M)[1]))
        assert sorted(said.splitlines()) == ["rank 0 of 2: 0.5", "rank 1 of 2: 0.5"], said


def judge_pod(source):
    """The image of a pod has a client of ssh, and an sshd that starts."""
    built(source / "packaging/kubernetes/Dockerfile", source / "packaging/kubernetes", IMAGE + "-pod", BASE=IMAGE)
    with container_of(IMAGE + "-pod") as (name, _):
        for command in ("ssh -G node", "/usr/sbin/sshd -t", "fashion_mnist --help"):
            run("buildah", "run", "--isolation", "chroot", name, *command.split(), stdout=subprocess.DEVNULL)


def dockerfile(source, work):
    image_by(source / "Dockerfile", source, work, IMAGE)
    with container_of(IMAGE) as (name, tree):
        said = output_of("buildah", "run", "--isolation", "chroot", name, "mpiexec", "-n", "2", *TRAIN)
        assert "2 ranks: test accuracy" in said, said
        judge_limits(tree)
        judge_launchers(tree)
    judge_own_trainer(source, work)
    judge_pod(source)


def definition(source, work):
    spython = python_with(work, "spython") / "spython"
    made = output_of(spython, "recipe", "--parser", "singularity", "packaging/apptainer/hvd.def", cwd=source)
    made = made.replace("FROM debian:12", "FROM ${BASE}").replace("RUN /", "ARG JOBS\nRUN HVD_JOBS=$JOBS /")
    (work / "Dockerfile").write_text(f"ARG BASE\n{made}")
    image_by(work / "Dockerfile", source, work, IMAGE + "-definition")
    with container_of(IMAGE + "-definition") as (_, tree):
        require_training(inside(tree, f'{READ_ONLY}mpiexec.openmpi -n 2 chroot "$TREE" {" ".join(TRAIN)}'), "mpiexec outside, the image of the definition, read-only")


def remove_images():
    if "HVD_TEST_KEEP_IMAGE" not in os.environ:
        for tag in (IMAGE + "-own", IMAGE + "-pod", IMAGE, IMAGE + "-definition", BASE):
            subprocess.run(["buildah", "rmi", tag], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    require(sys.argv[2], "mmdebstrap", "buildah")
    with tempfile.TemporaryDirectory(prefix="hvd-image-") as folder:
        try:
            {"dockerfile": dockerfile, "definition": definition}[sys.argv[1]](pathlib.Path(sys.argv[2]), pathlib.Path(folder))
        finally:
            remove_images()
