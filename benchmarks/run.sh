#!/usr/bin/env bash
# run.sh BUILD_FOLDER [--check] [--record] [--peers] [--osu] [--csv] [--quick] [NAME...]: ./run bench calls it once the programs are built.
#   (nothing)  a short sweep of everything, or of the benchmarks named, and a page of plots
#   --peers    installs other MPIs, and compares an average with the best of all that are there
#   --check    the figures this project holds itself to, or those of the parts named, with limit and pass or fail; compares with the same MPIs
#   --record   with --check of everything: docs/benchmarks.md keeps the output
#   --osu      programs that sweep over sizes print tables like those of the OSU micro-benchmarks
#   --csv      writes the figures as CSV too, beside the JSON
#   --quick    the smallest sizes for the shortest time: shows that everything runs, and no figure is worth reading
set -euo pipefail

build="${1:?run.sh needs the build folder}" && shift
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/mpis.sh"
source "$here/words.sh"
results="$build/results"
environments="$(dirname "$build")/peers"
read_words "$@"

# MPI runs with its defaults, so that the peer is at its best. Only the permission for the superuser to launch is set.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

first_of() {
  local name
  for name in "$@"; do command -v "$name" && return; done
  echo "bench: found none of: $*" >&2 && return 1
}

# asked_of FILE PROGRAM: prints the options of the program that those of this script ask for. Its figures go to FILE.json.
asked_of() {
  local file="$1" program="${2%_mpich}"
  echo "--json $file.json"
  if [[ -n "$csv" ]]; then echo "--csv $file.csv"; fi
  if [[ -n "$osu" && " collectives peers nodes " == *" $program "* ]]; then echo "--osu"; fi
  if [[ -n "$quick" ]]; then smallest_of "$program"; fi
}

# Prints the options of the shortest run of a program. They come last, and the last of an option counts.
smallest_of() {
  case "$1" in
    collectives) echo "--collectives all_reduce,broadcast --min 64 --max 4KiB --factor 64" ;;
    peers | nodes) echo "--min 64 --max 4KiB --factor 64" ;;
    memory) echo "--bytes 64KiB" ;;
    engine) echo "--tensors 7 --idle 0" ;;
    fusion | optimizers*) echo "--tensors 7" ;;
    overlap) echo "--bytes 64KiB --bucket 8KiB --layers 7" ;;
    sparse) echo "--tables 100 1000 --rows 8" ;;
    batch_norm) echo "--most 20000" ;;
    scaling) echo "--models resnet50 --tensors 7 --rate 6400 --steps 1" ;;
  esac
  echo "--seconds 0.001 --rounds 2"
}

# launch RANKS PROGRAM OPTION...: binds each rank to a core, unless ranks outnumber the cores, or endless loops run beside them.
launch() {
  local ranks="$1" program="$build/benchmarks/$2" placed=(--bind-to core)
  shift 2
  binds "$ranks" "$@" || placed=(--bind-to none)
  case "$(ldd "$program")" in
    *libmpich.*) "$(first_of mpiexec.mpich mpiexec.hydra)" "${placed[@]}" -n "$ranks" "$program" "$@" ;;
    *libmpi.*)
      [[ "$ranks" -le "$(nproc)" ]] || placed+=(--oversubscribe --mca mpi_yield_when_idle 1)
      "$(first_of mpiexec.openmpi mpiexec)" "${placed[@]}" -n "$ranks" "$program" "$@" ;;
    *) if binds "$ranks" "$@"; then set -- --bind "$@"; fi; "$program" --threads "$ranks" "$@" ;;
  esac
}

# measure FILE RANKS PROGRAM OPTION...: its figures go to FILE.json. One that fails does not stop the others.
measure() {
  local file="$1"
  shift
  echo "==== $file: $2 on $1 ranks"
  rm -f "$results/$file".{json,csv}
  # shellcheck disable=SC2046  # an option a word
  launch "$@" $(asked_of "$results/$file" "$2") || { echo "bench: $file ended with an error" >&2 && failed+=("$file"); }
}

# measure_with_each FILE RANKS OPTION...: collectives beside every MPI that is there. The figures go to FILE.json for the distribution's Open
# MPI and to FILE_MPI.json for each other one.
measure_with_each() {
  local file="$1" ranks="$2" mpi name program
  shift 2
  measure "$file" "$ranks" collectives "$@"
  if built collectives_mpich; then measure "${file}_mpich" "$ranks" collectives_mpich "$@"; fi
  for mpi in "${mpis[@]}"; do
    name=$(field_of "$mpi" 1) program=collectives_mpich
    [[ "$name" != openmpi* ]] || program=collectives
    rm -f "$results/${file}_$name".{json,csv}
    if ! has_mpi "$environments" "$mpi" || ! built "$program"; then continue; fi
    echo "==== ${file}_$name: $program on $ranks ranks"
    # shellcheck disable=SC2046  # an option a word
    launch_with "$environments/$name" "$mpi" "$ranks" "$build/benchmarks/$program" "$@" $(asked_of "$results/${file}_$name" "$program") ||
      { echo "bench: ${file}_$name ended with an error" >&2 && failed+=("${file}_$name"); }
  done
}

# on_hosts NAME COMMAND...: runs on hosts that are network namespaces. It is left out if they can't be made.
on_hosts() {
  local name="$1" status=0
  shift
  echo "==== $name"
  "$@" || status=$?
  [[ "$status" -eq 0 || "$status" -eq 77 ]] || { echo "bench: $name ended with an error" >&2 && failed+=("$name"); }
}

# between_hosts FILE RATE PROGRAM OPTION...: runs on two hosts of one rank.
between_hosts() {
  local file="$1" rate="$2" program="$build/benchmarks/$3" asked
  asked=$(asked_of "$(realpath "$results")/$file" "$3")
  shift 3
  # shellcheck disable=SC2086  # an option a word
  on_hosts "$file" python3 "$here/../tests/network/lab.py" --hosts 2 --rate "$rate" -- "$program" "$@" $asked
}

# The distribution's packages belong to the distribution's Python, which need not be the first one found.
plotting_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import matplotlib' 2>/dev/null; then echo "$python" && return; fi
  done
  echo python3
}

# chosen USUAL QUICK: prints the one that --quick chooses.
chosen() { if [[ -n "$quick" ]]; then echo "$2"; else echo "$1"; fi; }
wanted() { [[ ${#names[@]} -eq 0 || " ${names[*]} " == *" $1 "* ]]; }
built() { [[ -x "$build/benchmarks/$1" ]]; }

compile_time() {
  echo "==== compile_time"
  python3 "$here/compile_time.py" --rounds "$1" --json "$results/compile_time.json" || failed+=(compile_time)
}

figures() {
  local loops ranks calls
  if wanted allreduce; then
    measure_with_each allreduce_2 2 --collectives all_reduce --seconds 1
    for ranks in 4 8; do measure_with_each "allreduce_$ranks" "$ranks" --collectives all_reduce --seconds 0.5; done
    for loops in 1 2; do
      for ranks in 2 4 8; do
        measure_with_each "allreduce_${ranks}_loops_$loops" "$ranks" --collectives all_reduce --loops "$loops" --min 64KiB --factor 4 --seconds 2
      done
    done
  fi
  # A look at all collectives takes as long as the rest: it is measured if it is named.
  if [[ " ${names[*]} " == *" collectives "* ]]; then
    for calls in back_to_back after_barrier until_last rewritten; do
      for ranks in 2 4; do measure_with_each "collectives_${ranks}_$calls" "$ranks" --calls "$calls" --factor 4 --max 64MiB --seconds 0.2; done
    done
  fi
  if wanted halves; then measure halves 2 collectives --collectives all_reduce --type float,bfloat16,float16 --min 16MiB --seconds 4; fi
  if wanted engine; then
    measure engine 2 engine --seconds 4
    measure engine_loops_1 2 engine --loops 1 --seconds 4 --idle 0
  fi
  if wanted fusion; then
    measure fusion 2 fusion --seconds 8
    measure step 2 fusion --step --sets resnet50 --seconds 5
    for ranks in 1 2; do
      measure "optimizers_$ranks" "$ranks" optimizers --seconds 3
      measure "optimizers_compiled_$ranks" "$ranks" optimizers_compiled --seconds 3
    done
  fi
  if wanted compile_time && [[ -z "$quick" || -n "${names[*]}" ]]; then compile_time "$(chosen 5 1)"; fi
}

sweep() {
  if wanted memory; then measure memory 2 memory --seconds 0.3; fi
  if wanted collectives; then
    measure collectives 2 collectives --factor 8 --max 64MiB --seconds 0.5
    measure collectives_threads 2 collectives --factor 8 --max 64MiB --seconds 0.3 --threads 2 --bind
  fi
  if wanted fusion; then measure fusion 2 fusion --seconds 4; fi
  if wanted engine && built engine; then measure engine 2 engine --seconds 2; fi
  for name in peers peers_mpich; do
    if wanted "${name%_mpich}" && built "$name"; then measure "$name" 2 "$name" --factor 8 --max 64MiB --seconds 1; fi
  done
  if wanted overhead && built overhead; then measure overhead 2 overhead --seconds 0.5; fi
  if wanted scaling && built scaling; then measure scaling 2 scaling; fi
  if wanted nodes && built nodes; then
    on_hosts nodes python3 "$here/nodes.py" "$build/benchmarks/nodes" --factor "$(chosen 16 4096)" --max "$(chosen 4MiB 4KiB)" --seconds "$(chosen 0.5 0.001)"
  fi
  if wanted sparse && built sparse; then measure sparse 2 sparse --seconds 2; fi
  if wanted batch_norm && built batch_norm; then measure batch_norm 1 batch_norm; fi
  if wanted overlap && built overlap; then between_hosts overlap 1gbit overlap --seconds 20; fi
  if wanted compile_time; then compile_time "$(chosen 2 1)"; fi
}

failed=()
mkdir -p "$results"
if [[ -n "$peers" ]]; then
  install_mpis "$environments"
fi
if [[ -n "$peers" && -z "$check" ]]; then
  measure_with_each best_of 2 --collectives all_reduce --factor 4 --seconds 0.5
  python3 "$here/best_of.py" "$results" best_of || failed+=(best_of)
elif [[ -n "$check" ]]; then
  figures
  python3 "$here/check.py" "$results" $record "${names[@]}" || failed+=(check)
  if [[ -n "$record" ]]; then
    "$(plotting_python)" "$here/report.py" --recorded "$here/../docs/benchmarks.md" "$here/../docs/images/benchmarks.svg" || failed+=(picture)
  fi
else
  sweep
  "$(plotting_python)" "$here/report.py" "$results" "$build/report" || failed+=(report)
fi
[[ ${#failed[@]} -eq 0 ]] || { echo "bench: failed: ${failed[*]}" >&2 && exit 1; }
