# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The output of ranks, as hvdrun passes it on: lines, files, times, a terminal."""

import collections
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import unittest

from launching import FAKE_SSH, HVDRUN, LauncherTest, PATIENCE

# Writes lines as fast as it can, in pieces that end anywhere.
HEAVY = """i=0; while [ $i -lt 8 ]; do seq -f "$HVD_RANK:%%06.0f:abcdefghijklmnopqrstuvwxyz" 0 4999; i=$((i+1)); done | dd bs=%d 2>/dev/null"""


class Output(LauncherTest):
    def test_lines_say_rank_and_stream(self):
        ended = self.run_it("-np", 2, "sh", "-c", "echo out; echo err >&2")
        self.assertEqual(sorted(ended.stdout.splitlines()), ["[0]<stdout>:out", "[1]<stdout>:out"])
        self.assertEqual(sorted(ended.stderr.splitlines()), ["[0]<stderr>:err", "[1]<stderr>:err"])

    def test_heavy_output_tears_no_line_and_loses_none(self):
        ended = self.run_it("-np", 4, "sh", "-c", HEAVY % 777)
        seen, parts = collections.Counter(), collections.Counter()
        for line in ended.stdout.splitlines():
            rank, goes_on, part = re.fullmatch(r"\[(\d)\]<stdout>(\+?):(.+)", line).groups()
            # A rank that has no processor for 0.1 s in the middle of a line is shown in parts.
            self.assertEqual(bool(goes_on), parts[rank] > 0, line)
            whole = f"{rank}:{seen[rank] % 5000:06}:abcdefghijklmnopqrstuvwxyz"
            self.assertEqual(part, whole[parts[rank]:][:len(part)])
            parts[rank] += len(part)
            if parts[rank] == len(whole):
                seen[rank], parts[rank] = seen[rank] + 1, 0
        self.assertEqual((seen, parts.total()), ({str(r): 40000 for r in range(4)}, 0))
        self.assertLess(len(ended.stdout.splitlines()), 160_100)

    def test_the_last_line_needs_no_newline(self):
        self.assertEqual(self.run_it("-np", 1, "printf", "a\\n\\nb").stdout, "[0]<stdout>:a\n[0]<stdout>:\n[0]<stdout>:b\n")

    def test_a_prompt_is_shown_before_its_newline(self):
        for stream, redirect in (("stdout", ""), ("stderr", ">&2")):
            job = self.start_it("-np", 2, "--output-filename", "out", "sh", "-c",
                                f"printf 'name %s? ' $HVD_RANK {redirect}; while ! [ -e go ]; do sleep 0.01; done; echo it is x {redirect}")
            shown = getattr(job, stream)
            self.assertEqual(sorted(shown.readline() for _ in range(2)), [f"[{r}]<{stream}>:name {r}? \n" for r in range(2)])
            self.assertEqual([(self.folder / f"out/rank.{r}/{stream}").read_text() for r in range(2)], [f"name {r}? " for r in range(2)])
            (self.folder / "go").touch()
            self.assertEqual(sorted(shown.readline() for _ in range(2)), [f"[{r}]<{stream}>+:it is x\n" for r in range(2)])
            self.assertEqual(job.wait(PATIENCE), 0)
            self.assertEqual([(self.folder / f"out/rank.{r}/{stream}").read_text() for r in range(2)], [f"name {r}? it is x\n" for r in range(2)])
            (self.folder / "go").unlink()

    def test_progress_by_carriage_returns_is_shown_as_it_comes(self):
        job = self.start_it("-np", 1, "--output-filename", "out", "sh", "-c", "for i in 1 2 3; do printf '\\r%s%%' $i; while ! [ -e go$i ]; do sleep 0.01; done; done; printf '\\r\\nend\\r\\n'")
        self.assertEqual(job.stdout.buffer.readline(), b"[0]<stdout>:\r\n")
        for i in (1, 2, 3):
            self.assertEqual(job.stdout.buffer.readline(), b"[0]<stdout>:%d%%\n" % i)
            (self.folder / f"go{i}").touch()
            if i < 3:
                self.assertEqual(job.stdout.buffer.readline(), b"[0]<stdout>+:\r\n")
        self.assertEqual(job.communicate(timeout=PATIENCE)[0].encode(), b"[0]<stdout>+:\r\n[0]<stdout>:end\r\n".replace(b"\r\n", b"\n"))
        self.assertEqual((self.folder / "out/rank.0/stdout").read_bytes(), b"\r1%\r2%\r3%\r\nend\r\n")
        fast = self.run_it("-np", 1, "printf", "10%%\\r20%%\\r30%%\\r\\n", text=False)
        self.assertEqual(fast.stdout, b"[0]<stdout>:10%\r\n[0]<stdout>:20%\r\n[0]<stdout>:30%\r\n")

    def test_characters_are_shown_whole(self):
        for text in ("é", "€", "😀"):
            data = text.encode()
            for cut in range(1, len(data)):
                first, rest = ("".join(f"\\{byte:03o}" for byte in part) for part in (data[:cut], data[cut:]))
                ended = self.run_it("-np", 1, "sh", "-c", f"printf 'x{first}'; sleep 0.3; printf '{rest}\\n'", text=False)
                self.assertEqual(ended.stdout.decode(), f"[0]<stdout>:x\n[0]<stdout>+:{text}\n")
        # Bytes that are no characters are not held back.
        ended = self.run_it("-np", 1, "sh", "-c", "printf '\\377'; sleep 0.3; printf '\\200\\303'", text=False)
        self.assertEqual(ended.stdout, b"[0]<stdout>:\xff\n[0]<stdout>+:\x80\xc3\n")

    def test_output_without_a_newline_reaches_no_other_line(self):
        ended = self.run_it("-np", 4, "sh", "-c", "for i in 1 2 3; do printf 'a%s' $HVD_RANK; sleep 0.1$HVD_RANK; echo; done")
        for line in ended.stdout.splitlines():
            found = re.fullmatch(r"\[(\d)\]<stdout>(\+?):(a(\d))?", line)
            self.assertTrue(found and found[4] in (None, found[1]), line)

    def test_output_without_a_newline_outlives_hvdrun(self):
        job = self.start_it("-np", 1, "--output-filename", "out", "sh", "-c", "printf half; sleep 0.5; touch here; exec sleep 1000")
        self.wait_for_files("here")
        job.kill()
        self.assertEqual(job.communicate(timeout=PATIENCE)[0], "[0]<stdout>:half\n")
        self.assertEqual((self.folder / "out/rank.0/stdout").read_text(), "half")
        self.assert_nothing_is_left()

    def with_input(self, given, *arguments):
        ended = subprocess.run([HVDRUN, *map(str, arguments)], input=given, capture_output=True, timeout=PATIENCE, cwd=self.folder, env=self.environment())
        self.assert_nothing_is_left()
        return ended

    def test_rank_0_gets_the_standard_input_where_that_is_asked_for(self):
        lines = b"".join(b"line %d\n" % i for i in range(100_000))
        for size in (1, 2, 3, 4):
            ended = self.with_input(lines, "-np", size, "--stdin", "--output-filename", "out", "sh", "-c", "cat >in.$HVD_RANK")
            self.assertEqual((ended.returncode, ended.stderr), (0, b""))
            self.assertEqual([(self.folder / f"in.{r}").read_bytes() for r in range(size)], [lines] + [b""] * (size - 1))
        ended = self.with_input(lines, "-np", 2, "sh", "-c", "cat")
        self.assertEqual((ended.returncode, ended.stdout), (0, b""))

    def test_a_rank_need_not_read_its_input(self):
        lines = b"x" * 10_000_000
        self.assertEqual(self.with_input(lines, "-np", 2, "--stdin", "sh", "-c", "head -c 5; exit 7").returncode, 7)
        self.assertEqual(self.with_input(lines, "-np", 2, "--stdin", "--kill-after", 1, "sh", "-c", "[ $HVD_RANK = 1 ] && exit 6; exec sleep 1000").returncode, 6)

    def test_an_input_that_cannot_be_read_is_told_and_ends_the_job(self):
        given = os.open(self.folder, os.O_RDONLY)
        self.addCleanup(os.close, given)
        for hosts in (("-np", 2), ("-H", "a:2", "--ssh-command", FAKE_SSH)):
            ended = subprocess.run([HVDRUN, *map(str, hosts), "--max-restarts", "3", "--stdin", "sh", "-c", "cat; echo x >>count.$HVD_RANK"], stdin=given, capture_output=True, text=True,
                                   timeout=PATIENCE, cwd=self.folder, env=self.environment())
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertRegex(ended.stderr, r"^hvdrun: --stdin: the standard input cannot be read: Is a directory(; \d other ranks? w\w+ ended)?\n$")
            self.assertFalse((self.folder / "count.0").exists())
            self.assert_nothing_is_left()

    def test_a_rank_is_asked_and_answers(self):
        job = subprocess.Popen([HVDRUN, "-np", "2", "--stdin", "sh", "-c", "[ $HVD_RANK = 1 ] && exit; printf 'name? '; read name; echo hello $name"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.folder, env=self.environment())
        self.addCleanup(job.communicate)
        self.assertEqual(job.stdout.readline(), b"[0]<stdout>:name? \n")
        job.stdin.write(b"you\n")
        job.stdin.flush()
        self.assertEqual(job.stdout.readline(), b"[0]<stdout>+:hello you\n")
        self.assertEqual(job.wait(PATIENCE), 0)

    def test_a_rank_elsewhere_gets_the_input_as_it_is(self):
        given = bytes(range(256)) * 2000 + b"\\c%s\nend\nKILL *\n" + b"\n" * 3
        for ranks, host in ((1, "a"), (2, "a:2"), (3, "a:1,localhost:2")):
            ended = self.with_input(given, "-H", host, "--ssh-command", FAKE_SSH, "--stdin", "sh", "-c", "cat >in.$HVD_RANK")
            self.assertEqual((ended.returncode, ended.stderr), (0, b""))
            self.assertEqual([(self.folder / f"in.{r}").read_bytes() for r in range(ranks)], [given] + [b""] * (ranks - 1))
        lines = b"x" * 1_000_000
        self.assertEqual(self.with_input(lines, "-H", "a:2", "--ssh-command", FAKE_SSH, "--stdin", "sh", "-c", "head -c 5; exit 7").returncode, 7)
        self.assertEqual(self.with_input(lines, "-H", "a:2", "--ssh-command", FAKE_SSH, "--stdin", "--kill-after", 1, "sh", "-c",
                                         "[ $HVD_RANK = 1 ] && exit 6; exec sleep 1000").returncode, 6)

    def test_a_rank_comes_later_on_a_host_where_another_has_got_input(self):
        ended = self.with_input(b"it\n", "-H", "a:2", "--min-np", 2, "--stdin", "--blacklist-cooldown-range", "0.1", "1", "--ssh-command", FAKE_SSH, "sh", "-c",
                                "if [ $HVD_RANK = 0 ]; then read x; touch got.$x; while ! [ -e done ]; do sleep 0.01; done; exit; fi\n"
                                "while ! [ -e got.it ]; do sleep 0.01; done; [ -e again ] || { touch again; exit 1; }; touch done")
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))

    def test_jobs_end_at_once_whose_rank_elsewhere_leaves_its_input(self):
        # The process that brings the input is ended while it tells that the rank has closed it.
        jobs = [subprocess.Popen([HVDRUN, "-H", "a:2", "--ssh-command", FAKE_SSH, "--kill-after", str(2 * PATIENCE), "--stdin", "sh", "-c", "head -c 5; exit 7"],
                                 stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder, env=self.environment()) for _ in range(8)]
        for job in jobs:
            self.addCleanup(job.kill)
            try:
                job.communicate(b"x" * 100_000, timeout=PATIENCE)
            except BrokenPipeError:
                pass
            self.assertEqual(job.wait(PATIENCE), 7)
        self.assert_nothing_is_left()

    def test_a_long_line_is_waited_for(self):
        for hosts in (("-np", 1), ("-H", "a", "--ssh-command", FAKE_SSH)):
            ended = self.run_it(*hosts, "sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; sleep 0.4; echo y")
            self.assertEqual(ended.stdout, "[0]<stdout>:" + "x" * 100_000 + "y\n")

    def test_output_from_another_host_is_that_of_a_rank_here(self):
        every = bytes(range(256)) * 300
        (self.folder / "bytes").write_bytes(every)
        there = ("-H", "a:3", "--ssh-command", FAKE_SSH, "--output-filename", "out")
        ended = self.run_it(*there, "sh", "-c", "cat bytes; cat bytes >&2", text=False)
        self.assertEqual(ended.returncode, 0)
        for rank in range(3):
            for stream in ("stdout", "stderr"):
                self.assertEqual((self.folder / f"out/rank.{rank}/{stream}").read_bytes(), every)
        ended = self.run_it(*there, "sh", "-c", HEAVY % 777)
        for rank in range(3):
            lines = [f"{rank}:{i:06}:abcdefghijklmnopqrstuvwxyz" for i in range(5000)]
            self.assertEqual((self.folder / f"out/rank.{rank}/stdout").read_text().splitlines(), lines * 8)
        job = self.start_it(*there, "sh", "-c", "printf 'name? '; while ! [ -e go ]; do sleep 0.01; done; echo é")
        self.assertEqual(sorted(job.stdout.readline() for _ in range(3)), [f"[{r}]<stdout>:name? \n" for r in range(3)])
        (self.folder / "go").touch()
        self.assertEqual(sorted(job.stdout.readline() for _ in range(3)), [f"[{r}]<stdout>+:é\n" for r in range(3)])
        self.assertEqual(job.wait(PATIENCE), 0)

    def test_output_written_just_before_a_crash_is_there(self):
        ended = self.run_it("-np", 1, "sh", "-c", "seq 20000; printf last; kill -KILL $$")
        self.assertEqual(ended.stdout.splitlines()[-1], "[0]<stdout>:last")
        self.assertEqual(len(ended.stdout.splitlines()), 20001)

    def test_bytes_pass_as_they_are(self):
        every = bytes(range(256)) * 3
        (self.folder / "bytes").write_bytes(every)
        ended = self.run_it("-np", 1, "--output-filename", "out", "cat", "bytes", text=False)
        self.assertEqual(ended.stdout.replace(b"\r\n[0]<stdout>:", b"\r").replace(b"[0]<stdout>:", b""), every + b"\n")
        self.assertEqual((self.folder / "out/rank.0/stdout").read_bytes(), every)

    def test_a_long_line_stays_whole_up_to_a_mebibyte(self):
        ended = self.run_it("-np", 2, "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' $HVD_RANK; echo")
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:" + str(r) * 1000000 for r in range(2)])

    def test_a_line_without_end_takes_no_memory_and_is_continued(self):
        job = self.start_it("-np", 1, "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; touch done; sleep 1000")
        total, lines = 0, []
        while total < 20_000_000:
            lines.append(job.stdout.readline())
            total += lines[-1].count("x")
        self.assertTrue(lines[0].startswith("[0]<stdout>:x"))
        self.assertTrue(all(line.startswith("[0]<stdout>+:x") for line in lines[1:]))
        peak = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{job.pid}/status").read_text())
        # Sanitizers keep what was freed.
        if os.environ.get("HVD_SANITIZER", "none") == "none":
            self.assertLess(int(peak[1]), 16 * 1024)
        job.terminate()

    def test_files_have_the_output_of_each_rank(self):
        ended = self.run_it("-np", 11, "--output-filename", "deep/folder", "sh", "-c", "echo out $HVD_RANK; echo err $HVD_RANK >&2")
        for rank in range(11):
            own = self.folder / f"deep/folder/rank.{rank:02}"
            self.assertEqual((own / "stdout").read_text(), f"out {rank}\n")
            self.assertEqual((own / "stderr").read_text(), f"err {rank}\n")
        self.assertEqual(len(ended.stdout.splitlines()), 11)

    def test_a_folder_that_cannot_be_made_is_named(self):
        (self.folder / "file").write_text("")
        ended = self.run_it("-np", 2, "--output-filename", "file/folder", "true")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("file/folder/rank.0", ended.stderr)

    def test_a_full_disk_ends_the_job(self):
        (self.folder / "out/rank.0").mkdir(parents=True)
        (self.folder / "out/rank.0/stdout").symlink_to("/dev/full")
        ended = self.run_it("-np", 2, "--output-filename", "out", "sh", "-c", "echo x; sleep 1000")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("the output of rank 0 cannot be written to its file: No space left on device", ended.stderr)

    def test_a_file_that_is_full_when_a_connection_has_ended_ends_the_job(self):
        # The beginning of a character is written when nothing follows it any more. A pipe without a reader takes nothing.
        (self.folder / "out/rank.1").mkdir(parents=True)
        os.mkfifo(self.folder / "out/rank.1/stdout")
        reader = os.open(self.folder / "out/rank.1/stdout", os.O_RDONLY | os.O_NONBLOCK)
        (self.folder / "text").write_bytes(b"begins\n\xc3")
        (self.folder / "rsh").write_text('#!/bin/sh\necho $$ >connection\nexec sh -c "$1"\n')
        (self.folder / "rsh").chmod(0o755)
        job = self.start_it("-H", "localhost:1,b:1", "--ssh-command", "./rsh {command}", "--kill-after", 1, "--event-log", "log", "--output-filename", "out", "sh", "-c",
                            "sleep 1000 & touch here.$HVD_RANK; [ $HVD_RANK = 0 ] || { while ! [ -e here.0 ]; do sleep 0.01; done; cat text; }; wait")
        self.assertEqual(job.stdout.readline(), "[1]<stdout>:begins\n")
        os.close(reader)
        os.kill(int((self.folder / "connection").read_text()), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertIn("the output of rank 1 cannot be written to its file: Broken pipe; 1 other rank was ended\n", job.stderr.read())
        self.assert_nothing_is_left()
        self.assertIn('"event": "finished"', (self.folder / "log").read_text())
        job.stdout.close()  # the rest is no text
        job.stdout = None

    def test_an_output_that_is_full_is_told_as_that(self):
        for words, code in ((["-np", "2", "sh", "-c", "echo x; sleep 1000"], 1), (["-np", "2", "--max-restarts", "3", "sh", "-c", "echo x; sleep 1000"], 1), (["-np", "2", "--dry-run", "true"], 1),
                            (["--help"], 1), (["--version"], 1), (["--check"], 1)):
            with open("/dev/full", "w") as full:
                ended = subprocess.run([HVDRUN, *words], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, cwd=self.folder, env=self.environment())
            self.assertEqual(ended.returncode, code, words)
            self.assertRegex(ended.stderr, r"^hvdrun: the output cannot be written: No space left on device(; \d other ranks? w\w+ ended)?\n$")
            self.assert_nothing_is_left()

    def test_times_begin_lines(self):
        time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
        for option in ("--timestamp", "--prefix-timestamp", "--prefix-output-with-timestamp"):
            ended = self.run_it("-np", 1, option, "--output-filename", "out", "echo", "a")
            self.assertRegex(ended.stdout, f"^{time} \\[0\\]<stdout>:a\n$")
            self.assertRegex((self.folder / "out/rank.0/stdout").read_text(), f"^{time} a\n$")

    def test_a_closed_output_ends_the_job(self):
        job = self.start_it("-np", 2, "sh", "-c", "while :; do echo x; sleep 0.01; done")
        job.stdout.readline()
        job.stdout.close()
        self.assertEqual(job.wait(PATIENCE), 141)
        self.assertIn("nobody reads the output", job.stderr.read())
        self.assert_nothing_is_left()
        job.stdout = None

    def on_a_terminal(self, *arguments, columns=60, until=None, **more):
        """Runs hvdrun on a terminal and returns all that it writes there. The file "go" appears when it has written a text."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        job = subprocess.Popen([HVDRUN, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=self.folder,
                               env=self.environment(TERM="xterm", **more), start_new_session=True)
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 65536):
                written += piece
                if until is not None and re.search(until, written.decode(errors="replace")):
                    (self.folder / "go").touch()
        except OSError:  # the terminal's other end is closed
            pass
        os.close(ours)
        self.assertEqual(job.wait(PATIENCE), 0)
        return written.decode()

    def test_a_terminal_has_colours_and_a_line_of_status(self):
        written = self.on_a_terminal("-np", 2, "sh", "-c", "echo hello; sleep 0.3")
        self.assertIn("\33[36m[0]<stdout>:\33[0mhello", written)
        self.assertIn("\33[33m[1]<stdout>:\33[0mhello", written)
        self.assertIn("\r\33[Khvdrun: 2 of 2 ranks running on 1 host, 0:00:0", written)
        self.assertTrue(written.endswith("\r\33[K"), written)  # it is gone at the end
        for status in re.findall(r"\r\x1b\[K([^\r\n\x1b]+)", written):
            self.assertLess(len(status), 60)

    def test_the_line_of_an_elastic_job_tells_its_epoch_its_step_and_the_samples_a_second(self):
        job = ("-np", 2, "--min-np", 1, os.environ["HVD_ELASTIC_WORKER"], "go")
        written = self.on_a_terminal(*job, columns=160, until=r"step [1-9]\d*, [1-9]\d* samples/s", HVD_TEST_SAMPLES="1")
        self.assertIn("\r\33[Khvdrun: 2 ranks running on 1 host, 0:00:0", written)
        self.assertRegex(written, r", epoch 1, step [1-9]\d*, [1-9]\d* samples/s")
        self.assertEqual(re.findall(r", epoch 1, step (\d+)", written)[-1], re.search(r"(\d+) steps, right", written)[1])
        (self.folder / "go").unlink()
        self.assertNotIn("samples", self.on_a_terminal(*job, columns=160, until=r", epoch 1, step [1-9]"))

    def test_no_colour_is_respected(self):
        self.assertNotIn("\33[36m", self.on_a_terminal("-np", 1, "echo", "hello", NO_COLOR="1"))


if __name__ == "__main__":
    unittest.main()
