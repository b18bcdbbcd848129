#!/usr/bin/env bash
# ./run test: each stage is one configuration, built in build/STAGE; a stage's tests are chosen by suites.
set -euo pipefail
source tools/setup.sh

everything=(gcc more asan tsan clang mpich nompi aarch64 riscv64 bench)
stages=(gcc)
names=()
whole=""  # with it each stage runs all the tests that it can, and else those that --all has time for
while [[ $# -gt 0 ]]; do
  case "$1" in
    --all) stages=("${everything[@]}") ;;
    --gpu) stages=(gpu) ;;
    --soak) stages=("${everything[@]}" soak) && whole=1 ;;
    --stages) read -ra stages <<<"${2:?--stages needs names}" && shift ;;
    -*) fail "test: no such option: $1 (see ./run help)" ;;
    *) names+=("$1") ;;
  esac
  shift
done

clang() { compgen -c clang++- | grep -E '^clang\+\+-[0-9]+$' | sort -t- -k2 -n | awk -F- '$2 >= 16' | head -n 1; }

# The tests that run programs, without those that only read sources or test the build.
programs='!big !headers !compile_fail !concepts !consumer !docs !overhead !queues !integers !device.compiles* !device.the_kernel*'
# Sanitizers skip some tests. LibTorch is not built for them, hosts test speed and order, and the examples' networks would
# take all day. Files that Python reads, or that a killed rank leaves, and the variables of Slurm do not depend on them.
sanitized="$programs !examples !interop.torch* !interop.dlib* !network !gpu !train.safetensors* !train.killed* !launcher.slurm !random"
# Collectives use MPI under ASan and threads under TSan, and under both threads that reach only each other's arenas (apart), so that
# the sanitizers see what passes through windows; all other tests use threads. Two ranks are the special case, and
# three the irregular one. Races do not depend on the element type.
asan="$sanitized !train.*.mpi* !collective.*.threads !neighbours !np1 !np4"
# These write files, or compute around calls that the other tests of training make.
computing=(train.{buffers,checkpoint_files,checkpoint_fuzz,checkpoint_local,epochs,loss_scale,saved_model,sparse_steps,step_counts})
printf -v computes '!%s.* ' "${computing[@]}"
# On MPI they say what they say on threads, as do these, and the registers of most GPUs what those of one say.
told_elsewhere=("${computing[@]/%/.mpi.*}" train.{callbacks,compare,eigen,feedback,grouped,mixed,snippets,step_watch,steps_by_hand,vjp}.mpi.*
  device.the_kernels_keep_to_registers.sm_{75,80,100})
tsan="$sanitized $computes !unit !collective.thresholds.apart !collective.*.others.threads !collective.thresholds.neighbours !collective.determinism.neighbours !collective.operations.neighbours"

# These tests take too long for each change, and run only with --all or by name: counts beyond 2^31, training on MPI and on emulated
# devices, half of the tests of devices, LibTorch, dlib, compilation by nvcc, each header alone, programs that must not compile, programs that use an installed hvd,
# code that is tested elsewhere too, 200 runs of random faults, and the site, which needs Doxygen and a browser.
left_to_all=(big random 'train.*.mpi.np[23]' 'train.*.emulated'
  device.{engine,engine_faults,gpu_suite,watcher,policies,ipc_faults,topology,updates,reductions,host_memory,captures,making,options,messages,versions,graphs_and_arenas,windows,snippets}.emulated
  'device.*.mpi.*' 'interop.torch*' 'interop.dlib*' 'device.compiles*' 'device.the_kernel*' device.on_a_gpu
  headers.compile_alone compile_fail consumer examples.fashion_mnist.says 'examples.word2vec*' docs.mailboxes 'docs.the_site*' '*.package')
# These take too long for --all as well, and run only with --soak or by name: the other half of the element types, threads without what only
# Linux has, 1 and 4 ranks on MPI (threads have all numbers), a user's backend and more placements of nodes, most collectives on TCP and Gloo, two large examples,
# what is told elsewhere, and faults that wait for seconds alone and happen in another number or placement of ranks, or on MPICH, too.
left_to_soak=(integers posix np1 np4 queues neighbours rest_on_tcp 'examples.torch_mnist*' 'examples.dlib_mnist*' "${told_elsewhere[@]}"
  fault.is_stopped.mpi.np3.messages.{tcp,copies} fault.is_late.mpi.{np2,np3.messages,np3.nodes_of_2} fault.is_late_for_a_call.mpi.np3
  fault.is_late_in_making.mpi.{np2,np2.messages,np3.messages} fault.is_killed_and_not_reaped.mpi.np2 launcher.restart)

stage_gcc() {
  local but=("${left_to_all[@]/#/!}" "${left_to_soak[@]/#/!}" '!apart')
  [[ ${#names[@]} -eq 0 ]] || but=('!big')
  CXX=g++ stage build/gcc "${but[*]}" "${openmpi[@]}" "${quick[@]}"
}
stage_more() {
  local more=("${left_to_all[@]}" "${left_to_soak[@]}")
  [[ -n "$whole" || ${#names[@]} -gt 0 ]] || more=("${left_to_all[@]}" "${told_elsewhere[@]/#/!!}" '!*')
  CXX=g++ stage build/gcc "${more[*]}" "${openmpi[@]}" "${quick[@]}"
}
# The real CUDA and NCCL, and no MPI; without a GPU its tests are skipped.
stage_gpu() { CXX=g++ stage build/gpu gpu -Dmpi=disabled "${all_parts[@]}" -Dexamples=disabled; }
# LibTorch with CUDA, whose program the distribution's LibTorch can't link. It runs where the libraries that it needs are.
stage_torch_cuda() {
  command -v nvcc >/dev/null || { skipped "there is no CUDA Toolkit (nvcc)" && return; }
  local torch
  torch=$(torch_with_cuda build/packages/torch)
  [[ -n "$torch" ]] || { skipped "Python's package torch can't be had here with CUDA: see build/packages/torch.log" && return; }
  CXX=g++ stage build/torch_cuda 'interop.torch_cuda* examples.torch_mnist*' -Dtorch_root="$torch" -Dmpi=enabled -Dmpi_flavour=openmpi "${all_parts[@]}" "${quick[@]}"
}
# Two thousand runs of random calls in which something fails, and a thousand elastic jobs: more than an hour.
stage_soak() { HVD_FAULT_RUNS=10 HVD_ELASTIC_RUNS=20 slower=10 CXX=g++ stage build/gcc random "${openmpi[@]}" "${quick[@]}"; }
stage_bench() { CXX=g++ stage build/smoke benchmarks -Dmpi=enabled -Dmpi_flavour=openmpi -Dboost_mpi=enabled -Dtests=disabled -Dexamples=disabled -Dbenchmarks=enabled -Ddebug=false "${quick[@]}"; }
stage_clang() { only "${clang_core[@]}" concepts && CXX=$(clang) stage build/clang 'consumer.the_compiled_form* !big !consumer !queues !integers !mpi !examples !random !apart' "${openmpi[@]}"; }
# The compiled form does not depend on whose MPI it is.
stage_mpich() { only 'consumer.*installed*' consumer.pkg_config_names_the_flags consumer.meson_takes_it_as_a_subproject 'collective.plans.mpi*' 'collective.objects.mpi*' launcher.restart && CXX=g++ stage build/mpich "consumer $programs !threads !examples" "${mpich[@]}"; }
# The compiled form, subprojects, and each header by itself do not depend on MPI.
stage_nompi() { only unit.handles 'headers.every_call*' headers.units_with_different_flags_work_together 'consumer.cmake*' 'consumer.*installed*' consumer.pkg_config_names_the_flags consumer.an_include_path_is_enough_for_threads fault.threads && CXX=g++ stage build/nompi '!big !compile_fail !concepts !collective !examples !docs' -Dmpi=disabled "${all_parts[@]}"; }

# Other processors, emulated. An emulated program sees memory in the order of this machine's processor, so that these stages say
# little about orders of memory. RISC-V is the machine without vectors: the kernels are enough.
stage_aarch64() {
  only 'unit.*' fault.threads collective.{allreduce.others,reduce_scatter.others,determinism,fused,plans,asynchronous,arena,waiting}.threads
  stage_emulated aarch64
}
stage_riscv64() { only unit.kernel unit.kernel_levels unit.half unit.handles && stage_emulated riscv64; }
stage_emulated() {
  absent=$(missing_of "$1") && [[ -z "$absent" ]] || { skipped "$absent" && return; }
  export HVD_TEST_RANKS=1,2,3
  slower=4 stage "build/$1" '!big !headers !compile_fail !concepts !consumer !docs !overhead !launcher' --cross-file "tools/cross/$1.ini" -Dmpi=disabled -Dnccl=disabled \
    -Dtests=enabled -Dexamples=disabled -Dbenchmarks=disabled -Ddebug=false "${quick[@]}"
}
missing_of() {
  command -v "$1-linux-gnu-g++" >/dev/null || { echo "there is no $1-linux-gnu-g++" && return; }
  command -v "qemu-$1" >/dev/null || echo "there is no qemu-$1"
}

# Without names, clang and the sanitizers run the parts with the most state, queues, threads and foreign bytes in --all, and the whole
# matrix in --soak. gcc runs the whole matrix. clang's sanitizers compile much of what clang's own stage leaves out. Engines are on MPI under ASan and on
# threads under TSan.
clang_core=(unit.vocabulary unit.handles 'headers.every_call*' 'consumer.the_compiled_form*')
asan_core=('unit.[!k]*' tcp.{messages,fuzzer} elastic.{coordination,messages,runs} engine.{connections,negotiation} engine.*.mpi.np3 fault.threads fault.giving_up
  fault.{is_killed,throws,without_memory}.mpi.np3 collective.{fused,ragged,asynchronous,arena,handles,tuning}.mpi.np3
  collective.{thresholds,plans,objects,communicators,carried,disagreement,codecs}.mpi.np3 collective.thresholds.mpi.np2
  train.{optimizer,fused_step,state,crossed,sparse,feedback,reports,checkpoint,checkpoint_fuzz}.threads device.{nccl,cuda_ipc,faults,streams}.emulated
  train.device_optimizer.emulated)
tsan_core=(tcp.faults elastic.{messages,runs} engine.{connections,negotiation} engine.*.threads fault.threads
  collective.{asynchronous,plans,communicators,waiting,one_thread,handles,thresholds}.threads train.{optimizer,fused_step}.threads
  device.{nccl,cuda_ipc,ipc_signals,faults,streams}.emulated)
only() { [[ -n "$whole" || ${#names[@]} -gt 0 ]] || names=("$@"); }

# clang compiles the sanitizers in half of g++'s time, and its ThreadSanitizer runs twice as fast. Slower programs get more time: HVD_TEST_TIMEOUT is the watchdog's,
# in seconds per test case.
stage_asan() {
  only "${asan_core[@]}"
  export HVD_TEST_SEEDS=6
  [[ -z "$whole" ]] || export HVD_FUZZ_SECONDS=600
  export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
  export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:abort_on_error=0"
  # Only a full unwind recognises MPI's frames: libc between them and malloc keeps no frame pointers.
  ASAN_OPTIONS+=":fast_unwind_on_malloc=0:malloc_context_size=20"
  export LSAN_OPTIONS="suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0"
  HVD_TEST_TIMEOUT=480 slower=4 CXX=$(clang) stage build/asan "$asan" "${openmpi[@]}" \
    "${quick[@]}" -Db_sanitize=address,undefined
}

stage_tsan() {
  only "${tsan_core[@]}"
  export HVD_TEST_SEEDS=6
  export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:die_after_fork=0"
  # Randomisation is off if the kernel allows it: older runtimes fail in a widely randomised address space.
  local launcher=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then launcher=(setarch "$(uname -m)" -R); fi
  HVD_TEST_TIMEOUT=480 slower=4 CXX=$(clang) stage build/tsan "$tsan" -Dmpi=disabled "${all_parts[@]}" \
    "${quick[@]}" -Dexamples=disabled -Db_sanitize=thread
}

# Debug information only has lines for backtraces. Full information takes a third of the compile time.
all_parts=(-Dtests=enabled -Dexamples=enabled -Dbenchmarks=disabled -Doptimization=1 -Ddebug=false)
# Compiling takes most of the time, so there is no optimisation. Files that need speed ask for it in their meson.build.
quick=(-Doptimization=0)
openmpi=(-Dmpi=enabled -Dmpi_flavour=openmpi -Dboost_mpi=enabled "${all_parts[@]}")
mpich=(-Dmpi=enabled -Dmpi_flavour=mpich "${all_parts[@]}")

# stage FOLDER SUITES OPTION...: configures, builds what the chosen tests need, runs them.
stage() {
  export CXX HVD_TEST_TIMEOUT HVD_FAULT_RUNS HVD_ELASTIC_RUNS
  local folder="$1" suites="$2" log arguments="'-g1'"
  shift 2
  log="$folder/meson-logs/testlog-$current.json"
  # g++ needs a sixth less time if it has more memory before it looks for what it no longer needs.
  [[ "${CXX:-}" == *clang* ]] || arguments+=", '--param=ggc-min-heapsize=4000000'"
  configure "$folder" "-Dcpp_args=[$arguments]" "$@" >/dev/null || { broken "$log" "configure" "$folder.log" && return; }
  rm -f "$log"
  local chosen=() targets=()
  local list="$folder/tests-$current.txt"
  python3 tools/tests.py select "$folder" "$suites" "${names[@]}" >"$list"
  mapfile -t chosen <"$list"
  if [[ ${#chosen[@]} -eq 0 ]]; then
    # If no name was given, a stage without tests is broken.
    [[ ${#names[@]} -gt 0 ]] || broken "$log" "finding tests" "$list"
    echo "no tests here" && return
  fi
  python3 tools/tests.py targets "$folder" "${chosen[@]}" >"$list"
  mapfile -t targets <"$list"
  [[ ${#targets[@]} -eq 0 ]] || ninja -C "$folder" -j "$jobs" "${targets[@]}" >"$folder/build-$current.log" 2>&1 ||
    { broken "$log" "build" "$folder/build-$current.log" && return; }
  echo "built after $((SECONDS - begun)) s"
  "${launcher[@]}" meson test -C "$folder" --no-rebuild --num-processes "$jobs" --logbase "testlog-$current" \
    --timeout-multiplier "${slower:-1}" "${chosen[@]}" || true
}

# A stage whose tools are absent is one skipped test.
skipped() {
  local log="build/$current/meson-logs/testlog-$current.json"
  mkdir -p "$(dirname "$log")"
  python3 tools/tests.py skipped "$1" >"$log"
}

# A stage that cannot run its tests is one failed test.
broken() {
  mkdir -p "$(dirname "$1")"
  python3 tools/tests.py broken "$2" "$3" >"$1"
  echo "$2 failed: $3"
}

jobs_of_stages=(demo test)
[[ " ${stages[*]} " != *" clang "* ]] || jobs_of_stages+=(clang)
[[ " ${stages[*]} " != *" asan "* && " ${stages[*]} " != *" tsan "* ]] || jobs_of_stages+=(sanitizers)
[[ " ${stages[*]} " != *" more "* ]] || jobs_of_stages+=(docs browser)
[[ " ${stages[*]} " != *" mpich "* ]] || jobs_of_stages+=(mpich)
[[ " ${stages[*]} " != *" bench "* ]] || jobs_of_stages+=(bench)
for processor in aarch64 riscv64; do
  [[ " ${stages[*]} " != *" $processor "* ]] || jobs_of_stages+=("$processor")
done
need "${jobs_of_stages[@]}"

times=()
logs=()
for current in "${stages[@]}"; do
  declare -F "stage_$current" >/dev/null || fail "test: no such stage: $current"
  echo "==== $current"
  begun=$SECONDS
  case "$current" in more | soak) folder=gcc ;; bench) folder=smoke ;; *) folder=$current ;; esac
  logs+=("build/$folder/meson-logs/testlog-$current.json")
  set +e
  (set -e && launcher=() && "stage_$current")
  status=$?
  set -e
  [[ $status -eq 0 ]] || broken "${logs[-1]}" "the stage itself" /dev/null
  times+=("$current $((SECONDS - begun)) s")
done

printf -v spent ', %s' "${times[@]}"
echo "==== time: ${spent:2}"
exec python3 tools/tests.py summary "${logs[@]}"
