# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What the tools share: where things are, how they speak, how they configure and build. Sourced, never run.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tool=$(basename "$0")
llvm=19  # the one pinned version of clang, clang-format and clang-tidy
# The rule of tools/cmake/AccelLibTorch.cmake, which looks for LibTorch there.
cache=${ACCEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accel}
peers_python=$cache/peers/bin/python
export CCACHE_BASEDIR=$project  # a second clone finds what the first one compiled
export CCACHE_SLOPPINESS=pch_defines,time_macros  # what ccache asks for with precompiled headers
export NINJA_STATUS='[%f/%t %es] '

say() { printf '%s: %s\n' "$tool" "$*"; }
die() { printf '%s: %s\n' "$tool" "$*" >&2; exit 1; }

# usage: prints the head of the running script, from its third comment line to the first line that is none.
usage() { sed -n -e '1,4d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"; }

# quietly COMMAND...: shows what it printed only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  [ "$status" = 0 ] || tail -n 25 "$log" >&2
  rm -f "$log"
  return "$status"
}

# jobs: compilers at once. One per core, but a file that includes LibTorch takes up to 2.5 GB.
jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 2500000)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# configure PRESET [PACKAGE]: runs CMake only where ninja would not do it by itself: the first time, for another compiler
# or LibTorch, or when PACKAGE (say Catch2) was missing the last time.
configure() {
  local folder=$project/build/$1 fresh=()
  local choice="CXX=${CXX:-} LIBTORCH=${LIBTORCH:-} CMAKE_PREFIX_PATH=${CMAKE_PREFIX_PATH:-} cache=$cache"
  if [ -e "$folder/build.ninja" ]; then
    if [ -e "$folder/.choice" ] && [ "$(cat "$folder/.choice")" != "$choice" ]; then
      say "another compiler or LibTorch than before: build/$1 starts afresh"
      fresh=(--fresh)
    elif [ -e "$folder/.choice" ] && [ "$project/CMakePresets.json" -ot "$folder/.choice" ] &&
      ! grep -qs "^${2:-none}_DIR:PATH=.*-NOTFOUND" "$folder/CMakeCache.txt"; then
      quietly ninja -C "$folder" build.ninja || die "CMake could not configure (see above)"  # files may be new
      return 0
    fi
  fi
  say "configuring build/$1"
  (cd "$project" && cmake --preset "$1" "${fresh[@]}" -Wno-dev) ||
    die "CMake could not configure (see above). After the cure, type the same command again."
  echo "$choice" >"$folder/.choice"
}

# build PRESET [TARGET...]: everything if no target is named.
build() {
  local folder=$project/build/$1 targets=()
  shift
  [ $# = 0 ] || targets=(--target "$@")
  say "building ${*:-everything} in ${folder#"$project"/}"
  cmake --build "$folder" -j "$(jobs)" "${targets[@]}" || die "the build failed (see above)"
}
