# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The command line of hvdrun, hosts and hostfiles."""

import os
import re
import resource
import shutil
import socket
import subprocess
import unittest

from launching import HVDRUN, LauncherTest, PATIENCE


class CommandLine(LauncherTest):
    def placed(self, *arguments, said=(), **more):
        """Returns (host, rank, size, local rank, local size) for each rank."""
        ended = self.run_it(*arguments, "--dry-run", "./train", **more)
        self.assertEqual((ended.returncode, ended.stderr.splitlines()), (0, list(said)))
        result = []
        for line in ended.stdout.splitlines():
            host = re.search(r"BatchMode=yes (\S+) ", line)
            number = {name: int(value) for name, value in re.findall(r"HVD_(\w+)=(\d+) ", line)}
            result.append((host[1] if host else "here", number["RANK"], number["SIZE"], number["LOCAL_RANK"], number["LOCAL_SIZE"]))
        return result


class Options(CommandLine):
    def test_ranks_fill_hosts_in_their_order(self):
        self.assertEqual(self.placed("-np", 4, "-H", "a:1,localhost:2,b:7"),
                         [("a", 0, 4, 0, 1), ("here", 1, 4, 0, 2), ("here", 2, 4, 1, 2), ("b", 3, 4, 0, 1)])

    def test_without_a_number_all_slots_are_used(self):
        self.assertEqual(self.placed("-H", "a:2,[::1]:1"), [("a", 0, 3, 0, 2), ("a", 1, 3, 1, 2), ("here", 2, 3, 0, 1)])

    def test_a_host_named_twice_has_the_slots_of_both(self):
        self.assertEqual(self.placed("-H", "a,b:1,a:1"), [("a", 0, 3, 0, 2), ("a", 1, 3, 1, 2), ("b", 2, 3, 0, 1)])

    def test_names_of_one_host_are_one_host(self):
        own = socket.gethostname()
        self.assertEqual(self.placed("-H", f"localhost:1,{own}:2,127.0.0.1,a:1", said=[
            f"hvdrun: localhost and {own} are names of one host, whose slots add up", "hvdrun: localhost and 127.0.0.1 are names of one host, whose slots add up"]),
            [("here", rank, 5, rank, 4) for rank in range(4)] + [("a", 4, 5, 0, 1)])
        ended = self.run_it("-H", f"localhost:2,{own}:1", "sh", "-c", "echo $HVD_LOCAL_RANK $HVD_LOCAL_SIZE")
        self.assertEqual(sorted(ended.stdout.splitlines()), [f"[{r}]<stdout>:{r} 3" for r in range(3)])
        self.assertEqual(ended.stderr, f"hvdrun: localhost and {own} are names of one host, whose slots add up\n")

    def test_names_of_hosts_are_looked_up_where_no_thread_can_be_started(self):
        if os.environ.get("HVD_SANITIZER", "none") != "none":
            self.skipTest("sanitizers take more memory")
        most = 64 << 20  # less than the stacks of some threads
        job = self.start_it("-H", ",".join(f"198.51.100.{i}" for i in range(1, 17)), "--dry-run", "true", before=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
        out, err = job.communicate(timeout=PATIENCE)
        self.assertEqual((job.returncode, err, len(out.splitlines())), (0, "", 16))

    def in_namespaces(self, script, *arguments):
        """Returns the hosts of the ranks, where a script has changed names before."""
        ended = subprocess.run(["unshare", "--mount", "--uts", "sh", "-c", f'{script} && exec "$@"', "sh", HVDRUN, *arguments, "--dry-run", "./train"],
                               capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder, env=self.environment())
        if "unshare:" in ended.stderr or "mount:" in ended.stderr:
            self.skipTest("this user may make no namespaces")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return re.findall(r"(?m)^\[\d+\] (?:ssh -o BatchMode=yes (\S+) )?.*HVD_LOCAL_RANK=(\d+)", ended.stdout)

    def test_numbers_are_decimal_everywhere(self):
        (self.folder / "hosts").write_text("a slots=010\n")
        for words, ranks in ((["-np", "010"], 10), (["-n", "08"], 8), (["-H", "a:010"], 10), (["--hostfile", "hosts"], 10), (["-np", "00000000000000000002"], 2)):
            self.assertEqual(len(self.placed(*words)), ranks, words)
        for word in ("0x2", "0b1", "+2", " 2", "2 ", "1e0", "2.0", "1'0"):
            self.assert_refused(["-np", word, "./train"], f'-np: "{word}" is no whole number')
            self.assert_refused(["-H", f"a:{word}", "./train"], "slots must be a number")
        for word in ("inf", "nan", "0x1p3", "+1", " 1", "1s", ""):
            self.assert_refused(["-np", 1, "--kill-after", word, "./train"], f'--kill-after: "{word}" is no number from 0 to 2592000')
        self.assertEqual(len(self.placed("-np", 1, "--kill-after", "1e1", "--start-timeout", "007.5")), 1)

    def test_hosts_of_other_domains_are_other_hosts(self):
        self.assertEqual(self.in_namespaces("hostname a.x", "-H", "a.y,a,a.x:2"), [("a.y", "0"), ("a", "0"), ("", "0"), ("", "1")])
        self.assertEqual(self.in_namespaces("hostname a", "-H", "a.y,a"), [("a.y", "0"), ("", "0")])

    def test_names_with_a_common_address_are_one_host(self):
        (self.folder / "names").write_text("10.1.1.1 n1 n1.lan\n10.1.1.2 n2\n127.0.0.1 localhost\n127.0.1.1 me.lan\n")
        self.assertEqual(self.in_namespaces("mount --bind names /etc/hosts", "-H", "n1:1,n2:1,n1.lan:1,me.lan,localhost"),
                         [("n1", "0"), ("n1", "1"), ("n2", "0"), ("", "0"), ("", "1")])

    def test_np_is_spelled_in_all_ways(self):
        for words in (["-np", "2"], ["-np=2"], ["-n", "2"], ["-n2"], ["--num-proc", "2"], ["--num-proc=2"], ["--np", "2"]):
            self.assertEqual(len(self.placed(*words)), 2)

    def test_hosts_are_spelled_in_the_ways_of_other_launchers(self):
        (self.folder / "hosts").write_text("a slots=1\nb slots=2\n")
        for words in (["-H", "a,b:2"], ["-Ha,b:2"], ["-host", "a,b:2"], ["-hosts", "a,b:2"], ["-hosts=a,b:2"], ["--host", "a,b:2"], ["--hosts=a,b:2"], ["--hostfile", "hosts"],
                      ["-hostfile", "hosts"], ["-hostfile=hosts"], ["-machinefile", "hosts"], ["--machinefile=hosts"]):
            self.assertEqual([host for host, *_ in self.placed(*words)], ["a", "b", "b"], words)

    def test_the_port_and_the_key_of_ssh(self):
        for words, ssh in ((["-p", 2222], "-p 2222"), (["-p2222"], "-p 2222"), (["-i", "my key"], "-i 'my key'"), (["--ssh-port", 7, "--ssh-identity-file", "k"], "-p 7 -i k")):
            ended = self.run_it("-H", "a", *words, "--dry-run", "./train")
            self.assertIn(f"[0] ssh -o BatchMode=yes {ssh} a {{command}}: ", ended.stdout)
        self.assert_refused(["-H", "a", "-p", 0, "./train"], '-p: "0" is no whole number from 1 to 65535')
        self.assert_refused(["-H", "a", "-i", "k", "--ssh-command", "ssh {host} {command}", "./train"], "-p and -i", "--ssh-command")

    def test_settings_of_horovod_are_variables_for_all_ranks(self):
        (self.folder / "run.yaml").write_text("")
        for words, variable, value in ((["--config-file", "run.yaml"], "CONFIG", "run.yaml"), (["--timeline-filename", "t{rank}.json"], "TIMELINE_FILE", "'t{rank}.json'"),
                                       (["--timeline-mark-cycles"], "TIMELINE_MARK_UNITS", "1"), (["--autotune"], "AUTOTUNE", "1"), (["--autotune-log-file", "l"], "AUTOTUNE_LOG", "l"),
                                       (["--autotune-warmup-samples", 3], "AUTOTUNE_WARMUP_STEPS", "3"), (["--autotune-steps-per-sample", "07"], "AUTOTUNE_STEPS_PER_SAMPLE", "7"),
                                       (["--fusion-threshold-mb", 64], "ENGINE_FUSION_THRESHOLD", "64MiB"), (["--cycle-time-ms", 3.5], "ENGINE_CYCLE_TIME", "3500us"),
                                       (["--cache-capacity", 9], "ENGINE_CACHE_CAPACITY", "9"), (["--disable-cache"], "ENGINE_CACHE_CAPACITY", "0"),
                                       (["--no-stall-check"], "ENGINE_STALL_WARN", "0"), (["--stall-check-warning-time-seconds", 60], "ENGINE_STALL_WARN", "60000000us"),
                                       (["--stall-check-shutdown-time-seconds=1"], "ENGINE_STALL_ABORT", "1000000us"), (["--thread-affinity", "0,1"], "CPUS", "0,1")):
            ended = self.run_it("-H", "localhost:1,a:1", *words, "--dry-run", "./train")
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))
            self.assertEqual(ended.stdout.count(f" HVD_{variable}={value} "), 2, ended.stdout)
        ended = self.run_it("-np", 2, "--autotune", "--fusion-threshold-mb", 1, "printenv", "HVD_ENGINE_FUSION_THRESHOLD")
        self.assertEqual(sorted(ended.stdout.splitlines()), ["[0]<stdout>:1MiB", "[1]<stdout>:1MiB"])
        for words, text in {("--fusion-threshold-mb", "64MB"): "from 0 to 1048576", ("--cycle-time-ms", "-1"): "from 0 to 2592000000",
                            ("--cycle-time-ms", "2592000000.5"): "from 0 to 2592000000", ("--stall-check-warning-time-seconds", 2592001): "from 0 to 2592000", ("--cache-capacity", "0x9"): "whole number",
                            ("--timeline-filename", ""): "value", ("--config-file", "absent.yaml"): "cannot be read"}.items():
            self.assert_refused(["-np", 2, *words, "./train"], words[0], text)

    def test_values_of_the_user_are_not_replaced_in_silence(self):
        self.assert_refused(["-np", 1, "--autotune", "-x", "HVD_AUTOTUNE=0", "./train"], "--autotune sets HVD_AUTOTUNE=1", "HVD_AUTOTUNE=0")
        self.assert_refused(["-np", 1, "--cache-capacity", 3, "--disable-cache", "./train"], "HVD_ENGINE_CACHE_CAPACITY=3", "HVD_ENGINE_CACHE_CAPACITY=0")
        self.assert_refused(["-np", 1, "-x", "A=1", "-x", "A=2", "./train"], "-x A: it is given twice")
        ended = self.run_it("-np", 1, "--autotune", "-x", "HVD_AUTOTUNE=1", "-x", "A=1", "-x", "A=1", "printenv", "HVD_AUTOTUNE")
        self.assertEqual((ended.stdout, ended.stderr), ("[0]<stdout>:1\n", ""))
        ended = self.run_it("-np", 1, "--autotune", "printenv", "HVD_AUTOTUNE", HVD_AUTOTUNE="0")
        self.assertEqual((ended.stdout, ended.stderr), ("[0]<stdout>:1\n", "hvdrun: --autotune sets HVD_AUTOTUNE=1 in the place of 0, which the environment has\n"))
        for name, option in {"HVD_RANK": "", "HVD_LOCAL_SIZE": "", "HVD_RENDEZVOUS": "", "HVD_SECRET": "--secret-file", "HVD_SECRET_FILE": "--secret-file",
                             "HVD_ELASTIC_MIN_SIZE": "--min-np", "HVD_ELASTIC_TIMEOUT": "--elastic-timeout", "HVD_ELASTIC_LAUNCHER_TIMEOUT": "--start-timeout"}.items():
            self.assert_refused(["-np", 1, "-x", f"{name}=1", "./train"], f"-x {name}: hvdrun sets this variable", option)
        self.assert_refused(["-np", 1, "--network-interface", "lo", "-x", "HVD_NETWORK_INTERFACE=eth1", "./train"], "--network-interface")

    def test_options_of_other_launchers_are_refused_with_those_of_hvdrun(self):
        for word, ours in {"-ppn": "-H host:slots", "-N": "-H host:slots", "--npernode": "-H host:slots", "--mca": "--mpi-args", "-genv": "-x NAME=VALUE", "-iface": "--network-interface",
                           "--log-level": "--verbose", "--gloo": "--backend tcp", "--mpi": "--backend mpi", "--check-build": "--check", "-wdir": "folder", "--oversubscribe": "-np",
                           "--tag-output": "rank"}.items():
            self.assert_refused([word, "1", "./train"], f"{word}: there is no such option; ", ours)
        for word in ("-hostz", "-hello", "-nx", "-verb", "-q", "--hosts-file", "-npx", "-pe"):
            self.assert_refused([word, "1", "./train"], f"{word}: there is no such option (hvdrun --help lists them)")
        self.assert_refused(["--verbose=1", "./train"], "--verbose=1: this option takes no value")

    def test_hostfiles_have_horovods_and_open_mpis_forms(self):
        (self.folder / "hosts").write_text("# a comment\n\na slots=2\nb:1 # here too\n  localhost   slots=1 max_slots=4\r\nc max-slots=1\na\n")
        for option in ("--hostfile", "-hostfile"):
            self.assertEqual([host for host, *_ in self.placed(option, "hosts")], ["a", "a", "a", "b", "here", "c"])

    def test_hostfiles_of_windows(self):
        (self.folder / "hosts").write_bytes(b"\xef\xbb\xbfa slots=2\r\nb\r\n")
        self.assertEqual([host for host, *_ in self.placed("--hostfile", "hosts")], ["a", "a", "b"])
        (self.folder / "hosts").write_bytes("a\n".encode("utf-16"))
        self.assert_refused(["--hostfile", "hosts", "./train"], r'hosts:1: "\xff\xfea\x00": this is no name of a host')

    def test_hostfiles_of_other_launchers_are_read(self):
        for text, hosts in {"a slots = 2 max-slots=2\nb count=1\nc cpu=1": "aabc",  # Open MPI
                            "a\na\nb": "aab",  # PBS, LSF, Slurm's SLURM_HOSTFILE
                            "a*2\nb": "aab", "a:2\nb:1": "aab",  # Slurm's, MPICH's
                            "a slots_max=2": "aa"}.items():
            (self.folder / "hosts").write_text(text)
            self.assertEqual([host for host, *_ in self.placed("--hostfile", "hosts")], list(hosts), text)
        (self.folder / "hosts").write_text("a username=me slots=1\nb:1 user=you\n")
        self.assertEqual([host for host, *_ in self.placed("--hostfile", "hosts")], ["me@a", "you@b"])

    def test_errors_of_a_hostfile_name_file_line_and_text(self):
        for line, why in {"a slots=0": "slots must be a number from 1", "a slots=two": "slots must be a number", "a slots": "slots must be",
                          "a:x": "slots must be a number", "a 2": "slots=N or max_slots=N was expected", "a slots=2 cpus=3": "slots=N or",
                          "a:2 slots=2": "slots are given twice", "a slots=3 max_slots=2": "more than max_slots", "a,b": "no name of a host",
                          "-oProxyCommand=x": "no name of a host", "[::1 slots=2": "a [ is not closed", "a slots=-1": "slots must be",
                          "a slots=99999999999": "slots must be",
                          "a slots=0x2": "slots must be", "a:2 ifname=ib0": "--network-interface", "a binding=user:0": "binds no rank", "a port=22": "-p gives",
                          "n[1-3]": "scontrol show hostnames", "rank 0=a slot=1": "slots=N or", "a*0": "slots must be", "a:2*2": "slots are given twice",
                          "^a": "no name of a host", "a 2 all.q@a UNDEFINED": "slots=N or"}.items():
            (self.folder / "hosts").write_text(f"b slots=1\n{line}\n")
            self.assert_refused(["--hostfile", "hosts", "./train"], f'hosts:2: "{line}": ', why)
        (self.folder / "hosts").write_text("# nobody\n")
        self.assert_refused(["--hostfile", "hosts", "./train"], "names no host")
        self.assert_refused(["--hostfile", "absent", "./train"], "--hostfile absent", "cannot be read")

    def test_errors_of_hosts_name_the_host(self):
        for hosts, one in {"a:0": "a:0", "a:1,,b:1": '""', "a:1,b:c": "b:c", "a b:1": "a b:1", "": "", "a:": "a:"}.items():
            if hosts:
                self.assert_refused(["-H", hosts, "./train"], f"-H {hosts}", one)
        self.assert_refused(["-np", 5, "-H", "a:2,b:2", "./train"], "-np 5", "only 4 slots")
        self.assert_refused(["-H", "a:2", "--hostfile", "hosts", "./train"], "-H and --hostfile")

    def test_wrong_options_are_refused_with_their_name(self):
        self.assert_refused(["--num-procs", 2, "./train"], "--num-procs", "no such option")
        self.assert_refused(["-q", "./train"], "-q", "no such option")
        self.assert_refused(["-np"], "-np", "a value is missing")
        for option in ("-np", "--np", "--num-proc"):
            for word in ("x", "0", "1.5", "-1", "2x", "", "9999999"):
                self.assert_refused([option, word, "./train"], f'hvdrun: {option}: "{word}" is no whole number from 1 to 1048576\n')
        self.assert_refused(["--np=x", "./train"], 'hvdrun: --np: "x" is')
        self.assert_refused(["-np", 2, "-np", 3, "./train"], "hvdrun: -np: ")
        self.assert_refused(["-np", 2, "--kill-after", "soon", "./train"], 'hvdrun: --kill-after: "soon" is no number from 0 to 2592000\n')
        self.assert_refused(["-np", 2, "--kill-after", "1e9", "./train"], 'hvdrun: --kill-after: "1e9" is no number from 0 to 2592000\n')
        self.assert_refused(["./train"], "-np")
        self.assert_refused(["-np", 2], "program")
        self.assert_refused(["-np", 2, "--backend", "gloo", "./train"], "gloo")
        self.assert_refused(["-np", 2, "--backend", "nccl", "./train"], "nccl")
        self.assert_refused(["-np", 2, "--start-timeout", "-1", "./train"], 'hvdrun: --start-timeout: "-1" is no number from 0.001 to 2592000\n')
        self.assert_refused(["-np", 2, "--forward-signals", "PIPE", "./train"], "--forward-signals", "no signal that can be passed on")
        self.assert_refused(["-np", 2, "--ssh-command", "ssh {host}", "./train"], "ssh {host}", "{command}")
        self.assert_refused(["-np", 2, "--ssh-command", "ssh 'x {command}", "./train"], "--ssh-command", "not closed")
        self.assert_refused(["-np", 2, "--mpi-args", "--x", "./train"], "--backend mpi")
        self.assert_refused(["-np", 2, "--network-interface", "none7", "./train"], "none7", "no such interface")
        self.assert_refused(["-np", 2, "--event-log", "absent/log", "./train"], "absent/log", "cannot be written")

    def test_wrong_options_of_elastic_jobs_are_refused(self):
        for option, value in {"--slots-per-host": [2], "--reset-limit": [3], "--blacklist-cooldown-range": [1, 2], "--elastic-timeout": [9]}.items():
            self.assert_refused(["-np", 2, option, *value, "./train"], option, "--min-np, --max-np or --host-discovery-script")
        self.assert_refused(["-np", 2, "--max-restarts", -1, "./train"], '--max-restarts: "-1" is no whole number from 0 to 1073741824')
        self.assert_refused(["-np", 2, "--min-np", 1, "--elastic-timeout", 0, "./train"], '--elastic-timeout: "0" is no number from 0.001 to 2592000')
        for words in (["--min-np", 0], ["--min-np", "x"], ["--max-np", 5000], ["--min-np", 2, "--reset-limit", -1],
                      ["--min-np", 2, "--elastic-timeout", 0], ["--min-np", 2, "--blacklist-cooldown-range", 0, 2]):
            self.assert_refused(["-np", 2, *words, "./train"], words[-2] if words[-2] != 0 else "range")
        for bounds in ([3, 2, 4], [1, 3, 2], [2, 2, 1]):
            self.assert_refused(["--min-np", bounds[0], "-np", bounds[1], "--max-np", bounds[2], "./train"],
                                "--min-np {}, -np {}, --max-np {}: each must be".format(*bounds))
        self.assert_refused(["-np", 2, "--min-np", 2, "--blacklist-cooldown-range", 3, 2, "./train"], "--blacklist-cooldown-range", "above")
        self.assert_refused(["-np", 2, "--min-np", 2, "--blacklist-cooldown-range", 3], "--blacklist-cooldown-range", "a value is missing")
        self.assert_refused(["--host-discovery-script", "x", "-H", "a", "./train"], "only one of them can name the hosts")
        self.assert_refused(["-np", 2, "--min-np", 2, "--slots-per-host", 2, "./train"], "--slots-per-host needs --host-discovery-script")
        self.assert_refused(["-np", 4, "--min-np", 2, "-H", "a:2", "./train"], "-np 4", "only 2 slots")

    def test_an_elastic_job_begins_with_as_many_ranks_as_there_is_room_for(self):
        for words, ranks in ((["-np", 3, "--min-np", 2], 3), (["-np", 2, "--max-np", 4, "-H", "a:3"], 3), (["--max-np", 2, "-H", "a:3"], 2),
                             (["--min-np", 2], 2), (["--min-np", 1, "--host-discovery-script", "echo a:3"], 3),
                             (["-np", 2, "--host-discovery-script", "echo a:3"], 2), (["--min-num-proc", 1, "--max-num-proc", 3], 3)):
            self.assertEqual(len(self.placed(*words)), ranks, words)

    def test_options_of_the_program_are_left_to_it(self):
        ended = self.run_it("-np", 1, "sh", "-c", 'echo "$@"', "sh", "-np", "7", "--min-np", "a b")
        self.assertEqual(ended.stdout, "[0]<stdout>:-np 7 --min-np a b\n")
        self.assertEqual(self.run_it("-np", 1, "--", "echo", "-x").stdout, "[0]<stdout>:-x\n")

    def test_variables_are_given_by_name_or_with_a_value(self):
        ended = self.run_it("-np", 1, "-x", "A=1=2", "-x", "B", "-x", "C=", "sh", "-c", 'echo "$A|$B|${C-none}|$HVD_TUNING"', B="b b", HVD_TUNING="t")
        self.assertEqual(ended.stdout, "[0]<stdout>:1=2|b b||t\n")
        self.assert_refused(["-np", 1, "-x", "ABSENT_VARIABLE", "./train"], "ABSENT_VARIABLE", "not set")
        self.assert_refused(["-np", 1, "-x", "1A=2", "./train"], "1A=2", "no name of a variable")

    def test_help_and_version_are_printed(self):
        printed = self.run_it("--help").stdout
        for text in ("hvdrun starts a program", "Usage: hvdrun [options] program [arguments]\n", "--num-proc", "Examples:\nhvdrun -np 4 ./train\n"):
            self.assertIn(text, printed)
        self.assertRegex(self.run_it("--version").stdout, r"^hvdrun \d+\.\d+\.\d+\n$")


class Installed(CommandLine):
    """The manual page and the completions of shells."""

    def options(self):
        return set(re.findall(r"(?<![\w-])(--[a-z-]+)", self.run_it("--help").stdout.partition("Examples:")[0]))

    def test_the_manual_page_has_all_options(self):
        page = self.run_it("--generate", "manual").stdout
        text = re.sub(r"\\f[BIR]", "", page).replace("\\", "")
        self.assertEqual(self.options() - set(re.findall(r"--[a-z-]+", text)), set())
        self.assertNotIn("--generate", text)
        if shutil.which("groff"):
            shown = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-P-cbou"], input=page, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("hvdrun - start a program of hvd on several ranks", shown.stdout)

    def completed(self, *words):
        """What bash offers for the last word."""
        script = self.run_it("--generate", "bash").stdout + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hvdrun; printf "%s\n" "${COMPREPLY[@]}"'
        ended = subprocess.run(["bash", "-c", script, "bash", "hvdrun", *words], capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        self.assertEqual(ended.stderr, "")
        return ended.stdout.split()

    def test_bash_completes_options_values_and_the_program(self):
        (self.folder / "hosts.txt").write_text("")
        self.assertEqual(set(self.completed("--")), self.options())
        self.assertEqual(self.completed("-np", "4", "--hostf"), ["--hostfile"])
        for words in (["--hostfile", "hos"], ["--hostfile", "=", "hos"], ["-np", "4", "./train", "hos"], ["--blacklist-cooldown-range", "1", "hos"]):
            self.assertEqual(self.completed(*words), ["hosts.txt"], words)
        self.assertIn("hosts.txt", self.completed("--blacklist-cooldown-range", "1", "2", "hos"))
        self.assertIn("bash", self.completed("-np", "4", "bas"))
        self.assertEqual(self.completed("-np", "4", "./train", "--hostf"), [])

    def test_zsh_has_all_options(self):
        script = self.run_it("--generate", "zsh").stdout
        self.assertTrue(script.startswith("#compdef hvdrun\n_arguments "))
        self.assertEqual(set(re.findall(r"'\*(--[a-z-]+)\[", script)), self.options())
        if shutil.which("zsh"):
            self.assertEqual(subprocess.run(["zsh", "-n"], input=script, capture_output=True, text=True, timeout=PATIENCE).stderr, "")
        self.assertEqual(subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=PATIENCE).stderr, "")


class Allocations(CommandLine):
    """The files and variables of batch systems, as their manuals have them."""

    def file(self, text):
        (self.folder / "given").write_text(text)
        return str(self.folder / "given")

    def test_hosts_of_an_allocation_are_used(self):
        expected = [("n1", 0, 3, 0, 2), ("n1", 1, 3, 1, 2), ("n2", 2, 3, 0, 1)]
        for variables in ({"LSB_DJOB_HOSTFILE": self.file("n1\nn1\nn2\n"), "LSB_MCPU_HOSTS": "n9 7"}, {"LSB_MCPU_HOSTS": "n1 2 n2 1"}, {"PBS_NODEFILE": self.file("n1\nn1\nn2\n")}):
            self.assertEqual(self.placed(**variables), expected, variables)
        sge = {"PE_HOSTFILE": self.file("n1 2 all.q@n1 UNDEFINED\nn2 1 all.q@n2 <NULL>\n")}
        self.assertEqual(self.placed(**sge), expected)
        self.assertEqual(self.placed("-np", 2, **sge), [("n1", 0, 2, 0, 2), ("n1", 1, 2, 1, 2)])
        # What the command line says wins.
        self.assertEqual([host for host, *_ in self.placed("-H", "b:2", **sge)], ["b", "b"])
        self.assertEqual([host for host, *_ in self.placed("--min-np", 1, "--host-discovery-script", "echo c:1", **sge)], ["c"])

    def test_a_rank_of_another_job_has_no_allocation(self):
        for inside, hosts in {"OMPI_COMM_WORLD_RANK=0": "here", "PMI_SIZE=2": "here", "SLURM_STEP_NUM_TASKS=3": "here", "HVD_RENDEZVOUS_SERVED=1": "here",
                              "PMI_SIZE=1": "n1", "SLURM_STEP_NUM_TASKS=1": "n1"}.items():
            name, value = inside.split("=")
            self.assertEqual([host for host, *_ in self.placed("-np", 2, LSB_MCPU_HOSTS="n1 2", **{name: value})], [hosts] * 2, inside)

    def test_an_allocation_that_cannot_be_read_is_refused(self):
        for variable, text, why in (("PBS_NODEFILE", "n1\n-x\n", ':2: "-x": the name of a host was expected'), ("LSB_DJOB_HOSTFILE", "n1 2\n", ':1: "n1 2": the name'),
                                    ("PE_HOSTFILE", "n1 2 q u\nn2 0x1 q u\n", ':2: "n2 0x1 q u": a host and its slots'), ("PE_HOSTFILE", "n1\n", "its slots"),
                                    ("PBS_NODEFILE", "", "names no host")):
            ended = self.run_it("./train", **{variable: self.file(text)})
            self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1))
            self.assertIn(f"hvdrun: {variable}={self.folder}/given{why if why[0] == ':' else ''}", ended.stderr)
            self.assertIn(why, ended.stderr)
        self.assertIn("PBS_NODEFILE=absent: the file cannot be read", self.run_it("./train", PBS_NODEFILE="absent").stderr)
        for text in ("n1", "n1 2 n2", "n1 02x", "2 n1 0"):
            self.assertIn(f'LSB_MCPU_HOSTS: "{text}": hosts, each with its slots', self.run_it("./train", LSB_MCPU_HOSTS=text).stderr)


if __name__ == "__main__":
    unittest.main()
