#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Puts PyTorch's DataLoader beside one worker of hvd's data service: data_service.py PROGRAM [OPTION...]

PROGRAM is build/bench/benchmarks/data_service, and gets the options. Then a DataLoader with one worker process makes batches of the same bytes in the same way, one copy
of a pattern each, if torch is installed."""

import argparse
import importlib.util
import subprocess
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


def rates_of_torch(size, ahead, rounds, seconds):
    """Returns the bytes a second of each round."""
    import torch  # noqa: PLC0415  only where it is installed

    loader = torch.utils.data.DataLoader(Patterns(torch, size), batch_size=None, sampler=range(1 << 30), num_workers=1, prefetch_factor=ahead)
    batches = iter(loader)
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


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("program")
    words.add_argument("--bytes", type=int, default=1 << 20)
    words.add_argument("--seconds", type=float, default=1)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--ahead", type=int, default=8)
    o = words.parse_args()
    subprocess.run([o.program, "--bytes", str(o.bytes), "--seconds", str(o.seconds), "--rounds", str(o.rounds), "--ahead", str(o.ahead)], check=True)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: its DataLoader is left out")
        return
    rates = rates_of_torch(o.bytes, o.ahead, o.rounds, o.seconds)
    print(f"{'PyTorch DataLoader':<24} {rates[-1] / 1e9:>8.2f} GB/s, median {rates[len(rates) // 2] / 1e9:.2f}")


if __name__ == "__main__":
    main()
