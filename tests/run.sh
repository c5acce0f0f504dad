#!/usr/bin/env bash
# Every check of the project, the quick ones first: tests/run.sh [JOBS]. Goes on after a failure
# (but does not test what was not built), and lists at the end what passed and what failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=${1:-$(nproc)}
python=.venv/bin/python
# With the kernels for GPUs where there is an nvcc: no GPU is needed to compile and link them, and what
# the CPU promises holds in a build that has them. The packages are built without.
cuda=OFF
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  cuda=ON
fi
# So many GB fill up beside .venv: what is built, with precompiled headers of half a GB each, and ccache.
needed=8
free=$(($(df --output=avail -k . | tail -n 1) / 1000000))
if [ ! -d build ] && [ "$free" -lt "$needed" ]; then
  printf 'tests/run.sh: the disk of %s has %d GB free; these builds need %d: make room first\n' \
    "$PWD" "$free" "$needed" >&2
  exit 2
fi
pytest=("$python" -m pytest -q --durations=5)
results=()
failed=0

# stage NAME COMMAND...: runs a stage and notes how it ended.
stage() {
  local name=$1 start=$SECONDS outcome=passed
  shift
  printf '\n== %s\n' "$name"
  "$@" </dev/null || { outcome=FAILED failed=1; }
  results+=("$(printf '%-7s %5d s  %s' "$outcome" $((SECONDS - start)) "$name")")
  [ "$outcome" = passed ]
}

# drop FOLDER: removes what no later stage reads, where there is no next run; a developer keeps it.
drop() {
  if [ "${CI:-}" = true ]; then
    rm -rf "$1"
  fi
}

# Files side by side; threads of one test that wait for each other leave the processor to the other.
side_by_side() {
  GOMP_SPINCOUNT=0 "${pytest[@]}" -n "$jobs" --dist loadfile "$@"
}

stage "structure: include arrows, formatting, machine paths" "${pytest[@]}" tests/structure
stage "C++ tests under AddressSanitizer and UBSan (without LibTorch)" \
  make --no-print-directory asan JOBS="$jobs"
drop build-asan
stage "C++ tests of threads under ThreadSanitizer (without LibTorch)" \
  make --no-print-directory tsan-quick JOBS="$jobs"
drop build-tsan
if stage "build, CUDA $cuda" make --no-print-directory build CUDA="$cuda" JOBS="$jobs"; then
  stage "C++ tests" ctest --preset release --parallel "$jobs"
  TELENS_CUDA="$cuda" stage "Python tests" side_by_side tests/python
  stage "Parquet, with pyarrow and DuckDB beside .venv" make --no-print-directory test-tables
  stage "samples" side_by_side tests/samples
  # Two minutes on two cores, of which the installation takes one.
  stage "telens.paddle, in an environment of its own" make --no-print-directory test-paddle
  drop build-paddle
  stage "packages: find_package(telens), pip install" "${pytest[@]}" tests/package
  drop build-wheel
  stage "benchmarks, briefly" make --no-print-directory bench-quick
fi
if [ "$cuda" = ON ]; then
  make --no-print-directory configure CUDA=OFF >/dev/null
fi

printf '\n== summary (%d s)\n' "$SECONDS"
printf '%s\n' "${results[@]}"
exit "$failed"
