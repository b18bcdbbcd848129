# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A Slurm of one node on this machine, for the tests: its daemons, keys and files are its own, and end with it."""

import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import time

DAEMONS = ("munged", "slurmctld", "slurmd")
SECONDS_TO_START = 30
CONFIGURATION = """ClusterName=hvd
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
NodeName={name} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Unusable(Exception):
    """This machine can't have a Slurm; the text says why."""


class Slurm:
    """While it is entered, `environment` lets srun find it."""

    def __init__(self, folder):
        self.folder, self.daemons = pathlib.Path(folder), []
        self.path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.node = node()
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unusable("Slurm is started by the superuser")
        missing = [name for name in (*DAEMONS, "srun") if shutil.which(name, path=self.path) is None]
        if missing:
            raise Unusable(f"not installed: {', '.join(missing)} (Debian's munge, slurmctld, slurmd and slurm-client)")
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start_all(self):
        self.folder.chmod(0o755)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(name=self.node, folder=self.folder, ports=two_ports()))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                   f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munge.seed", f"--log-file={self.folder}/munged.log")
        self.wait_for(lambda: (self.folder / "munge.socket").exists())
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        self.wait_for(lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T").stdout)

    def start(self, *command):
        with open(self.folder / f"{command[0]}.output", "w") as output:
            self.daemons.append(subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                                 env=os.environ | self.environment | {"PATH": self.path}))

    def run(self, *command):
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | self.environment)

    def wait_for(self, condition):
        limit = time.monotonic() + SECONDS_TO_START
        while not condition():
            dead = [daemon.args[3] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > limit:
                raise Unusable(f"{', '.join(dead) or 'Slurm'} does not start: {self.said()}")
            time.sleep(0.1)

    def said(self):
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in sorted(self.folder.glob("*.output")))


def node():
    """The name of this machine, as Slurm takes it."""
    return socket.gethostname().partition(".")[0]


def two_ports():
    """Two free ports."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("", 0))
        second.bind(("", 0))
        return first.getsockname()[1], second.getsockname()[1]
