# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What comes by pip into the cache folder: LibTorch, and the Python packages that accel is compared with. For tools/setup,
# which sources this file. A download counts only when it is whole: it gets its name, or its mark, as the last step.

libtorch_version=2.11.0
peers=("torch==$libtorch_version" accelerate==1.15.0 transformers==4.57.1 numpy tensorboard safetensors)

# run_pip PYTHON OPTIONS...: shows its progress at a terminal.
run_pip() {
  local python=$1 noise=(-q)
  shift
  [ ! -t 1 ] || noise=()
  PIP_DEFAULT_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-60} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    "$python" -m pip install "${noise[@]}" "$@"
}

# need_space GIGABYTES
need_space() {
  local free
  free=$(df --output=avail -BG "$cache" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge "$1" ] || die "$cache has $free GB free, and $1 GB are needed. Name another folder: export ACCEL_CACHE=/path"
}

is_libtorch() { [ -e "$1/lib/libtorch_cpu.so" ] && [ -e "$1/include/torch/csrc/api/include/torch/torch.h" ]; }

# The same places, in the same order, as tools/cmake/AccelLibTorch.cmake (which also checks version and ABI).
existing_libtorch() {
  local places place root
  IFS=':;' read -ra places <<<"${LIBTORCH:-}:${CMAKE_PREFIX_PATH:-}:$cache/libtorch-$libtorch_version"
  for place in "${places[@]}"; do
    for root in "$place" "$place/torch" "$place/../.." "$place/../../.."; do
      [ -z "$place" ] || ! is_libtorch "$root" || return 0
    done
  done
  return 1
}

get_libtorch() {
  local target=$cache/libtorch-$libtorch_version
  if [ -n "${LIBTORCH:-}" ] && ! is_libtorch "$LIBTORCH" && ! is_libtorch "$LIBTORCH/torch"; then
    die "LIBTORCH=$LIBTORCH holds no LibTorch (no lib/libtorch_cpu.so with its headers). Type: unset LIBTORCH"
  fi
  ! existing_libtorch || return 0
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9  # two setups at once: the second finds the work of the first
  if ! existing_libtorch; then
    need_space 4
    rm -rf "$target.tmp"
    mkdir "$target.tmp"
    say "getting LibTorch $libtorch_version into $target (1.3 GB)"
    # Only what the CPU libraries need; all that the wheel names would be 4.7 GB.
    TMPDIR=$target.tmp run_pip python3 --no-deps --target "$target.tmp" "torch==$libtorch_version" \
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*' ||
      die "LibTorch $libtorch_version could not be had by pip (see above; is there a network, is python3 one of 3.10 to 3.14?). \
Then type: tools/setup; or name one that is there: export LIBTORCH=/path/to/libtorch"
    is_libtorch "$target.tmp/torch" || die "pip's torch holds no LibTorch for C++. Name another: export LIBTORCH=/path"
    mv -T "$target.tmp" "$target"
  fi
  exec 9>&-
}

# A virtual environment cannot be renamed, so its last file is the mark, and holds what it was made from.
get_peers() {
  local folder=$cache/peers
  local mark=$folder/.complete
  [ "$(cat "$mark" 2>/dev/null)" != "${peers[*]}" ] || return 0
  mkdir -p "$cache"
  need_space 12
  rm -rf "$folder"
  say "getting ${peers[*]} into $folder (4.7 GB)"
  quietly python3 -m venv "$folder" || die "no virtual environment could be made. Type: apt-get install python3-venv"
  TMPDIR=$folder run_pip "$peers_python" "${peers[@]}" ||
    die "Python's packages could not be had (see above; is there a network?). Then type: tools/setup peers"
  echo "${peers[*]}" >"$mark"
}
