# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The command line of hvdrun, hosts and hostfiles."""

import re
import socket
import subprocess
import unittest

from launching import HVDRUN, LauncherTest, PATIENCE


class Options(LauncherTest):
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

    def in_namespaces(self, script, *arguments):
        """Returns the hosts of the ranks, where a script has changed names before."""
        ended = subprocess.run(["unshare", "--mount", "--uts", "sh", "-c", f'{script} && exec "$@"', "sh", HVDRUN, *arguments, "--dry-run", "./train"],
                               capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder, env=self.environment())
        if "unshare:" in ended.stderr or "mount:" in ended.stderr:
            self.skipTest("this user may make no namespaces")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return re.findall(r"(?m)^\[\d+\] (?:ssh -o BatchMode=yes (\S+) )?.*HVD_LOCAL_RANK=(\d+)", ended.stdout)

    def test_hosts_of_other_domains_are_other_hosts(self):
        self.assertEqual(self.in_namespaces("hostname a.x", "-H", "a.y,a,a.x:2"), [("a.y", "0"), ("a", "0"), ("", "0"), ("", "1")])
        self.assertEqual(self.in_namespaces("hostname a", "-H", "a.y,a"), [("a.y", "0"), ("", "0")])

    def test_names_with_a_common_address_are_one_host(self):
        (self.folder / "names").write_text("10.1.1.1 n1 n1.lan\n10.1.1.2 n2\n127.0.0.1 localhost\n127.0.1.1 me.lan\n")
        self.assertEqual(self.in_namespaces("mount --bind names /etc/hosts", "-H", "n1:1,n2:1,n1.lan:1,me.lan,localhost"),
                         [("n1", "0"), ("n1", "1"), ("n2", "0"), ("", "0"), ("", "1")])

    def test_np_is_spelled_in_all_ways(self):
        for words in (["-np", "2"], ["--num-proc", "2"], ["--num-proc=2"], ["--np", "2"]):
            self.assertEqual(len(self.placed(*words)), 2)

    def test_hostfiles_have_horovods_and_open_mpis_forms(self):
        (self.folder / "hosts").write_text("# a comment\n\na slots=2\nb:1 # here too\n  localhost   slots=1 max_slots=4\r\nc max-slots=1\na\n")
        for option in ("--hostfile", "-hostfile"):
            self.assertEqual([host for host, *_ in self.placed(option, "hosts")], ["a", "a", "a", "b", "here", "c"])

    def test_errors_of_a_hostfile_name_file_line_and_text(self):
        for line, why in {"a slots=0": "slots must be a number from 1", "a slots=two": "slots must be a number", "a slots": "slots must be",
                          "a:x": "slots must be a number", "a 2": "slots=N or max_slots=N was expected", "a slots=2 cpus=3": "slots=N or",
                          "a:2 slots=2": "slots are given twice", "a slots=3 max_slots=2": "more than max_slots", "a,b": "no name of a host",
                          "-oProxyCommand=x": "no name of a host", "[::1 slots=2": "a [ is not closed", "a slots=-1": "slots must be",
                          "a slots=99999999999": "slots must be"}.items():
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
        self.assert_refused(["-np", 2, "--kill-after", "soon", "./train"], 'hvdrun: --kill-after: "soon" is no number from 0 on\n')
        self.assert_refused(["./train"], "-np")
        self.assert_refused(["-np", 2], "program")
        self.assert_refused(["-np", 2, "--backend", "gloo", "./train"], "gloo")
        self.assert_refused(["-np", 2, "--backend", "nccl", "./train"], "nccl")
        self.assert_refused(["-np", 2, "--start-timeout", "-1", "./train"], 'hvdrun: --start-timeout: "-1" is no number from 0.001 on\n')
        self.assert_refused(["-np", 2, "--ssh-command", "ssh {host}", "./train"], "ssh {host}", "{command}")
        self.assert_refused(["-np", 2, "--ssh-command", "ssh 'x {command}", "./train"], "--ssh-command", "not closed")
        self.assert_refused(["-np", 2, "--mpi-args", "--x", "./train"], "--backend mpi")
        self.assert_refused(["-np", 2, "--network-interface", "none7", "./train"], "none7", "no such interface")
        self.assert_refused(["-np", 2, "--event-log", "absent/log", "./train"], "absent/log", "cannot be written")

    def test_wrong_options_of_elastic_jobs_are_refused(self):
        for option, value in {"--slots-per-host": [2], "--reset-limit": [3], "--blacklist-cooldown-range": [1, 2], "--elastic-timeout": [9]}.items():
            self.assert_refused(["-np", 2, option, *value, "./train"], option, "--min-np, --max-np or --host-discovery-script")
        self.assert_refused(["-np", 2, "--restart", -1, "./train"], '--restart: "-1" is no whole number from 0 to 1073741824')
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
        self.assertIn("--num-proc", self.run_it("--help").stdout)
        self.assertRegex(self.run_it("--version").stdout, r"^hvdrun \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    unittest.main()
