# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Data services of processes: hvd-compute starts workers and dispatchers, processes are killed and replaced, and trainers get the same batches."""

import json
import os
import pathlib
import random
import re
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import unittest

from services import COMPUTE, PATIENCE, TRAINER, WORKER, ServiceTest, children_of, environment, expected, is_alive, wait_for_end, wait_until

HVDRUN = os.environ.get("HVDRUN")
ENCRYPTED_WORKER = os.environ.get("HVD_DATA_ENCRYPTED_WORKER")
SPARK = pathlib.Path(os.environ["HVD_COMPUTE_SPARK"])
STAND_IN = pathlib.Path(__file__).parent / "spark_stand_in"


class DataService(ServiceTest):
    def test_trainers_get_their_batches_from_any_number_of_workers(self):
        for workers, trainers in ((1, 1), (2, 3), (3, 2)):
            with self.subTest(workers=workers, trainers=trainers):
                service = self.start_service(workers)
                self.finish(self.start_trainers(trainers))
                self.end(service)
                self.assertEqual(list(self.folder.iterdir()), [])

    def start_spark(self, workers, *options, worker=WORKER):
        """Starts the service as a Spark application: on Spark where HVD_TEST_SPARK has its spark-submit."""
        submit = os.environ.get("HVD_TEST_SPARK")
        words = [submit, "--master", "local[4]"] if submit else [sys.executable]
        variables = {} if submit else {"PYTHONPATH": STAND_IN}
        return self.start(*words, SPARK, "--workers", workers, "--hvd-compute", COMPUTE, *options, self.config, "--", worker, **variables)

    def test_the_tasks_of_a_spark_stage_are_ranks(self):
        for workers, options in ((1, []), (3, ["--no-shared-memory", "--metrics", self.times / "hvd.prom"]), (4, ["--dispatchers", "2"])):
            with self.subTest(workers=workers):
                service = self.start_spark(workers, *options)
                wait_until(self.config.exists, "the config file")  # Spark takes long to start
                if "--metrics" in options:
                    wait_until((self.times / "hvd.prom").exists, "counts for Prometheus")
                self.finish(self.start_trainers(2))
                service.send_signal(signal.SIGTERM)
                self.assertEqual(service.wait(timeout=PATIENCE), 0 if "HVD_TEST_SPARK" not in os.environ else service.returncode)
                wait_until(lambda: not list(self.folder.iterdir()), "the end of all tasks")

    def test_a_rank_that_fails_ends_the_spark_application_with_a_reason(self):
        service = self.start_spark(2, worker=self.folder / "none")
        _, err = service.communicate(timeout=PATIENCE)
        self.assertNotEqual(service.returncode, 0)
        self.assertIn("hvd-compute on rank ", err)

    def test_tasks_that_do_not_see_the_config_file_of_rank_0_get_a_copy(self):
        sys.path.insert(0, str(SPARK.parent))
        sys.dont_write_bytecode = True
        import hvd_compute_spark as script

        text = json.dumps({"job_id": "new", "key": "secret"})
        options = script.read_options(["--workers", "4", str(self.config), "--", "worker", "--seed", "1"])
        self.assertEqual(options.program, ["worker", "--seed", "1"])
        own = self.folder / "of_a_task"
        own.mkdir()
        copy = pathlib.Path(script.own_config(text, options, own))
        self.assertEqual(copy.parent, own)
        self.assertEqual((copy.read_text(), stat.S_IMODE(copy.stat().st_mode)), (text, 0o600))
        self.config.write_text(json.dumps({"job_id": "old"}))
        with self.assertRaisesRegex(RuntimeError, "a folder that all hosts share"):
            script.own_config(text, script.read_options(["--workers", "4", "--dispatchers", "2", str(self.config), "--", "worker"]), own)
        self.config.write_text(text)
        self.assertEqual(script.own_config(text, options, own), str(self.config))
        for words, wanted in ((["c.json"], "no worker's program"), (["--workers", "3", "--dispatchers", "2", "c.json", "--", "w"], "multiple of the dispatchers")):
            bad = self.start(sys.executable, SPARK, *words, PYTHONPATH=STAND_IN)
            _, err = bad.communicate(timeout=PATIENCE)
            self.assertEqual(bad.returncode, 2)
            self.assertIn(wanted, err)

    def test_signals_that_a_service_was_started_with_blocked_are_heard(self):
        block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD}); os.execv(sys.argv[1], sys.argv[1:])"
        service = self.start(sys.executable, "-c", block, COMPUTE, self.config, "--", WORKER, HVD_RANK=0, HVD_SIZE=1)
        wait_until(lambda: self.config.exists() and children_of(service), "the service")
        self.end([service])

    def test_the_end_of_a_worker_is_heard_where_ends_of_processes_were_ignored(self):
        ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        service = self.start(sys.executable, "-c", ignore, COMPUTE, self.config, "--", "/bin/sh", "-c", "exit 3", HVD_RANK=0, HVD_SIZE=1)
        self.assertEqual(service.wait(timeout=PATIENCE), 3)

    def test_trainers_may_come_first(self):
        trainers = self.start_trainers(1)
        time.sleep(0.3)
        self.start_service(1)
        self.finish(trainers)

    def test_a_stale_file_is_never_taken(self):
        old = self.start_service(1)
        wait_until(lambda: self.config.exists() and children_of(old[0]), "the first service")
        for process in [*children_of(old[0]), old[0].pid]:
            os.kill(process, signal.SIGKILL)
        stale = json.loads(self.config.read_text())
        trainers = self.start_trainers(1)
        time.sleep(0.3)
        service = self.start_service(2)
        self.finish(trainers)
        self.assertNotEqual(json.loads(self.config.read_text())["job_id"], stale["job_id"])
        self.end(service)

    def test_workers_that_are_killed_and_replaced_change_nothing(self):
        service = self.start_service(3, "--progress")
        trainers = self.start_trainers(2, milliseconds=25)
        self.wait_for_workers(service[0], 3)
        begun = {rank: self.lines_of(trainer, 20) for rank, trainer in enumerate(trainers)}
        variables = {"HVD_DATA_SERVICE": self.config, "HVD_DATA_DISPATCHER": 0}
        for victim in (1, 2):
            os.kill(children_of(service[victim])[0], signal.SIGKILL)
            for rank, trainer in enumerate(trainers):
                begun[rank] += self.lines_of(trainer, 20)
            self.start(WORKER, **variables)
            self.assertEqual(service[victim].wait(timeout=PATIENCE), 128 + signal.SIGKILL)
            self.wait_for_workers(service[0], 3)
        self.assertTrue(any(trainer.poll() is None for trainer in trainers))
        os.kill(children_of(service[0])[0], signal.SIGKILL)  # its rank ends, and the dispatcher with it
        self.finish(trainers, begun)

    def test_a_stopped_worker_is_left_to_itself(self):
        service = self.start_service(3, "--progress")
        trainers = self.start_trainers(2, milliseconds=5)
        self.wait_for_workers(service[0], 3)
        begun = {rank: self.lines_of(trainer, 20) for rank, trainer in enumerate(trainers)}
        (stopped,) = children_of(service[1])
        os.kill(stopped, signal.SIGSTOP)
        # A worker has 60 s for an answer, and this test less.
        limit = threading.Timer(PATIENCE / 2, lambda: [trainer.kill() for trainer in trainers])
        limit.start()
        self.finish(trainers, begun)
        limit.cancel()
        print(f"longest wait for a batch: {max(self.longest_wait(rank) for rank in range(2)):.1f} s")

    def test_a_stopped_worker_ends_with_its_rank_that_is_killed(self):
        (rank,) = self.start_service(1, "--progress")
        self.wait_for_workers(rank, 1)
        (worker,) = children_of(rank)
        os.kill(worker, signal.SIGSTOP)
        self.addCleanup(lambda: is_alive(worker) and os.kill(worker, signal.SIGKILL))
        rank.kill()
        wait_until(lambda: not is_alive(worker), "the worker's end")

    @unittest.skipUnless(ENCRYPTED_WORKER, "OpenSSL was not found")
    def test_connections_of_an_encrypted_service_have_tls_while_workers_are_killed(self):
        service = [self.start_rank(rank, 3, "--progress", "--encrypted", "--no-shared-memory", worker=ENCRYPTED_WORKER) for rank in range(3)]
        trainers = self.start_trainers(2, milliseconds=10)
        self.wait_for_workers(service[0], 3)
        begun = {rank: self.lines_of(trainer, 20) for rank, trainer in enumerate(trainers)}
        os.kill(children_of(service[1])[0], signal.SIGKILL)
        self.finish(trainers, begun)
        plain = json.loads(self.config.read_text())
        self.assertIs(plain["encrypted"], True)
        self.config.write_text(json.dumps(plain | {"encrypted": False}))
        (refused,) = self.start_trainers(1)
        _, err = refused.communicate(timeout=PATIENCE)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("the worker encrypts the connection", err)

    def test_trainers_that_are_killed_go_on_in_the_epoch_with_another_number_of_ranks(self):
        self.start_service(2)
        done = 0
        for size in (1, 3, 2, 1, 2, 3):
            state = self.times / f"state of {size} after {done}"
            if done:
                state.write_bytes(last.read_bytes())
            states = [state] + [state.with_suffix(f".{rank}") for rank in range(1, size)]
            for other in states[1:]:
                if done:
                    other.write_bytes(state.read_bytes())
            trainers = [self.start_trainer(rank, size, HVD_TEST_STATE=states[rank]) for rank in range(size)]
            lines = [self.lines_of(trainer, 45) for trainer in trainers]
            for trainer in trainers:
                trainer.kill()
            for rank, trainer in enumerate(trainers):
                lines[rank] += trainer.stdout.read().splitlines(keepends=True)
                trainer.wait()
                whole = expected(rank, size).splitlines(keepends=True)[done:]
                self.assertEqual(lines[rank], whole[:len(lines[rank])])
            # Rank 0 keeps its position behind each line, and may be killed between these.
            _, epoch, samples = struct.unpack("QQQ", state.read_bytes())
            at, last = (epoch * 4000 + samples) // 20, state
            self.assertIn(done + len(lines[0]) - at, (0, 1))
            done = at
        self.assertTrue(200 < done <= 400, done)

    def test_random_kills_of_workers_and_dispatchers_change_nothing(self):
        stalls = {f"{kind} of {workers}": [] for workers in ("several workers", "one worker") for kind in ("worker", "dispatcher")}
        for seed in range(int(os.environ.get("HVD_TEST_DATA_RUNS", "10"))):
            with self.subTest(seed=seed):
                # in each second run two trainings share their batches
                for kind, seconds in self.play_kills(random.Random(seed), 1 + seed % 2):
                    stalls[kind].append(seconds)
        for kind, all_of in stalls.items():
            all_of.sort()
            shown = ", ".join(f"{percent} % within {1e3 * all_of[min(len(all_of) * percent // 100, len(all_of) - 1)]:.0f} ms" for percent in (50, 95, 99, 100) if all_of)
            print(f"{len(all_of)} times killed {kind}: longest wait for a batch until the next kill: {shown}")
        print(f"load {os.getloadavg()[0]:.1f}")

    def play_kills(self, draws, trainings):
        """Kills processes of a service at random and replaces them at once, while trainers run. Of several trainings one loses a trainer, which begins anew behind the
        others. Returns kinds and stalls."""
        variables = {"HVD_DATA_SERVICE": self.config, "HVD_DATA_DISPATCHER": 0}

        def start(kind):
            return self.start(TRAINER, "dispatcher", self.config) if kind == "dispatcher" else self.start(WORKER, **variables)

        self.config.unlink(missing_ok=True)
        serving = [("dispatcher", start("dispatcher"))]
        wait_until(self.config.exists, "the config file")
        serving += [("worker", start("worker")) for _ in range(draws.randint(1, 3))]
        size, milliseconds = draws.randint(1, 2), draws.choice((0, 1))
        trainers = self.start_trainers(size, milliseconds, trainings)
        begun, kills = {number: self.lines_of(trainer, 1) for number, trainer in enumerate(trainers)}, []
        if trainings > 1:
            lost = draws.randrange(len(trainers))
            self.lines_of(trainers[lost], 100)
            trainers[lost].kill()
            trainers[lost].communicate()
            trainers[lost], begun[lost] = self.start_trainer(lost, size, milliseconds), []
        while any(trainer.poll() is None for trainer in trainers):
            victim = draws.randrange(len(serving))
            kind, process = serving[victim]
            kills.append((f"{kind} of {'one worker' if len(serving) == 2 else 'several workers'}", time.monotonic()))
            process.kill()
            process.communicate()
            serving[victim] = (kind, start(kind))
            for trainer in trainers:
                wait_for_end(trainer, draws.uniform(0, 0.3))
        self.finish(trainers, begun, trainings)
        for _, process in serving:
            process.kill()
            process.communicate()
        return [stall for rank in range(len(trainers)) for stall in self.stalls_of(rank, kills)]

    def stalls_of(self, rank, kills):
        """Returns for each kill the longest time without a batch between it and the next one, of those that ended in it or began in it."""
        came = self.came(rank)
        ends = [at for _, at in kills[1:]] + [came[-1]]
        for (kind, at), end in zip(kills, ends):
            gaps = [after - before for before, after in zip(came, came[1:]) if after > at and before < end]
            if gaps and at < came[-1]:
                yield kind, max(gaps)

    def test_the_dispatcher_that_is_killed_stops_nothing(self):
        service = self.start_service(2, "--progress")
        trainers = self.start_trainers(2, milliseconds=10)
        self.wait_for_workers(service[0], 2)
        begun = {rank: self.lines_of(trainer, 10) for rank, trainer in enumerate(trainers)}
        os.kill(service[0].pid, signal.SIGKILL)
        self.finish(trainers, begun)
        self.assertIsNone(service[1].poll())

    def test_several_dispatchers(self):
        service = self.start_service(4, "--dispatchers", 2)
        trainers = self.start_trainers(3)
        self.finish(trainers)
        config = json.loads(self.config.read_text())
        self.assertEqual((config["dispatchers"], config["workers_per_dispatcher"], len(config["addresses"])), (2, 2, 2))
        self.end(service)

    def test_dispatchers_of_the_training_side(self):
        for dispatchers, trainers in ((1, 2), (2, 2)):
            with self.subTest(dispatchers=dispatchers):
                service = self.start_service(2, "--dispatcher-side", "training", "--dispatchers", dispatchers)
                self.finish(self.start_trainers(trainers))
                self.end(service)

    def test_a_stale_file_of_the_training_side_is_left_by_all(self):
        old = self.start_rank(0, 1, "--dispatcher-side", "training")
        wait_until(lambda: self.config.exists() and children_of(old), "the first service")
        for process in [*children_of(old), old.pid]:
            os.kill(process, signal.SIGKILL)
        trainers = self.start_trainers(1)
        one = self.start_rank(1, 2, "--dispatcher-side", "training")
        wait_until(lambda: children_of(one), "a worker of the earlier job")
        zero = self.start_rank(0, 2, "--dispatcher-side", "training")
        self.finish(trainers)
        self.end([zero, one])

    def test_workers_are_a_multiple_of_the_dispatchers(self):
        out, err = self.start_rank(0, 3, "--dispatchers", 2).communicate(timeout=PATIENCE)
        self.assertIn("3 workers can't be shared by 2 dispatchers", err)
        self.assertFalse(self.config.exists())

    def test_wrong_command_lines_are_refused(self):
        for words, said in ((["--dispatchers", "0", self.config, "--", "w"], "dispatchers"), (["--dispatcher-side", "moon", self.config, "--", "w"], "moon"),
                            (["--timeout", "-1", self.config, "--", "w"], "timeout"), ([self.config], "program"), (["--", "w"], "")):
            process = self.start(COMPUTE, *words)
            err = process.communicate(timeout=PATIENCE)[1]
            self.assertEqual(process.returncode, 2, words)
            self.assertIn(said, err)
        process = self.start(COMPUTE, self.config, "--", "w", OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=2)
        self.assertIn("OMPI_COMM_WORLD_RANK is 2", process.communicate(timeout=PATIENCE)[1])

    def test_a_rank_ends_with_the_exit_code_of_its_worker(self):
        for code in (0, 7):
            rank = self.start(COMPUTE, self.config, "--", "sh", "-c", f"exit {code}")
            self.assertIn(f"the worker of rank 0 ended with {code}", rank.communicate(timeout=PATIENCE)[1])
            self.assertEqual(rank.returncode, code)
        rank = self.start(COMPUTE, self.config, "--", self.folder / "nothing")
        self.assertIn("nothing can't be started: No such file", rank.communicate(timeout=PATIENCE)[1])
        self.assertEqual(rank.returncode, 1)

    def test_ranks_whose_first_rank_does_not_come_say_so(self):
        process = self.start_rank(1, 2, "--timeout", "0.3")
        self.assertIn("rank 0 of the data service has not written it after 0.3 seconds: it does not exist", process.communicate(timeout=PATIENCE)[1])
        self.assertEqual(process.returncode, 1)

    def test_shared_memory_is_switched_off_in_the_file(self):
        for options, said in (([], None), (["--no-shared-memory"], False)):
            rank = self.start_rank(0, 1, *options)
            self.finish(self.start_trainers(1))
            self.assertEqual(json.loads(self.config.read_text()).get("shared_memory"), said)
            self.end([rank])

    def test_a_worker_that_cannot_encrypt_says_what_it_needs(self):
        rank = self.start_rank(0, 1, "--encrypted")
        self.assertIn("include hvd/interop/openssl_data_service.hpp", rank.communicate(timeout=PATIENCE)[1])
        self.assertEqual(rank.returncode, 1)

    def test_progress_is_a_line_a_second(self):
        rank = self.start_rank(0, 1, "--progress")
        self.finish(self.start_trainers(1))
        line = ""
        while " 400 batches" not in line:
            line = rank.stderr.readline()
            self.assertRegex(line, r"^hvd-compute: dispatcher 0: [01] of 1 workers, [01] trainers, \d+ batches, [\d.]+ a second; workers wait for trainers in \d+ % of the time$")
        self.end([rank])

    def test_progress_and_metrics_have_the_stages_with_threads(self):
        file = self.times / "hvd.prom"
        rank = self.start_rank(0, 1, "--progress", "--metrics", file, HVD_TEST_STAGE_THREADS=2)
        self.finish(self.start_trainers(1))
        line = ""
        while " 400 batches" not in line:
            line = rank.stderr.readline()
        self.assertRegex(line, r"trainers in \d+ % of the time; stage 1: 2 threads busy in \d+ %, without room in \d+ %, \d+ ready$")
        wait_until(lambda: '\nhvd_data_service_stage_samples_total{dispatcher="0",stage="1"} 8000\n' in file.read_text(), "the counts of all samples")
        self.assertIn('\nhvd_data_service_stage_busy_seconds_total{dispatcher="0",stage="1"} ', file.read_text())
        self.end([rank])

    def test_metrics_are_a_file_for_prometheus(self):
        file = self.folder / "hvd.prom"
        rank = self.start_rank(0, 1, "--metrics", file)
        self.finish(self.start_trainers(1))
        wait_until(lambda: '\nhvd_data_service_batches_total{dispatcher="0"} 400\n' in file.read_text(), "the counts of all batches")
        counts = dict(line.rsplit(" ", 1) for line in file.read_text().splitlines() if not line.startswith("#"))
        self.assertEqual((counts['hvd_data_service_workers{dispatcher="0"}'], counts['hvd_data_service_workers_expected{dispatcher="0"}']), ("1", "1"))
        self.assertGreater(float(counts['hvd_data_service_making_seconds_total{dispatcher="0"}']), 400 * 20 * 1e-4)
        self.end([rank])
        self.assertEqual(list(self.folder.iterdir()), [])
        service = self.start_service(2, "--dispatchers", 2, "--metrics", file)
        wait_until(lambda: {f"hvd.{i}.prom" for i in range(2)} <= {each.name for each in self.folder.iterdir()}, "a file of each dispatcher")
        self.end(service)
        rank = self.start_rank(0, 1, "--metrics", self.folder / "none" / "hvd.prom")
        self.assertIn("none/hvd.prom' cannot be written: No such file or directory", rank.communicate(timeout=PATIENCE)[1])
        self.assertEqual(rank.returncode, 1)

    def test_a_worker_without_hvd_compute_says_how_to_start_it(self):
        process = self.start(WORKER)
        self.assertIn("start the worker by hvd-compute", process.communicate(timeout=PATIENCE)[1])
        self.assertEqual(process.returncode, 1)

    @unittest.skipUnless(HVDRUN, "hvdrun is not built")
    def test_hvdrun_starts_the_ranks(self):
        job = self.start(HVDRUN, "-np", 2, COMPUTE, "--dispatchers", 2, self.config, "--", WORKER)
        self.finish(self.start_trainers(2))
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=PATIENCE)
        self.assertFalse(self.config.exists())

    @unittest.skipUnless(HVDRUN, "hvdrun is not built")
    def test_hvdrun_check_tells_which_processes_do_not_answer(self):
        def check(code):
            ended = subprocess.run([HVDRUN, "--check", "--data-service", self.config], env=environment(), capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((ended.returncode, ended.stderr), (code, ""), ended.stdout)
            return [re.split(r"  +", line)[:2] for line in ended.stdout.splitlines()[3:]]

        self.assertIn("it can't be read: No such file", check(1)[0][0])
        service = self.start_service(4, "--progress", "--dispatchers", 2)
        self.wait_for_workers(service[0], 2)
        self.wait_for_workers(service[2], 2)
        good = [[f"{before}dispatcher {i}", "yes"] for i in range(2) for before in ("", "worker of ", "worker of ")]
        self.assertEqual(check(0), [["data service", "reached"], *good])
        service[0].kill()
        os.kill(children_of(service[3])[0], signal.SIGKILL)
        self.wait_for_workers(service[2], 1)
        rows = dict(check(1))
        self.assertIn("not reached: ", rows["dispatcher 0"])
        self.assertEqual((rows["dispatcher 1"], rows["workers of dispatcher 1"]), ("yes", "1 of 2 have come"))
        without = json.loads(self.config.read_text()) | {"dispatchers": 0, "addresses": [], "worker_addresses": ["127.0.0.1:1"]}
        self.config.write_text(json.dumps(without))
        self.assertIn("not reached: ", dict(check(1))["worker"])

    def events(self, name):
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    @unittest.skipUnless(HVDRUN, "hvdrun is not built")
    def test_an_elastic_job_that_loses_ranks_in_an_epoch_has_each_sample_of_its_committed_steps_once(self):
        self.start_service(2)
        job = self.start(HVDRUN, "-np", 3, "--min-np", 1, "--blacklist-cooldown-range", 0.05, 60, "--event-log", self.folder / "log", TRAINER, "elastic", self.config)
        for steps, victim in ((50, 1), (250, 0)):
            done = 0
            while done < steps:
                line = job.stdout.readline()
                self.assertRegex(line, r":\d+ steps\n$")
                done = int(re.search(r":(\d+)", line)[1])
            os.kill([event["pid"] for event in self.events("started") if event["rank"] == victim][-1], signal.SIGKILL)
        out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 0, out)
        for line, victim in zip(err.splitlines(), (1, 0), strict=True):
            self.assertRegex(line, rf"^hvdrun: rank {victim}: .*; \d+ ranks go on from step \d+$")
        ends = [line.partition(":")[2] for line in out.splitlines() if not line.endswith(" steps")]
        self.assertEqual(set(ends), {"each sample twice, in order"}, out)
        self.assertEqual(self.events("epoch")[0]["size"], 3)
        lost = [epoch for epoch in self.events("epoch") if epoch["lost"]]
        self.assertEqual([epoch["lost"] for epoch in lost], [[1], [0]])
        self.assertTrue(50 <= lost[0]["step"] < 200 < lost[1]["step"] < 400, lost)

    @unittest.skipUnless(HVDRUN, "hvdrun was not built")
    def test_first_come_first_served_gives_each_batch_to_one_trainer_while_processes_are_killed(self):
        serving = {"dispatcher": self.start(TRAINER, "dispatcher", self.config)}
        wait_until(self.config.exists, "the config file")
        variables = {"HVD_DATA_SERVICE": self.config, "HVD_DATA_DISPATCHER": 0}
        for name in ("first worker", "second worker"):
            serving[name] = self.start(WORKER, **variables)
        job = self.start(HVDRUN, "-np", 3, TRAINER, "claims", self.config)
        lines = []
        for victim in ("first worker", "dispatcher", "second worker", "dispatcher", "first worker"):
            lines += self.lines_of(job, 50)
            serving[victim].kill()
            serving[victim].communicate()
            serving[victim] = self.start(TRAINER, "dispatcher", self.config) if victim == "dispatcher" else self.start(WORKER, **variables)
        lines += job.stdout.readlines()
        self.assertEqual((job.wait(timeout=PATIENCE), job.stderr.read()), (0, ""))
        self.assertEqual(sorted(line.partition(":")[2] for line in lines), sorted(expected(0, 1).splitlines(keepends=True)))
        self.assertEqual(len({line.partition(":")[0] for line in lines}), 3)


if __name__ == "__main__":
    unittest.main()
