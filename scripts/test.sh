#!/usr/bin/env bash
# Installs missing packages, builds, runs all tests.
#
#   scripts/test.sh                 release build, all tests, and each fuzz target for 5 seconds
#   scripts/test.sh --frameworks    the same, with PyTorch, JAX and SeaweedFS: tests that need them are run, too
#   scripts/test.sh asan            the tests named below under the address and undefined-behaviour sanitizers; also: tsan
#   scripts/test.sh --nightly       the long tests alone, which ctest labels nightly; with a sanitizer's name: there
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release label=(-LE nightly) packages=(safetensors)
for word in "$@"; do
  case "$word" in
    --frameworks) packages+=(--frameworks) ;;
    asan | tsan) preset=$word ;;
    --nightly) label=(-L nightly) ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
scripts/setup.sh
configure=() targets=() tests=(-R .)

# Tests that a sanitizer runs: those in which it can find something, without the kernels' (loops over all bytes
# and magnitudes). CI leaves out what takes minutes there.
too_long='/(RandomPrograms.GiveThe|Checkpoint.(TheGpt|WhatIs|Random)|Convolution.OfRandom|Windows.Move|ProcessesRunPrograms.WithThe|Metamorphic|GoldenTraining|TaskOrder|Gradient|Policies'
too_long+='|Search.(Finds|IsNever)|TileFunctions|ElementwiseKernel|Layout|ReduceDims|Einsum|Reduce|AllReduce|Resume|GroupKilled|ManyTensors|RoundTrip|ReaderRandom|ReferencePath|Codec.DecodesAny|ShardFile.IsTheSame|WholeChain)|/Integrity.*(EveryBit|Any)|/lax'
case "$preset" in
  release)
    scripts/python.sh "${packages[@]}"
    configure=(-D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python") ;;
  asan)
    targets=(--target {shard,storage,storage_object,checkpoint,checkpoint_write,checkpoint_group,checkpoint_rooms,checkpoint_bucket,convert,loader,runtime,programs}_tests
             checkpoint_h5py_writer object_server_conformance)
    tests=(-R '^(shard|storage|storage_object|checkpoint|checkpoint_write|checkpoint_group|checkpoint_rooms|checkpoint_bucket|convert|loader|programs)/|^runtime/.*(Process|CallGroup|Rendezvous)') ;;
  tsan)
    targets=(--target {storage_object,checkpoint,checkpoint_group,loader,runtime,programs}_tests)
    tests=(-R '^storage_object/[A-Z]|^(runtime|loader|programs|checkpoint_group)/|^checkpoint/(Lanes|Pipeline|ScratchPool|ChunkReader)') ;;
esac
[ "$preset" = release ] || [ "${label[0]}" = -L ] || tests+=(-E "$too_long")
[ "$preset" = release ] || tests+=(--stop-on-failure)  # .ci/run may stop it before all have run

echo "== $preset: configure and build"
cmake --preset "$preset" "${configure[@]}" >/dev/null
cmake --build --preset "$preset" "${targets[@]}"
echo "== $preset: test"
ctest --test-dir "build/$preset" "${label[@]}" "${tests[@]}" --no-tests=error --output-on-failure -j "$(nproc)"

# Inputs that no one has thought of, from the corpus on: 5 seconds for each target.
if [ "$preset ${label[0]}" = "release -LE" ]; then
  echo "== fuzz: configure and build"
  cmake --preset asan >/dev/null
  cmake --build --preset asan --target fuzzers
  for seeds in tests/fuzz/corpus/*.txt; do
    target=$(basename "$seeds" .txt)
    echo "== fuzz: $target"
    mkdir -p "build/asan/new/$target"
    rm -rf "build/asan/seeds/$target"
    tests/fuzz/seeds.py unpack "$seeds" "build/asan/seeds/$target"
    words=()
    [ "$target" = text_forms ] || words=(-dict=tests/fuzz/manifest.dict)
    "build/asan/tests/fuzz/${target}_fuzz" -seed=1 -max_total_time=5 -timeout=20 -verbosity=0 -print_final_stats=1 \
      "${words[@]}" -artifact_prefix="build/asan/$target-" "build/asan/new/$target" "build/asan/seeds/$target" 2>&1 |
      grep -vE 'new_units|slowest' || { echo "fuzz: $target failed" >&2; exit 1; }
  done
fi

if [ "$preset" = release ]; then  # what ctest keeps to itself
  log=build/release/Testing/Temporary/LastTest.log
  echo "== Python's tests that were skipped"
  sed -nE 's/^SKIPPED //p' "$log"
  echo "== states of a disk after a power loss that were looked at"
  sed -nE 's|^[0-9]+/[0-9]+ Test: ([^ ]+).*|\1|; /^checkpoint_crash/h; /states of the disk/ { G; s|(.*)\n(.*)|\2: \1|p }' "$log"
fi
