"""A save over a step with damage that shows, or that somebody has read: the new step is whole."""

import os
import pathlib
import random
import subprocess
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import shardwise as sw

pytest.importorskip("jax", reason="needs jax, which this environment has not")
torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import jax.numpy as jnp

import shardwise.jax as swj
import shardwise.torch as swt

NOISE = np.random.default_rng(7).integers(0, 256, (5 << 20), np.uint8)
FACES = {"sw": (sw.CheckpointManager, np.array), "swt": (swt.CheckpointManager, lambda x: torch.from_numpy(x.copy())),
         "swj": (swj.CheckpointManager, jnp.array)}
TIERS = {"swt": swt.TieredManager, "swj": swj.TieredManager}


def values_of(step):
    """frozen never changes, and a megabyte of slow does in each step."""
    slow = NOISE[:4 << 20].copy()
    for i in range(step):
        slow[i << 20:(i + 1) << 20] ^= i + 1
    return {"frozen": NOISE, "slow": slow, "step": np.array([step])}


def flip(path, rng):
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def lose(path):
    """Damages a chunk of frozen as a disk does: only a hash shows it, no time stamp."""
    times = path.stat()
    data = path.read_bytes()
    at = data.index(NOISE[9 << 18:][:64].tobytes())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def zero(path, rng):
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def rewrite(path, rng):
    """Puts a copy with damaged bytes under the old name, which no other file shares."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 128
    path.unlink()
    path.write_bytes(data)


DAMAGES = (flip, truncate, zero, rewrite, lambda path, rng: path.unlink())


def shards_of(step):
    return sorted(path for path in pathlib.Path(step).iterdir() if path.suffix == ".h5" and path.name != "index.h5")


def expect_whole(step, number):
    report = sw.verify(step)
    assert report.ok, report
    for name, value in values_of(number).items():
        assert np.array_equal(sw.load(step)[name], value), name


@pytest.mark.parametrize("face", FACES)
def test_damage_that_shows(tmp_path, face):
    kind, make = FACES[face]
    rng = random.Random(face)
    for n, damage in enumerate(DAMAGES * 2):
        root = tmp_path / str(n)
        with kind(root) as manager:
            for step in (0, 1):
                manager.save(step, {name: make(value) for name, value in values_of(step).items()})
            files = shards_of(manager.step(1))
            assert len(files) > 1, "the second step links a file of the first"
            damage(rng.choice(files), rng)
            if n >= len(DAMAGES):
                sw.verify(manager.step(1))
            manager.save(2, {name: make(value) for name, value in values_of(2).items()})
            expect_whole(manager.step(2), 2)
        with kind(root) as manager:
            stats = manager.save(3, {name: make(value) for name, value in values_of(3).items()})
            expect_whole(manager.step(3), 3)
            assert stats.unchanged_bytes > NOISE.size, "whole files are linked again"


def refused(load):
    with pytest.raises(sw.Corrupt):
        load()


SEEN_BY = {
    "verify": lambda step: sw.verify(step), "load": lambda step: refused(lambda: sw.load(step)),
    "restore": lambda step: refused(sw.CheckpointManager(step.parent).restore),
    "command": lambda step: subprocess.run([sys.executable, "-m", "shardwise", "verify", step], capture_output=True, check=False)}


@pytest.mark.parametrize("door", SEEN_BY)
def test_damage_that_only_a_hash_tells(tmp_path, door):
    with sw.CheckpointManager(tmp_path) as manager:
        for step in (0, 1):
            manager.save(step, values_of(step))
    step = tmp_path / "step-00000001"
    linked, = (path for path in shards_of(step) if path.name.startswith("linked"))
    lose(linked)
    SEEN_BY[door](step)
    with sw.CheckpointManager(tmp_path) as manager:
        manager.save(2, values_of(2))
        expect_whole(manager.step(2), 2)
    assert not sw.verify(step).ok
    sw.save(tmp_path / "alone", values_of(2), unchanged_since=step)
    expect_whole(tmp_path / "alone", 2)
    repaired = sw.repair(step)
    assert repaired.ok, repaired
    sw.save(tmp_path / "next", values_of(1), unchanged_since=step)
    expect_whole(tmp_path / "next", 1)


@pytest.mark.parametrize("face", TIERS)
@pytest.mark.parametrize("where", ["fast", "durable"])
def test_damage_in_tiers(tmp_path, face, where):
    kind, (_, make) = TIERS[face], FACES[face]
    rng = random.Random(face + where)
    for n, damage in enumerate((*DAMAGES, lambda path, rng: (lose(path), sw.verify(path.parent)))):
        fast, durable = tmp_path / f"{n}/fast", tmp_path / f"{n}/durable"

        def save(step):
            with kind(fast, durable, copies=0, threads=1) as manager:
                manager.save(step, {name: make(value) for name, value in values_of(step).items()})

        save(0)
        save(1)
        step, = (tmp_path / f"{n}/{where}").rglob("step-00000001")
        linked, = (path for path in shards_of(step) if path.name.startswith("linked"))
        damage(linked, rng)
        save(2)
        news = list((tmp_path / f"{n}").rglob("step-00000002"))
        assert len(news) == 2
        for new in news:
            expect_whole(new, 2)
