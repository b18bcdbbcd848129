# shellcheck shell=bash
# Other scripts source this. It defines on_ranks COUNT OPTION..., which runs $program on that many ranks. The ranks are
# processes if the build has MPI, and threads otherwise. HVD_MPIEXEC is the command that starts processes
# ("mpiexec.openmpi --oversubscribe").

set -a && source "$(dirname "${BASH_SOURCE[0]}")/../../tools/mpi/environment" && set +a

# Prints the launcher of the MPI that the program is linked with, or nothing.
launcher() {
  local libraries
  libraries=$(ldd "$program")
  case "$libraries" in
    *libmpich.*) first_of mpiexec.mpich mpiexec.hydra mpiexec ;;
    *libmpi.*) echo "$(first_of mpiexec.openmpi mpiexec) --oversubscribe" ;;
  esac
}

first_of() {
  local name
  for name in "$@"; do
    if command -v "$name" >/dev/null; then echo "$name" && return; fi
  done
  echo "found none of: $*" >&2 && exit 1
}

on_ranks() {
  local ranks="$1"
  shift
  if [[ ${#mpiexec[@]} -gt 0 ]]; then "${mpiexec[@]}" -n "$ranks" "$program" "$@"
  else "$program" --threads "$ranks" "$@"; fi
}

found="${HVD_MPIEXEC:-$(launcher)}"
read -ra mpiexec <<<"$found"
if [[ ${#mpiexec[@]} -gt 0 ]]; then echo "ranks are processes, started by ${mpiexec[*]}"
else echo "ranks are threads: this build has no MPI"; fi
