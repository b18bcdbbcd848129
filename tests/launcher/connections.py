# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""One connection for each host: a real sshd with its defaults, on hosts that are network namespaces, and many hosts by a shell in ssh's place."""

import getpass
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from launching import FAKE_SSH, HVDRUN, LauncherTest, PATIENCE, processes_with, program_of, state_of, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "network"))
import lab

PROGRAM = os.environ["HVD_TCP_PROGRAM"]
WORKER = os.environ["HVD_ELASTIC_WORKER"]
STAYS = "touch here.$HVD_RANK; sleep 1000 & wait"
IS_SOAK = os.environ.get("HVD_LAUNCHER_SOAK") == "1"


class LabWithBridges(lab.Lab):
    """Bridges come before the network, with the same addresses on all hosts, and behind them is nobody."""

    def hold(self, name):
        pid = super().hold(name)
        for bridge, address in (("corp0", "172.18.0.1/16"), ("docker0", "172.17.0.1/16")) if name != "switch" else ():
            self.run(pid, f"ip link add name {bridge} type bridge", f"ip address add {address} dev {bridge}", f"ip link set {bridge} up")
        return pid


class HostsWithSshd(LauncherTest):
    """Host 0 has hvdrun, the others sshd with all of its defaults that a test may keep."""
    HOSTS = 3
    LAB = lab.Lab

    def setUp(self):
        super().setUp()
        self.sshd = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
        if self.sshd is None or shutil.which("ssh") is None:
            self.skipTest("no sshd is installed (Debian's openssh-server)")
        try:
            self.lab = self.LAB(self.HOSTS)
            self.lab.__enter__()
        except lab.Unusable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.lab.__exit__)
        os.makedirs("/run/sshd", exist_ok=True)
        self.keys = self.folder / "keys"
        self.keys.mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / name], check=True)
        self.config = self.keys / "config"
        self.config.write_text(f"StrictHostKeyChecking no\nUserKnownHostsFile {self.keys}/known\nIdentityFile {self.keys}/user\nIdentitiesOnly yes\nLogLevel ERROR\n"
                               f"User {getpass.getuser()}\n")
        # The tests know their processes by the mark in the environment. A bash that is not the first one reads no .bashrc, in which a kill may leave a lock.
        (self.keys / "sshd").write_text(f"HostKey {self.keys}/host\nAuthorizedKeysFile {self.keys}/user.pub\nStrictModes no\nPermitRootLogin yes\nPidFile none\nUsePAM no\n"
                                        f"SetEnv {self.mark} TMPDIR={self.folder}/secrets SHLVL=2\n")
        for host in range(1, self.HOSTS):
            self.serve(host)

    def serve(self, host):
        log = self.keys / f"log.{host}"
        served = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.on(host), self.sshd, "-D", "-f", self.keys / "sshd", "-E", log], stdin=subprocess.DEVNULL)
        self.addCleanup(served.wait)
        self.addCleanup(served.kill)
        wait_until(lambda: log.exists() and "Server listening" in log.read_text(), "sshd listens")

    def on(self, host):
        return ["nsenter", "--target", str(self.lab.pid(host)), "--net", "--uts", "--"]

    def logins(self, host=1):
        return (self.keys / f"log.{host}").read_text().count("Accepted publickey")

    def command(self, *arguments):
        return [*self.on(0), HVDRUN, "--ssh-command", f"ssh -F {self.config} {{host}} {{command}}", *map(str, arguments)]

    def run_there(self, *arguments):
        ended = subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder, env=self.environment())
        self.assert_nothing_is_left()
        return ended

    def start_there(self, *arguments):
        job = subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                               env=self.environment(), start_new_session=True)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)
        return job


class Sshd(HostsWithSshd):
    def test_64_ranks_start_by_one_sshd_with_its_defaults(self):
        for i in range(20 if IS_SOAK else 2):
            ended = self.run_there("-H", f"{self.lab.address(1)}:64", "sh", "-c", "echo $HVD_LOCAL_RANK; echo e >&2")
            self.assertEqual((ended.returncode, sorted(ended.stdout.splitlines())), (0, sorted(f"[{r}]<stdout>:{r}" for r in range(64))), ended.stderr)
            self.assertEqual(sorted(ended.stderr.splitlines()), sorted(f"[{r}]<stderr>:e" for r in range(64)))
            self.assertEqual(self.logins(), i + 1)

    def test_ranks_of_several_hosts_meet(self):
        hosts = f"{self.lab.address(1)}:2,localhost:1,{self.lab.address(2)}:1"
        ended = self.run_there("-H", hosts, PROGRAM)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:rank {r} of 4, local {l} of {s}, sum 6" for r, (l, s) in enumerate([(0, 2), (1, 2), (0, 1), (0, 1)])])

    def test_signals_and_exit_codes_pass(self):
        hosts = f"{self.lab.address(1)}:2,{self.lab.address(2)}:2"
        ended = self.run_there("-H", hosts, "sh", "-c", f"[ $HVD_RANK = 2 ] || {{ {STAYS}; }}; while ! [ -e here.0 -a -e here.1 -a -e here.3 ]; do sleep 0.01; done; exit 21")
        self.assertEqual(ended.returncode, 21, ended.stderr)
        self.assertIn(f"rank 2 on {self.lab.address(2)} failed with exit code 21", ended.stderr)
        for file in self.folder.glob("here.*"):
            file.unlink()
        job = self.start_there("-H", hosts, "--forward-signals", "USR1", "sh", "-c", "trap 'touch told.$HVD_RANK' USR1; touch here.$HVD_RANK; while :; do sleep 0.05; done")
        self.wait_for_files(*(f"here.{r}" for r in range(4)))
        job.send_signal(signal.SIGUSR1)
        self.wait_for_files(*(f"told.{r}" for r in range(4)))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(PATIENCE), 143)
        self.assert_nothing_is_left()

    def test_nothing_is_left_when_a_part_is_killed(self):
        hosts = f"{self.lab.address(1)}:2,{self.lab.address(2)}:1"
        for part in ("hvdrun", "ssh", "guard", "agent", "sshd"):
            for file in self.folder.glob("here.*"):
                file.unlink()
            job = self.start_there("-H", hosts, "--kill-after", 1, "sh", "-c", STAYS)
            self.wait_for_files("here.0", "here.1", "here.2")
            os.kill(self.find(part, job), signal.SIGKILL)
            code = job.wait(PATIENCE)
            self.assertTrue(code == -signal.SIGKILL if part == "hvdrun" else code > 0, (part, code))
            self.assert_nothing_is_left()

    def test_kills_at_random_moments_leave_nothing(self):
        """The victim is any process of the job: hvdrun, an ssh, an sshd of it, a part of an agent, or a rank."""
        for seed in range(200 if IS_SOAK else 4):
            with self.subTest(seed=seed):
                draws = random.Random(seed)
                job = self.start_there("-H", f"{self.lab.address(1)}:2,localhost:1,{self.lab.address(2)}:1", "--kill-after", 1, "sh", "-c", "echo begins; sleep 0.5; echo ends")
                time.sleep(draws.uniform(0, 1.5))
                alive = sorted({job.pid, *processes_with(self.mark)})
                try:
                    os.kill(draws.choice(alive), signal.SIGKILL)
                except ProcessLookupError:
                    pass
                job.wait(PATIENCE)
                self.assert_nothing_is_left()

    def find(self, part, job):
        """One process of a part of the job."""
        def children(pid):
            return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        def name(pid):
            return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        if part == "hvdrun":
            return job.pid
        if part == "ssh":
            return next(pid for pid in children(job.pid) if name(pid) == "ssh")
        marked = set(processes_with(self.mark))
        def parent(pid):
            return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        # The shell that sshd has started, that which it has started itself, and sshd's process of the session.
        guard = next(pid for pid in marked if name(pid) == "sh" and name(parent(pid)).startswith("sshd"))
        return {"guard": guard, "agent": next(iter(children(guard)), 0), "sshd": parent(guard)}[part]


class Networks(HostsWithSshd):
    """Hosts that only ssh's configuration knows, on networks as they are."""

    LAB = LabWithBridges

    def ip(self, host, words):
        subprocess.run([*self.on(host), "ip", *words.split()], check=True)

    def link_local(self, host):
        def settled():
            shown = subprocess.run([*self.on(host), "ip", "-6", "-o", "address", "show", "dev", "eth0", "scope", "link"], capture_output=True, text=True, check=True).stdout
            return "fe80" in shown and "tentative" not in shown and shown.split()[3].partition("/")[0]
        wait_until(settled, "eth0 has a link-local address")
        return settled()

    def name_hosts(self, addresses):
        names = "".join(f"Host peer{host}\nHostName {address}\n" for host, address in enumerate(addresses, 1))
        self.config.write_text(names + "Host *\n" + self.config.read_text().rpartition("Host *\n")[2])

    def assert_they_meet(self, addresses, *options):
        self.name_hosts(addresses)
        ended = self.run_there("-H", "peer1:2,localhost:1,peer2:1", *options, PROGRAM)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:rank {r} of 4, local {l} of {s}, sum 6" for r, (l, s) in enumerate([(0, 2), (1, 2), (0, 1), (0, 1)])])

    def only_link_local(self):
        found = [self.link_local(host) for host in range(self.HOSTS)]
        for host in range(self.HOSTS):
            subprocess.run([*self.on(host), "ip", "link", "delete", "corp0"], stderr=subprocess.DEVNULL)
            self.ip(host, "-4 address flush dev eth0")
            self.ip(host, "-6 address flush dev eth0 scope global")
        return [f"{address}%%eth0" for address in found[1:]]

    def test_hosts_with_bridges_meet(self):
        self.assert_they_meet([self.lab.address(host) for host in (1, 2)])
        self.assert_they_meet([self.lab.address(host) for host in (1, 2)], "--network-interface", "ib0,eth0")

    def only_ipv6(self):
        for host in range(self.HOSTS):
            self.ip(host, "link delete corp0")
            self.ip(host, "-4 address flush dev eth0")
            self.ip(host, f"-6 address add fd00:79::{host + 1}/64 dev eth0 nodad")
        return [f"fd00:79::{host + 1}" for host in (1, 2)]

    def test_hosts_of_ipv6_alone_meet(self):
        self.assert_they_meet(self.only_ipv6())

    def test_elastic_ranks_are_replaced_on_hosts_of_ipv6_alone(self):
        for leave in (self.only_ipv6, self.only_link_local):
            self.name_hosts(leave())
            job = self.start_there("--event-log", "log", "-H", "peer1:2,peer2:1", "--min-np", 2, "--blacklist-cooldown-range", 0.05, 60, WORKER, "go")
            self.wait_for_files("go.3")
            for victim in (2, 0):
                workers = [pid for pid in processes_with(f"HVD_RANK={victim}\0") if program_of(pid) == os.path.realpath(WORKER)]
                (worker,) = set(workers) & set(processes_with(self.mark))
                os.kill(worker, signal.SIGKILL)
                wait_until(lambda: any(f'"joined": [{victim}]' in line for line in (self.folder / "log").read_text().splitlines()), f"rank {victim} is back")
            (self.folder / "go").touch()
            output, errors = job.communicate(timeout=PATIENCE)
            self.assertEqual(job.returncode, 0, errors)
            self.assertEqual(len(re.findall(r"(?m)^\[\d\]<stdout>:\d+ steps, right$", output)), 3, output)
            for file in (*self.folder.glob("go*"), self.folder / "log"):
                file.unlink()
            self.assert_nothing_is_left()

    def test_hosts_with_link_local_addresses_alone_meet(self):
        # The interface has another number on each host.
        self.ip(2, "link add name more type bridge")
        self.assert_they_meet(self.only_link_local())

    def test_an_address_that_leads_nowhere_is_named_with_the_remedy(self):
        self.config.write_text(f"Host peer1\nHostName {self.lab.address(1)}\nHost *\n" + self.config.read_text())
        ended = self.run_there("-H", "peer1:2", "--network-interface", "docker0,corp0", "-x", "HVD_START_TIMEOUT=3s", PROGRAM)
        self.assertNotEqual(ended.returncode, 0)
        self.assertRegex(ended.stderr, r"does not reach the rendezvous at \S*172\.17\.0\.1\S*:\d+: .*--network-interface")


class ManyHosts(LauncherTest):
    def test_ranks_that_come_later_use_the_connection_of_their_host(self):
        (self.folder / "rsh").write_text('#!/bin/sh\necho $1 >>calls\nexec sh -c "$2"\n')
        (self.folder / "rsh").chmod(0o755)
        ended = self.run_it("-H", "a:2", "--min-np", 2, "--blacklist-cooldown-range", "0.1", "1", "--ssh-command", "./rsh {host} {command}", "sh", "-c",
                            "if [ $HVD_RANK = 0 ] && ! [ -e again ]; then touch again; exit 1; fi; [ $HVD_RANK = 1 ] || touch done; while ! [ -e done ]; do sleep 0.01; done")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertTrue((self.folder / "again").exists())
        self.assertEqual((self.folder / "calls").read_text(), "a\n")

    def test_a_connection_that_ends_with_0_is_no_success(self):
        for hosts in (("-H", "a:2"), ("-H", "localhost:1,b:1"), ("-H", "a:2,b:1", "--min-np", 1)):
            for how, code in (("true {host} {command}", 255), ("sh -c 'sleep 0.2; exit 0' {command}", 255), ("sh -c 'exit 3' {command}", 3)):
                with self.subTest(hosts=hosts, how=how):
                    ended = self.run_it(*hosts, "--ssh-command", how, "sleep", 3)
                    self.assertEqual(ended.returncode, code, ended.stderr)
                    self.assertIn("was not started", ended.stderr)

    def test_ranks_fail_whose_connection_ends_with_0(self):
        (self.folder / "quits").write_text('#!/bin/sh\nexec 3<&0\nsetsid sh -c "$1" <&3 &\nwhile ! [ -e here.0 -a -e here.1 ]; do sleep 0.02; done\nkill -9 $!\nexit 0\n')
        (self.folder / "quits").chmod(0o755)
        for hosts in (("-H", "a:2"), ("-H", "a:2,localhost:1")):
            ended = self.run_it(*hosts, "--ssh-command", "./quits {command}", "--kill-after", 1, "sh", "-c", STAYS)
            self.assertEqual(ended.returncode, 255, ended.stderr)
            self.assertRegex(ended.stderr, "rank [01] on a failed with its connection's exit code 0")
            for file in self.folder.glob("here.*"):
                file.unlink()

    def test_others_are_heard_when_a_process_is_killed_that_writes_to_the_connection(self):
        for which in ("shell", "tool"):
            with self.subTest(which=which):
                self.kill_a_writer(which)
                for file in ("here.0", "here.1", "stopped", "killed"):
                    (self.folder / file).unlink()

    def kill_a_writer(self, which):
        job = self.start_it("-H", "a:2", "--ssh-command", FAKE_SSH, "sh", "-c",
                            "touch here.$HVD_RANK; if [ $HVD_RANK = 1 ]; then while ! [ -e killed ]; do sleep 0.05; done; echo one; exit; fi; "
                            "while ! [ -e stopped ]; do sleep 0.01; done; head -c 1000000 /dev/zero | tr '\\0' x; exit 0")
        self.wait_for_files("here.0", "here.1")
        os.kill(job.pid, signal.SIGSTOP)  # it reads no more
        (self.folder / "stopped").touch()
        def is_writer(pid):
            try:
                return pathlib.Path(f"/proc/{pid}/comm").read_text() == "cat\n" and state_of(pid) == "S"
            except OSError:  # it has ended meanwhile
                return False
        def writer():
            return next(filter(is_writer, processes_with(self.mark)), 0)
        seen = []
        def is_stuck():
            seen.append(writer())
            time.sleep(0.1)
            return len(seen) > 3 and seen[-1] and len(set(seen[-3:])) == 1
        wait_until(is_stuck, "a process waits for the connection")
        victim = seen[-1] if which == "tool" else int(pathlib.Path(f"/proc/{seen[-1]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(victim, signal.SIGKILL)
        (self.folder / "killed").touch()
        os.kill(job.pid, signal.SIGCONT)
        output, errors = job.communicate(timeout=PATIENCE)
        self.assertEqual(job.returncode, 0, errors)
        self.assertEqual([line for line in output.splitlines() if "one" in line], ["[1]<stdout>:one"])
        self.assert_nothing_is_left()

    def test_the_time_to_start_is_measured(self):
        measured = subprocess.run([sys.executable, f"{os.environ['HVD_SOURCE']}/benchmarks/launch.py", HVDRUN, "--hosts", "1,3", "--ranks", "1,2", "--rounds", "1"],
                                  capture_output=True, text=True, check=True, cwd=self.folder, env=self.environment(), timeout=PATIENCE)
        self.assertRegex(measured.stdout, r"^\| hosts \| 1 ranks each \| 2 ranks each \|\n.*\n\| 1 \| [\d.]+ s \| [\d.]+ s \|\n\| 3 \| [\d.]+ s \| [\d.]+ s \|\n$")

    def test_many_hosts_start(self):
        hosts = 128 if IS_SOAK else 8
        ended = self.run_it("-H", ",".join(f"h{i}:2" for i in range(hosts)), "--start-timeout", PATIENCE, "--ssh-command", FAKE_SSH, "sh", "-c", "echo x")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(sorted(ended.stdout.splitlines()), sorted(f"[{r}]<stdout>:x" for r in range(2 * hosts)))


if __name__ == "__main__":
    unittest.main()
