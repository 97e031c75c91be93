"""The error of a save in the background comes out: in the log at once, in the next call, and at the end of a process that asks
for nothing."""

import logging
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw

SOURCE = """
import resource, sys
import numpy as np
{imports}
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # as a full disk: nothing larger can be written
manager = {manager}
manager.save_async(1, {{"w": {array}}})
{end}
"""

MANAGERS = {
    "sw": ("import shardwise as sw", "sw.CheckpointManager(sys.argv[1])", "np.ones(100_000)"),
    "swt": ("import torch, shardwise.torch as swt", "swt.CheckpointManager(sys.argv[1])", "torch.ones(100_000)"),
    "swj": ("import shardwise.jax as swj", "swj.CheckpointManager(sys.argv[1])", "np.ones(100_000)"),
}


@pytest.mark.parametrize("end", ["", "del manager; import gc; gc.collect()"])
@pytest.mark.parametrize("kind", list(MANAGERS))
def test_a_process_that_asks_for_nothing_tells_on_stderr(tmp_path, kind, end):
    pytest.importorskip({"sw": "numpy", "swt": "torch", "swj": "jax"}[kind], reason="needs a framework, which is not here")
    imports, manager, array = MANAGERS[kind]
    source = SOURCE.format(imports=imports, manager=manager, array=array, end=end)
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path / "root")], capture_output=True, text=True, timeout=120)
    told = [line for line in done.stderr.splitlines() if "failed" in line]
    assert len(told) == 1 and "File too large" in told[0], done.stderr


def test_the_log_and_the_next_call_tell(tmp_path, caplog):
    manager = sw.CheckpointManager(tmp_path / "root")
    (tmp_path / "root").rmdir()
    (tmp_path / "root").write_text("a file is in the way")
    with caplog.at_level(logging.ERROR, "shardwise"):
        pending = manager.save_async(1, {"w": np.ones(3)}, existing="replace")
        with pytest.raises(sw.Error):
            manager.save_async(2, {"w": np.ones(3)})
    assert sum("save of step 1 failed" in one.getMessage() for one in caplog.records) == 1
    assert pending.done()
    manager.close()  # it has raised the error before

    with caplog.at_level(logging.ERROR, "shardwise"):
        pending = manager.save_async(3, {"w": np.ones(3)}, existing="replace")
        del manager
        assert isinstance(pending.exception(), sw.IOFailed)
    assert sum("save of step 3 failed" in one.getMessage() for one in caplog.records) == 1
