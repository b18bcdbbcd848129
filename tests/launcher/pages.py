# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The commands, scripts and files of docs/launching.md do what it says."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from launching import HVDRUN, LauncherTest, PATIENCE

PAGE = pathlib.Path(os.environ["HVD_SOURCE"], "docs/launching.md").read_text()
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
        (with_mpi, _), (without, _) = blocks("bash")
        self.assertRegex(self.shell(with_mpi, **inside).stdout, r"^srun --ntasks=8 .* \./train_mpi\n$")
        ended = self.shell(without, **inside)
        self.assertEqual((ended.returncode, sorted(ended.stdout.splitlines())), (0, [f"[{r}]<stdout>:trains" for r in range(8)]))

    def test_the_job_for_kubernetes_is_one_of_the_operator(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("python3-yaml is not installed")
        ((text, _),) = blocks("yaml")
        job = yaml.safe_load(text)
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        self.assertEqual(set(job), {"apiVersion", "kind", "metadata", "spec"})
        self.assertLessEqual(set(job["spec"]), {"slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs", "mpiImplementation"})
        replicas = job["spec"]["mpiReplicaSpecs"]
        self.assertEqual(set(replicas), {"Launcher", "Worker"})
        for replica in replicas.values():
            self.assertEqual(set(replica), {"replicas", "template"})
            (container,) = replica["template"]["spec"]["containers"]
            self.assertEqual(set(container), {"name", "image", "command"})
            self.assertTrue(all(isinstance(word, str) for word in container["command"]))
        command = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
        other = yaml.safe_load(re.search(r"`(command: \[hvdrun.*\])`", PAGE)[1])["command"]
        slots, workers = job["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]
        (self.folder / "hostfile").write_text("".join(f"train-worker-{i}.train.default.svc slots={slots}\n" for i in range(workers)))
        self.tool("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
        for words in (command, other):
            self.assertEqual(words[words.index("-np") + 1], str(slots * workers))
            ended = self.run_it(*[word.replace("/etc/mpi/", "") for word in words[1:-1]], "--dry-run", words[-1], PATH=self.path)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            for worker in range(workers):
                self.assertIn(f"train-worker-{worker}.train.default.svc", ended.stdout)

    def test_each_option_of_the_page_is_one_of_hvdrun(self):
        known = self.run_it("--help").stdout
        page = PAGE.partition("## Horovod's options")[0]
        for option in set(re.findall(r"`(--[a-z-]+)", page)) - {"--ssh-port", "--ssh-identity-file"}:
            self.assertRegex(known, rf"(?<![\w-]){option}(?![\w-])")
        for option in set(re.findall(r"(?<![\w-])(--[a-z-]+)", known)):
            if option not in ("--version", "--help", "--num-proc", "--np", "--hosts"):
                self.assertTrue(option in PAGE, f"the page does not name {option}")


if __name__ == "__main__":
    unittest.main()
