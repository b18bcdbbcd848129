# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The hvd authors
"""The table of `./run test`: the builds, and the stages in their order.

A stage takes the tests of its build whose name or suite matches a pattern of `tests` and none of `but`. Two suites hold back a
test everywhere: `all` (from `./run test`) and `soak` (from `--all` too); the meson.build beside the test says why. Of the suite
`turns` a quarter runs for each commit, and the whole in `--soak`. A stage's own
`level` does the same for the whole stage. `parallel` is the number of tests at once for each processor. Of the rooms in `core_of` a stage runs only the suite `core` in `--all`, and the whole in `--soak`.
Of those that match a pattern in `in_turns` each test runs in one of so many commits. Stages that follow one another and `waits` (their tests wait more
than they compute) run at once, each with its share of `parallel`; any other begins with the last tests of the one before it. A stage is compiled in its place, or before the stage of `made_before`: then its tests
need not wait at the end, when nothing else is left to do.

What repeats with a sanitizer, another compiler, MPI or processor what clang's build has said takes turns as a whole: a stage with `turn`
(k, n) belongs to the commits whose number is k modulo n. Each commit has a part of the rooms under the address sanitizer and another
part under the thread sanitizer.

`cpu` is the budget in CPU seconds with an empty compiler cache, and `units` the number of translation units, each for
`./run test` and for `--all`. A stage fails at 1.5 times its CPU seconds, if a second run agrees, and at 1.05 times its units."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

# ---- builds: one folder each, build/NAME ------------------------------------------------------------------------------
#
# Compiling takes most of the time, so that there is no optimisation. Files that need speed ask for it in their meson.build.
# clang compiles the tests in half of g++'s time, and units of many files in a quarter of the time of single ones.

EVERYTHING = ["-Dtests=enabled", "-Dexamples=enabled", "-Dbenchmarks=disabled", "-Ddebug=false", "-Doptimization=0", "-Dunity=on"]
NO_TOOLS = ["-Dhvdrun=disabled", "-Dtrace_tool=disabled", "-Dcompute_tool=disabled", "-Dinfo_tool=disabled"]
OPENMPI = ["-Dmpi=enabled", "-Dmpi_flavour=openmpi"]
BOOST = ["-Dboost_mpi=enabled"]
CROSS = ["-Dmpi=disabled", "-Dnccl=disabled", "-Dexamples=disabled", *NO_TOOLS]

# Slower programs get more time: HVD_TEST_TIMEOUT is the watchdog's, in seconds per test case. Only a full unwind recognises MPI's frames
# in reports: libc between them and malloc keeps no frame pointers.
ASAN_VARIABLES = {
    "HVD_TEST_SEEDS": "6", "HVD_TEST_TIMEOUT": "480",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0:fast_unwind_on_malloc=0:malloc_context_size=20",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/support/lsan.supp:print_suppressions=0",
}
TSAN_VARIABLES = {"HVD_TEST_SEEDS": "6", "HVD_TEST_TIMEOUT": "480", "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0"}

BUILDS = {
    "clang": {"compiler": "clang", "options": [*EVERYTHING, *OPENMPI, *BOOST, "-Dtorch=disabled"], "packages": ["base", "mpi", "libraries", "dataset", "clang"]},
    # LibTorch and dlib, whose headers take longer to compile than all of hvd, and their packages to fetch. clang takes no LibTorch.
    "libraries": {"compiler": "g++", "options": [*EVERYTHING, *OPENMPI, "-Dtorch=enabled", *NO_TOOLS],
                  "packages": ["base", "mpi", "libraries", "dataset", "torch", "dlib"]},
    # What users compile with: units at -O2, warnings, the words of errors, each header alone, one program of each kind.
    "gcc": {"compiler": "g++", "options": [*EVERYTHING, "-Dexamples=disabled", *OPENMPI, *BOOST, *NO_TOOLS, "-Dtorch=disabled"], "packages": ["base", "mpi", "libraries"]},
    # Only lines for backtraces: full information takes a third of the compile time.
    "asan": {"compiler": "clang", "variables": ASAN_VARIABLES, "options": [*EVERYTHING, *OPENMPI, *NO_TOOLS, "-Dtorch=disabled", "-Db_sanitize=address,undefined"], "flags": ["-g1"],
             "packages": ["base", "mpi", "libraries", "sanitizers"]},
    "tsan": {"compiler": "clang", "variables": TSAN_VARIABLES, "options": [*EVERYTHING, "-Dmpi=disabled", "-Dexamples=disabled", *NO_TOOLS, "-Dtorch=disabled", "-Db_sanitize=thread"], "flags": ["-g1"],
             "packages": ["base", "libraries", "sanitizers"]},
    "mpich": {"compiler": "clang", "options": [*EVERYTHING, "-Dmpi=enabled", "-Dmpi_flavour=mpich", "-Dexamples=disabled", "-Dtorch=disabled"],
              "packages": ["base", "libraries", "clang", "mpich"]},
    "nompi": {"compiler": "g++", "options": [*EVERYTHING, "-Dmpi=disabled", "-Dtorch=disabled", "-Dexamples=disabled", *NO_TOOLS], "packages": ["base", "libraries"]},
    # Other processors, emulated. An emulated program sees memory in the order of this machine's processor, so that these builds say
    # little about orders of memory.
    "aarch64": {"variables": {"HVD_TEST_RANKS": "1,2,3"}, "options": [*EVERYTHING, *CROSS, "--cross-file", f"{ROOT}/tools/cross/aarch64.ini"], "packages": ["base", "aarch64"]},
    "riscv64": {"variables": {"HVD_TEST_RANKS": "1,2,3"}, "options": [*EVERYTHING, *CROSS, "--cross-file", f"{ROOT}/tools/cross/riscv64.ini"], "packages": ["base", "riscv64"]},
    "bench": {"compiler": "clang", "options": ["-Dtests=disabled", "-Dexamples=disabled", "-Dbenchmarks=enabled", "-Ddebug=false", "-Doptimization=0",
              *OPENMPI, *BOOST, *NO_TOOLS], "packages": ["base", "mpi", "libraries", "clang", "bench"]},
    # The real CUDA and NCCL, and an MPI and a LibTorch where they are; without a GPU its tests are skipped.
    "gpu": {"compiler": "g++", "options": [*EVERYTHING, "-Dmpi=auto", "-Dexamples=disabled", *NO_TOOLS], "packages": ["base", "libraries"]},
    # As a user who asks for -Ofast compiles.
    "fast_math": {"compiler": "g++", "options": [*EVERYTHING, "-Dmpi=disabled", "-Dexamples=disabled", *NO_TOOLS, "-Dtorch=disabled", "-Doptimization=2"],
                  "flags": ["-ffast-math"], "packages": ["base", "libraries"]},
    # LibTorch with CUDA, whose program the distribution's LibTorch can't link. It runs where the libraries that it needs are.
    "torch_cuda": {"compiler": "g++", "options": [*EVERYTHING, *OPENMPI, *NO_TOOLS], "packages": ["base", "mpi", "libraries", "dataset"], "torch_with_cuda": True},
}

# ---- stages -----------------------------------------------------------------------------------------------------------

# Sanitizers never run these: LibTorch, dlib and Gloo are not built for them, hosts test speed and order, and the examples' networks
# would take all day. Files that Python reads, or that a killed rank leaves, and the launcher do not depend on them.
NOT_SANITIZED = ["examples", "interop.torch*", "interop.dlib*", "network", "gpu", "train.safetensors*", "train.killed*", "launcher", "random", "big", "headers",
                 "compile_fail", "concepts", "consumer", "docs", "overhead", "queues", "integers", "device.compiles*", "device.the_kernel*", "benchmarks",
                 "elastic.death_before_the_job*"]
# Numbers of threads. More of them take turns on the processors, which a sanitizer makes slow.
FEW_RANKS = {"HVD_TEST_RANKS": "2,3"}
# These say the same with another MPI, another processor, or none.
ONLY_ONCE = ["big", "headers", "compile_fail", "concepts", "docs", "overhead", "examples", "apart", "random", "gpu"]

EVEN, ODD = (0, 2), (1, 2)
ASAN = {"build": "asan", "level": "all", "slower": 4, "parallel": 1.5, "but": [*NOT_SANITIZED, "engine.*.mpi*"], "variables": FEW_RANKS,
        "core_of": ["collective", "train", "device"], "in_turns": {"collective": 2}}
TSAN = {"build": "tsan", "level": "all", "slower": 4, "parallel": 2, "but": [*NOT_SANITIZED, "unit", "train.device*"], "variables": FEW_RANKS,
        "core_of": ["collective", "device"]}

STAGES = [
    {"name": "units", "build": "gcc", "parallel": 1.5, "tests": ["unit", "concepts", "headers", "run"], "without_mpi": ["unit"], "in_turns": {"headers.every_call_compiles*": 2}, "packages": ["format-check"], "cpu": [120, 350], "units": [4, 9]},
    {"name": "collectives", "build": "clang", "parallel": 1.5, "tests": ["collective", "posix", "overhead.no_allocation*"], "but": ["apart"], "in_turns": {"collective.memory_model": 2, "collective.*.mpi.np3": 2}, "cpu": [300, 500], "units": [10, 16]},
    {"name": "training", "build": "clang", "parallel": 2, "tests": ["data", "train", "interop"], "but": ["apart", "emulated", "interop.torch*", "interop.dlib*"], "in_turns": {"train.*.mpi*": 2, "interop": 2},
     "packages": ["venv", "network"], "cpu": [250, 450], "units": [6, 23]},
    {"name": "engine", "build": "clang", "parallel": 2, "tests": ["engine"], "packages_of_all": ["browser"], "cpu": [120, 160], "units": [3, 8]},
    # Ranks and jobs that wait for a timeout need no processor.
    {"name": "elastic", "waits": True, "build": "clang", "parallel": 5, "tests": ["elastic", "tcp"], "but": ["device"], "in_turns": {"elastic.random*": 2}, "cpu": [170, 320], "units": [5, 11]},
    {"name": "faults", "waits": True, "build": "clang", "tests": ["fault", "network"], "but": ["data"], "parallel": 6, "in_turns": {"fault.random*": 2, "fault.*.mpi.np4*": 2}, "packages": ["network"], "cpu": [180, 420], "units": [5, 18]},
    {"name": "launcher", "waits": True, "made_before": "training", "build": "clang", "parallel": 5, "tests": ["launcher"], "packages": ["venv", "network", "sshd"], "packages_of_all": ["slurm"], "cpu": [180, 220], "units": [10, 21]},
    # The rooms with state, queues, threads and bytes from outside. Collectives use MPI under ASan and threads under TSan, and under
    # both threads that reach only each other's arenas (apart), so that the sanitizers see what passes through windows.
    {"name": "asan", "turn": (1, 4), **ASAN, "tests": ["unit.[!k]*", "files", "data.*.threads", "train.*.threads"], "cpu": [0, 450], "units": [0, 7]},
    {"name": "tsan-devices", "turn": (1, 4), **TSAN, "tests": ["device"], "cpu": [0, 250], "units": [0, 15]},
    {"name": "asan-network", "turn": (3, 4), **ASAN, "tests": ["tcp.messages", "tcp.foreign_bytes", "tcp.fuzzer", "elastic"], "cpu": [0, 400], "units": [0, 4]},
    {"name": "tsan-objects", "turn": (3, 4), **TSAN,
     "tests": ["data.loader.threads", "data.pipeline.threads", "data.threaded_map.threads", "data.into.threads", "train.optimizer.threads", "train.fused_step.threads", "engine"], "cpu": [0, 300], "units": [0, 5]},
    {"name": "asan-devices", "turn": (2, 4), **ASAN, "tests": ["device"], "cpu": [0, 500], "units": [0, 15]},
    {"name": "tsan-collectives", "turn": (2, 4), **TSAN, "tests": ["collective.*.threads"], "cpu": [0, 200], "units": [0, 2]},
    {"name": "asan-ranks", "turn": (0, 4), **ASAN,
     "tests": ["engine", "fault.threads", "fault.giving_up", "fault.is_killed.mpi.np3", "fault.throws.mpi.np3", "fault.without_memory.mpi.np2", "collective.*.mpi.np3"],
     "cpu": [0, 400], "units": [0, 10]},
    {"name": "tsan-network", "turn": (0, 4), **TSAN, "tests": ["tcp.[fm]*", "elastic.[mr]*", "fault.threads"], "cpu": [0, 250], "units": [0, 4]},
    {"name": "device", "turn": ODD, "build": "clang", "level": "all", "parallel": 2, "tests": ["device"], "but": ["gpu", "train.device*"],
     "in_turns": {"device.compiles*": 4, "device.*.one_queue": 3, "device.*.locked_contexts": 3, "device.on_a_gpu*": 2}, "cpu": [0, 400], "units": [0, 29]},
    {"name": "device-training", "turn": EVEN, "build": "clang", "level": "all", "parallel": 2, "tests": ["train.device*", "docs.*emulated*"], "but": ["gpu"], "cpu": [0, 300], "units": [0, 16]},
    {"name": "consumers", "build": "clang", "level": "all", "tests": ["consumer", "packaging"], "packages": ["cmake"], "in_turns": {"consumer": 2, "packaging": 2}, "cpu": [0, 240], "units": [0, 8]},
    {"name": "docs", "build": "clang", "parallel": 2, "tests": ["docs"], "but": ["emulated", "threads", "mpi"], "in_turns": {"docs.programs_of_the_pages_run": 2}, "packages": ["perl"], "packages_of_all": ["docs", "browser"], "cpu": [60, 320], "units": [1, 1]},
    {"name": "docs-threads", "turn": EVEN, "build": "clang", "level": "all", "parallel": 2, "tests": ["docs.*threads*", "docs.mailboxes"], "cpu": [0, 100], "units": [0, 4]},
    {"name": "docs-mpi", "turn": ODD, "build": "clang", "level": "all", "parallel": 2, "tests": ["docs.*.mpi*"], "cpu": [0, 100], "units": [0, 3]},
    {"name": "examples", "build": "clang", "level": "all", "tests": ["examples"], "but": ["examples.torch*", "examples.dlib*"], "in_turns": {"examples": 3}, "cpu": [0, 320], "units": [0, 9]},
    {"name": "words", "build": "gcc", "level": "all", "tests": ["compile_fail", "overhead"], "packages": ["valgrind"], "cpu": [0, 200], "units": [0, 6]},
    # One program of each kind, and MPICH's.
    {"name": "g++", "turn": (1, 8), "build": "gcc", "level": "all", "tests": ["collective.*.threads", "engine.*.threads"],
     "core_of": ["collective"], "variables": FEW_RANKS, "cpu": [0, 130], "units": [0, 3]},
    {"name": "libraries", "turn": (7, 8), "build": "libraries", "level": "all", "tests": ["interop.torch*", "interop.dlib*", "examples.torch_mnist*", "examples.dlib_mnist*"],
     "cpu": [0, 200], "units": [0, 4]},
    {"name": "mpich", "turn": (0, 8), "build": "mpich", "level": "all", "tests": ["collective.plans.mpi*", "collective.objects.mpi*", "launcher.restart"], "cpu": [0, 130], "units": [0, 6]},
    {"name": "nompi", "turn": (2, 8), "build": "nompi", "level": "all", "tests": ["headers.every_call_works*", "headers.units_with*", "consumer.an_include_path*", "fault.threads"],
     "cpu": [0, 150], "units": [0, 5]},
    {"name": "bench", "build": "bench", "level": "all", "tests": ["benchmarks"], "cpu": [0, 280], "units": [0, 13]},
    {"name": "aarch64", "turn": (3, 8), "build": "aarch64", "level": "all", "slower": 4, "tests": ["unit.kernel*", "unit.half", "fault.threads"], "cpu": [0, 150], "units": [0, 4]},
    {"name": "riscv64", "turn": (4, 8), "build": "riscv64", "level": "all", "slower": 4, "tests": ["unit.kernel*", "unit.half"], "cpu": [0, 120], "units": [0, 3]},
    {"name": "big", "build": "clang", "level": "all", "optional": True, "tests": ["big"], "cpu": [0, 80], "units": [0, 5]},
    # The same builds with all that they can run: the whole matrix. What no other MPI, processor or sanitizer can change is left out.
    {"name": "gcc-whole", "build": "gcc", "level": "soak", "tests": ["*"], "but": ["apart", "gpu", "consumer", "launcher", "random", "big"]},
    # OpenSSL is finished before a communicator that a program keeps to its end: tcp.faults leaks there.
    {"name": "asan-whole", "build": "asan", "level": "soak", "slower": 4, "tests": ["*"], "but": [*NOT_SANITIZED, "tcp.faults*", "train.*.mpi*", "collective.*.threads", "np1", "np4"]},
    {"name": "tsan-whole", "build": "tsan", "level": "soak", "slower": 4, "tests": ["*"], "but": [*NOT_SANITIZED, "unit"]},
    {"name": "mpich-whole", "build": "mpich", "level": "soak", "tests": ["*"], "but": [*ONLY_ONCE, "threads"]},
    {"name": "nompi-whole", "build": "nompi", "level": "soak", "tests": ["*"], "but": [*ONLY_ONCE, "collective"]},
    # Training, codecs and exact scaling where the compiler takes every number for finite.
    {"name": "fast-math", "build": "fast_math", "level": "soak", "tests": ["unit", "train.*.threads", "collective.*.threads", "engine.*.threads", "device.*.emulated"]},
    {"name": "aarch64-whole", "build": "aarch64", "level": "soak", "slower": 4, "tests": ["unit", "fault.threads", "collective.*.threads"], "but": ONLY_ONCE},
    # Only by name: ./run test --gpu, ./run test --stages torch_cuda.
    {"name": "gpu", "build": "gpu", "level": "named", "tests": ["gpu"]},
    {"name": "torch_cuda", "build": "torch_cuda", "level": "named", "tests": ["interop.torch_cuda*", "examples.torch_mnist*", "device.on_a_gpu.torch"]},
]
