#!/usr/bin/env bash
# Makes a Python environment with pip's h5py and hdf5plugin, which bring an HDF5 and a zstd filter of
# their own. Once: where it is there and works, no network is needed.
# Usage: make_venv.sh FOLDER
set -euo pipefail
folder=$1
h5py=3.16.0 hdf5plugin=7.1.0

works() {
  "$folder/bin/python" -c "import h5py, hdf5plugin
assert (h5py.__version__, hdf5plugin.version) == ('$h5py', '$hdf5plugin')" 2>/dev/null
}
give_up() { echo "make_venv: $1" >&2; exit 1; }

! works || exit 0
rm -rf "$folder"
/usr/bin/python3 -m venv "$folder" || give_up "no Python environment in $folder: is python3-venv installed?"
"$folder/bin/pip" install --quiet --only-binary :all: "h5py==$h5py" "hdf5plugin==$hdf5plugin" ||
  give_up "pip did not install h5py $h5py and hdf5plugin $hdf5plugin into $folder: is there a network?"
works || give_up "$folder is made, but h5py $h5py and hdf5plugin $hdf5plugin cannot be imported from it"
