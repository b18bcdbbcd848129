# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""hvd-info in broken set-ups: each is made here, and the output says what is wrong and what to do."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from control_group import control_group  # noqa: E402

INFO = os.environ["HVD_INFO"]
HVDRUN = os.environ["HVDRUN"]
FAKE_GPU, FAKE_MPI = os.environ["HVD_FAKE_GPU"], os.environ["HVD_FAKE_MPI"]
PAGE = pathlib.Path(os.environ["HVD_SOURCE"], "docs/reference/hvd_info.md").read_text()
MPI = os.environ["HVD_MPI_VERSION"]  # "Open MPI 4.1.4", or nothing
MPIEXEC = os.environ.get("HVD_MPIEXEC", "")
MIB = 1 << 20
ALL_CHECKS = {"build", "mpi", "cores", "caches", "memory", "disk", "gpu", "network", "variables", "self-test", "ranks"}


def can_unshare(*options):
    return shutil.which("unshare") and subprocess.run(["unshare", *options, "true"], stderr=subprocess.DEVNULL).returncode == 0


class Info(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def environment(self, **more):
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("HVD_", "NCCL_", "OMPI_", "PMI", "SLURM_", "HOROVOD_", "CUDA_", "TMPDIR"))}
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**clean, **root, "TMPDIR": str(self.folder), **more}

    def run_it(self, command, before=None, **variables):
        return subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=120, env=self.environment(**variables), preexec_fn=before)

    def checks(self, *arguments, prefix=(), before=None, **variables):
        """Returns the checks that hvd-info --json prints. The exit code and the verdict agree."""
        ended = self.run_it([*prefix, INFO, "--json", *arguments], before, **variables)
        self.assertIn(ended.returncode, (0, 1), ended.stderr)
        report = json.loads(ended.stdout[ended.stdout.index("{"):])
        self.assertEqual(report["good"], ended.returncode == 0, ended.stdout)
        return report["checks"]

    def finding(self, check, words, verdict="wrong"):
        """The finding of a check that has these words. It has a remedy."""
        found = [f for f in check["findings"] if words in f["problem"]]
        self.assertEqual([f["verdict"] for f in found], [verdict], check)
        self.assertTrue(found[0]["remedy"], check)
        return found[0]

    def in_namespace(self, options, script):
        """The prefix of a command that runs in namespaces of its own, after a script."""
        if not can_unshare(*options):
            self.skipTest(f"unshare {' '.join(options)} is not allowed here")
        return ["unshare", *options, "sh", "-ec", f"{script}\nexec \"$@\"", "sh"]

    def files(self, **content):
        """A folder with files of /proc and /sys."""
        root = self.folder / "root"
        for path, text in content.items():
            file = root / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    # ---- a host without fault

    def test_every_check_tells_facts_and_sums_are_right(self):
        checks = self.checks()
        self.assertLessEqual(set(checks), ALL_CHECKS)
        self.assertLessEqual(ALL_CHECKS - {"ranks"}, set(checks))
        self.assertRegex(checks["build"]["facts"]["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(checks["mpi"]["facts"]["compiled with"], MPI or "none")
        self.assertEqual(checks["self-test"]["findings"], [])
        self.assertIn("sums are right", checks["self-test"]["facts"]["threads"])
        self.assertIn("sums are right", checks["self-test"]["facts"]["processes"])
        self.assertRegex(checks["self-test"]["facts"]["bandwidth"], r"GB/s.* % of the .* GB/s")
        if MPI:
            self.assertEqual(checks["mpi"]["facts"]["library"].split(".")[0], MPI.split(".")[0])
            self.assertIn(checks["ranks"]["facts"]["MPI thread level"], ("multiple", "serialized", "funneled", "single"))
        for check in checks.values():
            for found in check["findings"]:
                self.assertTrue(found["problem"] and found["remedy"])

    def test_people_get_facts_problem_and_remedy(self):
        ended = self.run_it([INFO, "--only", "build,variables"], HVD_TIMEUOT="5s")
        self.assertEqual((ended.returncode, ended.stderr), (1, ""))
        self.assertRegex(ended.stdout, r"(?m)^build\n  version +\d")
        self.assertRegex(ended.stdout, r"(?m)^  WRONG  HVD_TIMEUOT .*\n +do: set HVD_TIMEOUT instead$")

    def test_a_report_that_cannot_be_written_is_told(self):
        for words in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                ended = subprocess.run([INFO, "--only", "build", *words], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=self.environment())
            self.assertEqual((ended.returncode, ended.stderr), (1, "hvd-info: the report cannot be written: No space left on device\n"))

    def test_wrong_command_lines_are_refused(self):
        for words in (["--nothing"], ["--only", "nothing"]):
            ended = self.run_it([INFO, *words])
            self.assertEqual((ended.returncode, ended.stdout, ended.stderr.count("\n")), (2, "", 1))

    # ---- variables

    def test_misspelt_variables_have_the_name_that_was_meant(self):
        check = self.checks("--only", "variables", HVD_ENGINE_FUSION_TRESHOLD="1MiB", NCCL_DEBUG="INFO", HVD_SECRET="5" * 64)["variables"]
        self.assertEqual(self.finding(check, "HVD_ENGINE_FUSION_TRESHOLD")["remedy"], "set HVD_ENGINE_FUSION_THRESHOLD instead")
        self.assertEqual(check["facts"]["NCCL_DEBUG"], "INFO")
        self.assertEqual(check["facts"]["HVD_SECRET"], "(hidden)")

    def test_wrong_values_and_variables_of_horovod_are_told(self):
        check = self.checks("--only", "variables", HVD_TIMEOUT="soon", HOROVOD_FUSION_THRESHOLD="1", HVD_CONFIG="/no/such/file")["variables"]
        self.finding(check, "HVD_TIMEOUT is 'soon'")
        self.finding(check, "/no/such/file")
        self.assertIn("HVD_ENGINE_FUSION_THRESHOLD", self.finding(check, "HOROVOD_FUSION_THRESHOLD", "note")["remedy"])

    # ---- the node

    def test_one_core_of_several(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("this machine has one core")
        check = self.checks("--only", "cores", before=lambda: os.sched_setaffinity(0, cores[:1]))["cores"]
        self.assertEqual(check["facts"]["of this process"], "1")
        self.assertIn("--bind-to none", self.finding(check, "one core of")["remedy"])

    def test_the_cores_that_share_a_cache(self):
        own = min(os.sched_getaffinity(0))
        cache = f"sys__devices__system__cpu__cpu{own}__cache__index"
        root = self.files(**{f"{cache}2__level": "2\n", f"{cache}2__type": "Unified\n", f"{cache}2__shared_cpu_list": f"{own},{own + 64}\n",
                             f"{cache}3__level": "3\n", f"{cache}3__type": "Unified\n", f"{cache}3__shared_cpu_list": f"{own}-{own + 7}\n"})
        facts = self.checks("--only", "caches", "--sysroot", root)["caches"]["facts"]
        self.assertEqual(facts["cores that share L2"], f"{own},{own + 64}")
        self.assertEqual(facts["cores that share L3"], f"{own}-{own + 7}")

    def test_a_system_that_tells_nothing(self):
        checks = self.checks("--only", "cores,caches,memory,network", "--sysroot", self.folder)
        for check, fact in (("cores", "of the host"), ("cores", "cores of NUMA nodes"), ("cores", "load"), ("memory", "of the host"), ("memory", "available"),
                            ("memory", "large pages"), ("network", "machine")):
            self.assertEqual(checks[check]["facts"][fact], "unknown", fact)
        self.assertNotIn("common cache", str(checks["caches"]))
        self.assertNotIn("of memory are left", str(checks["memory"]))

    def test_the_quota_of_a_control_group(self):
        root = self.files(sys__devices__system__cpu__online="0-1")
        group = root / "sys/fs/cgroup/cpu/job"
        group.mkdir(parents=True)
        (group / "cpu.cfs_quota_us").write_text("50000\n")
        (group / "cpu.cfs_period_us").write_text("100000\n")
        self.files(proc__self__cgroup="5:memory:/job\n4:cpu,cpuacct:/job\n")
        check = self.checks("--only", "cores", "--sysroot", root)["cores"]
        self.assertEqual(check["facts"]["quota of control group"], "0.5 cores")
        self.assertIn("--cpus", self.finding(check, "the time of 0.5 cores", "note")["remedy"])

    def test_a_control_group_of_256_mib(self):
        meminfo = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
        root = self.files(proc__meminfo=meminfo, proc__self__cgroup="0::/job\n", sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]\n")
        group = root / "sys/fs/cgroup"
        (group / "job").mkdir(parents=True)
        (group / "cgroup.controllers").write_text("cpu memory\n")
        (group / "job/memory.max").write_text("max\n")
        (group / "memory.max").write_text(f"{256 * MIB}\n")  # of the group around it
        (group / "memory.current").write_text(f"{100 * MIB}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {60 * MIB}\nactive_file {30 * MIB}\n")
        check = self.checks("--only", "memory", "--sysroot", root)["memory"]
        self.assertEqual(check["facts"]["limit of control group"], "256 MiB, 246 MiB left")
        self.assertIn("--memory", self.finding(check, "246 MiB of memory")["remedy"])
        self.finding(check, "large pages are off", "note")
        (group / "memory.max").write_text("max\n")
        check = self.checks("--only", "memory", "--sysroot", root)["memory"]
        self.assertEqual(check["facts"]["limit of control group"], "none")
        self.assertFalse([f for f in check["findings"] if "of memory" in f["problem"]])

    def test_a_control_group_of_256_mib_of_version_1(self):
        root = self.files(proc__meminfo="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", proc__self__cgroup="4:memory:/gone/from/here\n")
        group = root / "sys/fs/cgroup/memory"
        group.mkdir(parents=True)
        (group / "memory.limit_in_bytes").write_text(f"{256 * MIB}\n")
        self.finding(self.checks("--only", "memory", "--sysroot", root)["memory"], "256 MiB of memory are left for 1 rank(s) of this host, by a")

    def test_a_control_group_of_256_mib_of_the_kernel(self):
        with control_group(256) as group:
            if group is None:
                self.skipTest("nobody may make a control group here")
            check = self.checks("--only", "memory", before=lambda: (group / "cgroup.procs").write_text("0"))["memory"]
        self.assertRegex(check["facts"]["limit of control group"], r"^256 MiB, \d+ MiB left$")
        self.assertIn("--memory", self.finding(check, "by a control group's limit of 256 MiB")["remedy"])

    def test_small_shared_memory(self):
        for mib, verdict in ((4, "wrong"), (64, "note")):
            prefix = self.in_namespace(["-m"], f"mount -t tmpfs -o size={mib}m shm /dev/shm")
            check = self.checks("--only", "memory", prefix=prefix)["memory"]
            self.assertEqual(check["facts"]["/dev/shm"].replace(".0", ""), f"{mib} MiB")
            self.assertIn("--shm-size", self.finding(check, "/dev/shm has room for", verdict)["remedy"])

    def test_a_folder_for_files_that_is_read_only(self):
        prefix = self.in_namespace(["-m"], f"mount -t tmpfs -o ro none {self.folder}")
        check = self.checks("--only", "disk", prefix=prefix)["disk"]
        self.assertIn("TMPDIR", self.finding(check, "cannot be written (Read-only file system)")["remedy"])

    def test_a_full_disk(self):
        prefix = self.in_namespace(["-m"], f"mount -t tmpfs -o size=64k none {self.folder}")
        check = self.checks("--only", "disk", prefix=prefix)["disk"]
        self.assertIn("with room", self.finding(check, "is full")["remedy"])

    # ---- the network

    def test_a_host_name_that_does_not_resolve(self):
        prefix = self.in_namespace(["--uts"], "echo no-such-host.invalid > /proc/sys/kernel/hostname")
        check = self.checks("--only", "network", prefix=prefix)["network"]
        self.assertIn("/etc/hosts", self.finding(check, "no-such-host.invalid, does not resolve")["remedy"])

    def test_an_interface_without_an_address(self):
        if not shutil.which("ip"):
            self.skipTest("there is no ip")
        make = "ip link set lo up\nip link add wire0 type {}\nip link set wire0 addrgenmode none\nip link set wire0 up"
        for kind in ("dummy", "veth", "bridge"):
            prefix = self.in_namespace(["-n"], make.format(kind))
            if subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode == 0:
                break
        else:
            self.skipTest("this kernel makes no interface")
        check = self.checks("--only", "network", prefix=prefix)["network"]
        self.finding(check, "wire0 is up and has no address", "note")
        check = self.checks("--only", "network", prefix=prefix, HVD_NETWORK_INTERFACE="wire0", NCCL_SOCKET_IFNAME="eth")["network"]
        self.assertIn("ip addr add", self.finding(check, "HVD_NETWORK_INTERFACE is wire0")["remedy"])
        self.finding(check, "NCCL_SOCKET_IFNAME is eth")

    # ---- GPUs

    def gpu(self, *libraries, gpus=2, **variables):
        libraries_folder = self.folder / "libraries"
        shutil.rmtree(libraries_folder, ignore_errors=True)
        libraries_folder.mkdir()
        for name in ("libnccl.so.2", "libcudart.so.12", "libcudart.so.13"):
            (libraries_folder / name).write_text("")  # the system's is not found behind it
        for name in libraries:
            (libraries_folder / name).unlink(missing_ok=True)
            (libraries_folder / name).symlink_to(FAKE_GPU)
        for number in range(gpus):
            (self.folder / f"root/proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True, exist_ok=True)
        more = variables.pop("PATH", "/usr/bin:/bin")
        return self.checks("--only", "gpu", "--sysroot", self.folder / "root", LD_LIBRARY_PATH=str(libraries_folder), PATH=more, **variables)["gpu"]

    def test_gpus_with_all_that_they_need(self):
        check = self.gpu("libcuda.so.1", "libnccl.so.2")
        self.assertEqual([f for f in check["findings"] if f["verdict"] == "wrong"], [])
        self.assertEqual(check["facts"]["GPU 1"], "a fake GPU, 0000:01:00.0")
        self.assertEqual(check["facts"]["peer access"], "2 of 2 pairs")

    def test_nccl_that_is_missing_or_too_old(self):
        self.assertIn("LD_LIBRARY_PATH", self.finding(self.gpu("libcuda.so.1"), "libnccl.so.2 is not loaded")["remedy"])
        check = self.gpu("libcuda.so.1", "libnccl.so.2", HVD_TEST_NCCL_VERSION="21805")
        self.finding(check, "has version 2.18.5")

    def test_a_driver_that_is_a_stub_or_does_not_start(self):
        check = self.gpu("libcuda.so.1", HVD_TEST_CUDA_INIT="34")
        self.assertIn("stubs", self.finding(check, "stub for linking")["remedy"])
        self.finding(self.gpu("libcuda.so.1", HVD_TEST_CUDA_INIT="999"), "cuInit returns 999")
        check = self.gpu("libcuda.so.1", "libnccl.so.2", HVD_TEST_CUDA_VERSION="9000")
        if check["facts"]["compiled with CUDA"] != "none":
            self.finding(check, "older than the toolkit's")

    def test_gpus_that_cannot_reach_each_other_or_are_hidden(self):
        self.finding(self.gpu("libcuda.so.1", "libnccl.so.2", HVD_TEST_CUDA_PEERS="0"), "not all GPUs", "note")
        check = self.gpu("libcuda.so.1", "libnccl.so.2", HVD_TEST_CUDA_DEVICES="1", CUDA_VISIBLE_DEVICES="1")
        self.assertIn("pin_device", self.finding(check, "one GPU of 2", "note")["remedy"])
        check = self.gpu("libcuda.so.1", "libnccl.so.2", HVD_TEST_CUDA_DEVICES="0", CUDA_VISIBLE_DEVICES="7")
        self.finding(check, "hides all GPUs")

    def test_a_gpu_in_instances(self):
        tool = self.folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho '550.1, Enabled'\n")
        tool.chmod(0o755)
        check = self.gpu("libcuda.so.1", "libnccl.so.2", PATH=f"{self.folder}:/usr/bin:/bin")
        self.assertEqual(check["facts"]["nvidia-smi"], "driver 550.1")
        self.finding(check, "MIG", "note")

    # ---- MPI and the ranks of a job

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_a_launcher_of_another_mpi(self):
        said = "echo HYDRA build details:; echo '    Version:   4.0.2'" if MPI.startswith("Open") else "echo 'mpirun (Open MPI) 4.1.4'"
        tool = self.folder / "mpirun"
        tool.write_text(f"#!/bin/sh\n{said}\n")
        tool.chmod(0o755)
        path = f"{self.folder}:{os.environ['PATH']}"
        found = self.finding(self.checks("--only", "mpi", PATH=path)["mpi"], "would be rank 0 of 1")
        self.assertIn(MPI.partition(" 4")[0], found["remedy"])
        # A process of that launcher.
        size = "PMI_SIZE" if MPI.startswith("Open") else "OMPI_COMM_WORLD_SIZE"
        ranks = self.checks("--only", "ranks", **{size: "2"})["ranks"]
        self.assertIn(size, self.finding(ranks, "each process is rank 0 of 1")["problem"])

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_an_mpi_without_launchers_in_path(self):
        check = self.checks("--only", "mpi", PATH=str(self.folder))["mpi"]
        self.assertIn("to PATH", self.finding(check, "PATH has none of its launchers")["remedy"])
        if MPI.startswith("Open MPI 4"):
            self.assertIn("--prefix", self.finding(check, "orted is not in PATH")["remedy"])

    def another_library(self, **more):
        return {"LD_PRELOAD": FAKE_MPI, "HVD_TEST_MPI_LIBRARY": f"{MPI.rpartition(' ')[0]} 9.9.9, a fake", **more}

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_an_mpi_library_of_another_version_or_none(self):
        check = self.checks("--only", "mpi", **self.another_library())["mpi"]
        self.assertIn("LD_LIBRARY_PATH", self.finding(check, "the library that is loaded is")["remedy"])
        listed = subprocess.run(["ldd", f"{INFO}-mpi"], stdout=subprocess.PIPE, text=True).stdout
        for name in re.findall(r"\b(libmpi\w*\.so\.\d+) ", listed):
            (self.folder / name).write_text("")
        check = self.checks("--only", "mpi", LD_LIBRARY_PATH=str(self.folder))["mpi"]
        self.assertIn("ldconfig", self.finding(check, "the MPI library is not loaded")["remedy"])

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_a_copy_without_its_program_of_mpi(self):
        shutil.copy(INFO, self.folder / "hvd-info")
        ended = self.run_it([self.folder / "hvd-info", "--json", "--only", "mpi,ranks"])
        for check in json.loads(ended.stdout)["checks"].values():
            self.assertIn("hvd-info-mpi", self.finding(check, "is not there")["remedy"])
        self.assertEqual(ended.returncode, 1)

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_a_program_of_mpi_that_ends_before_it_has_read(self):
        shutil.copy(INFO, self.folder / "hvd-info")
        (self.folder / "hvd-info-mpi").write_text("#!/bin/sh\nexec <&-\nsleep 0.2\nexit 3\n")
        (self.folder / "hvd-info-mpi").chmod(0o755)
        ended = self.run_it([self.folder / "hvd-info", "--json", "--only", "variables,ranks"], NCCL_LARGE="x" * 100_000)  # more than a pipe holds
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.finding(json.loads(ended.stdout)["checks"]["ranks"], "MPI does not start: exit code 3")
        # Whoever starts hvd-info may ignore the ends of its own children.
        ended = self.run_it([self.folder / "hvd-info", "--json", "--only", "ranks"], before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.finding(json.loads(ended.stdout)["checks"]["ranks"], "MPI does not start: exit code 3")

    @unittest.skipUnless(MPI.startswith("Open"), "MPICH writes no files as it starts")
    def test_an_mpi_that_does_not_start(self):
        prefix = self.in_namespace(["-m"], f"mount -t tmpfs -o ro none {self.folder}")
        self.assertIn("disk", self.finding(self.checks("--only", "ranks", prefix=prefix)["ranks"], "MPI does not start: ")["remedy"])

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_the_ranks_of_another_mpi_as_it_starts_them(self):
        other = shutil.which("mpiexec.mpich" if MPI.startswith("Open") else "mpiexec.openmpi")
        if other is None:
            self.skipTest("there is no other MPI")
        more = [] if MPI.startswith("Open") else ["--oversubscribe"]
        # A process that is alone and ends removes the folder in which the other one begins, if nothing is in it. So does another job.
        shared = self.folder / f"ompi.{os.uname().nodename.split('.')[0]}.{os.getuid()}"
        shared.mkdir(mode=0o700)
        (shared / "kept").mkdir()
        self.finding(self.checks("--only", "ranks", prefix=[other, *more, "-n", "2"], TMPDIR=str(self.folder))["ranks"], "each process is rank 0 of 1")

    def odd_rank(self, launcher, rank_variable):
        """Rank 1 of 3 has another version, and another variable."""
        script = f'if [ "${rank_variable}" = 1 ]; then export HVD_TEST_INFO_VERSION=0.0.9 NCCL_DEBUG=INFO; fi; exec "$@"'
        ended = self.run_it([*launcher, "sh", "-c", script, "sh", INFO, "--only", "build,variables,ranks"])
        text = re.sub(r"(?m)^\[\d+\]<stdout>:", "", ended.stdout)
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        self.assertRegex(text, r"WRONG  build, version: rank 1 \(host \S+\) has 0\.0\.9, and ranks 0, 2 \(host \S+\) have \d")
        self.assertRegex(text, r"WRONG  variables, NCCL_DEBUG: rank 1 \(host \S+\) has INFO, and ranks 0, 2 \(host \S+\) do not have it")
        self.assertEqual(text.count("WRONG  "), 2, text)
        self.assertEqual(len(re.findall(r"(?m)^build$", text)), 1, "one rank speaks")

    def test_the_odd_rank_of_hvdrun_is_named(self):
        self.odd_rank([HVDRUN, "-np", "3"], "HVD_RANK")

    @unittest.skipUnless(MPI, "this build has no MPI")
    def test_the_odd_rank_of_mpi_is_named(self):
        variable, more = ("OMPI_COMM_WORLD_RANK", ["--oversubscribe"]) if MPI.startswith("Open") else ("PMI_RANK", [])
        self.odd_rank([MPIEXEC, *more, "-n", "3"], variable)

    def two_machines_of_one_name(self):
        for rank in range(2):
            file = self.folder / f"{rank}/proc/sys/kernel/random/boot_id"
            file.parent.mkdir(parents=True)
            file.write_text(f"{rank}\n")
        script = 'exec "$1" --only network,ranks --sysroot "$2/$HVD_RANK"'
        return self.run_it([HVDRUN, "-np", "2", "sh", "-c", script, "sh", INFO, self.folder])

    def test_two_machines_of_one_name(self):
        ended = self.two_machines_of_one_name()
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertRegex(ended.stdout, r"WRONG  2 machines have the name \S+: ")

    def test_ranks_that_cannot_meet_say_so(self):
        check = self.checks("--only", "ranks", HVD_RANK="0", HVD_SIZE="2", HVD_RENDEZVOUS="no-such-host.invalid:7000", HVD_SECRET="5" * 64)["ranks"]
        self.assertIn("no-such-host.invalid", self.finding(check, "the ranks do not meet")["problem"])

    def test_bytes_of_a_variable_that_are_no_text_do_no_harm(self):
        ended = subprocess.run([INFO, "--json", "--only", "variables"], stdout=subprocess.PIPE, env={**os.environb, b"NCCL_TOPO_FILE": b"\xff\xfe"})
        self.assertIn("\ufffd", json.loads(ended.stdout)["checks"]["variables"]["facts"]["NCCL_TOPO_FILE"])

    # ---- the page

    def ranks_of_two_libraries(self):
        variable, more = ("OMPI_COMM_WORLD_RANK", ["--oversubscribe"]) if MPI.startswith("Open") else ("PMI_RANK", [])
        script = f'if [ "${variable}" = 1 ]; then export LD_PRELOAD={FAKE_MPI}; fi; exec "$@"'
        return self.run_it([MPIEXEC, *more, "-n", "2", "sh", "-c", script, "sh", INFO, "--only", "mpi,ranks"], **self.another_library(LD_PRELOAD="")).stdout

    def said_in(self, section):
        """The output in the set-up that a section of Horovod's page is about, or None where this build lacks its part."""
        with_driver = ("libcuda.so.1", "libnccl.so.2")
        of_gpu = {
            "CUDA stub drivers": lambda: self.gpu("libcuda.so.1", HVD_TEST_CUDA_INIT="34"),
            "libcudart.so.X.Y: cannot open shared object file": lambda: self.gpu(*with_driver),
            "NCCL 2 is not found during installation": lambda: self.gpu("libcuda.so.1"),
            "ncclAllReduce failed: invalid data type": lambda: self.gpu(*with_driver, HVD_TEST_NCCL_VERSION="21805"),
            "Running out of memory": lambda: self.gpu(*with_driver, HVD_RANK="0", HVD_SIZE="3", HVD_LOCAL_RANK="0", HVD_LOCAL_SIZE="3"),
            "failed to open CUDA IPC handle, within a process": lambda: self.gpu(*with_driver, HVD_TEST_CUDA_DEVICES="1", CUDA_VISIBLE_DEVICES="1"),
        }
        of_mpi = {
            "MPI is not found during installation": lambda: self.checks("--only", "mpi", PATH=str(self.folder))["mpi"],
            "invalid conversion from 'const void*' to 'void*'": lambda: self.checks("--only", "mpi", **self.another_library())["mpi"],
            "bash: orted: command not found": lambda: self.checks("--only", "mpi", PATH=str(self.folder))["mpi"],
            "FORCE-TERMINATE AT Data unpack would read past end of buffer": self.ranks_of_two_libraries,
            "segmentation fault that mentions hwloc": lambda: self.checks("--only", "ranks", **self.another_library(HVD_TEST_MPI_CRASH="1"))["ranks"],
        }
        if section in of_mpi and not MPI.startswith("Open MPI 4"):
            return None
        check = {**of_gpu, **of_mpi, "failed to open CUDA IPC handle, between servers": lambda: self.two_machines_of_one_name().stdout}[section]()
        if section.startswith("libcudart") and check["facts"]["compiled with CUDA"] == "none":
            return None
        return check if isinstance(check, str) else "\n".join(f["problem"] for f in check["findings"])

    def test_each_section_of_horovods_page_is_told_as_ours_says(self):
        rows = re.findall(r"^\| ([^|]*[^| ]) +\| `[\w-]+` \| ([^|]*[^| ]) +\|$", PAGE, re.M)
        self.assertGreaterEqual(len(rows), 12)
        for section, output in rows:
            said = self.said_in(section)
            pattern = re.sub(r"\d+(\\\.\d+)*", lambda _: r"[\d.]+", re.sub(r"node\d", lambda _: r"\S+", re.escape(output)))
            with self.subTest(section=section):
                if said is not None:
                    self.assertRegex(said, pattern)


if __name__ == "__main__":
    unittest.main()
