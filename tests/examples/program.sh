#!/usr/bin/env bash
# program.sh RANKS COMMAND...: tests the trainer's command line, on data of the distribution.
set -euo pipefail

ranks="$1"
shift
data=/usr/share/datasets/fashion-mnist
[[ -d "$data" ]] || { echo "skipped: the package dataset-fashion-mnist is not installed" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "program.sh: $*" >&2
  exit 1
}

short=(--limit 2000 --epochs 2)
said=$("$@" "${short[@]}" --checkpoint "$work/whole")
[[ "$said" =~ ^"$ranks ranks: test accuracy "[0-9]+\.[0-9][0-9]" %, "[0-9]+" images/s"$ ]] || fail "it said: $said"

"$@" --limit 2000 --epochs 1 --checkpoint "$work/half" >/dev/null
"$@" "${short[@]}" --resume "$work/half" --checkpoint "$work/resumed" >/dev/null
cmp "$work/whole" "$work/resumed" || fail "a resumed training ends elsewhere"

said=$("$@" --limit 2000 --epochs 1 --progress 2>&1 >/dev/null)
[[ "$said" == *"epoch 1/1: loss "*"images/s"* ]] || fail "it showed: $said"

said=$("$@" --limit 2000 --epochs 1 --scaling)
[[ "$said" =~ ^"scaling efficiency "[0-9.]+" %" ]] || fail "it said: $said"

# refused REASON OPTION...: expects a failure, and the reason on stderr
refused() {
  local reason="$1"
  shift
  if "${command[@]}" "$@" >"$work/out" 2>"$work/err"; then fail "it accepted: $*"; fi
  grep -qF -- "$reason" "$work/err" "$work/out" || fail "for $* it said: $(cat "$work/err")"
}
command=("$@")
refused "$work/train-images-idx3-ubyte.gz: No such file or directory" --data "$work"
refused "$work/absent: No such file or directory" "${short[@]}" --resume "$work/absent"
refused "--model" --model transformer
refused "--global-batch" --batch 8 --global-batch 8
