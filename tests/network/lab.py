#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Several hosts on one machine, for programs of Open MPI: each is a network namespace with a name, an address and a cable of
its own, and all cables end in one switch.

    lab.py --hosts 2 --slots 2 --rate 1gbit -- PROGRAM ARGUMENT...    (as root; ends with 77 where no hosts can be made)

Nothing has a name outside: a namespace lives as long as the process that holds it, which ends with this one, however that
ends. No cable leads out of the machine."""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

NETWORK = "10.79.0"
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
# This script is run as "ssh": PIDS is "address=pid address=pid …" of the namespaces.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
for known in $HVD_LAB_PIDS; do
  if [ "${known%=*}" = "$host" ]; then exec nsenter --target "${known#*=}" --net --uts -- sh -c "$*"; fi
done
echo "no such host: $host" >&2; exit 1
"""


class Unusable(Exception):
    """This machine can't have a lab; the text says why."""


def require():
    if os.geteuid() != 0:
        raise Unusable("hosts on one machine are made by the superuser")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"not installed: {', '.join(missing)} (Debian's iproute2 and util-linux)")


class Lab:
    def __init__(self, hosts, rate=None, burst="256kb"):
        self.hosts, self.rate, self.burst = hosts, rate, burst
        self.holders = []
        self.folder = None

    def __enter__(self):
        require()
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.communicate()
        self.holders = []

    def make(self):
        switch = self.hold("switch")
        self.run(switch, "ip link add br0 type bridge", "ip link set br0 up")
        for host in range(self.hosts):
            pid = self.hold(f"lab{host}")
            self.run(switch, f"ip link add p{host} type veth peer name eth0 netns {pid}", f"ip link set p{host} master br0 up")
            # A host sets its own congestion control, since a shaped cable may confuse the machine's.
            self.run(pid, "ip link set lo up", f"ip address add {self.address(host)}/24 dev eth0", "ip link set eth0 up",
                     f"ip route replace {NETWORK}.0/24 dev eth0 src {self.address(host)} congctl cubic")
        if self.rate:
            self.shape(self.rate)

    def hold(self, name):
        """A namespace, by the process that holds it: it says its name, and then waits for the end."""
        holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "sh", "-c",
                                   f"hostname {name} && echo ready && exec sleep infinity"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=os.environ | {"LC_ALL": "C"})
        self.holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            said = holder.communicate()[1].strip()
            # Only the kernel's refusal (to a superuser in a container, say) is no failure.
            if "unshare failed" in said:
                raise Unusable(f"the kernel refuses the superuser a network of its own: {said}")
            raise RuntimeError(f"no namespace called {name} (unshare --net --uts): {said}")
        return holder.pid

    def run(self, pid, *commands):
        for command in commands:
            subprocess.run(["nsenter", "--target", str(pid), "--net", "--", *command.split()], check=True)

    def shape(self, rate):
        """Returns the bytes that left each host, and that reached it."""
        qdisc = f"root tbf rate {rate} burst {self.burst} latency 50ms"
        for host in range(self.hosts):
            self.run(self.pid(host), f"tc qdisc replace dev eth0 {qdisc}")
            self.run(self.holders[0].pid, f"tc qdisc replace dev p{host} {qdisc}")

    def cut(self, host):
        """Pulls a host's cable: silence, and no word of it to the others."""
        self.run(self.holders[0].pid, f"ip link set p{host} down")

    def mislead(self, host, other):
        """What a host sends to another one is lost from now on. It hears the other one."""
        self.run(self.pid(host), "ip -6 address flush dev eth0", f"ip neigh replace {self.address(other)} lladdr 02:00:00:00:00:99 dev eth0 nud permanent")

    def address(self, host):
        return f"{NETWORK}.{host + 1}"

    def pid(self, host):
        return self.holders[host + 1].pid

    def sent(self, host):
        """Returns the bytes that have left a host."""
        text = subprocess.run(["nsenter", "--target", str(self.pid(host)), "--net", "--", "ip", "-s", "-o", "link", "show", "eth0"],
                              check=True, capture_output=True, text=True).stdout
        numbers = text.split("TX:")[1].split("\\")[1].split()
        return int(numbers[0])

    def environment(self, agent):
        known = " ".join(f"{self.address(host)}={self.pid(host)}" for host in range(self.hosts))
        return os.environ | {
            "HVD_LAB_PIDS": known,
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm_rsh_agent": str(agent),
            "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_oob_tcp_if_include": "eth0",
            "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_pml": "ob1",
            # All hosts have the same cores: each would bind its ranks to the first ones.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        }

    def launch(self, slots, command, folder, mpirun="mpirun.openmpi", options=(), environment=None, **keywords):
        """Starts COMMAND with slots[host] ranks on each host."""
        agent = pathlib.Path(folder) / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        extra = environment or {}
        hosts = ",".join(f"{self.address(host)}:{n}" for host, n in enumerate(slots))
        passed = [part for name in extra for part in ("-x", name)]
        return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "nsenter", "--target", str(self.pid(0)), "--net", "--uts", "--", mpirun, "--host", hosts, "-np",
                                 str(sum(slots)), *passed, *options, *map(str, command)], env=self.environment(agent) | extra, **keywords)


@contextlib.contextmanager
def folder_for_agent():
    import tempfile
    with tempfile.TemporaryDirectory(prefix="hvd-lab-") as folder:
        yield folder


def end_on_signals():
    """Ends in order everything that was begun."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="ranks on each host")
    parser.add_argument("--rate", help="of every cable, for example 1gbit")
    parser.add_argument("--mca", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    end_on_signals()
    options = [part for pair in given.mca for part in ("--mca", *pair)]
    try:
        with folder_for_agent() as folder, Lab(given.hosts, given.rate) as lab:
            return lab.launch([given.slots] * given.hosts, given.command, folder, options=options).wait()
    except Unusable as reason:
        print(f"skipped: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
