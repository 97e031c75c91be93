#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests.
#
#   scripts/test.sh                 release build, all tests
#   scripts/test.sh --sanitizers    also address + undefined, thread, and clang's thread-safety analysis
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

presets=(release)
case "${1:-}" in
  "") ;;
  --sanitizers) presets+=(asan tsan clang) ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

# clang analyses what we ship, at compile time; the tests run under the other presets.
declare -A targets=([clang]="--target shardwise_tool shardwise_loader")
for preset in "${presets[@]}"; do
  echo "== $preset: configure and build"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" ${targets[$preset]:-}
done
for preset in "${presets[@]}"; do
  [ "$preset" != clang ] || continue
  echo "== $preset: test"
  ctest --preset "$preset" -j "$(nproc)"
done
