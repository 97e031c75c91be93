"""Types: the package as its users' mypy sees it, with what torch and JAX say of themselves."""

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
    if not (PACKAGE / "_core.pyi").exists():
        pytest.skip("_core.pyi is not built: target _core_stub")
    is_installed = "site-packages" in PACKAGE.parts  # where mypy looks by itself
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path),
                           "-p", "shardwise"], capture_output=True, text=True, cwd=tmp_path,
                          env=os.environ if is_installed else {**os.environ, "MYPYPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stdout + done.stderr
