#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs PROGRAM as ranks 0 and 1 on one host and 2 and 3 on another: two network namespaces with a cable between them. The
# namespaces have no names, and go with the last process in them.
#
#   [RANKS_A_HOST=2] hosts.sh PROGRAM [argument...]
#
# Status 4: namespaces cannot be made here (wants root and iproute2).
set -euo pipefail
program=$1
shift
each=${RANKS_A_HOST:-2}
holders=() ranks=()
cleanup() { kill -KILL "${holders[@]}" "${ranks[@]}" 2>/dev/null || true; }
trap cleanup EXIT

if ! why=$(unshare --net true 2>&1) || ! why=$(command -v ip 2>&1); then
  echo "no network namespaces here: ${why:-ip is missing; type: tools/setup test}"
  exit 4
fi

# on HOST COMMAND...: runs it there, in place of this shell.
on() {
  local host=$1
  shift
  exec nsenter --net="/proc/${holders[$host]}/ns/net" "$@"
}

for host in 0 1; do
  unshare --net sleep 120 &  # the limit of the test
  holders+=($!)
  until [ "$(readlink "/proc/$!/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
done
(on 0 ip link add cable0 type veth peer name cable1 netns "${holders[1]}")
for host in 0 1; do
  (on $host ip address add "10.77.0.$((host + 1))/24" dev "cable$host")
  (on $host ip link set lo up)
  (on $host ip link set "cable$host" up)
done

for ((rank = 0; rank < 2 * each; ++rank)); do
  # The network is this script's own, and so is the port.
  on $((rank / each)) env RANK=$rank WORLD_SIZE=$((2 * each)) LOCAL_RANK=$((rank % each)) LOCAL_WORLD_SIZE=$each \
    MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=cable$((rank / each)) OMP_NUM_THREADS=1 "$program" "$@" &
  ranks+=($!)
done
status=0
for rank in "${ranks[@]}"; do wait "$rank" || status=1; done
exit $status
