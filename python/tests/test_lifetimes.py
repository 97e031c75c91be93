"""The rules of lifetime (python/src/work.h) for every binding: several threads, close() during use, daemon threads when
Python ends. Each test runs in a process of its own, whose death it notices."""

import os
import pathlib
import subprocess
import sys

import lifetimes
import pytest

import shardwise as sw

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("mode", ["threads", "close", "daemons"])
@pytest.mark.parametrize("case", list(lifetimes.CASES))
def test_of_every_binding(tmp_path, case, mode):
    done = subprocess.run([sys.executable, "-X", "faulthandler", str(pathlib.Path(lifetimes.__file__)), case, mode, str(tmp_path)],
                          env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_no_binding_is_left_out():
    bindings = set()
    for name, value in vars(sw._core).items():
        if name.startswith("__"):
            continue
        if hasattr(value, "__match_args__"):  # a value: its repr reads all of its fields
            continue
        if isinstance(value, type):
            bindings |= {f"{name}.{member}" for member in vars(value) if not member.startswith("_")}
        else:
            bindings.add(name)
    covered = [name for case in lifetimes.CASES.values() for name in case.covers.split()]
    assert sorted(covered) == sorted(bindings - {"end"})  # which Python calls as it ends
