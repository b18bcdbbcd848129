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
        self.cpu = 0.0  # seconds that apt took, which are no stage's

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
        process = subprocess.Popen(["bash", "-c", 'source tools/setup.sh && need "$@"', "need", *groups], cwd=ROOT, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu += used.ru_utime + used.ru_stime
        if process.returncode == 0:
            self.there.update(groups)
        return process.returncode == 0

    def fetch_meanwhile(self, groups_of_stages):
        """Installs what later stages need, one stage after the other, while the first compile."""
        def work():
            for groups in groups_of_stages:
                self.need(groups)
        threading.Thread(target=work, daemon=True).start()
