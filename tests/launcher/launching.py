# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The tests of hvdrun share this: starting it, and finding the processes that it leaves."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import uuid

HVDRUN = os.environ["HVDRUN"]
PATIENCE = 60  # seconds; a test fails after them, and none needs them
FAKE_SSH = "sh -c {command}"
# A rank that notes SIGTERM and goes on. A shell that prints "Terminated" into a closed pipe would end.
UNIMPRESSED = "exec >/dev/null 2>&1; trap 'touch told.$HVD_RANK' TERM; touch here.$HVD_RANK; while :; do sleep 0.05; done"


def state_of(pid):
    """Returns the state of a process as in ps, or an empty string if it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def program_of(pid):
    """Returns the path of a process's program, or an empty string if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def processes_with(mark):
    """Returns the numbers of the living processes whose environment has this text."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and state_of(folder.name) not in ("", "Z", "X"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def command_lines():
    """Returns the command lines and environments of all processes."""
    result = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                result.append((int(folder.name), name, (folder / name).read_bytes()))
            except OSError:
                pass
    return result


def with_defaults():
    """Gives all signals their defaults, in a new process: the test may run under nohup."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def wait_until(condition, what):
    for _ in range(PATIENCE * 50):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


class LauncherTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.mark = "LAUNCHER_TEST_MARK=" + uuid.uuid4().hex
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "secrets").mkdir()

    def environment(self, **more):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HVD_", "SLURM_"))}
        name, value = self.mark.split("=")
        clean.pop("XDG_RUNTIME_DIR", None)
        return {**clean, name: value, "TMPDIR": str(self.folder / "secrets"), **more}

    def run_it(self, *arguments, **more):
        """Runs hvdrun to its end, and checks that it has left nothing."""
        text = more.pop("text", True)
        ended = subprocess.run([HVDRUN, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=text, timeout=PATIENCE, cwd=self.folder, env=self.environment(**more))
        self.assert_nothing_is_left()
        return ended

    def start_it(self, *arguments, before=None, **more):
        """Starts hvdrun; `before` is called in its process before that."""
        started = subprocess.Popen([HVDRUN, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=self.folder, env=self.environment(**more), start_new_session=True, preexec_fn=before)
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def end_while_it_says_something(self, *arguments, **more):
        """Sends SIGTERM to hvdrun once it waits for a reader of its first message, and reads it then."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writing, True)
        job = subprocess.Popen([HVDRUN, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writing, cwd=self.folder,
                               env=self.environment(**more), start_new_session=True)
        os.close(writing)
        with open(reading, "rb") as messages:
            self.addCleanup(job.kill)
            self.wait_for_files("count")
            wait_until(lambda: {program_of(pid) for pid in processes_with(self.mark)} == {os.path.realpath(HVDRUN)} and state_of(job.pid) == "S", "hvdrun waits")
            job.send_signal(signal.SIGTERM)
            messages.read()
        return job.wait(PATIENCE)

    def assert_nothing_is_left(self):
        wait_until(lambda: not processes_with(self.mark), f"no process with {self.mark} is left")
        wait_until(lambda: not list((self.folder / "secrets").iterdir()), "no file of a secret is left")

    def assert_second_interrupt_kills(self, job):
        """The ranks of the job note the first one and go on."""
        self.wait_for_files("here.0", "here.1")
        os.kill(job.pid, signal.SIGINT)
        self.wait_for_files("told.0", "told.1")
        self.assertIsNone(job.poll())
        os.kill(job.pid, signal.SIGINT)
        self.assertEqual(job.wait(PATIENCE), 130)
        self.assert_nothing_is_left()

    def assert_refused(self, arguments, *words):
        """hvdrun refuses a command line with one line that has these words, and starts nothing."""
        ended = self.run_it(*arguments)
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertEqual(ended.stdout, "")
        self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)
        for word in words:
            self.assertIn(word, ended.stderr)

    def wait_for_files(self, *names):
        wait_until(lambda: all((self.folder / name).exists() for name in names), f"{names} in {self.folder}")
