#!/usr/bin/env bash
# demo_elastic.sh BUILD_FOLDER [OPTION...]: trains the mlp on Fashion-MNIST in an elastic job. It begins with 2 ranks and grows
# to 4, one of them is killed, and 3 go on. Then it trains undisturbed, and compares. Options go to the trainer.
set -euo pipefail

folder="${1:?demo_elastic.sh needs the build folder}"
program="$folder/examples/fashion_mnist/fashion_mnist"
hvdrun="$folder/tools/hvdrun/hvdrun"
shift
for file in "$program" "$hvdrun"; do
  [[ -x "$file" ]] || { echo "demo-elastic: $file is not built" >&2 && exit 1; }
done

apart=0.5  # points between the two
training=(--global-batch 128 --lr 0.01 --epochs 12 --log "$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The script of the job shows so many slots from now on.
show() { echo "localhost:$1" >"$work/new" && mv "$work/new" "$work/hosts"; }

# Waits until a line of a file matches, or the job has ended.
wait_for() {
  while kill -0 "$job" 2>/dev/null && ! grep -q "$2" "$1"; do sleep 0.1; done
}

accuracy() { sed -n 's/.*ranks: test accuracy \([0-9.]*\) %.*/\1/p' "$1"; }

show 2
touch "$work/said" "$work/events"
"$hvdrun" --min-np 2 --max-np 4 --host-discovery-script "cat '$work/hosts'" --blacklist-cooldown-range 5 60 --event-log "$work/events" --timestamp \
  "$program" --elastic "${training[@]}" > >(tee "$work/said") &
job=$!

wait_for "$work/said" 'epoch 2,'
echo "demo-elastic: the script shows 4 slots"
show 4
wait_for "$work/said" '4 ranks: epoch'
victim=$(sed -n 's/.*"event": "started", "rank": 3,.*"pid": \([0-9]*\).*/\1/p' "$work/events")
if [[ -n "$victim" ]]; then
  echo "demo-elastic: kill -9 $victim, and the script shows 3 slots"
  kill -9 "$victim"
fi
show 3
wait "$job"

echo "demo-elastic: the event log"
cat "$work/events"
echo "demo-elastic: undisturbed"
"$program" --threads 2 "${training[@]}" | tee "$work/undisturbed"

awk -v elastic="$(accuracy "$work/said")" -v undisturbed="$(accuracy "$work/undisturbed")" -v most="$apart" 'BEGIN {
  difference = elastic > undisturbed ? elastic - undisturbed : undisturbed - elastic
  printf "test accuracy: elastic %.2f %%, undisturbed %.2f %%, %.2f points apart (at most %.1f)\n", elastic, undisturbed, difference, most
  exit !(elastic != "" && undisturbed != "" && difference <= most) }'
