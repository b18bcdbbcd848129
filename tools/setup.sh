# shellcheck shell=bash
# run sources this, and tools/test/packages.py. It installs missing packages and configures build folders.

# shellcheck disable=SC2034  # used by those that source this
jobs="${HVD_JOBS:-$(nproc)}"
export DEBIAN_FRONTEND=noninteractive

set -a && source tools/mpi/environment && set +a

fail() {
  echo "run: $*" >&2
  exit 1
}

# Prints Debian's names of the packages that a job needs.
packages() {
  local clang
  case "$1" in
    demo) echo g++ ninja-build meson pkg-config openmpi-bin libopenmpi-dev libfmt-dev libcli11-dev libeigen3-dev zlib1g-dev nlohmann-json3-dev dataset-fashion-mnist ;;
    info) echo g++ ninja-build meson pkg-config libcli11-dev nlohmann-json3-dev ;;
    # What the tests of a stage need (tools/test/stages.py).
    base) echo g++ ninja-build meson pkg-config python3 doctest-dev nlohmann-json3-dev lld ccache ;;
    mpi) echo openmpi-bin libopenmpi-dev libboost-mpi-dev libboost-serialization-dev ;;
    libraries) echo libeigen3-dev libfmt-dev libcli11-dev zlib1g-dev libdlpack-dev libssl-dev "$(where_known libyaml-cpp-dev)" "$(where_known libgloo-dev)" "$(where_known relacy-dev)" ;;
    format-check) where_known clang-format-19 ;;
    torch) where_known libtorch-dev ;;
    dlib) where_known libdlib-dev ;;
    slurm) where_known munge slurm-client slurmctld slurmd ;;
    network) echo iproute2 ;;
    packaging) where_known mmdebstrap buildah lintian ubuntu-keyring ubuntu-archive-keyring ;;
    sshd) where_known openssh-server openssh-client ;;
    python) echo python3 ;;
    venv) echo python3-venv python3-yaml ;;
    cmake) echo cmake ;;
    dataset) echo dataset-fashion-mnist ;;
    perl) echo perl-doc ;;
    valgrind) echo valgrind ;;
    clang) newest_package clang 16 ;;
    sanitizers) clang=$(newest_package clang 16) && echo "$clang" "lib${clang/-/-rt-}-dev" "${clang/clang/llvm}" ;;
    aarch64 | riscv64) where_known "g++-$1-linux-gnu" qemu-user ;;
    mpich) echo mpich libmpich-dev ;;
    bench) echo iproute2 libssl-dev mpich libmpich-dev nlohmann-json3-dev libboost-mpi-dev libboost-serialization-dev python3 python3-venv python3-matplotlib "$(where_known libgloo-dev)" "$(where_known libsimgrid-dev)" ;;
    docs) echo doxygen python3 libjs-lunr "$(where_known doxygen-awesome-css)" ;;
    browser) where_known chromium chromium-driver python3-selenium ;;
    format) echo git clang-format-19 ;;
  esac
}

# Prints those of the packages that the distribution has. The job works without them.
where_known() {
  local package
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
  done
}

# Prints clang-16, or the first newer one that the distribution has.
newest_package() {
  local version
  for version in $(seq "$2" $(($2 + 8))); do
    if apt-cache show "$1-$version" >/dev/null 2>&1; then
      echo "$1-$version" && return
    fi
  done
  echo "$1-$2"
}

# Prints those of the packages that apt's lists lack. apt-cache succeeds if it finds one of them, and takes g++ for a pattern.
unlisted() {
  comm -23 <(printf '%s\n' "$@" | sort -u) <(apt-cache show --no-all-versions "$@" 2>/dev/null | sed -n 's/^Package: //p' | sort -u)
}

missing() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

# Prints the packages of the named jobs that are not installed.
absent_of() {
  local job wanted=() more=()
  for job in "$@"; do mapfile -t more < <(packages "$job" | tr -s ' ' '\n') && wanted+=("${more[@]}"); done
  missing "${wanted[@]}"
}

# Makes sure that the packages of the named jobs are installed.
need() {
  local absent=()
  if ! command -v apt-get dpkg-query >/dev/null; then
    need_elsewhere "$@"
    return
  fi
  mapfile -t absent < <(absent_of "$@")
  [[ ${#absent[@]} -eq 0 ]] && return
  echo "run: not installed yet: ${absent[*]}"
  local root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || fail "to install them become root, or install sudo"
    root=(sudo)
  fi
  # A fresh system knows no packages, an old one knows outdated ones; only then is it clear which ones there are.
  if [[ -n "$(unlisted "${absent[@]}")" ]]; then
    "${root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq
    mapfile -t absent < <(absent_of "$@")
  fi
  echo "run: installing them: apt-get install ${absent[*]}"
  # Somebody else's apt may hold the lock. Manual pages are not indexed, and modules of Python compiled when they are used.
  install() {
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
      -o Dpkg::Use-Pty=0 "${absent[@]}" >/dev/null
  }
  quiet_triggers
  install || { "${root[@]}" apt-get update -qq && mapfile -t absent < <(absent_of "$@") && install; } || fail "apt-get could not install: ${absent[*]}"
}

# On a machine that is made for one run, the index of manual pages takes longer than the packages.
quiet_triggers() {
  [[ -n "${CI:-}" ]] || return 0
  echo 'man-db man-db/auto-update boolean false' | "${root[@]}" debconf-set-selections 2>/dev/null || true
  "${root[@]}" rm -f /var/lib/man-db/auto-update
}

need_elsewhere() {
  command -v meson ninja c++ >/dev/null && return
  echo "run: this is not Debian or Ubuntu. Install what these Debian packages hold, then run the command again:" >&2
  local job
  for job in "$@"; do echo "  $(packages "$job")" >&2; done
  exit 1
}

# configure FOLDER OPTION...: sets the folder up, and does so anew if the options or the compiler have changed. Meson's CMake writes
# into the folder in which it is started, so that each setup has its own.
configure() {
  local folder="$1" options="$1.options" source="$PWD"
  shift
  if [[ -f "$folder/build.ninja" && "$(cat "$options" 2>/dev/null)" == "${CXX:-} $*" ]]; then
    ninja -C "$folder" build.ninja >"$folder.log" 2>&1 || { cat "$folder.log" && return 1; }
  else
    rm -rf "$folder" && mkdir -p "$folder"
    (cd "$folder" && meson setup . "$source" "$@") >"$folder.log" 2>&1 || { cat "$folder.log" && return 1; }
    echo "${CXX:-} $*" >"$options"
  fi
}

# torch_with_cuda FOLDER: installs Python's package torch there without the packages that it needs, half a gigabyte to fetch, and
# prints the folder of LibTorch. It prints nothing if the package can't be had.
torch_with_cuda() {
  local folder="$1" log="$1.log" found
  found() { compgen -G "$folder/lib/python3*/site-packages/torch/lib/libtorch_cuda.so"; }
  if ! found >/dev/null; then
    rm -rf "$folder" && mkdir -p "$(dirname "$folder")"
    { python3 -m venv "$folder" && timeout 300 "$folder/bin/pip" install --quiet --no-deps --no-compile --no-cache-dir torch==2.11.0; } >"$log" 2>&1 && found >/dev/null ||
      { rm -rf "$folder" && return; }
  fi
  found=$(found) && echo "$PWD/${found%/lib/libtorch_cuda.so}"
}
