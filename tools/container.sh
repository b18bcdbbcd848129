#!/usr/bin/env bash
# Makes an image: installs hvd, its tools and the Fashion-MNIST trainer below /usr/local. Dockerfile and packaging/apptainer/hvd.def call it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

need demo info cmake
configure build/container --buildtype=release --prefix=/usr/local -Dunity=on -Dunity_size=14 -Dexamples=enabled -Dtests=disabled -Dbenchmarks=disabled
ninja -C build/container -j "$jobs"
meson install -C build/container --no-rebuild --quiet
command install build/container/examples/fashion_mnist/fashion_mnist /usr/local/bin

rm -rf build
if command -v apt-get >/dev/null; then apt-get clean && rm -rf /var/lib/apt/lists/*; fi
