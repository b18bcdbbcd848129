# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A change of any header that the kernels include has them compiled anew: ninja knows all of them. Arguments: the source folder, the
build folder, the object."""

import pathlib
import re
import subprocess
import sys

source, build, name = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
include = source / "include"


def included_by(file, seen):
    for found in re.findall(r'^#include "(.*)"', file.read_text(), re.MULTILINE):
        header = (file.parent / found).resolve()
        if header not in seen:
            seen.add(header)
            included_by(header, seen)
    return seen


wanted = included_by(include / "hvd/kernels.cuh", {(include / "hvd/kernels.cuh").resolve()})
listed = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
known = set()
for entry in listed.split("\n\n"):
    lines = entry.strip().splitlines()
    if lines and lines[0].split(":")[0].endswith(name):
        known |= {(build / line.strip()).resolve() for line in lines[1:]}
missing = sorted(str(header.relative_to(source)) for header in wanted - known)
print(f"{len(wanted)} headers, {len(known)} files known to ninja for {name}")
if missing:
    sys.exit("ninja does not know that the kernels include: " + ", ".join(missing))
