#!/usr/bin/env bash
# What is checked without running anything: clang-format for every file, clang-tidy (.clang-tidy says which
# checks) for the libraries, the command and the examples. With clang 14, Debian 12's: others format otherwise.
#
#   scripts/check.sh              both; prints what is wrong, exit status 1
#   scripts/check.sh --fix        formats, instead of complaining
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files '*.h' '*.cc')
if [ "${1:-}" = --fix ]; then
  clang-format -i "${files[@]}"
else
  echo "== clang-format"
  clang-format --dry-run -Werror "${files[@]}"
fi

echo "== clang-tidy"
cmake --preset clang >/dev/null
mapfile -t sources < <(git ls-files {shard,storage,runtime,loader,checkpoint,tools,examples}/'*.cc')
# Eight files a process, so that the two that are the slowest do not come last alone.
printf '%s\n' "${sources[@]}" |
  xargs -P "$(nproc)" -n 8 clang-tidy -p build/clang --quiet --warnings-as-errors='*' 2>/dev/null
