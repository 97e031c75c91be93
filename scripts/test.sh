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

# Which tests a sanitizer looks at: those that it can find something in, without the kernels' (loops over all bytes
# and magnitudes) and those that take minutes there. That leaves CI, which runs them all, below an hour.
declare -A targets=(
  [asan]="--target shard_tests storage_tests checkpoint_tests checkpoint_write_tests checkpoint_group_tests
          convert_tests loader_tests runtime_tests programs_tests checkpoint_h5py_writer fuzzers"
  [tsan]="--target runtime_tests loader_tests programs_tests checkpoint_tests checkpoint_group_tests")
declare -A tests=(
  [release]=.
  [asan]='^(shard|storage|checkpoint|checkpoint_write|checkpoint_group|convert|loader|programs)/|^runtime/.*Process|CallGroup'
  [tsan]='^(loader|checkpoint_group)/|^runtime/.*(Process|CallGroup|Executor|TaskGraph|Device|Manual)|^programs/(Tracer|TracerState|Processes|DifferentProcesses|ManualRegions)|^checkpoint/(Lanes|Pipeline|ScratchPool|ChunkReader)')
too_long='/(RandomPrograms.GiveThe|Metamorphic|GoldenTraining|TaskOrder|Gradient|Policies)|/Integrity.*EveryBit|programs/lax'

test_with() {
  echo "== $1: configure and build"
  local python=() without=()
  if [ "$1" = release ]; then
    python=(-D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python")
  elif [ "${label[0]}" = -LE ]; then
    without=(-E "$too_long")
  fi
  cmake --preset "$1" "${python[@]}" >/dev/null
  cmake --build --preset "$1" ${targets[$1]:-}
  echo "== $1: test"
  ctest --test-dir "build/$1" "${label[@]}" -R "${tests[$1]}" "${without[@]}" --no-tests=error --output-on-failure -j "$(nproc)"
}
for preset in "${presets[@]}"; do test_with "$preset"; done

# Inputs that no one has thought of, from the corpus on: 5 seconds for each target.
if [ "${label[0]}" = -LE ]; then
  echo "== fuzz: configure and build"
  cmake --preset asan >/dev/null
  cmake --build --preset asan --target fuzzers
  for corpus in tests/fuzz/corpus/*/; do
    target=$(basename "$corpus")
    echo "== fuzz: $target"
    mkdir -p "build/asan/new/$target"
    words=()
    [ "$target" = text_forms ] || words=(-dict=tests/fuzz/manifest.dict)
    "build/asan/tests/fuzz/${target}_fuzz" -seed=1 -max_total_time=5 -timeout=20 -verbosity=0 -print_final_stats=1 \
      "${words[@]}" -artifact_prefix="build/asan/$target-" "build/asan/new/$target" "$corpus" 2>&1 |
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
