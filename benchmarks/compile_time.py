#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Measures the user time of compiling one allreduce and one broadcast: hvd's doors beside Boost.MPI's and plain <mpi.h>.

Each is compiled as a whole program, as the main file of a program that compiles hvd's communicator in another of its files
(as Boost.MPI is compiled in its library), as a whole program in hvd's compiled form, and as a function of a larger program, without
and with optimisation; and so are trainers, header-only and compiled: `trainer` has one parameter and an optimizer, `training` uneven
data, metrics and a checkpoint, too. Candidates take turns within a round, so that all see the same machine; figures are medians
over the rounds. The limits are those of check.py."""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

PEER = "boost/mpi.hpp"

HVD = {
    "environment": "hvd::mpi_environment environment{argc, argv};",
    "world": "auto world = hvd::communicator<hvd::mpi>::world();",
    "communicator": "hvd::communicator<hvd::mpi>",
    "elsewhere": "extern template class hvd::communicator<hvd::mpi>;",
    "calls": "world.allreduce(gradient, hvd::average); world.broadcast(gradient, hvd::root{0});",
}
THREADS = {
    "environment": "(void)argc, (void)argv;",
    "world": "hvd::run_threads(2, [](hvd::communicator<hvd::threads>& world) {",
    "end": "});",
    "communicator": "hvd::communicator<hvd::threads>",
    "elsewhere": "extern template class hvd::communicator<hvd::threads>;",
    "calls": HVD["calls"],
}
BOOST = {
    "environment": "boost::mpi::environment environment(argc, argv);",
    "world": "boost::mpi::communicator world;",
    "communicator": "boost::mpi::communicator",
    "calls": "boost::mpi::all_reduce(world, boost::mpi::inplace(gradient.data()), int(gradient.size()), std::plus<float>());"
             "for (float& g : gradient) g /= float(world.size());"
             "boost::mpi::broadcast(world, gradient.data(), int(gradient.size()), 0);",
}
RAW = {
    "environment": "MPI_Init(&argc, &argv);",
    "world": "MPI_Comm world = MPI_COMM_WORLD;",
    "communicator": "MPI_Comm",
    "calls": "int size; MPI_Comm_size(world, &size);"
             "MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(gradient.size()), MPI_FLOAT, MPI_SUM, world);"
             "for (float& g : gradient) g /= float(size);"
             "MPI_Bcast(gradient.data(), int(gradient.size()), MPI_FLOAT, 0, world);",
}

# name -> (header, flags, texts). Boost.MPI and hvd leave MPI's own C++ bindings out by themselves.
CANDIDATES = {
    "hvd/threads.hpp": ("hvd/threads.hpp", [], THREADS),
    "hvd/mpi.hpp": ("hvd/mpi.hpp", [], HVD),
    "hvd/hvd.hpp": ("hvd/hvd.hpp", [], HVD),
    PEER: (PEER, [], BOOST),
    "mpi.h": ("mpi.h", ["-DOMPI_SKIP_MPICXX=1", "-DMPICH_SKIP_MPICXX=1"], RAW),
}


def program(header, texts, declarations=""):
    return f"""#include <{header}>
#include <functional>
#include <vector>
{declarations}
int main(int argc, char** argv) {{
    {texts["environment"]}
    {texts["world"]}
    std::vector<float> gradient(1 << 20);
    {texts["calls"]}
    {texts.get("end", "")}
}}
"""


def main_file(header, texts):
    return program(header, texts, texts.get("elsewhere", ""))


def function(header, texts):
    return f"""#include <{header}>
#include <functional>
#include <vector>
void step({texts["communicator"]}& world, std::vector<float>& gradient) {{
    {texts["calls"]}
}}
"""


def is_hvd(texts):
    return texts in (HVD, THREADS)


def compiled_program(header, texts):
    return program(header, texts) if is_hvd(texts) else None


def compiled_function(header, texts):
    return function(header, texts) if is_hvd(texts) else None


def trainer(header, texts):
    """A trainer with one parameter; the others have none."""
    return None if not is_hvd(texts) else f"""#include <{header}>
#include <hvd/train.hpp>
#include <vector>
int main(int argc, char** argv) {{
    {texts["environment"]}
    {texts["world"]}
    std::vector<float> weights(1 << 20), gradients(1 << 20);
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::sgd<float>{{.rate = 0.1}});
    optimizer.register_parameter("weights", weights, gradients);
    for (int step = 0; step < 4; ++step) {{
        optimizer.zero_gradients();
        optimizer.gradient_ready(0);
        optimizer.step();
    }}
    {texts.get("end", "")}
}}
"""


def compiled_trainer(header, texts):
    return trainer(header, texts)


def training(header, texts):
    """A trainer with all that they have."""
    return None if not is_hvd(texts) else f"""#include <{header}>
#include <hvd/train.hpp>
#include <hvd/checkpoint.hpp>
#include <vector>
int main(int argc, char** argv) {{
    {texts["environment"]}
    {texts["world"]}
    std::vector<float> weights(1 << 20), gradients(1 << 20);
    hvd::distributed_optimizer optimizer(world, hvd::optimizers::adam<float>{{}});
    optimizer.register_parameter("weights", weights, gradients);
    hvd::broadcast_parameters(optimizer);
    hvd::uneven_scope scope(world);
    hvd::training_progress progress;
    while (scope.begin_step(progress.step < 4 ? 1 : 0)) {{
        optimizer.zero_gradients();
        optimizer.gradient_ready(0);
        optimizer.step();
        ++progress.step;
    }}
    std::vector<hvd::metric> metrics = {{{{"loss", 0.5}}}};
    hvd::average_metrics(world, metrics, 1);
    hvd::save_checkpoint("model.safetensors", optimizer, progress);
    progress = hvd::load_checkpoint("model.safetensors", optimizer);
    {texts.get("end", "")}
}}
"""


def compiled_training(header, texts):
    return training(header, texts)


FORMS = (program, compiled_program, main_file, function, compiled_function, trainer, compiled_trainer, training, compiled_training)
# Boost.MPI's form that a form is compared with.
PEER_FORM = {"compiled_program": "program", "compiled_function": "function", "trainer": "program", "compiled_trainer": "program",
             "training": "program", "compiled_training": "program"}


def flags_of(form):
    return ["-DHVD_COMPILED"] if form.__name__.startswith("compiled_") else []


def cost_of(command, folder, source, optimisation, flags):
    """Returns the user seconds and the megabytes of memory of the compiler and its children."""
    words = command + ["-std=c++20", optimisation, *flags, "-c", source, "-o", os.path.join(folder, "object.o")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"compile_time: {shlex.join(words)}\n{output}")
    return usage.ru_utime, usage.ru_maxrss / 1024


def measure(command, candidates, forms, rounds):
    """Returns (candidate, form, optimisation) -> (seconds, megabytes) of each round. The first round warms the file cache up."""
    costs = {}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds + 1):
            for form in forms:
                for optimisation in ("-O0", "-O2"):
                    for name in candidates:
                        header, flags, texts = CANDIDATES[name]
                        text = form(header, texts)
                        if text is None:
                            continue
                        source = os.path.join(folder, "source.cpp")
                        with open(source, "w", encoding="utf-8") as file:
                            file.write(text)
                        cost = cost_of(command, folder, source, optimisation, flags + flags_of(form))
                        if round_ > 0:
                            costs.setdefault((name, form.__name__, optimisation), []).append(cost)
    return costs


def rows_of(costs):
    seconds = {key: statistics.median(spent for spent, _ in rounds) for key, rounds in costs.items()}

    def row(name, form, optimisation):
        peer = seconds.get((PEER, PEER_FORM.get(form, form), optimisation))
        taken = seconds[name, form, optimisation]
        return {"header": name, "form": form, "optimisation": optimisation, "seconds": taken,
                "megabytes": max(memory for _, memory in costs[name, form, optimisation]), "ratio": taken / peer if peer else None}

    return [row(*key) for key in seconds]


def usable(command, name):
    header, flags, _ = CANDIDATES[name]
    probe = subprocess.run([*command, "-std=c++20", *flags, "-fsyntax-only", "-x", "c++", "-"], text=True, check=False,
                           input=f"#if !__has_include(<{header}>)\n#error\n#endif\n", stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def default_command(include):
    """Returns $CXX (or g++) with this tree's headers and Open MPI's."""
    mpi = subprocess.run(["pkg-config", "--cflags", "ompi-c"], capture_output=True, text=True, check=False)
    return [*shlex.split(os.environ.get("CXX", "g++")), "-I", include, *shlex.split(mpi.stdout)]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", help="the command with its include paths (default: $CXX or g++, with Open MPI's)")
    parser.add_argument("--include", default=os.path.join(here, "..", "include"), help="where hvd's headers are")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=list(CANDIDATES), help="leave the others out; repeatable")
    parser.add_argument("--form", action="append", choices=[form.__name__ for form in FORMS], help="leave the others out; repeatable")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds takes a number from 1, got {arguments.rounds}")

    command = shlex.split(arguments.compiler) if arguments.compiler else default_command(arguments.include)
    forms = [form for form in FORMS if not arguments.form or form.__name__ in arguments.form]
    wanted = arguments.only or list(CANDIDATES)
    candidates = [name for name in wanted if usable(command, name)]
    for name in wanted:
        if name not in candidates:
            print(f"left out, not installed: {name}")
    rows = rows_of(measure(command, candidates, forms, arguments.rounds))

    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    print(f"user seconds, medians of {arguments.rounds} interleaved rounds, {version}")
    print(f"{'header':16} {'form':17} {'':4} {'seconds':>8} {'of Boost':>9} {'MB':>6}")
    for row in rows:
        boost = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        print(f"{row['header']:16} {row['form']:17} {row['optimisation']:4} {row['seconds']:8.2f} {boost:>9} {row['megabytes']:6.0f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "compile_time", "compiler": version, "machine": platform.machine(),
                       "rounds": arguments.rounds, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
