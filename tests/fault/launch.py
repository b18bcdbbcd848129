#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""launch.py SCENARIO RANKS COMMAND...: runs program.cpp with SCENARIO and checks the result.

A hang is a failure, and so is a name left in shared memory."""

import glob
import os
import re
import signal
import subprocess
import sys
import time

TIMEOUT = 60
SKIPPED = 77
OWN_MEMORY = "HVD_TEST_OWN_MEMORY"

ABORTS = "an exit status that is not 0"
ENDS = "exit status 0"

INSIDE = {"done at level": lambda n: n, r"rank \d got peer_error of {last}: .*it called abort\(\): no data": lambda n: n - 1}

# The expected lines, and the number of ranks (of n) that print each. The last rank fails.
SCENARIOS = {
    "throws": (ABORTS, {r"hvd: rank {last} aborts the job: the disk is full": lambda n: 1}),
    "throws_and_catches": (ABORTS, {r"hvd: rank {last} aborts the job: ": lambda n: 1}),
    "returns_early": (ENDS, {r"rank \d got peer_error of.* {last}\b.*: .": lambda n: n - 1, r"rank \d is refused: .": lambda n: n - 1}),
    "exits": (ABORTS, {}),
    "is_killed": (ABORTS, {}),
    "is_killed_and_not_reaped": (ABORTS, {r"rank \d got peer_error of {last}: .*rank {last} died \(process \d+\)": lambda n: n - 1}),
    "is_outlived": (ENDS, {r"rank \d got peer_error of {last}: .*rank {last} died \(process \d+\)": lambda n: n - 1,
                           r"rank \d has come to its end": lambda n: n - 1, r"hvd: rank \d ends without MPI_Finalize": lambda n: n - 1}),
    "calls_something_else": (ENDS, {r"rank \d got mismatch_error about collective": lambda n: n}),
    "is_late": (ENDS, {r"rank \d got peer_error of {last}: hvd: barrier 'epoch' .*rank {last}": lambda n: n - 1,
                       r"rank \d is refused: .": lambda n: n}),
    "is_busy_in_a_call": (ENDS, {r"rank [1-9] got peer_error of 0: .*rank {last} did not come in time": lambda n: n - 1,
                                 r"rank 0 got peer_error of {last}: .*rank {last} did not come in time": lambda n: 1}),
    "drops_a_request": (ENDS, {r"rank \d is refused: .": lambda n: n}),
    "is_stopped": (ENDS, {r"rank \d got peer_error of {last}\n": lambda n: 6 * (n - 1), "rank went on": lambda n: n}),
    "inside_single": (ENDS, INSIDE),
    "inside_funneled": (ENDS, INSIDE),
    "inside_serialized": (ENDS, INSIDE),
    "inside_multiple": (ENDS, INSIDE),
    "calls_after_mpi": (ENDS, {"refused after MPI_Finalize": lambda n: n}),
    "forks": (ENDS, {r"the child got usage_error: .*fork": lambda n: n}),
    "forks_and_exits": (ENDS, {"the parent went on": lambda n: n}),
    "is_slow_in_a_container": (ENDS, {"all are alive": lambda n: n}),
    "uses_no_mpi": (ENDS, {"before MPI refused: .*MPI is not running": lambda n: n, "after MPI refused: ": lambda n: n,
                           "a second MPI refused: .*finalised": lambda n: n}),
}
SCENARIOS["is_stopped_in_an_arena"] = (ENDS, {r"rank 0 got peer_error of {last}: .*rank {last} did not come in time": lambda n: 3,
                                  r"rank [1-9] got peer_error of 0: .*rank {last} did not come in time": lambda n: 3 * (n - 1),
                                  "nothing was written after the error": lambda n: n})
# Which rank is blamed is another matter: rank 0 waits for its neighbour, which waits for the other node.
SCENARIOS["is_busy_on_another_node"] = (ENDS, {r"rank \d got peer_error of .*did not come in time": lambda n: n})
SCENARIOS["is_late_in_making"] = (ENDS, {r"rank \d got peer_error of {last}: .*rank {last} did not come in time": lambda n: n - 1,
                                         r"rank {last} got peer_error of ": lambda n: 1})
for how, ending, said in (("killed", ABORTS, lambda n: n - 1), ("stopped", ENDS, lambda n: n)):
    SCENARIOS["engine_is_" + how] = (ending, {r"rank \d named {last}: .": said, r"rank \d missed": lambda n: 0,
                                              r"its engine ended late": lambda n: 0})
SCENARIOS["is_killed_in_a_message"] = SCENARIOS["is_killed_when_it_has_all"] = SCENARIOS["is_killed_and_not_reaped"]
SCENARIOS["is_late_for_a_call"] = SCENARIOS["is_late"]


def in_a_memory_of_its_own():
    """Starts this script anew with a /dev/shm that other programs do not see, where the superuser can make one."""
    if os.environ.pop(OWN_MEMORY, None):
        return
    own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs hvd_test /dev/shm && exec "$@"', "sh"]
    if os.geteuid() or subprocess.run([*own, "true"], capture_output=True).returncode:
        return
    os.environ[OWN_MEMORY] = "1"
    os.execvp(own[0], [*own, sys.executable, *sys.argv])


def names():
    return set(glob.glob("/dev/shm/hvd-*"))


def run(command):
    """Returns status and output, or None for a command that hangs. All its processes are gone afterwards."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as process:
        try:
            return process.communicate(timeout=TIMEOUT)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # mpiexec ends its ranks
            time.sleep(1)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            return process.communicate()[0], None


def left_behind(before):
    """Names go with a rank's last breath, and programs beside this one may have some for a moment, too."""
    for _ in range(50):
        added = names() - before
        if not added:
            return added
        time.sleep(0.1)
    return added


def complaints(scenario, ranks, output, status, added):
    ending, said = SCENARIOS[scenario]
    if status is None:
        yield f"it hangs: no end within {TIMEOUT} s"
    elif (status == 0) != (ending == ENDS):
        yield f"expected {ending}, got {status}"
    for pattern, times in said.items():
        found = len(re.findall(pattern.replace("{last}", str(ranks - 1)), output))
        if found != times(ranks):
            yield f"expected {times(ranks)} times, found {found} times: {pattern}"
    for name in sorted(added):
        yield f"left behind: {name}"


def main():
    scenario, ranks, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    in_a_memory_of_its_own()
    before = names()
    output, status = run(command)
    found = list(complaints(scenario, ranks, output, status, left_behind(before)))
    print(output)
    if status == SKIPPED:
        sys.exit(SKIPPED)
    print(*found, sep="\n")
    sys.exit(1 if found else 0)


main()
