#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Collectives of 2 ranks of one host through shared memory, Gloo and Open MPI, and a memcpy of the same bytes.
#
#   tools/bench collectives [--repetitions N]
#
# ACCEL_BENCH_RANKS is the number of ranks.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD:-$project/build/default}
ranks=${ACCEL_BENCH_RANKS:-2}
cmake --build "$build" --target bench_collectives accel-launch >&2
store=$(mktemp -u)
trap 'rm -f "$store"' EXIT
program=("$build/bin/bench_collectives" --store "$store" "$@")
if grep -q '^ACCEL_BENCH_MPI:INTERNAL=TRUE' "$build/CMakeCache.txt"; then
  # One rank a core where there are enough.
  binding=core
  [ "$ranks" -le "$(nproc)" ] || binding=none
  mpirun --allow-run-as-root --oversubscribe --bind-to $binding -n "$ranks" "${program[@]}"
else
  echo "without Open MPI's column; for it, type: apt-get install libopenmpi-dev openmpi-bin" >&2
  "$build/bin/accel-launch" --num_processes "$ranks" --num_cpu_threads_per_process 1 "${program[@]}"
fi
