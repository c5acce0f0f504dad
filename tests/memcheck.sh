#!/usr/bin/env bash
# Runs the C++ tests that use LibTorch under valgrind's memcheck: tests/memcheck.sh [TEST...]
# TEST: a name such as linear_test; all of them by default.
#
# The sanitizer builds have no LibTorch, which is not instrumented; memcheck needs no other build.
# Tests without LibTorch are left to `make asan`. One test runs at a time, at low priority, so that a
# machine can be used meanwhile.
#
# valgrind emulates a processor without AVX-512 and AMX and reports it as such, so LibTorch and our
# kernels choose their AVX2 code by themselves. ATEN_CPU_CAPABILITY only pins LibTorch's choice.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v valgrind >/dev/null || {
  echo "tests/memcheck.sh: valgrind is not installed; make setup installs it" >&2
  exit 2
}
# valgrind runs one thread at a time: one that spins for another would spin for its whole turn.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0
export ATEN_CPU_CAPABILITY=avx2
logs=build/memcheck
mkdir -p "$logs"

uses_libtorch() { ldd "$1" | grep -q 'libtelens\.so'; }

tests=("$@")
if [ ${#tests[@]} -eq 0 ]; then
  for program in build/tests/*_test; do
    if uses_libtorch "$program"; then tests+=("${program##*/}"); fi
  done
fi
failed=()
for name in "${tests[@]}"; do
  start=$SECONDS outcome=passed
  rm -f "$logs/$name".*
  # Each process of a test that forks has its own log; -q leaves it empty unless there is an error.
  nice -n 10 valgrind -q --num-callers=24 --fair-sched=yes \
    --suppressions=cmake/valgrind_suppressions.txt --log-file="$logs/$name.%p.txt" \
    "build/tests/$name" --gtest_brief=1 >"$logs/$name.log" 2>&1 </dev/null || outcome=FAILED
  if [ -n "$(find "$logs" -name "$name.*.txt" -size +0)" ]; then outcome=FAILED; fi
  printf '%-6s %5d s  %s\n' "$outcome" $((SECONDS - start)) "$name"
  if [ "$outcome" = FAILED ]; then failed+=("$name"); fi
done
if [ ${#failed[@]} -gt 0 ]; then
  printf '\nThe errors are in %s. Run only these tests:\n  make memcheck MEMCHECK="%s"\n' \
    "$logs" "${failed[*]}"
  exit 1
fi
