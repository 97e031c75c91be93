"""verify, repair and parity: damage is found, repaired, or named box by box."""

import pathlib
import shutil

import numpy as np
import pytest

import shardwise as sw

W = np.random.default_rng(1).standard_normal((1500, 1000), np.float32)
V = np.arange(70_000, dtype=np.int32)


def files_of(path):
    return {file.name: file.read_bytes() for file in pathlib.Path(path).iterdir()}


def shard_of(path):
    return next(pathlib.Path(path).glob("shards-*.h5"))


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


@pytest.fixture
def step(tmp_path):
    sw.save(tmp_path / "a", {"w": W, "v": V}, codec="none")
    return tmp_path / "a"


def test_repair_from_a_copy(step, tmp_path):
    shutil.copytree(step, tmp_path / "copy")
    good = files_of(step)
    assert sw.repair(step) and sw.repair(step).repaired == []
    flip(shard_of(step), 2 << 20)
    report = sw.repair(step)
    assert not report and not report.ok and [damage.tensor for damage in report.left.damage] == ["w"]
    assert "not repaired: there is no other step in its root, and no copy was given" in report.left.damage[0].message
    lost, = report.lost
    assert lost.tensor == "w" and W[lost.box].size > 0 and lost.box[1] == slice(0, 1000)
    with sw.open(step) as checkpoint:
        with pytest.raises(sw.Corrupt):
            checkpoint["w"][lost.box]
        assert (checkpoint["w"][:lost.box[0].start] == W[:lost.box[0].start]).all()
    report = sw.repair(step, sources=[tmp_path / "copy"])
    assert report and report.lost == [] and report.repaired[0].damage.tensor == "w"
    assert report.repaired[0].source == str((tmp_path / "copy").resolve())
    assert files_of(step) == good and report.left == sw.verify(step)
    with pytest.raises(sw.InvalidArgument, match="found no checkpoint in"):
        sw.repair(step, sources=[tmp_path])


def test_parity(step):
    told = []
    stats = sw.write_parity(step, blocks=2, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (stats.encoded_bytes, stats.encoded_bytes)
    parity = pathlib.Path(str(shard_of(step)) + ".parity")
    assert (stats.files, stats.written, stats.parity_bytes) == (1, 1, parity.stat().st_size)
    assert stats.file_bytes == stats.encoded_bytes == shard_of(step).stat().st_size and stats.seconds > 0
    assert sw.write_parity(step).written == 0
    assert (sw.verify(step).parity_files, sw.verify(step).parity_blocks) == (1, 2)
    good = files_of(step)
    flip(shard_of(step), 2 << 20)
    flip(shard_of(step), 9)
    with pytest.raises(sw.Corrupt, match="found it damaged, needed is a repair first"):
        sw.write_parity(step, blocks=3)
    report = sw.repair(step)
    assert report and {one.source for one in report.repaired} == {str(parity.resolve())} and files_of(step) == good
    assert [one.damage.tensor for one in report.repaired] == ["", "w"]
    for megabyte in range(3):
        flip(shard_of(step), 5000 + (megabyte << 20))
    before = files_of(step)
    report = sw.repair(step)
    assert not report and {lost.tensor for lost in report.lost} <= {"w", "v"} and files_of(step) == before
    assert sw.remove_parity(step) == 1 and sw.remove_parity(step) == 0 and not parity.exists()
    for blocks in (0, 128):
        with pytest.raises(sw.InvalidArgument, match=f"found {blocks} parity blocks, needed are 1 to 127"):
            sw.write_parity(step, blocks=blocks)
    with pytest.raises(sw.NotFound):
        sw.write_parity(step.parent / "none")
    with pytest.raises(sw.NotFound):
        sw.remove_parity(step.parent / "none")


def test_what_the_caller_raises_ends_it(step):
    good = files_of(step)

    def stop(done, total):
        raise RuntimeError("enough")

    for call in (lambda: sw.repair(step, progress=stop), lambda: sw.write_parity(step, progress=stop)):
        with pytest.raises(RuntimeError, match="enough"):
            call()
        assert files_of(step) == good


def test_a_manager_writes_parity(tmp_path):
    with sw.CheckpointManager(tmp_path, keep_last=1, parity_blocks=3) as manager:
        for step in (1, 2):
            stats = manager.save(step, {"w": W, "v": V + step})
            assert stats.parity_bytes > 0 and stats.cleanup_error == ""
            report = sw.verify(stats.path)
            assert report and report.parity_blocks == 3 and report.parity_files >= 1
    with pytest.raises(sw.InvalidArgument, match="found 128 parity blocks"):
        sw.CheckpointManager(tmp_path, parity_blocks=128)
