#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs PROGRAM as ranks 0 and 1 on one host and 2 and 3 on another: two network namespaces with a cable between them.
#
#   hosts.sh PROGRAM [argument...]
#
# Status 4: namespaces cannot be made here (wants root and iproute2).
set -euo pipefail
program=$1
shift
name=accel-$$
pids=()
cleanup() {
  [ ${#pids[@]} = 0 ] || kill -KILL "${pids[@]}" 2>/dev/null || true
  for host in 0 1; do ip netns delete "$name-$host" 2>/dev/null || true; done
}
trap cleanup EXIT

if ! why=$(ip netns add "$name-0" 2>&1); then
  echo "no network namespaces here: $why"
  exit 4
fi
ip netns add "$name-1"
ip -n "$name-0" link add cable0 type veth peer name cable1 netns "$name-1"
for host in 0 1; do
  ip -n "$name-$host" address add "10.77.0.$((host + 1))/24" dev "cable$host"
  ip -n "$name-$host" link set lo up
  ip -n "$name-$host" link set "cable$host" up
done

for rank in 0 1 2 3; do
  host=$((rank / 2))
  # The namespaces are this script's own, and so is the port.
  ip netns exec "$name-$host" env RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 \
    MASTER_PORT=29500 GLOO_SOCKET_IFNAME=cable$host OMP_NUM_THREADS=1 "$program" "$@" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
