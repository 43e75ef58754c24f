#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Collectives of 2 ranks of one host through shared memory, Gloo and Open MPI, and a memcpy of the same bytes.
#
#   tools/bench collectives [--repetitions N] [--json FILE] [--html FILE]
#
# --html draws a page with charts. ACCEL_BENCH_RANKS is the number of ranks.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD:-$project/build/default}
ranks=${ACCEL_BENCH_RANKS:-2}
cmake --build "$build" --target bench_collectives accel-launch >&2
store=$(mktemp -u)
html='' arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --html) html=$2 && shift 2 ;;
    *) arguments+=("$1") && shift ;;
  esac
done
trap 'rm -f "$store" "$store.json"' EXIT
[ -z "$html" ] || arguments+=(--json "$store.json")
program=("$build/bin/bench_collectives" --store "$store" "${arguments[@]}")
if grep -q '^ACCEL_BENCH_MPI:INTERNAL=TRUE' "$build/CMakeCache.txt"; then
  # One rank a core where there are enough.
  binding=core
  [ "$ranks" -le "$(nproc)" ] || binding=none
  mpirun --allow-run-as-root --oversubscribe --bind-to $binding -n "$ranks" "${program[@]}"
else
  echo "without Open MPI's column; for it, type: apt-get install libopenmpi-dev openmpi-bin" >&2
  "$build/bin/accel-launch" --num_processes "$ranks" --num_cpu_threads_per_process 1 "${program[@]}"
fi
[ -z "$html" ] || python3 "$project/bench/collectives_page.py" "$store.json" "$html"
