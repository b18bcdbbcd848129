#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""platforms.py INCLUDE_DIR: compiles platforms.cpp for macOS, for musl and for ARM with 32 bits, and runs it where it can.

The compiler is zig's, which a package of Python has. Programs for ARM run under qemu-arm. Their results are those of 64 bits. Nothing
runs a program for macOS here: that one is linked only. Without the package the test exits with 77."""

import os
import pathlib
import platform
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from packages import environment_with  # noqa: E402

PROGRAM = pathlib.Path(__file__).resolve().with_name("platforms.cpp")
VERSION = "0.17.1"
LIMIT = 1500  # seconds: zig compiles its C++ library for each system
MACH_O = bytes.fromhex("cffaedfe")


def compile_for(python, target, include_dir, output, *flags):
    """Returns the program, compiled without a warning."""
    command = [python, "-m", "ziglang", "c++", "-target", target, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", *flags,
               "-I", include_dir, PROGRAM, "-o", output]
    subprocess.run(command, check=True, timeout=LIMIT)
    return output


def on_threads(*command):
    return subprocess.run(command, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout


def on_tcp(*command):
    """Starts two processes as a job, and returns what rank 0 says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = os.environ | {"HVD_SIZE": "2", "HVD_RENDEZVOUS": f"127.0.0.1:{port}", "HVD_SECRET": os.urandom(32).hex()}
    ranks = [subprocess.Popen([*command, "tcp"], env=job | {"HVD_RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said[0]


def main(include_dir):
    with tempfile.TemporaryDirectory(prefix="hvd-platforms-") as folder:
        folder = pathlib.Path(folder)
        python = environment_with(folder / "environment", f"ziglang=={VERSION}") / "bin/python"
        os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(folder / "cache"))
        os.environ.setdefault("ZIG_LOCAL_CACHE_DIR", str(folder / "cache"))
        musl = compile_for(python, f"{platform.machine()}-linux-musl", include_dir, folder / "musl", "-static")
        expected = on_threads(musl)
        print(f"musl: {expected}      {on_tcp(musl)}", end="")
        assert expected.startswith("3 ranks"), expected
        arm = compile_for(python, "arm-linux-musleabihf", include_dir, folder / "arm", "-static")
        if shutil.which("qemu-arm") is None:
            print("ARM: compiled, and not run: there is no qemu-arm (Debian's qemu-user)")
        else:
            got = on_threads("qemu-arm", arm)
            print(f"ARM: {got}", end="")
            assert got == expected, "the results are not those of 64 bits"
        macos = compile_for(python, "aarch64-macos", include_dir, folder / "macos")
        assert macos.read_bytes()[:4] == MACH_O
        print("macOS: linked")


if __name__ == "__main__":
    main(*sys.argv[1:])
