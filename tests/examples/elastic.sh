#!/usr/bin/env bash
# elastic.sh HVDRUN PROGRAM: the trainer in an elastic job, one of whose ranks fails, ends as accurate as without.
set -euo pipefail

hvdrun="$1" program="$2"
[[ -d /usr/share/datasets/fashion-mnist ]] || { echo "skipped: the package dataset-fashion-mnist is not installed" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
training=(--limit 2000 --epochs 6 --global-batch 128 --log)

fail() {
  echo "elastic.sh: $*" >&2
  exit 1
}
accuracy() { sed -n 's/.*ranks: test accuracy \([0-9.]*\) %.*/\1/p' <<<"$1"; }

# The first process of rank 1 is killed after an epoch of the training.
cat >"$work/rank" <<'END'
kill_it() {
  until grep -qs 'epoch 1,' "$work"/output/rank.*/stdout; do sleep 0.02; done
  kill -9 $$
}
if [ "$HVD_RANK" = 1 ] && ! [ -e "$work/is_once" ]; then touch "$work/is_once" && kill_it >/dev/null 2>&1 & fi
exec "$@"
END
export work
said=$("$hvdrun" -np 2 --min-np 1 --blacklist-cooldown-range 0.1 60 --event-log "$work/events" --output-filename "$work/output" sh "$work/rank" "$program" --elastic --keep "$work/state" "${training[@]}")
[[ -s $(echo "$work"/state/*.hvd_state) ]] || fail "no state was kept"
grep -q '"lost": \[1\]' "$work/events" || fail "no rank was lost: $(cat "$work/events")"
expected=$("$program" --threads 2 "${training[@]}")
awk -v a="$(accuracy "$said")" -v b="$(accuracy "$expected")" 'BEGIN { exit !(a != "" && b != "" && a - b < 1 && b - a < 1) }' ||
  fail "it said: $said, and undisturbed: $expected"
