#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""With HVD_PLAIN_POSIX hvd/threads.hpp uses no call of Linux: posix.py INCLUDE_DIR BUILD_ROOT TARGET

The names of such calls are poisoned once all headers of the system are included, so that the compiler refuses each use.
TARGET is the target of the build whose compiler and include paths are used."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
from compiler import Compiler
from floors import is_standard
from includes import Headers

DOOR = "threads.hpp"
ONLY_LINUX = [
    "memfd_create", "MFD_CLOEXEC", "getrandom", "madvise", "MADV_HUGEPAGE", "MADV_POPULATE_WRITE", "MADV_WIPEONFORK",
    "MADV_REMOVE", "MADV_DONTNEED", "mremap", "mbind", "sched_getaffinity", "sched_setaffinity", "sched_getcpu", "cpu_set_t", "syscall", "SYS_futex",
    "FUTEX_WAIT", "FUTEX_WAKE", "SYS_pidfd_open", "pidfd_open", "eventfd", "signalfd", "epoll_create1", "gettid", "prctl",
]


def main(include_dir, build_root, source):
    headers, compiler = Headers(include_dir), Compiler(build_root, source)
    system = sorted({name for file in headers.reach(DOOR) for name in headers.foreign.get(file, [])
                     if is_standard(name) and not name.startswith("linux/") and name != "sys/syscall.h" and compiler.has(name)})
    text = "".join(f"#include <{name}>\n" for name in system)
    text += "".join(f"#undef {name}\n#pragma GCC poison {name}\n" for name in ONLY_LINUX) + f"#include <hvd/{DOOR}>\n"
    plain = compiler.compile(text, "-DHVD_PLAIN_POSIX")
    if plain.returncode != 0:
        print(f"with HVD_PLAIN_POSIX:\n{plain.stdout}")
        return 1
    if compiler.compile(text).returncode == 0:
        print("without HVD_PLAIN_POSIX no call of Linux is found, so that this test finds none at all")
        return 1
    print(f"none of {len(ONLY_LINUX)} names is used")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
