#!/usr/bin/env bash
# two_hosts.sh RATE PROGRAM OPTION...: runs an MPI program on two hosts, one rank each, that are joined by a cable of that rate
# ("1gbit"). The hosts are network namespaces of this machine with hostnames of their own; needs the superuser, ip and tc.
# Ends with 77 where they can't be made. Works with Open MPI.
set -euo pipefail

hosts=(hvdhosta hvdhostb)
network=10.79.0

# In place of ssh: agent [OPTION...] HOST COMMAND...
on_host() {
  while [[ "${1:-}" == -* ]]; do shift; done
  local host="$1"
  shift
  # shellcheck disable=SC2016 # the inner shell expands
  exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
}
if [[ "${1:-}" == agent ]]; then shift && on_host "$@"; fi

rate="${1:?two_hosts.sh needs a rate, for example 1gbit}"
shift
skip() { echo "two_hosts.sh: skipped: $*" && exit 77; }
[[ $EUID -eq 0 ]] || skip "needs the superuser"
for tool in ip tc unshare mpiexec.openmpi; do command -v "$tool" >/dev/null || skip "there is no $tool"; done

take_down() {
  local host
  for host in "${made[@]}"; do
    ip netns pids "$host" | xargs -r kill 2>/dev/null || true
    ip netns del "$host"
    rm -rf "/etc/netns/$host"
  done
}
made=()
trap take_down EXIT
for i in 0 1; do
  host="${hosts[i]}"
  if [[ -e "/run/netns/$host" || -e "/etc/netns/$host" ]]; then skip "$host is in use"; fi
  ip netns add "$host" 2>/dev/null || skip "this system makes no network namespaces"
  made+=("$host")
  mkdir -p "/etc/netns/$host"
  printf '127.0.0.1 localhost\n%s.1 %s\n%s.2 %s\n' "$network" "${hosts[0]}" "$network" "${hosts[1]}" >"/etc/netns/$host/hosts"
  ip -n "$host" link set lo up
done
ip -n "${hosts[0]}" link add eth0 type veth peer name eth0 netns "${hosts[1]}"
for i in 0 1; do
  ip -n "${hosts[i]}" addr add "$network.$((i + 1))/24" dev eth0
  ip -n "${hosts[i]}" link set eth0 up
  # Both directions; a burst of half a millisecond, and a queue as deep as a switch's.
  tc -n "${hosts[i]}" qdisc replace dev eth0 root tbf rate "$rate" burst 128kb latency 50ms ||
    skip "this system shapes no traffic"
done

echo "# two hosts joined by a cable of $rate"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
program="$(realpath "$1")"
shift
ip netns exec "${hosts[0]}" unshare --uts sh -c 'hostname "$0"; exec "$@"' "${hosts[0]}" \
  mpiexec.openmpi --mca plm_rsh_agent "$here/two_hosts.sh agent" --mca plm_rsh_no_tree_spawn 1 --host "${hosts[0]}:1,${hosts[1]}:1" \
  --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle 1 --bind-to none \
  -n 2 "$program" "$@"
