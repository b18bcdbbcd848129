# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The commands, scripts and files of docs/launching.md and docs/reference/hvdrun.md do what they say."""

import copy
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import mpi_job
from launching import HVDRUN, LauncherTest, PATIENCE

PAGE = "".join(pathlib.Path(os.environ["HVD_SOURCE"], "docs", name).read_text() for name in ("launching.md", "reference/hvdrun.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n+<!-- printed -->\n```text\n(.*?)^```$)?", re.M | re.S)


def blocks(language):
    found = [(text, printed) for word, text, printed in BLOCK.findall(PAGE) if word == language]
    assert found, f"the page has no block of {language}"
    return found


def without_numbers(text):
    """Returns a text with times, ports and the like made equal."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]*Z", "TIME", text)
    return re.sub(r"\d+\.\d+", "REAL", re.sub(r'"pid": \d+', '"pid": PID', text))


class Page(LauncherTest):
    def setUp(self):
        super().setUp()
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "hvdrun").symlink_to(HVDRUN)
        self.tool("ssh", 'for a; do last=$a; done\nexec sh -c "$last"')
        (self.folder / "hosts").write_text(next(text for text, _ in blocks("text") if "slots=" in text))
        for name in ("train", "train_mpi"):
            (self.folder / name).write_text("#!/bin/sh\necho trains\n")
            (self.folder / name).chmod(0o755)
        (self.folder / "discover_hosts.sh").write_text("#!/bin/sh\necho localhost:2\n")
        (self.folder / "discover_hosts.sh").chmod(0o755)
        self.path = f"{tools}:{os.environ['PATH']}"

    def tool(self, name, script):
        file = self.folder / "tools" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def shell(self, text, **more):
        return subprocess.run(["bash", "-c", text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE, cwd=self.folder, env=self.environment(PATH=self.path, **more))

    def test_each_command_works_and_prints_what_the_page_says(self):
        for text, printed in blocks("sh"):
            for line in text.splitlines():
                if "--backend mpi" in line and "--dry-run" not in line and not os.environ.get("HVD_MPIEXEC"):
                    continue
                if "--backend mpi" in line and not shutil.which("mpirun"):
                    continue
                ended = self.shell(line)
                expected = {3} if "exit 3" in line else {0, 1} if "--check" in line else {0}
                self.assertIn(ended.returncode, expected, f"{line}\n{ended.stdout}")
            lines = [without_numbers(said) for said in ended.stdout.splitlines()]
            for said in printed.splitlines():
                self.assertIn(without_numbers(said), lines, f"{text}\n{ended.stdout}")
        self.assert_nothing_is_left()

    def test_the_scripts_for_slurm_run_in_an_allocation(self):
        self.tool("scontrol", "echo node1; echo node2")
        self.tool("srun", 'case "$*" in --version) echo "slurm-wlm 22.05.8";; *sh\\ -c*) for a; do last=$a; done; exec sh -c "$last";; *) echo "srun $*";; esac')
        inside = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}
        (bare, _), (with_mpi, _), (without, _) = blocks("bash")
        self.assertEqual(self.shell(bare, **inside).stdout, "srun ./train\n")
        self.assertRegex(self.shell(with_mpi, **inside).stdout, r"^srun --ntasks=8 .* \./train_mpi\n$")
        ended = self.shell(without, **inside)
        self.assertEqual((ended.returncode, sorted(ended.stdout.splitlines())), (0, [f"[{r}]<stdout>:trains" for r in range(8)]))

    def jobs_for_kubernetes(self):
        """The job on the page, and the same with each of the other commands that the page names."""
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        ((text, _),) = blocks("yaml")
        others = re.findall(r"^ *(command: \[hvdrun.*\])$", PAGE.replace(text, ""), re.M)
        self.assertEqual(len(others), 2)
        own = next(line.strip() for line in text.splitlines() if "command: [hvdrun" in line)
        return [yaml.safe_load(text.replace(own, other)) for other in (own, *others)]

    def test_the_jobs_for_kubernetes_fit_the_schema_of_the_operator(self):
        with_error = copy.deepcopy(self.jobs_for_kubernetes()[0])
        for job in self.jobs_for_kubernetes():
            self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
            self.assertEqual(mpi_job.faults(job), [])
        with_error["spec"]["slotsPerWorkers"] = with_error["spec"].pop("slotsPerWorker")
        with_error["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = "2"
        del with_error["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["name"]
        self.assertEqual(sorted(fault.partition(": ")[2] for fault in mpi_job.faults(with_error)), ["integer expected", "name is missing", "unknown"])

    def test_hvdrun_takes_the_commands_and_the_hosts_of_the_operator(self):
        self.tool("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
        for job in self.jobs_for_kubernetes():
            replicas = job["spec"]["mpiReplicaSpecs"]
            slots, workers = job["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]
            names = [f"train-worker-{i}.train.default.svc" for i in range(workers)]
            (self.folder / "hostfile").write_text("".join(f"{name} slots={slots}\n" for name in names))
            # The operator's script names the pods that run, and no slots.
            (self.folder / "discover_hosts.sh").write_text("#!/bin/sh\n" + "".join(f"echo {name}\n" for name in names))
            words = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
            ended = self.run_it(*[word.replace("/etc/mpi/", "./") for word in words[1:-1]], "--dry-run", words[-1], PATH=self.path)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            for name in names:
                self.assertIn(name, ended.stdout)
            if "--backend" not in words:
                self.assertEqual(ended.stdout.count("HVD_RANK="), slots * workers, ended.stdout)

    def test_each_option_of_the_page_is_one_of_hvdrun(self):
        known = self.run_it("--help").stdout.partition("Examples:")[0]
        page = PAGE.partition("## Horovod's options")[0]
        for option in set(re.findall(r"`(--[a-z-]+)", page)) - {"--ssh-port", "--ssh-identity-file"}:
            self.assertRegex(known, rf"(?<![\w-]){option}(?![\w-])")
        for option in set(re.findall(r"(?<![\w-])(--[a-z-]+)", known)):
            if option not in ("--version", "--help", "--num-proc", "--np", "--hosts"):
                self.assertTrue(option in PAGE, f"the page does not name {option}")


if __name__ == "__main__":
    unittest.main()
