"""A wrong argument of any public call is an error of Shardwise, never one of nanobind, numpy or Python."""

import importlib.util
import os
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import shardwise

#: Public modules, those that land later included: no part of their names begins with "_".
MODULES = ["shardwise", *(m.name for m in pkgutil.walk_packages(shardwise.__path__, "shardwise.", onerror=lambda name: None)
                          if "._" not in m.name), "shardwise._stores"]  # shardwise.group's


def test_the_modules_are_found():
    within = {"torch": "shardwise.torch.spmd", "jax": "shardwise.jax.ocp"}  # are found if their package can be imported
    needed = {module for package, module in within.items() if importlib.util.find_spec(package)}
    assert {"shardwise", "shardwise.sources", "shardwise.torch", "shardwise.jax"} | needed <= {*MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_wrong_arguments_of_every_public_call(tmp_path, module):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("shardwise"):
            raise
        pytest.skip(f"needs {error.name}")
    script = pathlib.Path(__file__).with_name("wrong_types.py")
    done = subprocess.run([sys.executable, str(script), module], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))})
    assert done.returncode == 0, done.stderr[-3000:]
    calls, *raw = done.stdout.splitlines()
    assert int(calls.removeprefix("calls ")) > 100 and not raw, raw[:20]
