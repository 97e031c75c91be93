"""Checks the statistics that CheckpointManager returns from a save and stores with its step."""

import time

import numpy as np

import shardwise as sw
from stored_stats import check_stats, names


def test_what_a_save_did_is_kept_beside_its_step(tmp_path):
    with sw.CheckpointManager(tmp_path, write_stats=False) as m:
        m.save(6, {"w": np.zeros(1000)})
    assert names(tmp_path) == ["step-00000006"]
    with sw.CheckpointManager(tmp_path, parity_blocks=1) as m:
        stats = m.save(7, {"w": np.zeros(1000)})
        check_stats(tmp_path, 7, stats)
        assert stats.logical_bytes == 8000 and stats.parity_bytes > 0 and stats.blocked_seconds >= stats.seconds
        (tmp_path / "stats-step-00000008.json").write_text("mine")
        assert "stats-step-00000008.json" in m.save(8, {"w": np.zeros(1000)}).cleanup_error
        assert (tmp_path / "stats-step-00000008.json").read_text() == "mine"
        m.remove(7)
    assert names(tmp_path) == ["stats-step-00000008.json", "step-00000006", "step-00000008"]


def test_what_is_told_of_a_save_in_the_background_is_how_long_its_caller_waited(tmp_path):
    with sw.CheckpointManager(tmp_path) as m:
        buffers = m.save(1, {"w": np.zeros(1000)}).memory_bytes
        begun = time.monotonic()
        pending = m.save_async(2, {"w": np.zeros(1000)})
        waited = time.monotonic() - begun
        stats = pending.result()
        check_stats(tmp_path, 2, stats)
        assert stats.blocked_seconds <= waited and stats.memory_bytes == buffers + 8000
