# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""A header-only trainer compiles the rooms that its options name, and no others: the functions in its object file tell.

A codec, error feedback, Adasum and buffers are chosen at run time. Each was once compiled by every trainer, in a third of its time."""

import os
import subprocess
import sys
import tempfile

TRAINER = """#include <hvd/threads.hpp>
#include <hvd/train.hpp>
#include <vector>
int main() {
    hvd::run_threads(2, [](hvd::communicator<hvd::threads>& world) {
        std::vector<float> weights(8), gradients(8);
        [[maybe_unused]] std::vector<double> buffer(8);
        hvd::optimizer_options options;
        %s
        hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{.rate = 0.1}, options);
        optimizer.register_parameter("weights", weights, gradients);
        %s
        optimizer.step();
    });
}
"""
# The words of functions by the room, and what a trainer writes that uses it: an option or a call.
ROOMS = {
    "16-bit floats": (("elements_of_type<hvd::v0::bfloat16>",), "options.codec = hvd::codec::cast<hvd::bfloat16>;", ""),
    "error feedback": (("feedback_wire", "elements_of_type<hvd::v0::float16>"), "options.codec = hvd::codec::error_feedback(hvd::codec::cast<hvd::float16>);", ""),
    "Adasum": (("adasum_exchange", "adasum_tree"), "options.op = hvd::adasum;", ""),
    "buffers": (("synchronize_buffers_over",), "options.synchronize_buffers = true;", 'optimizer.register_buffer("mean", buffer);'),
}


def functions(compiler: list[str], option: str, call: str) -> str:
    """Returns the names of the functions that a trainer has in its object file."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "trainer.cpp"), os.path.join(folder, "trainer.o")
        with open(source, "w", encoding="utf-8") as file:
            file.write(TRAINER % (option, call))
        subprocess.run([*compiler, "-std=c++20", "-O0", "-c", source, "-o", result], check=True)
        return subprocess.run(["nm", "--defined-only", "-C", result], capture_output=True, text=True, check=True).stdout


def main() -> int:
    compiler, failed = sys.argv[1:], False
    plain = functions(compiler, "", "")
    for room, (words, option, call) in ROOMS.items():
        used = functions(compiler, option, call)
        for word in words:
            if word in plain:
                print(f"{room}: a trainer without it has '{word}'")
                failed = True
            if word not in used:
                print(f"{room}: a trainer with it has no '{word}': the test looks for something else")
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
