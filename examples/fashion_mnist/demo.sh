#!/usr/bin/env bash
# demo.sh BUILD_FOLDER [OPTION...]: trains the mlp on Fashion-MNIST on 1 and on 2 ranks, then measures the speed of 2
# ranks as a part of twice the speed of 1. Options go to the trainer.
set -euo pipefail

program="${1:?demo.sh needs the build folder}/examples/fashion_mnist/fashion_mnist"
shift
[[ -x "$program" ]] || { echo "demo: $program is not built" >&2 && exit 1; }
source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

on_ranks 1 "$@"
on_ranks 2 "$@"
on_ranks 2 --scaling "$@"
