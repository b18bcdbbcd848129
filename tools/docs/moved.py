# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""Pages and sections that were elsewhere, whose old addresses lead on."""

PAGES = {"docs/errors.md": "docs/reference/errors.md",
         "docs/horovod_behaviours.md": "docs/reference/horovod_behaviours.md",
         "docs/tuning.md": "docs/reference/tuning.md"}

# The page that had the sections, the page that has them, and their anchors.
SECTIONS = [
    ("docs/benchmarks.md", "docs/log/allreduce.md", "allreduce-inside-a-node an-engine plans-and-the-joined-step the-other-collectives-inside-a-node"),
    ("docs/benchmarks.md", "docs/log/nodes.md", "across-nodes by-gloo encryption overlap without-mpi"),
    ("docs/benchmarks.md", "docs/log/other.md", "batch-norm one-gpu"),
    ("docs/benchmarks.md", "docs/reference/benchmarks.md", "how-it-is-measured"),
    ("docs/concepts.md", "docs/reference/collectives.md", "allgather alltoall barrier broadcast exscan gather reduce reduce_scatter scan scatter send-and-recv"),
    ("docs/data.md", "docs/reference/data.md", "files"),
    ("docs/data_service.md", "docs/reference/data.md", "beside-horovod what-happens-when"),
    ("docs/device.md", "docs/log/other.md", "tests"),
    ("docs/elastic.md", "docs/log/elastic.md", "beside-horovod figures"),
    ("docs/from_horovod.md", "docs/reference/names_of_horovod.md",
     "callbacks-data-and-files collectives elastic objects-and-state process-sets start-and-end training"),
    ("docs/from_mpi.md", "docs/reference/names_of_mpi.md", "collectives start-end-communicators"),
    ("docs/from_nccl.md", "docs/reference/names_of_nccl.md",
     "collectives errors-and-versions memory operations-and-elements start-end-communicators the-configuration"),
    ("docs/from_pytorch.md", "docs/reference/names_of_pytorch.md",
     "beside-it collectives distributeddataparallel groups start-and-end stores-errors-debugging torchrun"),
    ("docs/in_your_framework.md", "docs/guide/with_libraries.md", "libtorch"),
    ("docs/internals.md", "docs/reference/code.md", "words"),
    ("docs/launching.md", "docs/reference/hvdrun.md", "horovods-options settings"),
    ("docs/questions.md", "docs/reference/hvd_info.md", "what-horovods-page-on-troubleshooting-has"),
    ("docs/scaling.md", "docs/log/scaling.md", "beside-real-cables calls-overlap-hierarchy efficiency messages what-is-simulated"),
    ("docs/training.md", "docs/log/training.md", "the-figures-of-the-cnn"),
    ("docs/reference/tuning.md", "docs/observing.md", "a-timeline"),
    ("docs/reference/tuning.md", "docs/reference/settings.md", "every-setting horovods-variables"),
    ("docs/reference/tuning.md", "docs/concepts.md", "options"),
]
