# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Installs Debian's packages by tools/setup.sh: what the next stage needs at once, the rest while it compiles."""

import os
import subprocess
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Packages:
    def __init__(self):
        self.lock = threading.Lock()
        self.there, self.absent = set(), set()

    def need(self, groups):
        """Installs the groups of packages of tools/setup.sh that are not there yet. Returns those that can't be had."""
        with self.lock:
            wanted = [group for group in groups if group not in self.there | self.absent]
            if wanted and not self.install(wanted):
                # One package that can't be had should not keep the others away.
                for group in wanted if len(wanted) > 1 else []:
                    self.install([group])
                for group in wanted:
                    if group not in self.there:
                        self.absent.add(group)
            return [group for group in groups if group in self.absent]

    def install(self, groups):
        ended = subprocess.run(["bash", "-c", 'source tools/setup.sh && need "$@"', "need", *groups], cwd=ROOT, stdin=subprocess.DEVNULL)
        if ended.returncode == 0:
            self.there.update(groups)
        return ended.returncode == 0

    def fetch_meanwhile(self, groups_of_stages):
        """Installs what later stages need, one stage after the other, while the first compile."""
        def work():
            for groups in groups_of_stages:
                self.need(groups)
        threading.Thread(target=work, daemon=True).start()
