# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""One process of a job is killed, at a certain moment or at a random one, and nothing of the job is left: by a shell in ssh's place."""

import collections
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import time
import unittest

from launching import FAKE_SSH, HVDRUN, LauncherTest, PATIENCE, UNIMPRESSED, processes_with, program_of, wait_until

PROGRAM = os.environ["HVD_TCP_PROGRAM"]
IS_SOAK = os.environ.get("HVD_LAUNCHER_SOAK") == "1"
OF_ITS_OWN_SESSION = "setsid -w sh -c {command}"


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ancestors_of(pid, last):
    """Returns the processes above one, from its parent to the one below the last."""
    found = []
    while (pid := parent_of(pid)) not in (0, 1, last):
        found.append(pid)
    return found


def session_of(pid):
    """Returns the session of a process, or None if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("hvd")}


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Kills(LauncherTest):
    def tool(self, name, moment):
        """Puts a program in the place of a tool of the agent, which waits once, before or after the tool's work, until there is a file "go"."""
        folder, here, go = self.folder / "bin", *(shlex.quote(str(self.folder / file)) for file in ("reached", "go"))
        folder.mkdir(exist_ok=True)
        wait = f"if ! [ -e {here} ]; then echo $$ >{here}.new; mv {here}.new {here}; while ! [ -e {go} ]; do sleep 0.01; done; fi"
        script = {"before": f'{wait}; exec {shutil.which(name)} "$@"', "after": f'{shutil.which(name)} "$@"; code=$?; {wait}; exit $code'}[moment]
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return f"env PATH={folder}:{os.environ['PATH']} sh -c {{command}}"

    def test_an_agent_may_be_killed_while_it_makes_its_folder_and_what_is_in_it(self):
        for name, moment, victim in ((name, moment, victim) for name in ("mkdir", "mkfifo") for moment in ("before", "after") for victim in ("agent", "guard", "group")):
            with self.subTest(name=name, moment=moment, victim=victim):
                job = self.start_it("-H", "a", "--kill-after", 1, "--ssh-command", self.tool(name, moment), "sleep", 1000)
                self.wait_for_files("reached")
                above = ancestors_of(int((self.folder / "reached").read_text()), job.pid)
                if victim == "group":
                    os.killpg(above[-1], signal.SIGKILL)
                else:
                    os.kill(above[0 if victim == "agent" else -1], signal.SIGKILL)
                (self.folder / "go").touch()
                self.assertGreater(job.wait(PATIENCE), 0)
                self.assert_nothing_is_left()
                shutil.rmtree(self.folder / "bin")
                for file in ("reached", "go"):
                    (self.folder / file).unlink()

    def test_the_shell_of_a_rank_may_be_killed_before_the_number_of_the_rank_is_written(self):
        # Pipes in the place of the files of numbers: who writes one waits for a reader.
        (self.folder / "bin").mkdir()
        tool = self.folder / "bin" / "mkfifo"
        tool.write_text(f'#!/bin/sh\nfor last; do :; done\n{shutil.which("mkfifo")} "$@" && case $last in *.E) {shutil.which("mkfifo")} "${{last%E}}p" "${{last%E}}q" ;; esac\n')
        tool.chmod(0o755)
        job = self.start_it("-H", "a", "--kill-after", 1, "--ssh-command", f"env PATH={tool.parent}:{os.environ['PATH']} sh -c {{command}}", "sleep", 1000)
        shell = []

        def has_started_all():
            parents = {pid: parent_of(pid) for pid in processes_with(self.mark)}
            children = collections.Counter(parents.values())
            agents = {pid for pid in parents if pid != job.pid and session_of(pid) == pid}
            shell[:] = [pid for pid, parent in parents.items() if parent in agents and children[pid] >= 3]
            return shell
        wait_until(has_started_all, "a shell has started a rank, and two that take its output")
        kill(shell[0])
        self.assertGreater(job.wait(PATIENCE), 0)
        self.assert_nothing_is_left()

    def test_the_ranks_end_when_all_processes_of_the_connections_group_are_killed(self):
        job = self.start_it("-H", "a:2", "--kill-after", 1, "--ssh-command", FAKE_SSH, "sh", "-c", UNIMPRESSED)
        self.wait_for_files("here.0", "here.1")
        (group,) = {os.getpgid(pid) for pid in processes_with(self.mark) if parent_of(pid) == job.pid and program_of(pid) != os.path.realpath(HVDRUN)} - self.removers()
        os.killpg(group, signal.SIGKILL)
        self.assertGreater(job.wait(PATIENCE), 0)
        self.assert_nothing_is_left()

    def removers(self):
        """The shells that remove hvdrun's file of the secret."""
        return {pid for pid in processes_with("PATH=/usr/bin:/bin\0") if str(self.folder) in pathlib.Path(f"/proc/{pid}/cmdline").read_text()}

    def test_hvdrun_may_be_killed_as_soon_as_there_is_a_file_of_the_secret(self):
        for _ in range(5):
            job = self.start_it("-np", 1, "sleep", 1000)
            while not any((self.folder / "secrets").iterdir()):
                self.assertIsNone(job.poll())
            job.kill()
            job.wait(PATIENCE)
            self.assert_nothing_is_left()

    def kind_of(self, pid, job):
        """The place of a process in its job: its depth below hvdrun, and its program."""
        return 0 if pid == job.pid else 1 + len(ancestors_of(pid, job.pid)), os.path.basename(program_of(pid))

    def test_kills_at_random_moments_leave_nothing(self):
        """The victim is any process of the job: hvdrun, its guard, a connection, an agent, what feeds a rank or takes its output, or a rank."""
        before, victims = shared_memory(), collections.Counter()
        for seed in range(200 if IS_SOAK else 6):
            with self.subTest(seed=seed):
                draws = random.Random(seed)
                hosts = draws.choice(("a:2,localhost:1,b:1", "a:2,b:1", "localhost:2,a:1"))
                job = subprocess.Popen([HVDRUN, "-H", hosts, "--kill-after", "1", "--stdin", "--ssh-command", draws.choice((FAKE_SSH, OF_ITS_OWN_SESSION)), "sh", "-c",
                                        f"{PROGRAM} && cat && sleep 0.2"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       cwd=self.folder, env=self.environment(), start_new_session=True)
                self.addCleanup(job.kill)
                job.stdin.write(b"some input\n")
                job.stdin.flush()
                time.sleep(draws.uniform(0, 1.5))
                alive = {}
                for pid in sorted({job.pid, *processes_with(self.mark)}):
                    alive.setdefault(self.kind_of(pid, job), []).append(pid)
                kind = draws.choice(sorted(alive))
                kill(draws.choice(alive[kind]))
                victims[kind] += 1
                job.stdin.close()
                job.wait(PATIENCE)
                self.assert_nothing_is_left()
                wait_until(lambda: not shared_memory() - before, "no shared memory is left")
        print("killed:", ", ".join(f"{number} {name} at depth {depth}" for (depth, name), number in sorted(victims.items())))


if __name__ == "__main__":
    unittest.main()
