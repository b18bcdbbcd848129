# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Elastic jobs by hvdrun: ranks that are killed are replaced, and jobs grow and shrink while they run."""

import json
import os
import re
import signal
import time
import unittest

from launching import FAKE_SSH, LauncherTest, PATIENCE, processes_with, wait_until

WORKER = os.environ["HVD_ELASTIC_WORKER"]
SOON = ("--blacklist-cooldown-range", 0.05, 60)


class Elastic(LauncherTest):
    def events(self, name=None, log="log"):
        try:
            lines = (self.folder / log).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event for event in map(json.loads, lines) if name in (None, event["event"])]

    def start_elastic(self, *arguments, program=(WORKER, "go")):
        return self.start_it("--event-log", "log", *arguments, *program)

    def run_elastic(self, *arguments):
        return self.run_it("--event-log", "log", *arguments)

    def wait_for_epoch(self, condition, what):
        """Returns the first epoch for which the condition holds."""
        wait_until(lambda: any(map(condition, self.events("epoch"))), f"an epoch {what}")
        return next(filter(condition, self.events("epoch")))

    def wait_for_size(self, size):
        """Returns the first epoch of so many ranks, which have done a step."""
        self.wait_for_files(f"go.{size}")
        return self.wait_for_epoch(lambda epoch: epoch["size"] == size, f"of {size} ranks")

    def kill_worker(self, rank):
        """Kills the program on the other host, not the shell that started it."""
        of_rank = [pid for pid in processes_with(f"HVD_RANK={rank}\0") if os.path.samefile(f"/proc/{pid}/exe", WORKER)]
        (worker,) = set(of_rank) & set(processes_with(self.mark))
        os.kill(worker, signal.SIGKILL)

    def pid_of(self, rank):
        return [event["pid"] for event in self.events("started") if event["rank"] == rank][-1]

    def show(self, hosts):
        """The script shows these from now on."""
        (self.folder / "new").write_text(hosts)
        (self.folder / "new").rename(self.folder / "shown")

    def assert_ends_well(self, job, ranks):
        """The program ends, and these ranks have done the same steps with right results."""
        (self.folder / "go").touch()
        out, err = job.communicate(timeout=PATIENCE)
        for file in self.folder.glob("go*"):
            file.unlink()
        self.assertEqual(job.returncode, 0, out + err)
        losses = [epoch for epoch in self.events("epoch") if epoch["epoch"] > 1 and "why" in epoch]
        self.assertEqual(err.splitlines(), [f"hvdrun: {epoch['why']}; {epoch['size']} rank{' goes' if epoch['size'] == 1 else 's go'} on from step {epoch['step']}" for epoch in losses])
        ends = dict(re.findall(r"(?m)^\[(\d+)\]<stdout>:(\d+ steps, \w+)$", out))
        self.assertEqual(set(map(int, ends)), set(ranks), out)
        self.assertEqual(len(set(ends.values())), 1, out)
        self.assertIn("right", out)
        self.assertEqual(f"{self.events('progress')[-1]['step']} steps, right", *set(ends.values()))
        steps = [epoch["step"] for epoch in self.events("epoch")]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual([epoch["epoch"] for epoch in self.events("epoch")], list(range(1, len(steps) + 1)))
        self.assert_nothing_is_left()

    def test_a_rank_that_is_killed_is_replaced_and_no_step_is_lost(self):
        for size, victim, least in ((2, 0, 1), (3, 2, 1), (4, 1, 4)):
            with self.subTest(size=size, victim=victim):
                job = self.start_elastic("-np", size, "--min-np", least, *SOON, "--output-filename", "out")
                self.wait_for_size(size)
                os.kill(self.pid_of(victim), signal.SIGKILL)
                lost = self.wait_for_epoch(lambda epoch: epoch["lost"], "after a loss")
                self.assertEqual((lost["lost"], lost["left"]), ([victim], []))
                self.assertIn(f"rank {victim}: ", lost["why"])
                self.assertGreater(lost["recovery_seconds"], 0)
                back = self.wait_for_epoch(lambda epoch: epoch["epoch"] > 1 and epoch["joined"] == [victim], "with another process")
                self.assertEqual((back["size"], sorted(back["ranks"])), (size, list(range(size))))
                self.assert_ends_well(job, range(size))
                self.assertEqual([(event["rank"], event["signal"]) for event in self.events("failed")], [(victim, signal.SIGKILL)])
                # Its file has the output of both processes.
                self.assertRegex((self.folder / f"out/rank.{victim}/stdout").read_text(), r"^begins\nbegins\n\d+ steps, right\n$")

    def test_two_ranks_that_are_killed_at_once_are_replaced_from_the_first_epoch_on(self):
        job = self.start_elastic("-np", 4, "--min-np", 1, *SOON)
        self.wait_for_epoch(lambda epoch: epoch["size"] == 4, "of 4 ranks")
        for victim in (0, 3):
            os.kill(self.pid_of(victim), signal.SIGKILL)
        self.wait_for_epoch(lambda epoch: epoch["epoch"] > 1 and epoch["size"] == 4, "of 4 ranks again")
        self.assert_ends_well(job, range(4))

    def test_the_log_tells_the_steps_and_the_sum_of_the_samples_of_all_ranks(self):
        jobs = {}
        for size in (1, 2, 3, 4):
            environment = {"HVD_TEST_SAMPLES": "1"} if size > 1 else {}
            jobs[size] = self.start_it("--event-log", f"log{size}", "-np", size, "--min-np", 1, WORKER, "go", **environment)
        wait_until(lambda: all(self.events("progress", f"log{size}") for size in jobs), "progress")
        (self.folder / "go").touch()
        for size, job in jobs.items():
            self.assertEqual(job.wait(PATIENCE), 0)
            told = self.events("progress", f"log{size}")[0]
            self.assertGreater(told["step"], 0)
            self.assertEqual("samples_per_second" in told, size > 1)
            if size > 1:  # at about 5 s
                self.assertGreater(told["samples_per_second"], 0.65 * told["step"] / 5 * sum(range(size + 1)))
                self.assertLess(told["samples_per_second"], 1.3 * told["step"] / 5 * sum(range(size + 1)))

    def test_another_slot_takes_the_place_of_one_that_cools_down(self):
        job = self.start_elastic("-np", 2, "--min-np", 1, "-H", "localhost:3", "--blacklist-cooldown-range", 1000, 2000)
        self.wait_for_size(2)
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(self.wait_for_epoch(lambda epoch: 2 in epoch["joined"], "with rank 2")["size"], 2)
        self.assert_ends_well(job, (1, 2))

    def test_a_lost_rank_whose_process_lives_on_is_replaced(self):
        # As one behind a pulled cable, whose ssh waits. It holds its slot for the time of --start-timeout.
        program = ("sh", "-c", f"exec 2>/dev/null; {WORKER} go & echo $! >new.$HVD_RANK; mv new.$HVD_RANK pid.$HVD_RANK; wait $! && exit; exec sleep 1000")
        job = self.start_elastic("-np", 2, "--min-np", 1, "-H", "localhost:3", "--start-timeout", 1, program=program)
        self.wait_for_size(2)
        os.kill(int((self.folder / "pid.1").read_text()), signal.SIGKILL)
        self.assertEqual(self.wait_for_epoch(lambda epoch: epoch["lost"], "after a loss")["lost"], [1])
        self.assertEqual(self.wait_for_epoch(lambda epoch: 2 in epoch["joined"], "with rank 2")["size"], 2)
        self.assert_ends_well(job, (0, 2))
        self.assertEqual([event["rank"] for event in self.events("failed")], [1])

    def test_ranks_on_other_hosts_are_replaced(self):
        job = self.start_elastic("-H", "a:1,b:2", "--min-np", 2, *SOON, "--ssh-command", FAKE_SSH)
        self.wait_for_size(3)
        self.kill_worker(1)
        self.wait_for_epoch(lambda epoch: epoch["epoch"] > 1 and 1 in epoch["joined"], "with rank 1 again")
        self.assert_ends_well(job, range(3))

    def test_the_first_epoch_does_not_wait_for_ranks_that_die_before_it(self):
        program = ("sh", "-c", f"[ $HVD_RANK = 1 ] && kill -KILL $$; exec {WORKER} go")
        job = self.start_it("--event-log", "log", "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 1000, 2000, *program,
                            HVD_START_TIMEOUT="30min")
        self.assertEqual(sorted(self.wait_for_size(2)["ranks"]), [0, 2])
        self.assert_ends_well(job, (0, 2))

    def test_a_job_grows_and_shrinks_with_the_slots_that_the_script_shows(self):
        self.show("# one of them\nlocalhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 3, "--host-discovery-script", "cat shown")
        self.wait_for_size(1)
        self.show("localhost:9\n")
        self.assertEqual(self.wait_for_size(3)["lost"], [])
        self.show("localhost:2\n")
        shrunk = self.wait_for_epoch(lambda epoch: epoch["left"], "after a slot has gone")
        self.assertEqual((shrunk["left"], shrunk["lost"], sorted(shrunk["ranks"])), ([2], [], [0, 1]))
        self.assert_ends_well(job, (0, 1))
        self.assertEqual(self.events("failed"), [])
        self.assertEqual({event["why"] for event in self.events("ended")}, {"its slot is no longer there"})

    def test_a_later_failure_of_the_script_is_a_warning(self):
        self.show("localhost:2\n")
        looks = self.folder / "looks"
        script = "echo >> looks; cat shown"
        job = self.start_elastic("--min-np", 2, "--host-discovery-script", script)
        self.wait_for_size(2)
        (self.folder / "shown").unlink()
        wait_until(lambda: self.events("not_discovered"), "a warning")
        before = len(looks.read_text())
        wait_until(lambda: len(looks.read_text()) > before + 2, "two more looks, which fail in the same way")
        self.assertIn("shown: No such file", self.events("not_discovered")[0]["why"])
        (self.folder / "go").touch()
        out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 0, out)
        self.assertRegex(err, r"^hvdrun: --host-discovery-script echo >> looks; cat shown: it ended with exit code 1: .*\n$")
        self.assertEqual(self.events("ended"), [])

    def test_an_empty_answer_of_the_script_is_a_failed_look(self):
        for size in (1, 2, 3, 4):
            with self.subTest(size=size):
                self.show(f"localhost:{size}\n")
                # The exit code of a pipe is that of its last command.
                script = "echo >>looks; cat shown | grep -v '^#'; true"
                job = self.start_elastic("-np", size, "--min-np", size, "--host-discovery-script", script)
                self.wait_for_size(size)
                self.show("# nobody\n")
                wait_until(lambda: self.events("not_discovered"), "a warning")
                looks = self.folder / "looks"
                before = len(looks.read_text())
                wait_until(lambda: len(looks.read_text()) > before + 2, "two more empty answers")
                (self.folder / "go").touch()
                out, err = job.communicate(timeout=PATIENCE)
                self.assertEqual((job.returncode, err), (0, f"hvdrun: --host-discovery-script {script}: it has printed no host\n"), out)
                self.assertEqual(self.events("ended"), [])
                self.assertEqual([epoch["size"] for epoch in self.events("epoch")], [size])
                for file in self.folder.glob("go*"):
                    file.unlink()

    def test_empty_answers_end_the_job_after_the_elastic_timeout(self):
        self.show("localhost:2\n")
        job = self.start_elastic("-np", 2, "--min-np", 1, "--elastic-timeout", 3, "--host-discovery-script", "cat shown")
        self.wait_for_size(2)
        self.show("")
        out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 1, err)
        self.assertIn("hvdrun: --host-discovery-script cat shown: it has printed no host for 3 s (--elastic-timeout); 2 other ranks were ended\n", err)
        first, last = self.events("not_discovered")[0], self.events("ended")[0]
        seconds = [sum(float(part) * 60 ** i for i, part in enumerate(reversed(event["time"][11:-1].split(":")))) for event in (first, last)]
        self.assertGreater(seconds[1] - seconds[0], 2.9)

    def test_the_first_answer_may_come_late(self):
        self.show("")
        job = self.start_elastic("--min-np", 2, "--host-discovery-script", "echo >>looks; cat shown")
        wait_until(lambda: (self.folder / "looks").exists() and len((self.folder / "looks").read_text()) > 1, "a second look")
        self.show("localhost:2\n")
        self.wait_for_size(2)
        self.assert_ends_well(job, range(2))
        ended = self.run_elastic("-np", 1, "--host-discovery-script", "true", "--elastic-timeout", 0.3, "true")
        self.assertEqual((ended.returncode, ended.stderr),
                         (1, "hvdrun: --host-discovery-script true: it has printed no host for 0.3 s (--elastic-timeout)\n"))

    def test_too_few_slots_are_waited_for_and_the_ranks_of_those_that_stay_live_on(self):
        for size, least, kept in ((2, 2, 1), (3, 2, 1), (4, 3, 2)):
            with self.subTest(size=size, least=least, kept=kept):
                self.show(f"localhost:{size}\n")
                job = self.start_elastic("-np", size, "--min-np", least, "--host-discovery-script", "cat shown")
                self.wait_for_size(size)
                self.show(f"localhost:{kept}\n")
                wait_until(lambda: len(self.events("ended")) == size - kept, "the ranks of the other slots have ended")
                self.assertEqual(sorted(event["rank"] for event in self.events("ended")), list(range(kept, size)))
                time.sleep(2.5)  # two more looks
                self.show(f"localhost:{size}\n")
                self.wait_for_epoch(lambda epoch: epoch["epoch"] > 1 and epoch["size"] == size, "of all again")
                joined = [rank for epoch in self.events("epoch")[1:] for rank in epoch["joined"]]
                self.assertEqual(sorted(joined), list(range(kept, size)))
                self.assert_ends_well(job, range(size))
                self.assertEqual(self.events("failed"), [])

    def test_too_few_slots_end_the_job_after_the_elastic_timeout(self):
        self.show("localhost:3\n")
        job = self.start_elastic("-np", 3, "--min-np", 2, "--elastic-timeout", 2, "--host-discovery-script", "cat shown",
                                 program=("sh", "-c", "trap 'exit 1' TERM; touch here.$HVD_RANK; while :; do sleep 0.05; done"))
        self.wait_for_files("here.0", "here.1", "here.2")
        self.show("localhost:1\n")
        out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 1)
        self.assertIn("only 1 of at least 2 slots (--min-np) were there for 2 s (--elastic-timeout); 1 other rank was ended\n", err)

    def test_a_first_failure_of_the_script_is_an_error(self):
        for script, why in {"echo no cloud >&2; exit 7": "it ended with exit code 7: no cloud", "echo a:two": '"a:two": slots must be a number',
                            "echo a slots=2": "host:slots was expected", "./absent": "exit code 127"}.items():
            ended = self.run_elastic("--host-discovery-script", script, "true")
            self.assertEqual((ended.returncode, ended.stdout), (1, ""))
            self.assertIn(f"--host-discovery-script {script}: ", ended.stderr)
            self.assertIn(why, ended.stderr)

    def test_slots_that_do_not_come_in_time_are_an_error(self):
        ended = self.run_elastic("-np", 3, "--host-discovery-script", "echo localhost", "--slots-per-host", 2, "--elastic-timeout", 0.3, "true")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("it shows 2 of 3 slots", ended.stderr)

    def test_ranks_that_have_not_joined_end_with_the_job(self):
        self.show("localhost:2\n")
        job = self.start_elastic("-np", 2, "--max-np", 3, "--host-discovery-script", "cat shown",
                                 program=("sh", "-c", f"[ $HVD_RANK = 2 ] || exec {WORKER} go\nexec sleep 1000"))
        self.wait_for_size(2)
        self.show("localhost:3\n")
        wait_until(lambda: len(self.events("started")) == 3, "a third process")
        self.assert_ends_well(job, (0, 1))
        self.assertEqual([(event["rank"], event["why"]) for event in self.events("ended")], [(2, "the job ended before it joined")])

    def test_nothing_is_restarted_once_a_rank_has_ended_well(self):
        ended = self.run_elastic("-np", 3, "--min-np", 1, *SOON, "sh", "-c",
                                 "echo $$ >here.$HVD_RANK; while ! [ -e here.0 -a -e here.1 -a -e here.2 ]; do sleep 0.01; done\n[ $HVD_RANK = 0 ] && exit 0\n"
                                 "while kill -0 $(cat here.0) 2>/dev/null; do sleep 0.01; done; exit $((HVD_RANK * 4 - 4))")
        self.assertEqual(ended.returncode, 4)
        self.assertIn("rank 2 on localhost failed with exit code 4", ended.stderr)
        self.assertEqual(len(self.events("started")), 3)
        self.assertEqual(self.events("ended"), [])

    def test_a_job_whose_ranks_return_after_different_steps_fails(self):
        # They give up after ten epochs, also the one that has done most.
        for size, least in ((2, 2), (3, 3), (4, 2), (3, 1)):
            with self.subTest(size=size, least=least):
                ended = self.run_elastic("-np", size, "--min-np", least, "--blacklist-cooldown-range", 1000, 2000, "env", "HVD_TEST_UNEVEN=1", WORKER, "go")
                self.assertEqual(ended.returncode, 1, ended.stderr)
                self.assertEqual((len(self.events("failed")), [event["code"] for event in self.events("finished")]), (size, [1]))
                self.assertEqual(ended.stderr.count("Do all ranks return after the same step?"), size, ended.stderr)
                self.assertRegex(ended.stderr, r"(?m)^hvdrun: rank \d on localhost failed with exit code 1, ")

    def test_too_few_ranks_do_not_wait_when_one_has_ended_with_0_before_the_job_was_done(self):
        for size, least, early in ((2, 2, 0), (3, 3, 1), (4, 4, 3)):
            with self.subTest(size=size, least=least):
                ended = self.run_elastic("-np", size, "--min-np", least, "env", f"HVD_TEST_EXIT={early}", WORKER, "go")
                self.assertEqual(ended.returncode, 1, ended.stderr)
                self.assertEqual(ended.stderr.count(f"processes here: {size - 1}, needed: {least} (HVD_ELASTIC_MIN_SIZE), and nothing is started any more; missing: HVD_RANK {early};"), size - 1, ended.stderr)
                self.assertRegex(ended.stderr, fr"(?m)^hvdrun: rank \d on localhost failed with exit code 1, .* after its start; rank {early} on localhost ended with 0 before the job was done; "
                                 fr"only 1 of at least {least} ranks \(--min-np\) ended with 0$")

    def test_a_rank_that_is_lost_after_another_has_ended_with_0_too_early_may_leave_too_few(self):
        job = self.start_elastic("-np", 3, "--min-np", 2, program=("env", "HVD_TEST_EXIT=1", WORKER, "go"))
        self.wait_for_size(2)
        os.kill(self.pid_of(2), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertRegex(job.stderr.read(), r"(?m)^hvdrun: rank 2 on localhost failed with signal 9 \(SIGKILL\), .*; rank 1 on localhost ended with 0 before the job was done; only 1 of at least 2 ranks .*$")

    def test_a_job_does_not_wait_for_a_rank_that_has_ended_with_0_before_it_came(self):
        job = self.start_elastic("-np", 3, "--min-np", 2, program=("sh", "-c", f"[ $HVD_RANK = 1 ] || exec {WORKER} go"))
        self.assertEqual(self.wait_for_size(2)["epoch"], 1)
        (self.folder / "go").touch()
        self.assertEqual(job.wait(PATIENCE), 0)

    def test_a_program_of_the_other_kind_of_job_is_told_how_to_start_it(self):
        static = self.run_it("-np", 2, WORKER, "go")
        self.assertIn("it is the rendezvous of a static job; hvdrun starts an elastic one with --min-np, --max-np or --host-discovery-script", static.stderr)
        elastic = self.run_it("-np", 2, "--min-np", 2, "--blacklist-cooldown-range", 1000, 2000, os.environ["HVD_TCP_PROGRAM"])
        self.assertIn("it is the coordinator of an elastic job; hvdrun starts a static one without --min-np, --max-np and --host-discovery-script", elastic.stderr)
        self.assertEqual({static.returncode, elastic.returncode} & {0, 2}, set())

    def test_a_rank_that_failed_before_the_others_ended_counts_if_they_are_too_few(self):
        for least, code in ((2, 9), (1, 0)):
            ended = self.run_elastic("-np", 2, "--min-np", least, "--blacklist-cooldown-range", 1000, 2000, "sh", "-c", "[ $HVD_RANK = 1 ] && exit 9\nwhile ! grep -q failed log; do sleep 0.01; done; sleep 0.2")
            self.assertEqual(ended.returncode, code)

    def test_the_limit_of_resets_ends_the_job(self):
        never = ("--blacklist-cooldown-range", 1000, 2000)
        for size, limit in ((2, 0), (3, 1), (4, 2)):
            with self.subTest(size=size, limit=limit):
                job = self.start_elastic("-np", size, "--min-np", 1, "--reset-limit", limit, *never)
                for lost in range(limit + 1):
                    self.wait_for_size(size - lost)
                    os.kill(self.pid_of(lost), signal.SIGKILL)
                out, err = job.communicate(timeout=PATIENCE)
                self.assertEqual(job.returncode, 128 + signal.SIGKILL, err)
                self.assertIn(f"hvdrun: the ranks of the job have changed more than {limit} time{'' if limit == 1 else 's'} (--reset-limit): rank {limit}: signal 9 (SIGKILL)", err)
                self.assertEqual(len(self.events("epoch")), limit + 2)
                self.assert_nothing_is_left()
                for file in self.folder.glob("go*"):
                    file.unlink()

    def test_a_rank_that_joins_is_a_reset(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 3, "--reset-limit", 1, "--host-discovery-script", "cat shown")
        for size in (1, 2):
            self.show(f"localhost:{size}\n")
            self.wait_for_size(size)
        self.show("localhost:3\n")
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertIn("changed more than 1 time (--reset-limit): rank 2 joined", job.stderr.read())

    def test_failures_without_a_change_of_ranks_are_no_resets(self):
        ended = self.run_elastic("-np", 2, "--min-np", 1, "--reset-limit", 0, *SOON, "sh", "-c",
                                 "[ $HVD_RANK = 1 ] && exit 9\nwhile [ $(grep -c failed log) -lt 3 ]; do sleep 0.01; done")
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_a_slot_that_fails_again_and_again_is_given_up(self):
        ended = self.run_elastic("-np", 2, "--min-np", 2, "--blacklist-cooldown-range", 0.01, 60, "sh", "-c", "[ $HVD_RANK = 0 ] && exit 9\nexec sleep 1000")
        self.assertEqual(ended.returncode, 9)
        self.assertIn("only 1 of at least 2 slots (--min-np) can be used", ended.stderr)
        self.assertEqual([event["rank"] for event in self.events("failed")], [0] * 5)

    def test_a_job_whose_ranks_have_all_died_goes_on_from_the_state_that_is_kept(self):
        for size in (1, 2, 4):
            with self.subTest(size=size):
                job = self.start_elastic("-np", size, "--min-np", 1, "--max-restarts", 1, "--blacklist-cooldown-range", 1000, 2000, program=("env", "HVD_TEST_KEEP=kept", WORKER, "go"))
                self.wait_for_size(size)
                wait_until(lambda: list((self.folder / "kept").glob("*.hvd_state")), "a kept step")
                for rank in range(size):
                    os.kill(self.pid_of(rank), signal.SIGKILL)
                wait_until(lambda: len(self.events("job")) == 2 and self.events()[-1]["event"] == "epoch", "an epoch of the second run")
                (self.folder / "go").touch()
                out, err = job.communicate(timeout=PATIENCE)
                self.assertEqual((job.returncode, err.count("the job ended with 137; it is started again (1 of 1)")), (0, 1), err)
                steps = re.findall(r"(?m)^\[\d+\]<stdout>:(\d+) steps, right$", out)
                self.assertEqual((len(steps), len(set(steps))), (size, 1), out)
                last = self.events("epoch")[-1]
                self.assertEqual((last["epoch"], last["size"], last["lost"]), (1, size, []))
                self.assertGreater(last["step"], 0)
                for file in [*self.folder.glob("go*"), *self.folder.glob("kept/*")]:
                    file.unlink()

    def test_a_state_is_sealed_with_the_users_secret(self):
        secrets = []
        for name in ("one", "another"):
            secrets.append(self.folder / name)
            secrets[-1].write_text(name[0].encode().hex() * 32)
            secrets[-1].chmod(0o600)
        (self.folder / "go").touch()
        keep = ("env", "HVD_TEST_KEEP=kept", WORKER, "go")
        for secret, why in ((secrets[0], None), (secrets[0], None), (secrets[1], "sealed with another secret"), (None, "start it by hvdrun with the same --secret-file")):
            words = ["--secret-file", secret] if secret else []
            ended = self.run_it("-np", 1, "--min-np", 1, *words, *keep)
            if why is None:
                self.assertEqual(ended.returncode, 0, ended.stderr)
            else:
                self.assertNotEqual(ended.returncode, 0)
                self.assertIn(why, ended.stderr + ended.stdout)

    def test_when_all_fail_the_job_does(self):
        ended = self.run_elastic("-np", 3, "--min-np", 1, "--blacklist-cooldown-range", 1000, 2000, "sh", "-c", "exit 6")
        self.assertEqual(ended.returncode, 6)
        self.assertIn("no process is left", ended.stderr)
        self.assertEqual(len(self.events("started")), 3)
        ended = self.run_elastic("-np", 3, "--min-np", 1, "--max-restarts", 2, "--blacklist-cooldown-range", 1000, 2000, "sh", "-c", "exit 6")
        self.assertEqual(ended.returncode, 6)
        self.assertEqual(len(self.events("started")), 9)

    def test_newcomers_do_not_begin_anew_when_all_who_have_the_state_are_lost(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 2, "--host-discovery-script", "cat shown",
                                 program=("sh", "-c", f"[ $HVD_RANK = 0 ] || sleep 1000\nexec {WORKER} go"))
        self.wait_for_size(1)
        self.show("localhost:2\n")
        wait_until(lambda: len(self.events("started")) == 2, "a second process")
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertIn("no rank is left that has the job's state", job.stderr.read())

    def test_a_newcomer_that_waits_gets_no_epoch_when_all_who_have_the_state_are_lost(self):
        self.show("localhost:1\n")
        job = self.start_elastic("--min-np", 1, "--max-np", 2, "--host-discovery-script", "cat shown", "--output-filename", "out")
        self.wait_for_size(1)
        os.kill(self.pid_of(0), signal.SIGSTOP)
        self.show("localhost:2\n")
        wait_until(lambda: any(file.read_text() for file in self.folder.glob("out/rank.1/stdout")), "a second process")
        time.sleep(0.3)  # it joins
        os.kill(self.pid_of(0), signal.SIGKILL)
        self.assertEqual(job.wait(PATIENCE), 128 + signal.SIGKILL)
        self.assertIn("no rank is left that has the job's state", job.stderr.read())
        self.assertEqual([epoch["epoch"] for epoch in self.events("epoch")], [1])

    def test_each_rank_is_told_the_bounds(self):
        ended = self.run_it("-np", 2, "--min-np", 1, "--max-np", 3, "-H", "localhost:2", "--elastic-timeout", 7, "sh", "-c",
                            "echo $HVD_RANK $HVD_SIZE $HVD_ELASTIC_MIN_SIZE $HVD_ELASTIC_MAX_SIZE $HVD_ELASTIC_TIMEOUT $HVD_ELASTIC_LAUNCHER_TIMEOUT $HVD_RENDEZVOUS_SERVED", HVD_ELASTIC_MIN_SIZE="9", HVD_ELASTIC_LAUNCHER_TIMEOUT="9")
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:{r} 2 1 3 7000ms 30000ms 1" for r in range(2)])

    def test_an_interrupt_ends_the_job(self):
        job = self.start_elastic("-np", 2, "--min-np", 1)
        self.wait_for_size(2)
        os.kill(job.pid, signal.SIGINT)
        self.assertEqual(job.wait(PATIENCE), 130)
        self.assert_nothing_is_left()

    def test_nothing_is_left_when_hvdrun_is_killed(self):
        job = self.start_elastic("-np", 2, "--min-np", 1, *SOON, "--kill-after", 1, program=("sh", "-c", "trap '' TERM; sleep 1000 & touch here.$$; wait"))
        wait_until(lambda: len(list(self.folder.glob("here.*"))) == 2, "two processes")
        os.kill(self.pid_of(1), signal.SIGKILL)
        wait_until(lambda: len(list(self.folder.glob("here.*"))) == 3, "another process")
        job.kill()
        self.assert_nothing_is_left()


if __name__ == "__main__":
    unittest.main()
