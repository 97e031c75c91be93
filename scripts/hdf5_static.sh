#!/usr/bin/env bash
# Builds HDF5 for scripts/wheel.sh, once, in build/hdf5-static: from Debian's source package, static, hidden, position
# independent, with zlib, without curl, OpenSSL and szip. Beside it, as links, Debian's archives of zstd and zlib, so that
# pkg-config's libraries are found here first.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$PWD/build/hdf5-static
work=$prefix/work
[ ! -f "$prefix/lib/pkgconfig/hdf5.pc" ] || exit 0
rm -rf "$prefix"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/source"

# The system's own package sources, as sources of source packages, in an apt configuration of our own.
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u > "$work/sources.list"
apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=
  -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache")
"${apt[@]}" update
(cd "$work" && "${apt[@]}" source --download-only hdf5)
tar -xf "$work"/hdf5_*.orig.tar.* -C "$work/source" --strip-components=1

# Its configuration looks for what its tests have written where it was started.
mkdir "$work/build"
(cd "$work/build" && cmake -S "$work/source" -B . -G Ninja -Wno-dev --log-level=ERROR \
  -D CMAKE_BUILD_TYPE=Release -D CMAKE_INSTALL_PREFIX="$prefix" \
  -D CMAKE_C_FLAGS="-fPIC -fvisibility=hidden -w" -D BUILD_SHARED_LIBS=OFF -D BUILD_TESTING=OFF \
  -D HDF5_BUILD_TOOLS=OFF -D HDF5_BUILD_EXAMPLES=OFF -D HDF5_BUILD_HL_LIB=OFF -D HDF5_BUILD_CPP_LIB=OFF \
  -D HDF5_ENABLE_Z_LIB_SUPPORT=ON -D HDF5_ENABLE_SZIP_SUPPORT=OFF -D HDF5_ENABLE_THREADSAFE=ON > "$work/log")
cmake --build "$work/build" -j 2 >> "$work/log" || { tail -n 30 "$work/log" >&2; exit 1; }
cmake --install "$work/build" >> "$work/log"

# xxHash is not: Debian's archive lacks what picks the processor's instructions.
for library in zstd z; do ln -sf "$(g++ -print-file-name=lib$library.a)" "$prefix/lib/lib$library.a"; done
pc() {  # pc MODULE VERSION LIBS
  printf 'prefix=%s\nName: %s\nDescription: static, for wheels\nVersion: %s\nCflags: -I${prefix}/include\nLibs: -L${prefix}/lib %s\n' \
    "$prefix" "$1" "$2" "$3" > "$prefix/lib/pkgconfig/$1.pc"
}
rm -rf "$prefix/lib/pkgconfig"
mkdir "$prefix/lib/pkgconfig"
pc libzstd "$(pkg-config --modversion libzstd)" -lzstd
pc hdf5 "$(sed -n 's/^#define H5_VERS_INFO "HDF5 library version: \(.*\)".*/\1/p' "$prefix/include/H5public.h")" \
  "-lhdf5 -lz -lm -ldl -lpthread"
rm -rf "$work"
