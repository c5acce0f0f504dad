#!/usr/bin/env bash
# clang-tidy over the C++ files that differ from a commit: clang_tidy_changed.sh [COMMIT]. Default:
# where this branch left origin's main branch, or else the last commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
base=${1:-$(git merge-base HEAD origin/HEAD 2>/dev/null || echo HEAD~1)}
mapfile -t changed < <(
  git diff --name-only --diff-filter=d "$base" -- '*.cpp'
  git ls-files --others --exclude-standard -- '*.cpp')
[ ${#changed[@]} -gt 0 ] || exit 0
# A compilation database of each file by itself, without precompiled headers: GCC's are nothing that
# clang can read.
cmake --preset release -B build-lint -DTELENS_PRECOMPILED_HEADERS=OFF -DTELENS_UNITY=OFF >/dev/null
mapfile -t compiled < <(
  .venv/bin/python -c '
import json, os, sys
known = {os.path.relpath(entry["file"]) for entry in json.load(open("build-lint/compile_commands.json"))}
print("\n".join(name for name in sys.argv[1:] if name in known))' "${changed[@]}")
printf '%s\n' "${compiled[@]}" | xargs -r -P "$(nproc)" -n 1 clang-tidy --quiet -p build-lint \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Qunused-arguments  # clang lacks some of GCC's
