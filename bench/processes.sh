#!/usr/bin/env bash
# Steps of a program by 1, 2 and 4 processes; then they save and restore on the file system of DIR, by turns:
#
#   bench/processes.sh DIR [MIB] [TURNS]
set -euo pipefail
program=$(dirname "$0")/../build/release/bench/process_bench
dir=$1 mib=${2:-2048} turns=${3:-3}
for processes in 1 2 4; do
  mpirun --oversubscribe --bind-to none -n "$processes" "$program" --step
done
for ((turn = 1; turn <= turns; ++turn)); do
  for processes in 1 2 4; do
    mpirun --oversubscribe --bind-to none -n "$processes" "$program" "$dir/process-bench" "$mib"
    rm -rf "$dir/process-bench"
  done
done
