#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# The Accelerator's step against a hand-written LibTorch loop: time on one process and on two, and instructions counted by
# callgrind as the difference of two runs of different length, so that start-up cancels out. needs: valgrind
#
#   tools/bench overhead [--pairs N]
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD:-$project/build/default}
cmake --build "$build" --target bench_overhead accel-launch >&2

instructions() {  # side steps
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$build/bin/bench_overhead" --only "$1" --steps "$2" 2>&1 |
    awk '/Collected/ {print $4}'
}
"$build/bin/bench_overhead" "$@"
"$build/bin/accel-launch" --num_processes 2 --num_cpu_threads_per_process 1 "$build/bin/bench_overhead" "$@"
if command -v valgrind >/dev/null; then
  hand=$(($(instructions hand 60) - $(instructions hand 20)))
  ours=$(($(instructions accel 60) - $(instructions accel 20)))
  echo "instructions of 40 steps: ours $ours, hand-written $hand"
  awk -v a="$ours" -v b="$hand" 'BEGIN {printf "figure overhead/single_instructions %.4f ratio\n", a / b}'
else
  echo "overhead/single_instructions needs valgrind; type: apt-get install valgrind" >&2
  exit 1
fi
