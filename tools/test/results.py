# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""How the tests of a run ended, and its closing line, which is printed whatever ends the run."""

import os
import signal
import sys

TAIL = 60  # lines of a failed test's output
GOOD = ("OK", "EXPECTEDFAIL")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that end a run


def closing_line(passed, failed, skipped):
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


class Results:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []
        self.running = {}  # what is known of the stages that run
        self.guard = None

    def seen(self, stage, name, result):
        """A test has ended. Its record, with its output, comes when its stage has."""
        self.running[f"{stage}: {name}"] = result
        self.tell()

    def stage_ended(self, stage, records):
        self.running = {name: result for name, result in self.running.items() if not name.startswith(stage + ": ")}
        for record in records:
            name = f"{stage}: {record['name'].split(' / ')[-1]}"
            output = [line for line in ((record.get("stdout") or "") + (record.get("stderr") or "")).splitlines() if line.strip()]
            if record["result"] in GOOD:
                self.passed.append(name)
            elif record["result"] == "SKIP":
                self.skipped.append((name, (output or ["it gave no reason"])[-1]))
            else:
                self.failed.append((name, record["result"], output))
        self.tell()

    def fail(self, name, reason, output=()):
        self.failed.append((name, reason, list(output)))
        self.tell()

    def skip(self, name, reason):
        self.skipped.append((name, reason))
        self.tell()

    def counts(self):
        ended = list(self.running.values())
        return (len(self.passed) + sum(r in GOOD for r in ended), len(self.failed) + sum(r not in (*GOOD, "SKIP") for r in ended),
                len(self.skipped) + ended.count("SKIP"))

    def summary(self):
        """Prints the failed and skipped tests with their reasons, and the closing line; returns the exit status."""
        for name, reason, output in self.failed:
            print(f"\n==== FAILED {name} ({reason})", *output[-TAIL:], sep="\n")
        print()
        for name, result in self.running.items():
            if result not in (*GOOD, "SKIP"):
                print(f"failed: {name}")
        for name, _, _ in self.failed:
            print(f"failed: {name}")
        for name, reason in self.skipped:
            print(f"skipped: {name}: {reason}")
        passed, failed, skipped = self.counts()
        if not passed and not failed:
            print("no test ran")
        print(closing_line(passed, failed, skipped), flush=True)
        if skipped and not passed and not failed:
            return 77
        return 1 if failed or not passed else 0

    # ---- a run that is killed -----------------------------------------------------------------------------------------
    #
    # A child in a session of its own holds the reading end of a pipe. It hears the counts as they change, and if the pipe ends
    # without "done" the run was killed without a chance to speak: the child prints the closing line for it.

    def start_guard(self):
        reading, writing = os.pipe()
        held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the child is never found with the handlers of the run
        if os.fork() == 0:
            os.setsid()
            os.close(writing)
            print_what_is_left_unsaid(reading)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.close(reading)
        self.guard = writing
        self.tell()

    def tell(self):
        if self.guard is not None:
            os.write(self.guard, (" ".join(map(str, self.counts())) + "\n").encode())

    def dismiss_guard(self):
        if self.guard is not None:
            os.write(self.guard, b"done\n")
            os.close(self.guard)
            self.guard = None


def print_what_is_left_unsaid(pipe):
    last = "0 0 0"
    with os.fdopen(pipe) as lines:
        for line in lines:
            last = line.strip()
    if last == "done":
        return
    passed, failed, skipped = map(int, last.split())
    print("\nfailed: the run was killed")
    print(closing_line(passed, failed + 1, skipped), flush=True)
    sys.stdout.flush()
