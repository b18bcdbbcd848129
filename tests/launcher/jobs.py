# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Jobs on this host: the variables of ranks, the ends of jobs, and that nothing of them is left."""

import ctypes
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time
import unittest

from launching import FAKE_SSH, HVDRUN, LauncherTest, PATIENCE, UNIMPRESSED, command_lines, processes_with, program_of, state_of, wait_until, with_defaults

# Says that it is there, and stays until something ends it. Its child is one more process that must end.
STAYS = "touch here.$HVD_RANK; sleep 1000 & wait"
STUBBORN = "trap '' TERM; touch here.$HVD_RANK; while :; do sleep 0.05; done"


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Jobs(LauncherTest):
    def test_each_rank_is_told_its_place(self):
        ended = self.run_it("-np", 3, "sh", "-c",
                            "echo $HVD_RANK $HVD_SIZE $HVD_LOCAL_RANK $HVD_LOCAL_SIZE $HVD_RENDEZVOUS_SERVED ${HVD_RENDEZVOUS%:*}", HVD_SIZE="7")
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:{r} 3 {r} 3 1 127.0.0.1" for r in range(3)])
        self.assertEqual(ended.returncode, 0)

    def test_a_job_inside_a_rank_of_another_launcher_is_a_job_of_its_own(self):
        for outer in ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, {"PMI_SIZE": "2", "PMI_RANK": "1"}, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}):
            for size in (1, 2, 3, 4):
                ended = self.run_it("-np", size, os.environ["HVD_TCP_PROGRAM"], **outer)
                self.assertEqual((ended.returncode, ended.stderr), (0, ""))
                self.assertEqual(sorted(line.partition(":")[2].partition(",")[0] for line in ended.stdout.splitlines()), [f"rank {r} of {size}" for r in range(size)])

    def test_a_job_inside_a_rank_of_hvdrun_is_a_job_of_its_own(self):
        ended = self.run_it("-np", 2, HVDRUN, "-np", 2, os.environ["HVD_TCP_PROGRAM"])
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(sorted(line.rpartition("]<stdout>:")[2].partition(",")[0] for line in ended.stdout.splitlines()), ["rank 0 of 2"] * 2 + ["rank 1 of 2"] * 2)

    def test_variables_of_the_environment_that_hvdrun_replaces_are_told(self):
        ended = self.run_it("-np", 1, "--network-interface", "lo", "true", HVD_SECRET="ab" * 32, HVD_SIZE="7", HVD_NETWORK_INTERFACE="eth7")
        self.assertEqual((ended.returncode, sorted(ended.stderr.splitlines())), (0, [
            "hvdrun: --network-interface lo holds, and not eth7 of HVD_NETWORK_INTERFACE",
            "hvdrun: the environment has HVD_SECRET, which no rank sees: hvdrun sets this variable, by --secret-file",
            "hvdrun: the environment has HVD_SIZE, which no rank sees: hvdrun sets this variable"]))

    def test_jobs_of_one_host_at_once_have_rendezvous_of_their_own(self):
        both = [self.start_it("-np", 1, "sh", "-c", f"echo $HVD_RENDEZVOUS; {STAYS}") for _ in range(2)]
        self.assertNotEqual(*[job.stdout.readline() for job in both])

    def test_the_rendezvous_listens_only_where_ranks_come_from(self):
        def is_open(host, port):
            with socket.socket() as one:
                return one.connect_ex((host, port)) == 0
        show = ("sh", "-c", f"echo $HVD_RENDEZVOUS; {STAYS}")
        for options in ((), ("--min-np", 1), ("--min-np", 1, "--network-interface", "lo")):
            job = self.start_it("-np", 1, *options, *show)
            host, port = job.stdout.readline().strip().rpartition(":")[::2]
            self.assertEqual(host, "[0]<stdout>:127.0.0.1")
            self.assertEqual([is_open(f"127.0.0.{n}", int(port)) for n in (1, 2)], [True, False])
            job.terminate()
        # Others may come, and ranks of this host come as they do.
        job = self.start_it("--min-np", 1, "--host-discovery-script", "echo localhost", *show)
        host, port = job.stdout.readline().strip().partition(">:")[2].rsplit(":", 1)
        self.assertEqual([is_open(address, int(port)) for address in (host.split(",")[0], "127.0.0.2")], [True, True])

    def test_the_secret_is_a_file_for_its_owner_alone_and_new_for_each_job(self):
        secrets = set()
        for _ in range(2):
            ended = self.run_it("-np", 2, "sh", "-c", 'cat "$HVD_SECRET_FILE"; stat -c %a "$HVD_SECRET_FILE"')
            lines = {line.partition(":")[2] for line in ended.stdout.splitlines()}
            self.assertEqual(len(lines), 2)
            self.assertIn("600", lines)
            secrets |= lines - {"600"}
        self.assertEqual(len(secrets), 2)
        for secret in secrets:
            self.assertRegex(secret, "^[0-9a-f]{64}$")

    def test_a_runtime_directory_that_is_not_there_gives_way_to_that_of_temporary_files(self):
        ended = self.run_it("-np", 1, "sh", "-c", 'echo "$HVD_SECRET_FILE"', XDG_RUNTIME_DIR=str(self.folder / "gone"))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn(str(self.folder / "secrets"), ended.stdout)

    def test_a_file_of_the_user_gives_the_secret_and_stays(self):
        file = self.folder / "mine"
        file.write_text("ab" * 32 + "\n")
        file.chmod(0o600)
        ended = self.run_it("-np", 1, "--secret-file", file, "sh", "-c", 'cat "$HVD_SECRET_FILE"; echo "$HVD_SECRET_FILE"')
        self.assertEqual(ended.stdout, f"[0]<stdout>:{'ab' * 32}\n[0]<stdout>:{file}\n")
        self.assertTrue(file.exists())
        file.chmod(0o640)
        self.assert_refused(["-np", 1, "--secret-file", file, "true"], str(file))
        file.write_text("short\n")
        file.chmod(0o600)
        self.assert_refused(["-np", 1, "--secret-file", file, "true"], str(file))

    def test_the_first_failure_ends_all_and_is_named(self):
        ended = self.run_it("-np", 4, "sh", "-c", f"[ $HVD_RANK = 2 ] || {{ {STAYS}; }}\n while ! [ -e here.0 -a -e here.1 -a -e here.3 ]; do sleep 0.01; done; exit 37")
        self.assertEqual(ended.returncode, 37)
        self.assertRegex(ended.stderr, r"(?m)^hvdrun: rank 2 on localhost failed with exit code 37, .* after its start; 3 other ranks were ended$")

    def test_of_several_that_fail_at_once_the_first_is_named(self):
        # hvdrun is stopped meanwhile, and sees both at once.
        job = self.start_it("-np", 3, "sh", "-c", "echo $$ >number.$HVD_RANK; mv number.$HVD_RANK here.$HVD_RANK; [ $HVD_RANK = 2 ] && exec sleep 1000\n"
                            "while ! [ -e go.$HVD_RANK ]; do sleep 0.01; done; exit 4$HVD_RANK")
        self.wait_for_files("here.0", "here.1", "here.2")
        os.kill(job.pid, signal.SIGSTOP)
        for rank in (1, 0):
            number = (self.folder / f"here.{rank}").read_text().strip()
            (self.folder / f"go.{rank}").touch()
            wait_until(lambda: state_of(number) == "Z", f"rank {rank} has ended")
        os.kill(job.pid, signal.SIGCONT)
        self.assertEqual(job.wait(PATIENCE), 41)
        self.assertIn("rank 1 on localhost failed with exit code 41", job.stderr.read())

    def test_a_signal_that_ends_a_rank_is_named_and_its_number_is_in_the_exit_code(self):
        ended = self.run_it("-np", 2, "sh", "-c", f"[ $HVD_RANK = 0 ] || {{ {STAYS}; }}\nkill -SEGV $$")
        self.assertEqual(ended.returncode, 128 + signal.SIGSEGV)
        self.assertIn("rank 0 on localhost failed with signal 11 (SIGSEGV)", ended.stderr)

    def test_ranks_that_ignore_sigterm_are_killed(self):
        ended = self.run_it("-np", 2, "--kill-after", 0.3, "sh", "-c", f"[ $HVD_RANK = 0 ] || {{ {STUBBORN}; }}\nwhile ! [ -e here.1 ]; do sleep 0.01; done; exit 3")
        self.assertEqual(ended.returncode, 3)

    def test_a_rank_may_clean_up_at_sigterm(self):
        self.run_it("-np", 2, "sh", "-c", "[ $HVD_RANK = 0 ] || { trap 'sleep 0.2; echo clean; touch clean; exit' TERM; touch here; while :; do sleep 0.01; done; }\n"
                    "while ! [ -e here ]; do sleep 0.01; done; exit 3")
        self.assertTrue((self.folder / "clean").exists())

    def test_ranks_may_end_at_different_times(self):
        self.assertEqual(self.run_it("-np", 3, "sh", "-c", "sleep 0.$HVD_RANK").returncode, 0)

    def test_what_a_rank_leaves_behind_is_ended(self):
        ended = self.run_it("-np", 2, "--kill-after", 0.2, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & sleep 1000 & exit 0")
        self.assertEqual(ended.returncode, 0)
        # Nothing of this one holds a pipe, so that the rank's output ends with the rank.
        ended = self.run_it("-np", 2, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & exit 0")
        self.assertEqual(ended.returncode, 0)

    def test_a_program_that_cannot_be_started_is_named(self):
        ended = self.run_it("-np", 2, "./absent")
        self.assertEqual((ended.returncode, ended.stderr), (127, "hvdrun: ./absent: there is no such program\n"))
        (self.folder / "text").write_text("#!/nowhere/interpreter\n")
        (self.folder / "text").chmod(0o755)
        ended = self.run_it("-np", 2, "./text")
        self.assertEqual(ended.returncode, 127)
        self.assertIn("./text: it cannot be started: No such file", ended.stderr)
        (self.folder / "text").chmod(0o644)
        for file, why in {"./text": "Permission denied", "/etc/passwd": "Permission denied", str(self.folder): "Is a directory"}.items():
            ended = self.run_it("-np", 2, file)
            self.assertEqual((ended.returncode, ended.stderr), (126, f"hvdrun: {file}: it cannot be started: {why}\n"))

    def test_each_signal_that_ends_a_process_ends_all_ranks(self):
        for number in ("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "USR1", "SEGV", "USR2", "ALRM", "TERM", "STKFLT", "XCPU", "XFSZ", "VTALRM", "PROF", "IO", "PWR", "SYS",
                       "RTMIN", "RTMAX"):
            number = getattr(signal, "SIG" + number, 16)
            # The test itself may run under nohup.
            job = self.start_it("-np", 2, "sh", "-c", STAYS, before=with_defaults)
            self.wait_for_files("here.0", "here.1")
            os.kill(job.pid, number)
            self.assertEqual(job.wait(PATIENCE), 128 + number)
            self.assertIn("ended by signal", job.stderr.read())
            self.assert_nothing_is_left()
            for rank in range(2):
                (self.folder / f"here.{rank}").unlink()

    def test_signals_are_passed_on_where_that_is_asked_for(self):
        for hosts in (("-np", 2), ("-H", "a:1,b:1", "--ssh-command", FAKE_SSH)):
            job = self.start_it(*hosts, "--forward-signals", "USR1,SIGUSR2", "sh", "-c",
                                "trap 'echo one >>got.$HVD_RANK' USR1; trap 'exit 4' USR2; touch here.$HVD_RANK; while :; do sleep 0.02; done", before=with_defaults)
            self.wait_for_files("here.0", "here.1")
            os.kill(job.pid, signal.SIGUSR1)
            self.wait_for_files("got.0", "got.1")
            self.assertIsNone(job.poll())
            os.kill(job.pid, signal.SIGUSR2)
            self.assertEqual(job.wait(PATIENCE), 4)
            self.assert_nothing_is_left()
            for file in [*self.folder.glob("here.*"), *self.folder.glob("got.*")]:
                file.unlink()
        for names in ("USR3", "KILL", "STOP", "CHLD", "SEGV", "USR1,,USR2", "10"):
            self.assert_refused(["-np", 1, "--forward-signals", names, "true"], "--forward-signals", "no signal that can be passed on")

    def test_a_rank_gets_a_signal_that_came_before_hvdrun_had_heard_of_its_start(self):
        late = """sh -c 'sh -c "$0" | { while ! [ -e heard ]; do sleep 0.02; done; cat; }' {command}"""
        job = self.start_it("-H", "a", "--ssh-command", late, "--forward-signals", "USR1", "sh", "-c", "trap 'exit 4' USR1; touch here.0; while :; do sleep 0.02; done")
        self.wait_for_files("here.0")
        os.kill(job.pid, signal.SIGUSR1)
        time.sleep(0.2)  # for hvdrun to see it
        (self.folder / "heard").touch()
        self.assertEqual(job.wait(PATIENCE), 4)
        self.assert_nothing_is_left()

    def test_signals_that_are_ignored_stay_ignored(self):
        # A script's shell starts what it puts into the background with & so.
        ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP)
        job = self.start_it("-np", 2, "sh", "-c", "grep SigIgn /proc/$$/status >mask.$HVD_RANK; touch here.$HVD_RANK; while ! [ -e go ]; do sleep 0.01; done; exit 3",
                            before=lambda: (with_defaults(), [signal.signal(number, signal.SIG_IGN) for number in ignored]))
        self.wait_for_files("here.0", "here.1")
        for number in ignored:
            os.kill(job.pid, number)
        for rank in range(2):
            mask = int((self.folder / f"mask.{rank}").read_text().split()[1], 16)
            self.assertEqual([number for number in range(1, 65) if mask >> (number - 1) & 1], sorted(ignored))
        (self.folder / "go").touch()
        self.assertEqual(job.wait(PATIENCE), 3)

    def test_signals_that_hvdrun_was_started_with_blocked_reach_its_ranks(self):
        blocked = {signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM}
        job = self.start_it("-np", 2, "grep", "SigBlk", "/proc/self/status",  # a shell may unblock them itself
                            before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked))
        lines = job.communicate(timeout=PATIENCE)[0].splitlines()
        self.assertEqual([int(line.split()[-1], 16) for line in lines], [0, 0], lines)

    def test_signals_that_hvdrun_was_started_with_blocked_are_heard(self):
        job = self.start_it("-np", 2, "sh", "-c", "touch here.$HVD_RANK; exec sleep 1000",
                            before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD}))
        self.wait_for_files("here.0", "here.1")
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGTERM)
        self.assert_nothing_is_left()

    def test_what_an_ancestor_inherits_is_reaped(self):
        def inherit():
            with_defaults()
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        # A process of a session of its own, whose parent ends before it.
        script = "(setsid sh -c 'echo $$ >number; mv number left' &) & wait; touch here.$HVD_RANK; while ! [ -e go ]; do sleep 0.01; done"
        # The attribute holds after exec, and hvdrun is the ancestor.
        job = self.start_it("-np", 1, "sh", "-c", script, before=inherit)
        self.wait_for_files("left", "here.0")
        number = (self.folder / "left").read_text().strip()
        wait_until(lambda: state_of(number) == "", "nothing is left of it")
        (self.folder / "go").touch()
        self.assertEqual((job.wait(PATIENCE), job.stderr.read()), (0, ""))

    def test_the_first_process_of_a_container_ends_by_a_signal(self):
        unshare = ["unshare", "--fork", "--pid", "--mount-proc"]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("this user may make no namespaces")
        for words in ((), ("--min-np", 1, "--host-discovery-script", "touch here.0; cat /dev/null"), ("--max-restarts", 1)):
            job = subprocess.Popen([*unshare, HVDRUN, *map(str, words), "-np", "1", "sh", "-c", STAYS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=self.folder, env=self.environment(), preexec_fn=with_defaults)
            self.addCleanup(job.communicate)
            self.addCleanup(job.kill)
            self.wait_for_files("here.0")
            first = next(pid for pid in processes_with(self.mark) if program_of(pid) == os.path.realpath(HVDRUN) and parent_of(pid) == job.pid)
            os.kill(first, signal.SIGTERM)
            self.assertEqual(job.wait(PATIENCE), 143)
            self.assert_nothing_is_left()
            (self.folder / "here.0").unlink()

    def test_a_second_interrupt_kills_at_once(self):
        job = self.start_it("-np", 2, "--kill-after", 1000, "sh", "-c", UNIMPRESSED)
        self.assert_second_interrupt_kills(job)

    def test_a_second_interrupt_kills_also_what_ranks_have_started(self):
        job = self.start_it("-np", 2, "--kill-after", 1000, "sh", "-c", f"trap '' TERM; ( {UNIMPRESSED} ) & wait")
        self.assert_second_interrupt_kills(job)

    def test_nothing_is_left_when_hvdrun_is_killed(self):
        job = self.start_it("-np", 3, "--kill-after", 1, "sh", "-c", f'[ $HVD_RANK = 2 ] && {{ {STUBBORN}; }}\n{STAYS}')
        self.wait_for_files("here.0", "here.1", "here.2")
        wait_until(lambda: len(processes_with(self.mark)) > 5, "what two of the ranks have started")
        job.kill()
        self.assert_nothing_is_left()

    def test_nothing_is_left_when_hvdrun_is_killed_whose_streams_were_closed(self):
        for stream in range(3):
            job = self.start_it("-np", 1, "--kill-after", 1, "sh", "-c", f"sleep 1000 & {STAYS}", before=lambda: os.close(stream))
            self.wait_for_files("here.0")
            job.kill()
            self.assert_nothing_is_left()
            (self.folder / "here.0").unlink()

    def test_under_nohup_hvdrun_and_its_ranks_take_no_hangup(self):
        job = self.start_it("-np", 1, "sh", "-c", "echo $$ >number; mv number here; while ! [ -e go ]; do sleep 0.01; done; exit 3",
                            before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_files("here")
        for number in (job.pid, int((self.folder / "here").read_text())):
            os.kill(number, signal.SIGHUP)
        (self.folder / "go").touch()
        self.assertEqual(job.wait(PATIENCE), 3)

    def test_ranks_end_even_when_hvdrun_and_its_guard_are_killed_together(self):
        job = self.start_it("-np", 2, "sh", "-c", "trap '' TERM; touch here.$HVD_RANK; while :; do read x </dev/null; done")
        self.wait_for_files("here.0", "here.1")
        own = [pid for pid in processes_with(self.mark) if os.path.samefile(f"/proc/{pid}/exe", HVDRUN)]
        self.assertEqual(len(own), 2)
        job.send_signal(signal.SIGSTOP)  # so that it cannot see the guard's end
        for pid in sorted(own, key=lambda pid: pid == job.pid):
            os.kill(pid, signal.SIGKILL)
        self.assert_nothing_is_left()

    def test_the_secret_is_in_no_command_line_and_no_environment(self):
        job = self.start_it("-np", 2, "sh", "-c", 'cp "$HVD_SECRET_FILE" secret.$HVD_RANK; ' + STAYS)
        self.wait_for_files("here.0", "here.1")
        secret = (self.folder / "secret.0").read_bytes().strip()
        self.assertEqual(len(secret), 64)
        shown = [(pid, name) for pid, name, text in command_lines() if secret in text]
        self.assertEqual(shown, [])
        os.kill(job.pid, signal.SIGTERM)

    def test_ranks_get_no_input_and_no_files_of_hvdrun(self):
        ended = self.run_it("-np", 2, "sh", "-c", 'cat; ls -l /proc/self/fd | grep -c "^l"; readlink /proc/self/fd/0; ulimit -n')
        self.assertEqual(len(set(line.partition(":")[2] for line in ended.stdout.splitlines())), 3, ended.stdout)
        self.assertIn(":/dev/null\n", ended.stdout)
        self.assertIn(":4\n", ended.stdout)  # and the folder that ls reads

    def test_ranks_have_the_users_limit_of_files(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        job = self.start_it("-np", 2, "sh", "-c", "ulimit -Sn; ulimit -Hn", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, most)))
        hard = "unlimited" if most == resource.RLIM_INFINITY else str(most)
        self.assertEqual(sorted(job.communicate(timeout=PATIENCE)[0].splitlines()), sorted(f"[{r}]<stdout>:{limit}" for r in range(2) for limit in ("200", hard)))

    def test_a_job_inside_a_rank_hides_the_variables_of_the_outer_one(self):
        outer = {"HVD_RANK": "7", "HVD_SIZE": "8", "HVD_LOCAL_RANK": "7", "HVD_LOCAL_SIZE": "8", "HVD_RENDEZVOUS": "192.0.2.1:1", "HVD_RENDEZVOUS_SERVED": "0",
                 "HVD_SECRET": "ab" * 32, "HVD_SECRET_FILE": "/nowhere", "HVD_ELASTIC_MIN_SIZE": "7", "HVD_ELASTIC_MAX_SIZE": "8", "HVD_ELASTIC_TIMEOUT": "7ms", "HVD_ELASTIC_LAUNCHER_TIMEOUT": "8ms"}
        own = {"HVD_RANK", "HVD_SIZE", "HVD_LOCAL_RANK", "HVD_LOCAL_SIZE", "HVD_RENDEZVOUS", "HVD_RENDEZVOUS_SERVED", "HVD_SECRET_FILE"}
        for hosts in ((), ("-H", "a", "--ssh-command", FAKE_SSH)):
            ended = self.run_it("-np", 1, *hosts, "env", HVD_TUNING="t", **outer)
            shown = dict(line.partition(":")[2].split("=", 1) for line in ended.stdout.splitlines() if ":HVD_" in line)
            self.assertEqual(set(shown), own | {"HVD_TUNING"})
            self.assertEqual([name for name in own if shown[name] == outer[name]], [])
        # The script that names the hosts runs outside of the job, too.
        ended = self.run_it("--min-np", 1, "--host-discovery-script", 'echo "localhost:$((1 + ${HVD_ELASTIC_MIN_SIZE-0} + ${HVD_RANK-0}))"', "true", **outer)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.run_it("--min-np", 1, "--event-log", "log", "--host-discovery-script", "env >seen; echo localhost", "true", **outer)
        self.assertEqual([line for line in (self.folder / "seen").read_text().splitlines() if line.startswith("HVD_")], [])


class Events(LauncherTest):
    def events_of(self, *arguments):
        self.run_it("--event-log", "log", *arguments)
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def test_the_log_tells_who_where_and_why(self):
        wait = 'while ! grep -q exited log; do sleep 0.01; done; sleep 0.3'
        events = self.events_of("-np", 3, "sh", "-c", f'[ $HVD_RANK = 0 ] && exit 0\n[ $HVD_RANK = 1 ] && {{ {wait}; exit 5; }}\nsleep 1000 #"\n\t\\\xff')
        self.assertEqual([(e["event"], e.get("rank")) for e in events],
                         [("job", None), ("started", 0), ("started", 1), ("started", 2), ("exited", 0), ("failed", 1), ("ended", 2), ("finished", None)])
        failed, ended, finished = events[5:]
        self.assertEqual((failed["host"], failed["code"], failed["why"]), ("localhost", 5, "exit code 5"))
        self.assertGreaterEqual(failed["seconds"], 0.3)
        self.assertEqual(ended["signal"], signal.SIGTERM)
        self.assertIn("rank 1 on localhost failed", ended["why"])
        self.assertEqual(finished["code"], 5)
        self.assertIn('#"\n\t\\\xff', events[0]["program"])
        for event in events:
            self.assertRegex(event["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        self.assertEqual([e["time"] for e in events], sorted(e["time"] for e in events))

    def test_bytes_that_are_no_text_are_valid_json(self):
        self.run_it("--event-log", "log", "-np", 1, "true", b"\xff\xed\xa0\x80\xc0\x80\xf0\x9f\x98\x80".decode(errors="surrogateescape"))
        first = json.loads((self.folder / "log").read_text(encoding="utf-8").splitlines()[0])
        self.assertEqual(first["program"], "true '" + "�" * 6 + "😀'")

    def test_a_log_that_cannot_be_written_fails_the_job_at_its_end(self):
        for words, code in ((["touch", "done"], 1), (["sh", "-c", "touch done; exit 5"], 5)):
            ended = self.run_it("--event-log", "/dev/full", "-np", 1, *words)
            self.assertEqual((ended.returncode, ended.stderr.count("the event log ends here: No space left on device")), (code, 1), ended.stderr)
            (self.folder / "done").unlink()
        ended = self.run_it("--event-log", "/dev/full", "--max-restarts", 3, "-np", 1, "sh", "-c", "echo x >>count")
        self.assertEqual((ended.returncode, (self.folder / "count").read_text()), (1, "x\n"))

    def test_a_job_that_fails_is_started_again(self):
        program = ("sh", "-c", "echo run $HVD_RANK; [ $HVD_RANK = 0 ] || exec sleep 1000; echo x >>count; [ $(wc -l <count) -lt 3 ] && exit 6; exit 0")
        for restarts, code, runs in ((0, 6, 1), (1, 6, 2), (2, 0, 3), (9, 0, 3)):
            (self.folder / "count").unlink(missing_ok=True)
            ended = self.run_it("-np", 2 if code else 1, "--max-restarts", restarts, "--event-log", "log", "--output-filename", "out", *program)
            self.assertEqual((ended.returncode, ended.stderr.count("the job ended with 6; it is started again")), (code, runs - 1))
            self.assertEqual((self.folder / "out/rank.0/stdout").read_text(), "run 0\n" * runs)
            events = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
            self.assertEqual([event["run"] for event in events if event["event"] == "job"], list(range(1, runs + 1)))
            self.assertEqual([event["code"] for event in events if event["event"] == "finished"], [6] * (runs - 1) + [code])

    def test_a_job_that_is_ended_is_not_started_again(self):
        self.assertEqual(self.end_while_it_says_something("-np", 1, "--max-restarts", 9, "sh", "-c", "echo x >>count; exit 6"), 143)
        self.assertEqual((self.folder / "count").read_text(), "x\n")
        job = self.start_it("-np", 2, "--max-restarts", 9, "sh", "-c", "echo x >>count.$HVD_RANK; exec sleep 1000")
        self.wait_for_files("count.0", "count.1")
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 143)
        (self.folder / "out/rank.0").mkdir(parents=True)
        (self.folder / "out/rank.0/stdout").symlink_to("/dev/full")
        ended = self.run_it("-np", 2, "--max-restarts", 9, "--output-filename", "out", "sh", "-c", "echo x; echo x >>count.$HVD_RANK; sleep 1000")
        self.assertEqual(ended.returncode, 1)
        self.assertNotIn("again", job.stderr.read() + ended.stderr)
        self.assertEqual((self.folder / "count.0").read_text(), "x\n" * 2)


if __name__ == "__main__":
    unittest.main()
