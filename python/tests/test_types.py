"""Checks types: mypy on users' code with an installed package, and dtypes that numpy lacks."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import shardwise as sw

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(str(sw._core.__file__)).parent


def test_mypy_finds_nothing(tmp_path):
    for name in ("mypy", "torch", "jax"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if "site-packages" not in PACKAGE.parts:
        pytest.skip("the package is not installed: scripts/check.sh runs mypy over the build")
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
                           str(tmp_path), "-p", "shardwise"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None  # imports as if it was not installed
import numpy as np, shardwise as sw
sw.save(sys.argv[1], {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.float64(2), "list": [1, np.zeros(2, np.int8)]})
found = sw.load(sys.argv[1])
assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["n"] == 2 and found["list"][1].dtype == np.int8
with sw.open(sys.argv[2]) as checkpoint:
    assert checkpoint["w"][:].tolist() == [1, 1] and checkpoint["b"].dtype_name == "bf16" and checkpoint["b"].shape == (2,)
    for read in (lambda: checkpoint["b"].dtype, lambda: checkpoint["b"][:], checkpoint.load):
        try:
            read()
        except sw.Unsupported as error:
            assert "dtype bf16: found no package ml_dtypes" in str(error) and "`pip install ml_dtypes`" in str(error), error
        else:
            raise AssertionError("it was read")
"""


def test_ml_dtypes_is_needed_for_its_dtypes_alone(tmp_path):
    import ml_dtypes
    import numpy as np

    sw.save(tmp_path / "b", {"b": np.ones(2, ml_dtypes.bfloat16), "w": np.ones(2, np.float32)})
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES, str(tmp_path / "a"), str(tmp_path / "b")], capture_output=True,
                          text=True, env=environment)
    assert done.returncode == 0, done.stderr
    imported = "import sys, shardwise; assert 'ml_dtypes' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", imported], env=environment).returncode == 0
