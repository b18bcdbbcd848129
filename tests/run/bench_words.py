#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""./run bench refuses what it does not know before it builds, and builds what it was asked for: bench_words.py SOURCE"""

import subprocess
import sys

REFUSED = {"--help": "no such option: --help", "nosuch": "no such benchmark: nosuch; there are: memory",
           "--check peers": "no such benchmark of --check: peers; there are: allreduce", "--record": "--record goes with --check",
           "--check --record fusion": "goes without fusion"}
BUILT = {"fusion": "fusion optimizers optimizers_compiled", "--check halves compile_time": "collectives collectives_mpich", "compile_time": "",
         "peers --quick": "peers peers_mpich", "collectives --check": "collectives collectives_mpich"}


def of_bash(source, text):
    return subprocess.run(["bash", "-c", f"set -eu; source benchmarks/words.sh; {text}"], cwd=source, capture_output=True, text=True, check=False)


def faults(source):
    for words, said in REFUSED.items():
        ended = subprocess.run(["./run", "bench", *words.split()], cwd=source, capture_output=True, text=True, check=False)
        if ended.returncode == 0 or said not in ended.stderr:
            yield f"./run bench {words}: {ended.returncode}, {ended.stderr}"
    for words, programs in BUILT.items():
        ended = of_bash(source, f"read_words {words}; programs_of_names")
        if ended.returncode != 0 or ended.stdout.replace("benchmarks/", "").split() != programs.split():
            yield f"./run bench {words} builds {ended.stdout} {ended.stderr}"


if __name__ == "__main__":
    found = list(faults(sys.argv[1]))
    print(*found, sep="\n")
    sys.exit(bool(found))
