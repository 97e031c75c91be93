#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests.
#
#   scripts/test.sh                 release build, all tests, and each fuzz target for 5 seconds
#   scripts/test.sh --frameworks    the same, with PyTorch and JAX: Python's tests that need them are run, too
#   scripts/test.sh --sanitizers    also, for what is named below, address + undefined, and thread
#   scripts/test.sh --nightly       the long tests alone, which ctest labels nightly
set -euo pipefail
cd "$(dirname "$0")/.."

presets=(release) label=(-LE nightly) packages=(safetensors)
for word in "$@"; do
  case "$word" in
    --frameworks) packages+=(torch torchdata jax optax flax orbax-checkpoint) ;;
    --sanitizers) presets+=(asan tsan) ;;
    --nightly) label=(-L nightly) ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
scripts/setup.sh
scripts/python.sh "${packages[@]}"

# A sanitizer looks at the tests that it can find something in: that leaves CI, which runs them all, below an hour.
declare -A targets=(
  [asan]="--target shard_tests storage_tests checkpoint_tests checkpoint_write_tests checkpoint_group_tests
          convert_tests loader_tests runtime_tests programs_tests"
  [tsan]="--target runtime_tests loader_tests programs_tests checkpoint_tests checkpoint_group_tests")
declare -A tests=(
  [release]=.
  [asan]='^(shard|storage|checkpoint|checkpoint_write|checkpoint_group|convert|loader|runtime|programs)/'
  [tsan]='^(runtime|loader|programs|checkpoint_group)/|^checkpoint/(Lanes|Pipeline|ScratchPool|ChunkReader)')
for preset in "${presets[@]}"; do
  echo "== $preset: configure and build"
  python=()
  [ "$preset" != release ] || python=(-D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python")
  cmake --preset "$preset" "${python[@]}" >/dev/null
  cmake --build --preset "$preset" ${targets[$preset]:-}
done
for preset in "${presets[@]}"; do
  echo "== $preset: test"
  ctest --test-dir "build/$preset" "${label[@]}" -R "${tests[$preset]}" --no-tests=error --output-on-failure -j "$(nproc)"
done

# Inputs that no one has thought of, from the corpus on. Not optimised: that halves the time to build,
# and 5 seconds are enough for each.
if [ "${label[0]}" = -LE ]; then
  echo "== fuzz: configure and build"
  cmake --preset fuzz -B build/fuzz-short -D CMAKE_CXX_FLAGS_DEBUG="-O0 -g1" >/dev/null
  cmake --build build/fuzz-short --target fuzzers
  for corpus in tests/fuzz/corpus/*/; do
    target=$(basename "$corpus")
    echo "== fuzz: $target"
    mkdir -p "build/fuzz-short/new/$target"
    words=()
    [ "$target" = text_forms ] || words=(-dict=tests/fuzz/manifest.dict)
    "build/fuzz-short/tests/fuzz/${target}_fuzz" -seed=1 -max_total_time=5 -timeout=20 -verbosity=0 -print_final_stats=1 \
      "${words[@]}" -artifact_prefix="build/fuzz-short/$target-" "build/fuzz-short/new/$target" "$corpus" 2>&1 |
      grep -vE 'new_units|slowest' || { echo "fuzz: $target failed" >&2; exit 1; }
  done
fi

# What ctest keeps to itself.
echo "== Python's tests that were skipped"
sed -nE 's/^SKIPPED //p' build/release/Testing/Temporary/LastTest.log
echo "== states of a disk after a power loss that were looked at"
for preset in "${presets[@]}"; do
  sed -nE 's|^[0-9]+/[0-9]+ Test: ([^ ]+).*|\1|; /^checkpoint_crash/h; /states of the disk/ { G; s|(.*)\n(.*)|\2: \1|p }' \
    "build/$preset/Testing/Temporary/LastTest.log"
done
