#!/usr/bin/env bash
# Fuzzes the code that reads users' files, under AddressSanitizer and UBSan, until an input crashes or
# hangs it: run.sh [SECONDS per target] [JOBS]. The input is kept in build-fuzz. Minimize it with
# build-fuzz/bin/fuzz_TARGET -minimize_crash=1 -runs=100000 FILE and add it to tests/fuzz/cases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-600}
jobs=${2:-$(nproc)}
if ! command -v clang++ >/dev/null; then
  echo "make fuzz needs clang++ with libFuzzer (Debian: apt-get install clang libclang-rt-dev)" >&2
  exit 1
fi
cmake --preset fuzz >/dev/null
cmake --build build-fuzz --parallel "$jobs" --target fuzz_load_config fuzz_read_run write_run

fuzz() {  # fuzz TARGET SEEDS...: the corpus grows in build-fuzz, seeds are only read
  local target=$1 corpus="build-fuzz/corpus/$1"
  shift
  mkdir -p "$corpus"
  echo "$target for $seconds s"
  build-fuzz/bin/"fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
    -max_len=400000 -print_final_stats=1 -artifact_prefix="build-fuzz/$target-" \
    "$corpus" "$@" >"build-fuzz/$target.log" 2>&1 || {
    tail -n 60 "build-fuzz/$target.log" >&2
    return 1
  }
  grep 'stat::number_of_executed_units' "build-fuzz/$target.log"
}

fuzz load_config configs tests/fuzz/cases/load_config
rm -rf build-fuzz/run && build-fuzz/tests/write_run build-fuzz/run seed 3
# HDF5 leaks memory when it reads damaged files.
ASAN_OPTIONS=detect_leaks=0 fuzz read_run build-fuzz/run/telens/seed tests/fuzz/cases/read_run
