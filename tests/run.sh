#!/usr/bin/env bash
# The checks of the project: tests/run.sh test|test-more [JOBS]
#
# `test` builds once and runs the tests of that build. `test-more` runs the checks that need another
# build, another environment or more time. CI runs both (.ci/run). Each stage is a make target. A
# failed stage does not stop the others, but a failed build skips its tests. The summary lists all
# stages and the commands that run only the failed ones.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
suite=${1:-}
jobs=${2:-$(nproc)}
# Builds CUDA kernels if nvcc is installed: compiling and linking them needs no GPU, and the CPU
# tests must pass in such a build. The packages are built without them. The two targets compile both
# branches of the code: without and with instructions for FP8.
cuda=OFF
export TELENS_CUDA_TARGETS='80;90a'
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  cuda=ON
fi
# GB next to .venv: builds, with precompiled headers of half a GB each, and ccache.
needed=8
free=$(($(df --output=avail -k . | tail -n 1) / 1000000))
if [ ! -d build ] && [ "$free" -lt "$needed" ]; then
  printf 'tests/run.sh: the disk of %s has %d GB free; these builds need %d: make room first\n' \
    "$PWD" "$free" "$needed" >&2
  exit 2
fi
lightning=tests/python/test_run_as_te.py::test_lightning_te_precision_trains_in_fp8
attached="tests/python/test_attach_frameworks.py tests/python/test_attach_torchao.py \
  tests/python/test_attach_bitsandbytes.py"
results=()
failed=()

# stage NAME TARGET [VARIABLE=VALUE]: makes a target and records its result and time. Skips it after
# the time TELENS_LAST_START (seconds since the epoch), if that is set.
stage() {
  local name=$1 start=$SECONDS outcome=passed
  shift
  if [ "$(date +%s)" -gt "${TELENS_LAST_START:-9999999999}" ]; then
    results+=("not run           $name")
    return 1
  fi
  printf '\n== %s\n' "$name"
  make --no-print-directory "$@" JOBS="$jobs" </dev/null || {
    outcome=FAILED
    failed+=("make$(printf ' %q' "$@")")
  }
  results+=("$(printf '%-7s %5d s  %s' "$outcome" $((SECONDS - start)) "$name")")
  [ "$outcome" = passed ]
}

# drop FOLDER: in CI, removes a build that no later stage needs.
drop() {
  if [ "${CI:-}" = true ]; then
    rm -rf "$1"
  fi
}

case "$suite" in
  test)
    stage "structure: include arrows, formatting, machine paths" test-structure
    if stage "build, CUDA $cuda" build CUDA="$cuda" CUDA_TARGETS="$TELENS_CUDA_TARGETS"; then
      stage "C++ and command tests" test-cpp
      TELENS_CUDA="$cuda" stage "Python tests" test-python
      stage "samples" test-samples
    fi
    ;;
  test-more)
    if stage "build, CUDA $cuda" build CUDA="$cuda" CUDA_TARGETS="$TELENS_CUDA_TARGETS"; then
      stage "demo: the sample learns in FP8 and is recorded" demo
      stage "long Python and sample tests" test-long
      # The other client tests run with the Python tests.
      stage "clients: Megatron-Core, Lightning, torchao, TRL, in build/clients" test-clients \
        CLIENT_TESTS="tests/python/test_megatron.py $lightning $attached"
      stage "wandb, trackio and MLflow, in build/trackers" test-trackers
      stage "Parquet, with pyarrow and DuckDB in build/tables" test-tables
      stage "telens.paddle, in its own environment" test-paddle
      drop build-paddle
      stage "packages: find_package(telens), pip install" test-package
      drop build-wheel
      stage "benchmarks, briefly" bench-quick
    fi
    stage "C++ and command tests under AddressSanitizer and UBSan (without LibTorch)" asan
    drop build-asan
    stage "C++ tests of threads under ThreadSanitizer (without LibTorch)" tsan-quick
    drop build-tsan
    ;;
  *)
    printf 'tests/run.sh %s: expected test or test-more\n' "$suite" >&2
    exit 2
    ;;
esac
if [ "$cuda" = ON ]; then
  make --no-print-directory configure CUDA=OFF >/dev/null
fi

printf '\n== summary of make %s (%d s)\n' "$suite" "$SECONDS"
printf '%s\n' "${results[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  printf '\nRun only what failed:\n'
  printf '  %s\n' "${failed[@]}"
  exit 1
fi
