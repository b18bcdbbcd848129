# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Elastic jobs by hvdrun: ranks that are killed are replaced, and jobs end as they should."""

import os
import re
import signal
import time
import unittest

from elastic_jobs import ElasticTest, SOON, WORKER
from launching import FAKE_SSH, PATIENCE, wait_until


class Losses(ElasticTest):
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

    def test_a_rank_comes_again_on_a_host_whose_connection_has_ended(self):
        # The processes that are left there ignore SIGTERM, so that they hold the old connection open for the time of --kill-after.
        ssh = "sh -c 'echo $$ >>ssh.$0; exec sh -c \"$1\"' {host} {command}"
        job = self.start_elastic("-H", "a:1,b:1", "--min-np", 1, *SOON, "--start-timeout", 1000, "--ssh-command", ssh,
                                 program=("sh", "-c", "trap '' TERM; echo here >>here.$HVD_RANK; while ! [ -e go ]; do sleep 0.05; done"))
        lines = lambda name: (self.folder / name).read_text().splitlines() if (self.folder / name).exists() else []
        wait_until(lambda: lines("here.0") and lines("here.1"), "both ranks")
        os.kill(int(lines("ssh.b")[0]), signal.SIGKILL)
        wait_until(lambda: len(lines("here.1")) == 2, "another process of rank 1")
        (self.folder / "go").touch()
        self.assertEqual(job.wait(PATIENCE), 0)
        self.assertEqual((len(lines("ssh.a")), len(lines("ssh.b")), len(lines("here.0"))), (1, 2, 1))
        self.assert_nothing_is_left()

    def test_the_first_epoch_does_not_wait_for_ranks_that_die_before_it(self):
        program = ("sh", "-c", f"[ $HVD_RANK = 1 ] && kill -KILL $$; exec {WORKER} go")
        job = self.start_it("--event-log", "log", "-np", 3, "--min-np", 2, "--blacklist-cooldown-range", 1000, 2000, *program,
                            HVD_START_TIMEOUT="30min")
        self.assertEqual(sorted(self.wait_for_size(2)["ranks"]), [0, 2])
        self.assert_ends_well(job, (0, 2))

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
