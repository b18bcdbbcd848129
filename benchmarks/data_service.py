#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Puts PyTorch's DataLoader and TensorFlow's data service beside one worker of hvd's: data_service.py PROGRAM [OPTION...]

PROGRAM is build/bench/benchmarks/data_service, and gets the options. Then a DataLoader with one worker process, and a tf.data service with one, make batches of the same bytes in
the same way, one copy of a pattern each, where torch and tensorflow can be imported. With `--build FOLDER`, a release build with examples and hvd-compute, examples/augment trains without workers and with 1 to 3."""

import argparse
import importlib
import multiprocessing
import os
import pathlib
import re
import subprocess
import tempfile
import time


class Patterns:
    """Batches that are copies of a pattern with their number at both ends."""

    def __init__(self, torch, size):
        self.pattern = torch.arange(size // 4, dtype=torch.int32)

    def __len__(self):
        return 1 << 30

    def __getitem__(self, number):
        batch = self.pattern.clone()
        batch[0] = batch[-1] = number
        return batch


def rates_of_torch(torch, size, ahead, rounds, seconds):
    """Returns the bytes a second of each round."""
    loader = torch.utils.data.DataLoader(Patterns(torch, size), batch_size=None, sampler=range(1 << 30), num_workers=1, prefetch_factor=ahead)
    return rates_of(iter(loader), size, ahead, rounds, seconds)


def serve_tensorflow(address):
    """Serves as the dispatcher and the worker of a tf.data service, until the process is ended."""
    import tensorflow as tf  # noqa: PLC0415  in a process of its own

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2]))
    address.put(dispatcher.target)
    worker.join()


def rates_of_tensorflow(tf, size, ahead, rounds, seconds):
    """Returns the bytes a second of each round, by a tf.data service of one worker process, without compression."""
    pattern, last = tf.range(size // 4, dtype=tf.int32), size // 4 - 1

    def batch(number):
        return tf.tensor_scatter_nd_update(pattern, [[0], [last]], tf.stack([number, number]))

    spawn = multiprocessing.get_context("spawn")
    address = spawn.Queue()
    server = spawn.Process(target=serve_tensorflow, args=(address,))
    server.start()
    try:
        remote = tf.data.experimental.service.distribute("parallel_epochs", address.get(timeout=120), max_outstanding_requests=ahead, compression=None)
        numbers = tf.data.Dataset.range(1 << 30).map(lambda number: batch(tf.cast(number, tf.int32)))
        return rates_of(iter(numbers.apply(remote).prefetch(ahead)), size, ahead, rounds, seconds)
    finally:
        server.kill()
        server.join()


def rates_of(batches, size, ahead, rounds, seconds):
    """Returns the bytes a second of each round in which batches are taken."""
    for _ in range(2 * ahead + 2):
        next(batches)
    rates = []
    for _ in range(rounds):
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            next(batches)
            done += size
        rates.append(done / (time.perf_counter() - begin))
    return sorted(rates)


def images_a_second(build, workers):
    """Trains examples/augment with so many workers. Returns the rates of the epochs behind the first, the weights, and who waited for whom."""
    programs = build / "examples/augment"
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "compute.json")
        service = [subprocess.Popen([build / "tools/hvd-compute/hvd-compute", config, "--", programs / "augment_worker"], env=os.environ | {"HVD_RANK": str(rank), "HVD_SIZE": str(workers)})
                   for rank in range(workers)]
        try:
            said = subprocess.run([programs / "augment_train", *([config] if workers else [])], capture_output=True, text=True, check=True).stdout
        finally:
            for rank in service:
                rank.terminate()
            for rank in service:
                rank.wait()
    return [int(rate) for rate in re.findall(r"(\d+) images a second", said)][1:], re.search(r"weights (\w+)", said)[1], said.splitlines()[-1] if workers else ""


def show_augmentation(build):
    without = None
    for workers in range(4):
        rates, weights, waits = images_a_second(build, workers)
        without = without or weights
        print(f"augment, {workers} workers{'':<6} {max(rates):>8} images/s, weights {'as without' if weights == without else 'OTHERS THAN without'} workers; {waits}")


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("program")
    words.add_argument("--bytes", type=int, default=1 << 20)
    words.add_argument("--seconds", type=float, default=1)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--ahead", type=int, default=8)
    words.add_argument("--build", type=pathlib.Path, help="a build folder with examples")
    o = words.parse_args()
    subprocess.run([o.program, "--bytes", str(o.bytes), "--seconds", str(o.seconds), "--rounds", str(o.rounds), "--ahead", str(o.ahead)], check=True)
    for name, module, measure in (("PyTorch DataLoader", "torch", rates_of_torch), ("tf.data service", "tensorflow", rates_of_tensorflow)):
        try:
            library = importlib.import_module(module)
        except ImportError as reason:
            print(f"{name} is left out: {reason}")
            continue
        rates = measure(library, o.bytes, o.ahead, o.rounds, o.seconds)
        print(f"{name:<24} {rates[-1] / 1e9:>8.2f} GB/s, median {rates[len(rates) // 2] / 1e9:.2f}, {module} {library.__version__}")
    if o.build:
        show_augmentation(o.build)


if __name__ == "__main__":
    main()
