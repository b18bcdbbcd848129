# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Ranks on other hosts, by a shell in ssh's place."""

import os
import shutil
import signal
import subprocess
import unittest

from launching import FAKE_SSH, LauncherTest, PATIENCE, UNIMPRESSED, command_lines, wait_until, with_defaults

STAYS = "touch here.$HVD_RANK; sleep 1000 & wait"


class Remote(LauncherTest):
    def there(self, hosts, *arguments, ssh=FAKE_SSH, **more):
        return self.run_it("-H", hosts, "--ssh-command", ssh, *arguments, **more)

    def test_each_rank_is_told_its_place(self):
        ended = self.there("a:2,b:1", "sh", "-c", "echo $HVD_RANK $HVD_SIZE $HVD_LOCAL_RANK $HVD_LOCAL_SIZE $HVD_RENDEZVOUS_SERVED")
        self.assertEqual(sorted(ended.stdout.splitlines()), ["[0]<stdout>:0 3 0 2 1", "[1]<stdout>:1 3 1 2 1", "[2]<stdout>:2 3 0 1 1"])
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_all_have_one_rendezvous_that_others_can_reach(self):
        ended = self.there("a:1,localhost:1", "sh", "-c", "echo $HVD_RENDEZVOUS")
        addresses = {line.partition(":")[2] for line in ended.stdout.splitlines()}
        self.assertEqual(len(addresses), 1, ended.stdout)
        ended = self.there("a:1,localhost:1", "--network-interface", "lo", "sh", "-c", "echo ${HVD_RENDEZVOUS%:*}")
        self.assertIn("[0]<stdout>:127.0.0.1\n", ended.stdout)

    def test_the_command_goes_to_the_host_by_the_template(self):
        (self.folder / "my ssh").write_text('#!/bin/sh\nfor a; do last=$a; done\necho "$#:$1:$2:$3" >asked.$3\nexec sh -c "$last"\n')
        (self.folder / "my ssh").chmod(0o755)
        self.there("one,user@two", "true", ssh="'./my ssh' -p 22 {host} {command}")
        self.assertEqual((self.folder / "asked.one").read_text(), "4:-p:22:one\n")
        self.assertEqual((self.folder / "asked.user@two").read_text(), "4:-p:22:user@two\n")

    def test_words_and_variables_arrive_as_they_are(self):
        hard = "a'b\"c$d`e\\f!g\n\th *?~ é"
        ended = self.there("a", "-x", f"MY={hard}", "printenv", "MY", "HVD_MINE", HVD_MINE=hard + "\nend\n.\n")
        self.assertEqual(ended.stdout.replace("[0]<stdout>:", ""), f"{hard}\n{hard}\nend\n.\n\n")
        self.assertEqual(self.there("a", "printf", "%s|", hard, "", "-n").stdout.replace("[0]<stdout>:", ""), f"{hard}||-n|\n")

    def test_only_named_variables_and_those_of_hvd_are_forwarded(self):
        clean = "env -i PATH=/usr/bin:/bin sh -c {command}"
        ended = self.there("a", "-x", "MINE", "env", ssh=clean, MINE="1", OTHERS="2", HVD_TUNING="3", HVD_SECRET="4")
        names = {line.partition(":")[2].partition("=")[0] for line in ended.stdout.splitlines()}
        self.assertLessEqual({"MINE", "HVD_TUNING", "HVD_RANK", "HVD_SECRET_FILE"}, names)
        self.assertFalse({"OTHERS", "HVD_SECRET"} & names, names)

    def test_odd_names_and_values_of_variables_keep_no_rank_from_starting(self):
        odd = {"HVD_A.B": "1", "HVD_%": "2", "HVD_ ": "3", "BASH_FUNC_f%%": "() { :; }", "HVD_NEWLINE": "\nend\n'", "HVD_BYTES": "\udcff\udcfe"}
        for shell in ("bash", "dash", "busybox sh"):
            if shutil.which(shell.split()[0]):
                ended = self.there("a", "-x", "PATH=/nowhere", "-x", "IFS=x", "-x", "UID=7", "-x", "p=1", "-x", "s=2", "/bin/sh", "-c", 'echo "$p|$s|$PATH|$HVD_NEWLINE"',
                                   ssh=f"{shell} -c {{command}}", **odd)
                self.assertEqual((ended.returncode, ended.stdout.replace("[0]<stdout>:", "")), (0, "1|2|/nowhere|\nend\n'\n"), (shell, ended.stderr))

    def test_any_shell_of_a_user_will_do(self):
        for shell in ("bash", "dash", "busybox sh", "zsh", "csh", "fish"):
            if shutil.which(shell.split()[0]):
                ended = self.there("a", "echo", "it's", ssh=f"{shell} -c {{command}}")
                self.assertEqual((ended.stdout, ended.returncode), ("[0]<stdout>:it's\n", 0), shell)

    def test_the_secret_passes_by_the_input_alone(self):
        job = self.start_it("-H", "a:1,b:1", "--ssh-command", FAKE_SSH, "sh", "-c", 'cp "$HVD_SECRET_FILE" secret.$HVD_RANK; stat -c %a "$HVD_SECRET_FILE" >mode; ' + STAYS)
        self.wait_for_files("here.0", "here.1")
        secret = (self.folder / "secret.0").read_bytes().strip()
        self.assertEqual(len(secret), 64)
        self.assertEqual((self.folder / "mode").read_text(), "600\n")
        self.assertEqual([(pid, name) for pid, name, text in command_lines() if secret in text], [])
        os.kill(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 143)
        self.assert_nothing_is_left()

    def test_the_first_failure_ends_all_and_is_named(self):
        ended = self.there("a:1,b:2,localhost:1", "sh", "-c",
                           f"[ $HVD_RANK = 1 ] || {{ {STAYS}; }}\nwhile ! [ -e here.0 -a -e here.2 -a -e here.3 ]; do sleep 0.01; done; exit 21")
        self.assertEqual(ended.returncode, 21)
        self.assertIn("rank 1 on b failed with exit code 21", ended.stderr)

    def test_of_many_that_fail_at_once_four_are_named(self):
        ended = self.there("a:7", "sh", "-c", "touch here.$HVD_RANK; while [ $(ls here.* | wc -l) -lt 7 ]; do sleep 0.01; done; exit 9")
        self.assertEqual(ended.returncode, 9)
        self.assertIn(ended.stderr.count(" on a failed with exit code 9"), range(1, 5), ended.stderr)

    def test_ranks_that_ignore_sigterm_are_killed(self):
        ended = self.there("a:1,b:1", "--kill-after", 0.3, "sh", "-c",
                           "[ $HVD_RANK = 0 ] || { trap '' TERM; touch here; while :; do sleep 0.05; done; }\nwhile ! [ -e here ]; do sleep 0.01; done; exit 3")
        self.assertEqual(ended.returncode, 3)

    def test_what_a_rank_leaves_behind_is_ended(self):
        ended = self.there("a:1", "--kill-after", 0.3, "sh", "-c",
                           "{ trap '' TERM; touch here; exec sleep 1000 >/dev/null 2>&1; } &\nwhile ! [ -e here ]; do sleep 0.01; done; exit 4")
        self.assertEqual(ended.returncode, 4)

    def test_nothing_is_left_when_hvdrun_is_killed(self):
        job = self.start_it("-H", "a:2,b:1", "--kill-after", 1, "--ssh-command", FAKE_SSH, "sh", "-c", STAYS)
        self.wait_for_files("here.0", "here.1", "here.2")
        job.kill()
        self.assert_nothing_is_left()

    def test_nothing_is_left_when_the_connection_is_cut(self):
        # In a session of its own, the shell of the other host lives on when ssh is killed.
        ssh = "setsid -w sh -c {command}"
        job = self.start_it("-H", "a:2", "--kill-after", 1, "--ssh-command", ssh, "sh", "-c", STAYS)
        self.wait_for_files("here.0", "here.1")
        job.kill()
        self.assert_nothing_is_left()

    def test_signals_that_end_no_process_are_passed_on_as_well(self):
        names = ("TSTP", "CONT", "WINCH", "URG")
        traps = "; ".join(f"trap 'touch got.{name}.$HVD_RANK' {name}" for name in names)
        job = self.start_it("-H", "a:1,localhost:1", "--ssh-command", FAKE_SSH, "--kill-after", 0.3, "--event-log", "log", "--forward-signals", ",".join(names), "sh", "-c",
                            f"{traps}; touch here.$HVD_RANK; while :; do sleep 0.02 & wait $!; done", before=with_defaults)
        self.wait_for_files("here.0", "here.1")
        wait_until(lambda: (self.folder / "log").read_text().count('"started"') == 2, "hvdrun has heard of both ranks")
        for name in names:
            job.send_signal(signal.Signals["SIG" + name])
            self.wait_for_files(f"got.{name}.0", f"got.{name}.1")
        job.terminate()
        self.assertEqual(job.wait(PATIENCE), 143)
        self.assert_nothing_is_left()

    def test_a_second_interrupt_kills_at_once(self):
        job = self.start_it("-H", "a:2", "--kill-after", 1000, "--ssh-command", FAKE_SSH, "sh", "-c", UNIMPRESSED)
        self.assert_second_interrupt_kills(job)

    def test_a_host_that_is_not_reached_is_named(self):
        (self.folder / "rsh").write_text('#!/bin/sh\n[ $1 = b ] || exec sh -c "$2"\necho "no route to $1" >&2\nexit 255\n')
        (self.folder / "rsh").chmod(0o755)
        ended = self.there("a:1,b:1", "sleep", "1000", ssh="./rsh {host} {command}")
        self.assertEqual(ended.returncode, 255)
        self.assertIn("[1]<stderr>:no route to b\n", ended.stderr)
        self.assertIn("rank 1 on b was not started: ./rsh ended with exit code 255", ended.stderr)

    def test_ssh_is_never_asked_for_an_answer(self):
        for command, words in {"ssh -p 2222 {host} {command}": "ssh -o BatchMode=yes -p 2222 a {command}", "/usr/bin/ssh {host} {command}": "/usr/bin/ssh -o BatchMode=yes a {command}",
                               "ssh -oBatchMode=no {host} {command}": "ssh -oBatchMode=no a {command}", "rsh {host} {command}": "rsh a {command}"}.items():
            self.assertIn(f"[0] {words}: ", self.there("a", "--dry-run", "true", ssh=command).stdout)

    def test_a_rank_that_waits_for_a_password_is_told_in_time(self):
        job = self.start_it("-H", "a:2,localhost:1", "--ssh-command", "sh -c 'exec sleep 1000' {command}", "sleep", "1000")
        self.assertEqual(job.stderr.readline(), "hvdrun: rank 0 on a has not started for 3.0 s. If sh waits for a password or a host key: nobody can answer; "
                         "'ssh a true' must work without a question: ssh-copy-id a brings a key there, and a first login knows the host's\n")
        self.assertIsNone(job.poll())
        job.terminate()
        self.assertEqual(job.wait(PATIENCE), 143)
        self.assertNotIn("password", job.stderr.read())  # once

    def test_a_login_that_fails_is_told_with_the_remedy(self):
        ended = self.there("a", "true", ssh="sh -c 'echo a: Permission denied >&2; exit 255' {command}")
        self.assertEqual(ended.returncode, 255)
        self.assertIn("rank 0 on a was not started: sh ended with exit code 255; 'ssh a true' must work without a question: ssh-copy-id a brings a key there", ended.stderr)

    def test_a_host_without_setsid_is_told(self):
        (self.folder / "bare").mkdir()
        for name in ("sh", "mkdir", "rm", "sleep"):
            (self.folder / "bare" / name).symlink_to(shutil.which(name))
        ended = self.there("a", "true", ssh="env PATH=bare sh -c {command}")
        self.assertEqual(ended.returncode, 125, ended.stderr)
        self.assertIn("this host has no setsid", ended.stderr)

    def test_a_host_without_room_is_told(self):
        (self.folder / "full").mkdir()
        script = 'mount -t tmpfs -o size=4k none full && dd if=/dev/zero of=full/x bs=4k count=9 2>/dev/null; exec "$@"'
        for words, said in ((["-H", "a", "--ssh-command", "env TMPDIR=full sh -c {command}"], "this host has no room for a file in full"),
                            (["-np", "1"], "the file of the secret cannot be written: No space left on device (TMPDIR or XDG_RUNTIME_DIR names another folder)")):
            told = {} if "-H" in words else {"TMPDIR": "full"}
            ended = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", os.environ["HVDRUN"], *words, "true"], cwd=self.folder,
                                   env=self.environment() | told, capture_output=True, text=True, timeout=PATIENCE)
            if "unshare:" in ended.stderr or "mount:" in ended.stderr:
                self.skipTest("this user may mount nothing")
            self.assertIn(said, ended.stderr)
            self.assertEqual(ended.returncode, 125 if "-H" in words else 1)

    def test_a_host_that_does_not_answer_ends_the_job_in_time(self):
        ended = self.there("a:1", "--start-timeout", 0.3, "true", ssh="sh -c 'sleep 1000' {command}")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("rank 0 on a was not started within 0.3 s (--start-timeout)", ended.stderr)

    def test_a_greeting_of_the_host_is_shown_and_no_harm(self):
        ended = self.there("a", "echo", "x", ssh='sh -c \'printf "welcome\\nno newline"; eval "$0"\' {command}')
        self.assertEqual(ended.stdout, "[0]<stdout>:welcome\n[0]<stdout>:no newline\n[0]<stdout>:x\n")

    def test_a_host_without_the_folder_is_named(self):
        (self.folder / "gone").mkdir()
        ended = subprocess.run([os.environ["HVDRUN"], "-H", "a", "--ssh-command", "sh -c 'rmdir ../gone; eval \"$0\"' {command}", "true"],
                               cwd=self.folder / "gone", env=self.environment(), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(ended.returncode, 125, ended.stderr)
        self.assertRegex(ended.stderr, r"this host has no folder \S*/gone")

    def test_variables_larger_than_a_pipe_arrive(self):
        ended = self.there("a", "sh", "-c", 'echo ${#HVD_LARGE}', HVD_LARGE="x" * 100_000)
        self.assertEqual(ended.stdout, "[0]<stdout>:100000\n")


if __name__ == "__main__":
    unittest.main()
