"""An import in a subinterpreter is refused, and the main interpreter goes on as before."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import _xxsubinterpreters as interpreters
import numpy as np
import shardwise as sw

folder = sys.argv[1]
REFUSED = "import shardwise: found a subinterpreter, needed is the main interpreter"
IMPORTS = "import sys; sys.path[:] = " + repr(sys.path) + "; import "

def refuse(count):
    for module in ["shardwise._core", "shardwise"] * count:
        interpreter = interpreters.create()
        for _ in range(2):
            try:
                interpreters.run_string(interpreter, IMPORTS + module)
            except interpreters.RunFailedError as error:
                assert REFUSED in str(error), error
            else:
                raise AssertionError("it was imported")
        interpreters.destroy(interpreter)

def use(path):
    values = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    sw.save(path, {"w": values}, existing="replace")
    assert (sw.load(path)["w"] == values).all()
    loader = sw.Loader({"x": values}, batch_size=50)
    assert sum(len(batch["x"]) for batch in loader) == 200
    try:
        sw.load(path + "-none")
    except sw.NotFound:
        pass

if sys.argv[2] == "before":
    use(f"{folder}/a")
refuse(2)
use(f"{folder}/b")
errors = []
ended = threading.Event()

def work():
    try:
        while not ended.is_set():
            use(f"{folder}/c")
    except BaseException as error:
        errors.append(error)

thread = threading.Thread(target=work)
thread.start()
refuse(3)
ended.set()
thread.join()
assert not errors, errors
use(f"{folder}/d")
print("fine")
"""


def test_a_refused_import_leaves_the_main_interpreter_whole(tmp_path):
    pytest.importorskip("_xxsubinterpreters")  # until Python 3.12
    for when in ("before", "after"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), when], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=300)
        assert done.stdout == "fine\n" and done.returncode == 0, done.stderr
