"""Kills ranks at any instant of a save: committed steps stay valid, and the next job goes on.

SHARDWISE_ROUNDS says how many kills there are; 200 take some minutes.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import shardwise as sw
from shardwise import group
from shardwise._checkpoint.save import Plan, call_of, write_together
from shardwise._arrays.arrays import Sources

ROUNDS = int(os.environ.get("SHARDWISE_ROUNDS", "3"))
SIZE = 3
LATE = 3  # the status of a rank that has waited for another one in vain


def save_on(rank: int, root: str, store: str, first: int, deadline: float) -> None:
    """Saves steps until this rank or another is killed."""
    g = group.from_files(store, rank, SIZE)
    g.barrier(600, "all are there")
    rows = np.arange(SIZE * 40 * 1000, dtype=np.float64).reshape(SIZE * 40, 1000)
    for step in range(first, first + 1000):
        sources = Sources()
        sources.add("w", "f64", rows.shape, [((rank * 40, 0), rows[rank * 40 : rank * 40 + 40] + step)],
                    mesh=f"p={SIZE}", spec="p,-")
        try:
            path = f"{root}/step-{step:08}"
            with call_of(g, path, user=None, codec="zstd", existing="fail", deadline=deadline) as call:
                write_together(call, path, Plan(sources, {"step": step}), g, list(range(SIZE + 1)))
        except sw.GroupError:
            os._exit(LATE)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_rank_is_killed_in_a_save(tmp_path, seed):
    chance = random.Random(seed)
    context = multiprocessing.get_context("spawn")
    root = tmp_path / "root"
    expected, attempts, deadline = -1, 0, 1
    while attempts < 2:
        with sw.CheckpointManager(root) as m:
            latest = m.latest()  # raises Corrupt if there are steps and no valid one
            assert (latest.step if latest else -1) >= expected
            first = latest.step + 1 if latest else 0
        ranks = [context.Process(target=save_on, args=(rank, str(root), str(tmp_path / f"store{attempts}-{deadline}"), first,
                                                       deadline)) for rank in range(SIZE)]
        for process in ranks:
            process.start()
        wanted = root / f"step-{first + chance.randrange(1, 4):08}"
        while not wanted.exists() and any(process.is_alive() for process in ranks):
            pass
        if not wanted.exists():  # on a busy machine ranks may not meet in so short a time
            assert {process.exitcode for process in ranks} == {LATE} and deadline < 60, "nothing was saved"
            deadline *= 4
            continue
        instant = time.perf_counter() + chance.random() * 0.02
        while time.perf_counter() < instant:
            pass
        os.kill(chance.choice(ranks).pid, signal.SIGKILL)
        for process in ranks:
            process.join(240)
            assert not process.is_alive(), "it hangs"
        expected = int(wanted.name[5:])
        attempts += 1
    with sw.CheckpointManager(root) as m:
        latest = m.latest()
        assert latest is not None and latest.step >= expected and not latest.rejected
        for step in m.steps():
            assert sw.verify(m.step(step))
        found = m.open().load()
        np.testing.assert_array_equal(found["w"][:, 0], np.arange(0, SIZE * 40_000, 1000) + latest.step)
        assert found["step"] == latest.step
    assert not [name for name in os.listdir(root) if name.startswith(".")]  # a manager removes the files of dead ranks


PEAK = """
import sys, numpy as np, shardwise as sw
def peak():  # getrusage() begins with the peak of the process that started this one
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
sw.load(sys.argv[1], "small")
before = peak()
loaded = sw.load(sys.argv[1])
print(peak() - before, sum(a.nbytes for a in loaded.values()) // 1024)
"""


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_loading_takes_the_targets_and_256_mib_at_most(tmp_path, codec):
    rng = np.random.default_rng(0)
    sw.save(tmp_path / "a", {"small": np.zeros(3), **{f"w{i}": rng.standard_normal((1 << 20, 16), np.float32) for i in range(6)}},
            codec=codec)
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path / "a")], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    grown, wanted = map(int, done.stdout.split())
    assert grown <= wanted + (256 << 10), f"{grown} KiB more, for {wanted} KiB of arrays"
