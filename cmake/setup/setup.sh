#!/usr/bin/env bash
# Installs missing packages: Debian packages through apt, Python packages into .venv. A second run
# does nothing.
#
# setup.sh [build|debian|wheels|aarch64]
#   (none)   all packages, including packages for tests and checks
#   build    only packages to build and use TELens
#   debian   only the Debian packages of `build`, which are enough to compile the command
#   wheels   tools to unpack the sources of the libraries in wheels
#   aarch64  Debian's cross compiler for aarch64, and QEMU
#
# Environment: TELENS_PYTHON  interpreter of .venv; default: /usr/bin/python3, even if a version
#                             manager has another Python first in PATH
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
logs=$root/build/setup
venv=$root/.venv
lists=(packages test-packages)
case "${1:-}" in
  '') ;;
  build | debian) lists=(packages) ;;
  wheels) lists=(wheel-packages) ;;
  aarch64) lists=(aarch64-packages) ;;
  *)
    printf 'error: setup.sh %s: expected nothing, build, debian, wheels or aarch64\n' "$1" >&2
    exit 2
    ;;
esac

debian_lists=("${lists[@]/#/$here/debian-}")
debian_lists=("${debian_lists[@]/%/.txt}")

say() { printf '== %s\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# logged NAME COMMAND...: prints the output of the command and stores it in build/setup/NAME.log.
logged() {
  local log=$logs/$1.log
  shift
  mkdir -p "$logs"
  "$@" 2>&1 | tee "$log" >&2 || {
    say "failed: $* (log: ${log#"$root"/})"
    return 1
  }
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    command -v sudo >/dev/null || fail "installing packages needs root or sudo: $*"
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

missing_debian_packages() {
  local name
  sed -e 's/#.*//' "${debian_lists[@]}" | while read -r name; do
    [ -z "$name" ] && continue
    # Prints "ii" or "hi" if the package, or one that provides it, is installed.
    dpkg-query -W -f '${db:Status-Abbrev}\n' "$name" 2>/dev/null | grep -q '^.i' || echo "$name"
  done
}

install_debian_packages() {
  local missing
  mapfile -t missing < <(missing_debian_packages)
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  local install=(apt-get install -y --no-install-recommends "${missing[@]}")
  # Fetches the package lists only if they are missing or outdated.
  if "${install[@]}" --simulate >/dev/null 2>&1; then
    logged apt-install as_root "${install[@]}" && return
  fi
  logged apt-update as_root apt-get update && logged apt-install as_root "${install[@]}" ||
    fail "apt could not install: ${missing[*]}"
}

has_header() { echo "#include <$1>" | "${CXX:-c++}" -x c++ -fsyntax-only - 2>/dev/null; }

# Without apt: fails with a list of the packages to install.
check_other_system() {
  local missing=() name
  for name in g++ cmake ninja pkg-config; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  if command -v pkg-config >/dev/null; then
    for name in yaml-cpp fmt libpcre2-8 libhwy zlib gtest gmock; do
      pkg-config --exists "$name" || missing+=("$name (development files)")
    done
  fi
  has_header CLI/CLI.hpp || missing+=("CLI11")
  has_header nlohmann/json.hpp || missing+=("nlohmann-json")
  has_header httplib.h || missing+=("cpp-httplib")
  [ -e /usr/share/javascript/chart.js/chart.min.js ] ||
    missing+=("Chart.js 3.9 (its chart.min.js in /usr/share/javascript/chart.js)")
  has_header H5public.h || has_header hdf5/serial/H5public.h || missing+=("HDF5 (development files)")
  [ ${#missing[@]} -eq 0 ] ||
    fail "this system has no apt; install first: $(printf '%s; ' "${missing[@]}")"
}

# pip_install ARGUMENT...: installs into .venv with uv, which is three times as fast as pip for torch.
# Uses pip if uv is unavailable or fails. uv does not read pip's settings, so this passes pip's index
# to it and enables the system's certificates.
pip_install() {
  local index extra
  if "$venv/bin/pip" install -q uv >/dev/null 2>&1; then
    index=$("$venv/bin/pip" config get global.index-url 2>/dev/null || true)
    extra=$("$venv/bin/pip" config get global.extra-index-url 2>/dev/null || true)
    UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$index}} \
    UV_INDEX=${UV_INDEX:-${PIP_EXTRA_INDEX_URL:-$extra}} \
    UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 \
      logged uv "$venv/bin/uv" pip install --python "$venv/bin/python" --no-progress "$@" && return
    say "uv failed; installing with pip"
  fi
  logged pip "$venv/bin/pip" install "$@"
}

install_python_packages() {
  local list missing=()
  # .venv contains a copy of every installed list.
  for list in "${lists[@]}"; do
    cmp -s "$here/python-$list.txt" "$venv/telens-python-$list.txt" || missing+=("$list")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local python=${TELENS_PYTHON:-/usr/bin/python3}
  command -v "$python" >/dev/null || python=python3
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    fail "TELens requires Python 3.10 or later, but $python is not; set TELENS_PYTHON"
  if [ ! -x "$venv/bin/pip" ]; then
    say "creating .venv with $python"
    logged venv "$python" -m venv "$venv" || fail "$python cannot create .venv"
  fi
  say "installing Python packages into .venv (torch is large: several GB)"
  # Includes the lists that were installed before, so that their packages stay compatible.
  local wanted=()
  for list in packages test-packages; do
    if [[ " ${lists[*]} " == *" $list "* ]] || [ -e "$venv/telens-python-$list.txt" ]; then
      wanted+=(-r "$here/python-$list.txt")
    fi
  done
  pip_install "${wanted[@]}" ||
    fail "pip could not install the packages of cmake/setup/$(printf 'python-%s.txt ' "${missing[@]}")"
  for list in "${missing[@]}"; do cp "$here/python-$list.txt" "$venv/telens-python-$list.txt"; done
}

# Runs one instance at a time, because apt and .venv do not support two, as under make -j.
if command -v flock >/dev/null; then
  mkdir -p "$logs"
  exec 9>"$logs/lock"
  flock 9
fi
if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_debian_packages
else
  check_other_system
fi
[[ ${1:-} =~ ^(debian|wheels|aarch64)$ ]] || install_python_packages
