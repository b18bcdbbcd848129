#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Starts a data service on a Spark cluster: each task of one barrier stage is a rank of hvd-compute.

    spark-submit hvd_compute_spark.py --workers 4 compute.json -- ./worker

Rank 0 writes the config file where it runs. Tasks that do not see that file get a copy of it through Spark. The service ends
with the Spark application, or when the worker's program ends."""

import argparse
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

# hvd-compute gets SIGTERM when its task ends, however that ends: its standard input is then closed.
GUARD = """exec 3<&0
"$@" </dev/null 3<&- &
p=$!
trap 'kill -TERM $p 2>/dev/null' TERM INT HUP
( read -r x <&3; kill -TERM $p 2>/dev/null ) &
exec 3<&-
wait $p
code=$?
while kill -0 $p 2>/dev/null; do wait $p; code=$?; done
kill $! 2>/dev/null
exit $code"""


def content_of(path):
    """Returns the text of a config file, or an empty one."""
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def job_of(text):
    """Returns the job of a config file's text, None without one."""
    try:
        return json.loads(text)["job_id"]
    except (ValueError, KeyError, TypeError):
        return None


def start(rank, size, config, options):
    """Starts a rank of hvd-compute."""
    words = [options.hvd_compute, "--dispatchers", str(options.dispatchers), "--dispatcher-side", options.dispatcher_side, "--timeout", str(options.timeout)]
    words += ["--no-shared-memory"] * options.no_shared_memory + ["--encrypted"] * options.encrypted + ["--progress"] * options.progress + (["--metrics", options.metrics] if options.metrics else [])
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI_", "SLURM_"))}
    return subprocess.Popen(["sh", "-c", GUARD, "sh", *words, config, "--", *options.program], stdin=subprocess.PIPE, env=own | {"HVD_RANK": str(rank), "HVD_SIZE": str(size)})


def first_config(process, path, before, timeout):
    """Returns the text of the file that rank 0 writes, or throws."""
    limit = time.monotonic() + timeout
    while True:
        text = content_of(path)
        if job_of(text) not in (None, before):
            return text
        if process.poll() is not None:
            raise RuntimeError(f"hvd-compute on rank 0 ended with code {process.returncode} before it had written {path}")
        if time.monotonic() > limit:
            raise RuntimeError(f"hvd-compute on rank 0 has not written {path} after {timeout} seconds")
        time.sleep(0.05)


def own_config(text, options, folder):
    """Returns the path at which this task reads the config: that of rank 0 where it is seen, or a copy."""
    if job_of(content_of(options.config)) == job_of(text):
        return options.config
    if options.dispatchers > 1:
        raise RuntimeError(f"{options.config} of rank 0 is not seen by every task, and {options.dispatchers} dispatchers write their addresses into it: put it into a folder that all hosts share")
    copy = os.path.join(folder, "compute.json")
    with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return copy


def told(gather, word, attempt):
    """Runs `attempt` and tells all tasks if it throws: then it throws on all. Returns its result, and what each task tells: `word(result)`."""
    result, failure = None, None
    try:
        result = attempt()
        mine = {"says": word(result)}
    except Exception as e:  # all tasks get the reason
        failure, mine = e, {"failed": str(e)}
    all_say = [json.loads(answer) for answer in gather(json.dumps(mine))]
    for rank, answer in enumerate(all_say):
        if "failed" in answer:
            raise RuntimeError(f"rank {rank} of the data service: {answer['failed']}") from failure
    return result, [answer["says"] for answer in all_say]


def serve(rank, size, gather, options):
    """Runs one rank of the service, until it ends. `gather(text)` gives every task the texts of all, as Spark's allGather does."""
    process = None
    with tempfile.TemporaryDirectory(prefix="hvd.") as folder:
        try:
            def begin():
                nonlocal process
                if rank > 0:
                    return ""
                before = job_of(content_of(options.config))
                process = start(rank, size, options.config, options)
                return first_config(process, options.config, before, options.timeout)

            _, texts = told(gather, lambda text: text, begin)
            config, _ = told(gather, lambda _: "", lambda: own_config(texts[0], options, folder))
            if process is None:
                process = start(rank, size, config, options)
            code = process.wait()
        finally:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
    if code != 0:
        raise RuntimeError(f"hvd-compute on rank {rank} ended with code {code}")


def task(options, _):
    """A task of the barrier stage."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    serve(context.partitionId(), len(context.getTaskInfos()), context.allGather, options)
    return iter(())


def read_options(words):
    parser = argparse.ArgumentParser(prog="hvd_compute_spark.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="the tasks, one worker each; the cores of the cluster unless given")
    parser.add_argument("--hvd-compute", default="hvd-compute", help="the program on the executors; hvd-compute in their PATH unless given")
    parser.add_argument("--dispatchers", type=int, default=1, help="as of hvd-compute")
    parser.add_argument("--dispatcher-side", choices=["compute", "training"], default="compute", help="as of hvd-compute")
    parser.add_argument("--timeout", type=float, default=60, help="as of hvd-compute, in seconds")
    parser.add_argument("--no-shared-memory", action="store_true", help="as of hvd-compute")
    parser.add_argument("--encrypted", action="store_true", help="as of hvd-compute")
    parser.add_argument("--progress", action="store_true", help="as of hvd-compute")
    parser.add_argument("--metrics", help="as of hvd-compute, on the host of each dispatcher")
    parser.add_argument("config", help="the file that trainers and workers read")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the worker's program and its arguments, behind --")
    options = parser.parse_args(words)
    options.program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not options.program:
        parser.error("no worker's program behind --")
    if options.workers is not None and (options.workers < 1 or options.workers % options.dispatchers != 0):
        parser.error(f"{options.workers} workers can't be shared by {options.dispatchers} dispatchers: a multiple of the dispatchers was expected")
    options.config = os.path.abspath(options.config)
    return options


def main(words):
    from pyspark import SparkContext

    options = read_options(words)
    spark = SparkContext.getOrCreate()
    number = options.workers or spark.defaultParallelism // options.dispatchers * options.dispatchers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        spark.parallelize(range(number), number).barrier().mapPartitions(functools.partial(task, options)).collect()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
