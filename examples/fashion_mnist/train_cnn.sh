#!/usr/bin/env bash
# train_cnn.sh BUILD_FOLDER [OPTION...]: trains the cnn on 2 ranks, then on 1 with the same batch, and compares. Each goes on
# from its checkpoint in BUILD_FOLDER: an interrupted training is continued, and a complete one is only evaluated. Options
# go to the trainer; to begin anew, remove the checkpoints. The log is BUILD_FOLDER/train-cnn.log.
set -euo pipefail

folder="${1:?train_cnn.sh needs the build folder}"
program="$folder/examples/fashion_mnist/fashion_mnist"
shift
[[ -x "$program" ]] || { echo "train-cnn: $program is not built" >&2 && exit 1; }
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

least=91.5     # per cent of the test images, on 2 ranks
apart=0.5      # points between 2 ranks and 1

# The global batch is the same on any number of ranks, so that both are the same training up to rounding.
train() {
  local ranks="$1" file="$folder/cnn-on-$1.ckpt" resume=()
  shift
  if [[ -f "$file" ]]; then resume=(--resume "$file"); fi
  on_ranks "$ranks" --model cnn --global-batch 128 --lr 0.02 --epochs 12 --decay-after 10 --log --checkpoint "$file" "${resume[@]}" "$@"
}

accuracy() { sed -n "s/^$1 ranks: test accuracy \([0-9.]*\) %.*/\1/p" "$folder/train-cnn.log" | tail -n 1; }

{
  date -u '+%Y-%m-%d %H:%M UTC'
  train 2 "$@"
  train 1 "$@"
  date -u '+%Y-%m-%d %H:%M UTC'
} 2>&1 | tee -a "$folder/train-cnn.log"

two=$(accuracy 2) one=$(accuracy 1)
awk -v two="$two" -v one="$one" -v least="$least" -v apart="$apart" 'BEGIN {
  difference = two > one ? two - one : one - two
  printf "2 ranks %.2f %% (at least %.1f), 1 rank %.2f %%, %.2f points apart (at most %.1f)\n", two, least, one, difference, apart
  exit !(two >= least && difference <= apart) }' | tee -a "$folder/train-cnn.log"
