# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The modules of the API reference: Doxygen's groups, made of the rooms of include/hvd.

A header's names belong to the module of its folder, or of the nearest folder above it. Doxygen reads each header through a filter that
opens the group where the header opens namespace hvd, so that no header names a group."""

import typing


class Module(typing.NamedTuple):
    folder: str
    title: str
    holds: str


MODULES = [
    Module("comm", "Communicators, plans and arenas", "What a program makes first: communicators, the ways to start ranks, plans, memory of a node, objects."),
    Module("collective", "Collectives", "The calls of a communicator, their arguments and results."),
    Module("backend", "Backends", "The policies that stand in `hvd::communicator<…>`, and their options."),
    Module("execution", "Requests", "Asynchronous calls: waiting, callbacks, coroutines."),
    Module("core", "Elements, views, operations and errors", "The vocabulary of all calls."),
    Module("core/settings", "Settings", "Options from the environment and from files."),
    Module("fusion", "Several tensors, and codecs", "Lists of tensors that travel as one, and the types in which they travel."),
    Module("train/optimizer", "Optimizers", "The distributed optimizer, and the optimizers inside it."),
    Module("train/gradients", "Gradients", "Parameters, reports, buckets, norms."),
    Module("train/wrappers", "Optimizers around optimizers", "Groups, masters in float, lazy rows."),
    Module("train/fused", "Steps inside an allreduce", "`fused_step` and its state."),
    Module("train/sparse", "Sparse gradients", "Gradients in rows."),
    Module("train/checkpoint", "Checkpoints", "Files of a training, and models."),
    Module("train/input", "Samplers", "The samples of each rank, and a loader of one thread."),
    Module("train/device", "Training on devices", "The distributed optimizer of GPU tensors."),
    Module("train/engine", "Training on an engine", "The distributed optimizer by name."),
    Module("train", "Training: metrics, schedules, uneven data", "What a loop needs beside the optimizer."),
    Module("data", "Data: pipelines and loaders", "From a source to the batches of a rank."),
    Module("data/formats", "Data: files", "Sources of samples in files."),
    Module("data/service", "Data service", "Pipelines that other processes run."),
    Module("engine", "Engine", "Tensors by name."),
    Module("engine/tuning", "Autotune", "The search for thresholds."),
    Module("elastic", "Elastic training", "Jobs that lose and win ranks."),
    Module("device", "Devices", "Tensors, plans and requests of a GPU."),
    Module("interop", "Other libraries", "LibTorch, Eigen, DLPack, mdspan, Boost, files of options."),
    Module("observe", "Observers, statistics and timelines", "What a program can see of its calls."),
    Module("platform", "Processes, threads and foreign interfaces", "MPI, CUDA, NCCL, threads, messages of hvd."),
    Module("kernel", "Kernels", "Arithmetic on bytes."),
    Module("protocol", "Inside: protocol", "What ranks tell each other about a call."),
    Module("transport", "Inside: transports", "How the bytes of a call move, and what a backend of your own provides."),
]


def identifier(module):
    return "module_" + module.folder.replace("/", "_")


def groups():
    """Returns the text that declares the modules to Doxygen."""
    return "".join(f"/** @defgroup {identifier(module)} {module.title}\n{module.holds} */\n" for module in MODULES)


def of_header(header):
    """Returns the identifier of the module of a header, whose path is relative to the root, or None."""
    folder = str(header).removeprefix("include/hvd/")
    fitting = [module for module in MODULES if folder.startswith(module.folder + "/")]
    return identifier(max(fitting, key=lambda module: len(module.folder))) if fitting else None


def filters(folder, root):
    """Writes an edit for each module to a folder, and returns Doxygen's setting that applies them."""
    lines = []
    # Doxygen takes the first pattern that fits, so a folder inside another one comes before it.
    for module in sorted(MODULES, key=lambda module: -module.folder.count("/")):
        edit, end = folder / f"{identifier(module)}.sed", r"\/** @} *\/"
        begin = rf"\/** @addtogroup {identifier(module)} *\/ \/** @{{ *\/"
        edit.write_text(rf"s/^(\}}  \/\/ namespace hvd::inline v0(::data|::elastic)?)$/{end} \1/" "\n"
                        rf"s/^(namespace hvd::inline v0(::data|::elastic)? \{{)$/\1 {begin}/" "\n"
                        rf"s/^(namespace (codec|data|elastic|op|optimizers) \{{)$/{end} \1 {begin}/" "\n"
                        rf"s/^(\}})  \/\/ namespace (codec|data|elastic|op|optimizers)$/{end} \1 {begin}/" "\n")
        lines.append(f'*/include/hvd/{module.folder}/*.hpp="sed -E -f {edit} -f {root / "tools/docs/headers.sed"}"')
    lines.append(f'*.hpp="sed -E -f {root / "tools/docs/headers.sed"}"')
    return "FILTER_PATTERNS = " + " \\\n  ".join(lines) + "\n"
