#!/usr/bin/env bash
# progress.sh WHAT LOG COMMAND...: runs the command with its output in LOG. Every ten seconds it prints
# how far the command is, by the last "[12/93]" that Ninja wrote to LOG:
#
#   == compiling the command, 12 of 93, 40 s; log: build/setup/command.log
#
# Exits as the command does.
#
# Environment: TELENS_PROGRESS_SECONDS  the interval instead of ten seconds.
set -uo pipefail
what=$1 log=$2
shift 2

say() { printf '== %s%s, %d s; log: %s\n' "$what" "$1" "$SECONDS" "$log" >&2; }

mkdir -p "$(dirname "$log")"
: >"$log"
say ''
"$@" >"$log" 2>&1 &
command=$!
trap 'kill "$command" 2>/dev/null' EXIT
while
  sleep "${TELENS_PROGRESS_SECONDS:-10}" >/dev/null 2>&1 &
  timer=$!
  wait -n "$command" "$timer" 2>/dev/null
  kill "$timer" 2>/dev/null
  kill -0 "$command" 2>/dev/null
do
  steps=$(grep -oE '^\[[0-9]+/[0-9]+\]' "$log" | tail -n 1 | tr -d '[]')
  say "${steps:+, ${steps%/*} of ${steps#*/}}"
done
trap - EXIT
wait "$command"
