#!/usr/bin/env bash
# skip_without_memory.sh GIB COMMAND...: runs the command if that much memory is free.
free=$(awk '/^MemAvailable:/ {print int($2 / 1048576)}' /proc/meminfo)
if ((free < $1)); then
  echo "needs $1 GiB of free memory, there are $free"
  exit 77
fi
shift
exec "$@"
