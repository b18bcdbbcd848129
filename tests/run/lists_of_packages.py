#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""lists_of_packages.py SOURCE_ROOT: the set-up reads the lists of a distribution before it installs what these lists lack, as those of a new container do."""

import os
import pathlib
import subprocess
import sys
import tempfile

# As apt-cache: one known name is enough for success, and g++ is a pattern that fits others where no package has the name.
APT_CACHE = """#!/bin/sh
case "$(cat "$FOLDER/lists")" in
  full) shift; for name in "$@"; do case "$name" in -*) ;; *) echo "Package: $name" ;; esac; done ;;
  *) echo 'Package: gpgv' ;;
esac
"""
APT_GET = """#!/bin/sh
for word in "$@"; do case "$word" in update) echo full >"$FOLDER/lists"; done=update ;; install) done=install ;; esac; done
echo "$done" >>"$FOLDER/calls"
[ "$(cat "$FOLDER/lists")" = full ]
"""


def calls_with(source, lists):
    """What apt-get is called for, where the lists are full or empty."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, script in (("apt-cache", APT_CACHE), ("apt-get", APT_GET), ("dpkg-query", "#!/bin/sh\nexit 1\n"), ("sudo", '#!/bin/sh\nexec "$@"\n')):
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        (folder / "lists").write_text(lists)
        environment = {**os.environ, "FOLDER": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
        environment.pop("CI", None)
        ended = subprocess.run(["bash", "-c", "set -euo pipefail; source tools/setup.sh && need info cmake"], cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert ended.returncode == 0, ended.stdout
        return (folder / "calls").read_text().split()


for lists, expected in (("empty", ["update", "install"]), ("full", ["install"])):
    found = calls_with(sys.argv[1], lists)
    assert found == expected, f"with {lists} lists apt-get is called for {found}"
