# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Elastic jobs by hvdrun whose slots a script shows: more, fewer, none, or too late."""

import signal
import time
import unittest

from elastic_jobs import ElasticTest
from launching import PATIENCE, wait_until, with_defaults


class Discovery(ElasticTest):
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

    def test_signals_for_the_ranks_end_no_job_that_waits_for_its_hosts(self):
        self.show("")
        job = self.start_it("--min-np", 1, "--forward-signals", "USR1", "--host-discovery-script", "touch asked; cat shown", "true", before=with_defaults)
        self.wait_for_files("asked")
        job.send_signal(signal.SIGUSR1)
        self.show("localhost:1\n")
        self.assertEqual(job.wait(PATIENCE), 0)

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


if __name__ == "__main__":
    unittest.main()
