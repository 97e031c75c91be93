"""In one process with pip's h5py, which brings an HDF5 of its own, torch and jax: in either order, and whether or not
the symbols of one are seen by the others."""

import importlib.util
import os
import subprocess
import sys

import pytest

import shardwise as sw

PROGRAM = """
import importlib, os, sys, threading
mode, order, folder = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
sys.setdlopenflags(os.RTLD_NOW | getattr(os, mode))
for name in order:
    importlib.import_module(name)
import h5py, numpy as np, shardwise as sw

values = np.arange(40_000, dtype=np.float32).reshape(200, 200)
errors = []

def ours(i):
    path = f"{folder}/ours{i % 3}"
    sw.save(path, {"w": values + i}, codec=("zstd", "none")[i % 2], existing="replace")
    assert (sw.load(path)["w"] == values + i).all() and sw.verify(path)

def theirs(i):
    with h5py.File(f"{folder}/theirs{i % 3}.h5", "w") as f:
        f.create_dataset("w", data=values + i, compression="gzip", chunks=(50, 50))
    with h5py.File(f"{folder}/theirs{i % 3}.h5") as f:
        assert (f["w"][()] == values + i).all()

def work(function):
    try:
        for i in range(40):
            function(i)
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=work, args=(function,)) for function in (ours, theirs)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
with h5py.File(f"{folder}/ours0/index.h5") as f:
    assert (f["w"][()] == values + 39).all()
for fails, error in ((lambda: h5py.File("/nonexistent/x.h5"), OSError), (lambda: sw.load("/nonexistent/x"), sw.NotFound)):
    try:
        fails()
    except error:
        continue
    raise AssertionError(fails)
if "torch" in order:
    import torch
    assert float(torch.ones(64, 64).matmul(torch.ones(64, 64)).sum()) == 64**3
if "jax" in order:
    import jax
    assert float(jax.numpy.ones((64, 64)).sum()) == 64**2
print("fine")
"""

LIBRARIES = subprocess.run(["ldd", str(sw._core.__file__)], capture_output=True, text=True).stdout
SHARES_HDF5 = "libhdf5" in LIBRARIES
INSTALLED = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]


@pytest.mark.parametrize("mode", ["RTLD_LOCAL", "RTLD_GLOBAL"])
@pytest.mark.parametrize("first", ["shardwise", "the others"])
@pytest.mark.parametrize("others", [["h5py"], ["h5py", *INSTALLED]] if INSTALLED else [["h5py"]], ids=",".join)
def test_both_work_at_once(tmp_path, mode, first, others):
    pytest.importorskip("h5py")
    if mode == "RTLD_GLOBAL" and SHARES_HDF5:
        pytest.skip("RTLD_GLOBAL: this build loads Debian's libhdf5, whose symbols pip's h5py would then take for those of its "
                    "own HDF5 and crash; the module of a wheel (scripts/wheel.sh) has its HDF5 inside")
    order = ["shardwise", *others] if first == "shardwise" else [*others, "shardwise"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode, ",".join(order), str(tmp_path)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=300)
    assert done.returncode == 0 and done.stdout == "fine\n", f"status {done.returncode}: {done.stderr[-2000:]}"
