# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The distribution's packages and the versions that accel needs of them, for tools/setup, which sources this file.

catch2_least=3.4 cmake_least=3.25 gcc_least=12 clang_least=16

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# missing_packages NAME...: those that are not installed, or too old.
missing_packages() {
  local installed name
  installed=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)"
  for name in "$@"; do
    [[ $installed == *" installed:$name "* ]] || echo "$name"
  done
  if [[ $installed == *" installed:catch2 "* ]] &&
    dpkg --compare-versions "$(dpkg-query -W -f '${Version}' catch2)" lt $catch2_least; then
    echo catch2
  fi
}

# Catch2 of Debian 12 is too old; its backports have a newer one. Their address is that of the source in use.
install_catch2() {
  local candidate suite address keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  candidate=$(apt-cache policy catch2 | awk '/Candidate:/ {print $2}')
  if dpkg --compare-versions "$candidate" ge $catch2_least; then
    apt_get install catch2
    return
  fi
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  if ! apt-cache policy | grep -q "n=$suite-backports"; then
    address=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $suite" | head -n 1)
    [ -n "$address" ] || { echo "no package source of $suite to derive its backports from"; return 1; }
    { printf 'Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\n' "$address" "$suite"
      [ ! -e $keyring ] || echo "Signed-By: $keyring"; } |
      as_root tee "/etc/apt/sources.list.d/$suite-backports.sources" >/dev/null
    apt_get update
  fi
  apt_get install -t "$suite-backports" catch2
}

install_packages() {
  local missing others command
  command -v dpkg-query >/dev/null ||
    die "this is neither Debian nor Ubuntu. Install what these packages are called here, then use cmake --preset default: $*"
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  command="apt-get update && apt-get install ${missing[*]}"
  as_root true 2>/dev/null || die "packages are missing, and installing them needs root. Type as root: $command"
  say "installing ${#missing[@]} packages: ${missing[*]}"
  mapfile -t others < <(printf '%s\n' "${missing[@]}" | grep -vx catch2)
  quietly apt_get update || die "the package lists could not be read (see above; is there a network?). Then type: $command"
  [ ${#others[@]} = 0 ] || quietly apt_get install "${others[@]}" ||
    die "packages could not be installed (see above; is there a network?). Then type: $command"
  [ ${#others[@]} = ${#missing[@]} ] || quietly install_catch2 ||
    die "Catch2 $catch2_least or newer could not be installed (see above). Build it, and name it by CMAKE_PREFIX_PATH."
}

# at_least VERSION LEAST
at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

require_compiler() {
  local compiler=${CXX:-c++} macros clang gcc
  command -v "${compiler%% *}" >/dev/null ||
    die "there is no compiler '$compiler'. Type: apt-get install g++ (and unset CXX, or name one by it)"
  macros=$($compiler -E -P -x c++ - 2>/dev/null <<<'__clang_major__ __GNUC__') || macros=
  read -r clang gcc <<<"$macros"
  if [[ ${clang:-} =~ ^[0-9]+$ ]]; then
    [ "$clang" -ge $clang_least ] || die "$compiler is clang $clang; accel needs clang $clang_least or g++ $gcc_least. \
Type: apt-get install clang-$llvm; export CXX=clang++-$llvm"
  elif ! [[ ${gcc:-} =~ ^[0-9]+$ ]] || [ "$gcc" -lt $gcc_least ]; then
    die "$compiler is g++ ${gcc:-?}; accel needs g++ $gcc_least or clang $clang_least. \
Type: apt-get install g++-$gcc_least; export CXX=g++-$gcc_least"
  fi
}

require_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | awk 'NR == 1 {print $3}')
  [ -n "$version" ] || die "there is no cmake on the PATH. Type: apt-get install cmake"
  at_least "$version" $cmake_least || die "CMake $version ($(command -v cmake)) is too old; accel needs $cmake_least. \
Type: python3 -m pip install --user cmake; export PATH=\$HOME/.local/bin:\$PATH"
}
