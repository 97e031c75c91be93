#!/usr/bin/env bash
# Makes the Debian packages, installs them with apt, and uses their files as other people's programs do. On a bare
# Debian 12, as root, in a container: it installs packages, and removes those that only the build needs.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "test_packages.sh: needs root, in a container" >&2; exit 2; }
export DEBIAN_FRONTEND=noninteractive
out=$PWD/build/packages
fail() { echo "test_packages.sh: $1" >&2; exit 1; }
add() { apt-get install -y -qq --no-install-recommends "$@" >"$out/apt.log" 2>&1 || { tail -n 5 "$out/apt.log" >&2; fail "apt-get install $*"; }; }
installed() { dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' | sed -n 's/^ii *//p' | sort; }

echo "== Build"
mkdir -p "$out/debs" "$out/try"
apt-get update -qq
installed >"$out/before"
# Those that are missing: an upgrade of ca-certificates would lose a proxy's certificate, which pip needs.
mapfile -t needed < <(sed -n '/^# build and run/,/^# demo/p' scripts/packages.txt | grep -v '^#' | sort | comm -23 - "$out/before")
add "${needed[@]}" dpkg-dev file
scripts/python.sh
cmake --preset release -D SHARDWISE_BUILD_TESTS=OFF -D SHARDWISE_BUILD_BENCH=OFF -D SHARDWISE_BUILD_EXAMPLES=OFF \
  -D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python" >/dev/null
cmake --build --preset release >"$out/build.log" || { tail -n 20 "$out/build.log" >&2; fail "the build"; }
(cd build/release && cpack -G DEB -B "$out/debs" >"$out/cpack.log" 2>&1) || { cat "$out/cpack.log" >&2; fail "cpack"; }
ls "$out"/debs/*.deb
mapfile -t extra < <(installed | comm -13 "$out/before" -)
apt-get purge -y -qq "${extra[@]}" >"$out/apt.log" 2>&1 || { tail -n 5 "$out/apt.log" >&2; fail "apt-get purge"; }

echo "== Python"
add "$out"/debs/python3-shardwise_*.deb
cd "$out/try"
python3 - <<'PYTHON'
import numpy
import shardwise
w = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
shardwise.save("saved", {"w": w, "step": 3})
found = shardwise.load("saved")
assert (found["w"] == w).all() and found["w"].dtype == w.dtype and found["step"] == 3 and shardwise.verify("saved")
print("shardwise in", shardwise.__file__)
PYTHON

echo "== The command and the filter"
add "$out"/debs/shardwise_*.deb "$out"/debs/hdf5-filter-*.deb
shardwise inspect saved >/dev/null
shardwise bench save run --keep --tensors 1 --shape 256,1024 --repeat 1 --data index >/dev/null 2>&1
shardwise verify run
index=$(echo run/step-*/index.h5) shards=$(echo run/step-*/shards-*.h5)

echo "== Stock programs read a compressed weight"
add hdf5-tools python3-h5py octave man-db bash-completion
h5dump -pH "$shards" >header.txt
grep -q 32015 header.txt || fail "h5dump finds no zstd in $shards"
h5dump -d /tensor_00000 -b LE -o values "$index" >/dev/null
/usr/bin/python3 - "$index" <<'PYTHON'
import sys
import h5py
import numpy
w = h5py.File(sys.argv[1])["tensor_00000"][...]
assert w.shape == (256, 1024) and (w.ravel() == numpy.arange(w.size)).all()
assert (numpy.fromfile("values", "<f4") == w.ravel()).all()
print("h5py and h5dump")
PYTHON
octave --quiet --no-gui --eval \
  "w = load('$index').tensor_00000; assert (w(:), (0:numel (w) - 1)'); assert (numel (w), 262144); disp ('Octave')"

echo "== Manual and completion"
man shardwise-bench-save | grep -q 'shardwise bench save' || fail "man shardwise-bench-save"
bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader shardwise; complete -p shardwise' || fail "no completion"

echo "== The library"
add g++ "$out"/debs/libshardwise-dev_*.deb
# shellcheck disable=SC2046
g++ -std=c++20 ../../../tests/install/consumer/main.cc $(pkg-config --cflags --libs shardwise-loader shardwise-jobs) -o consumer
./consumer
apt-get purge -y -qq shardwise python3-shardwise hdf5-filter-shardwise-zstd libshardwise-dev >"$out/apt.log" 2>&1 || fail "apt-get purge"
left=$(find /usr -path /usr/share/doc -prune -o -name '*shardwise*' -print)
[ -z "$left" ] || fail "the packages have left $left"
echo "== All packages work"
