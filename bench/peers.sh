#!/usr/bin/env bash
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
#
# Python's Accelerate, and PyTorch's DDP and FSDP, against this library, the same loop, in turns: figures peers/*. needs: peers
#
#   tools/bench peers [--rounds N] [--block SECONDS] [--resident] [--steps N] [mlp64_1p] [mlp64_2p] [start] [zero3] [zero3_gloo] [zero3_vs_fsdp1] [ddp]
#
# ACCEL_BUILD (build/default) and ACCEL_PEERS_PYTHON are set by tools/bench. bench/peers/README.md says what is compared.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD:-$project/build/default}
python=${ACCEL_PEERS_PYTHON:-${ACCEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accel}/peers/bin/python}

[ -x "$python" ] || { echo "peers: $python is missing; type: tools/bench peers" >&2; exit 1; }
cmake --build "$build" --target bench_mlp bench_gpt accel-launch >&2
exec "$python" "$project/bench/peers/driver.py" --python "$python" --build "$build" "$@"
