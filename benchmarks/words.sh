# shellcheck shell=bash
# ./run and run.sh source this. It reads the words of ./run bench, which is done before anything is built.

sweeps=(memory collectives fusion engine peers overhead scaling nodes sparse batch_norm overlap compile_time)
checks=(allreduce collectives halves fusion engine compile_time)

refuse() { echo "bench: $1" >&2 && exit 1; }

# read_words WORD...: sets a variable for each option, and the names.
read_words() {
  local word known
  check='' record='' peers='' osu='' csv='' quick='' names=()
  for word in "$@"; do
    case "$word" in
      --check) check=yes ;;
      --record) record=--record ;;
      --peers) peers=yes ;;
      --osu) osu=yes ;;
      --csv) csv=yes ;;
      --quick) quick=yes ;;
      -*) refuse "no such option: $word (see ./run help)" ;;
      *) names+=("$word") ;;
    esac
  done
  [[ -z "$record" || -n "$check" ]] || refuse "--record goes with --check"
  [[ -z "$record" || ${#names[@]} -eq 0 ]] || refuse "--record keeps the whole table, so that it goes without ${names[*]}"
  known=("${sweeps[@]}")
  if [[ -n "$check" ]]; then known=("${checks[@]}"); fi
  for word in "${names[@]}"; do
    [[ " ${known[*]} " == *" $word "* ]] || refuse "no such benchmark${check:+ of --check}: $word; there are: ${known[*]}"
  done
}

# Prints the targets of the benchmarks named, a line each.
programs_of_names() {
  local word
  for word in "${names[@]}"; do
    case "$word" in
      allreduce | collectives | halves) printf 'benchmarks/%s\n' collectives collectives_mpich ;;
      peers) printf 'benchmarks/%s\n' peers peers_mpich ;;
      fusion) printf 'benchmarks/%s\n' fusion optimizers optimizers_compiled ;;
      compile_time) ;;
      *) echo "benchmarks/$word" ;;
    esac
  done | sort -u
}
