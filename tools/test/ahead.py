# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Makes stages ahead of their tests: in the order of the table, and two at once where they have different build folders, so that
both have work while the last unit of one is compiled."""

import concurrent.futures
import contextlib
import threading


class Ahead:
    def __init__(self, stages, make, jobs):
        """Calls make(stage, jobs) for each stage, in threads."""
        self.make = make
        self.unmade, self.busy = list(stages), set()
        self.changed = threading.Condition()
        self.made = {stage["name"]: concurrent.futures.Future() for stage in stages}
        workers = min(2, jobs, len({stage["build"] for stage in stages}))
        for _ in range(workers):
            threading.Thread(target=self.work, args=(max(1, jobs // workers),), daemon=True).start()

    def result(self, stage):
        """What make() has returned, or raised."""
        return self.made[stage["name"]].result()

    @contextlib.contextmanager
    def alone_in(self, build):
        """For other work in a build folder."""
        with self.changed:
            self.changed.wait_for(lambda: build not in self.busy)
            self.busy.add(build)
        try:
            yield
        finally:
            self.leave(build)

    def work(self, jobs):
        while stage := self.take():
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
        """The first stage whose folder nobody uses; None when all are taken."""
        with self.changed:
            while self.unmade:
                free = next((stage for stage in self.unmade if stage["build"] not in self.busy), None)
                if free:
                    self.unmade.remove(free)
                    self.busy.add(free["build"])
                    return free
                self.changed.wait()
        return None
