#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Every strategy on the GPT-like model of bench/gpt.hpp, two processes of one thread: time a step, tokens a second, memory.
# Figures strategies/*: a strategy's time and memory over those of ddp.
#
#   tools/bench strategies [--rounds N] [--steps N] [--html FILE] [--json FILE] [STRATEGY[/TRANSPORT] ...]
#
# ACCEL_BUILD (build/default) is set by tools/bench.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD:-$project/build/default}

cmake --build "$build" --target bench_gpt accel-launch >&2
exec python3 "$project/bench/strategies/driver.py" --build "$build" "$@"
