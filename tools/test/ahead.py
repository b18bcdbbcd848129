# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Makes stages ahead of their tests: in the order of the table, and two at once where they have different build folders, so that
both have work while the last unit of one is compiled."""

import concurrent.futures
import threading


class Ahead:
    def __init__(self, stages, make, jobs):
        """Calls make(stage, jobs) for each stage, in threads."""
        self.make = make
        self.unmade, self.busy = list(stages), set()
        self.jobs = jobs
        self.changed = threading.Condition()
        self.made = {stage["name"]: concurrent.futures.Future() for stage in stages}
        for _ in range(min(2, jobs)):
            threading.Thread(target=self.work, daemon=True).start()

    def result(self, stage):
        """What make() has returned, or raised."""
        return self.made[stage["name"]].result()

    def stop(self):
        """No further stage is begun."""
        with self.changed:
            self.unmade.clear()
            self.changed.notify_all()

    def work(self):
        while taken := self.take():
            stage, jobs = taken
            future = self.made[stage["name"]]
            try:
                future.set_result(self.make(stage, jobs))
            except BaseException as failure:  # noqa: BLE001  the caller of result() hears it
                future.set_exception(failure)
            self.leave(stage["build"])

    def leave(self, build):
        with self.changed:
            self.busy.discard(build)
            self.changed.notify_all()

    def take(self):
        """The first stage whose folder nobody uses, and the number of compilers for it; None when all are taken."""
        with self.changed:
            while self.unmade:
                free = next((stage for stage in self.unmade if stage["build"] not in self.busy), None)
                if free:
                    self.unmade.remove(free)
                    shares = self.busy or any(stage["build"] != free["build"] for stage in self.unmade)
                    self.busy.add(free["build"])
                    return free, max(1, self.jobs // 2) if shares else self.jobs
                self.changed.wait()
        return None
