"""A run that goes back in a used folder, and jobs that share one: whose steps stay, and which is the latest."""

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def save(manager, steps, **options):
    for step in steps:
        manager.save(step, {"w": np.full(3, step)}, **options)


def aside(manager):
    return [step for step, _, is_replaced in manager._manager.steps() if is_replaced]


def test_a_run_that_goes_back_keeps_its_own_steps(tmp_path, caplog):
    with sw.CheckpointManager(tmp_path, keep_last=2) as m:
        save(m, (59, 60), metrics={"loss": -1})
    with sw.CheckpointManager(tmp_path, keep_last=2, best=("loss", "min", 1)) as m:
        for step in range(1, 31):
            save(m, [step], metrics={"loss": step})
        assert m.steps() == [1, 29, 30, 59, 60] and aside(m) == [59, 60]
        assert m.latest_step() == 30 and m.best() == 1 and m.open(60)["w"][0] == 60
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and "step 1 is saved below the steps 59, 60" in told[0] and f"rm {tmp_path} 59 60" in told[0]
    with sw.CheckpointManager(tmp_path, keep_last=2) as m:
        assert m.restore().step == 30
        save(m, (31, 32))
        assert m.steps() == [31, 32, 59, 60] and aside(m) == [59, 60]
        for step, existing in ((59, "fail"), (60, "skip")):
            stats = m.save_async(step, {"w": np.zeros(3)}, existing=existing).result()
            assert stats.path.endswith(".g2") and not stats.skipped
        assert m.steps() == [59, 60] and aside(m) == [] and m.restore().step == 60


@pytest.mark.parametrize("door", ["numpy", "torch", "jax"])
def test_a_job_that_restores_an_older_step_goes_back_among_its_own(tmp_path, caplog, door):
    face = sw if door == "numpy" else pytest.importorskip(f"shardwise.{door}")
    with face.CheckpointManager(tmp_path, keep_last=2) as m:
        save(m, (10, 20, 30, 40))
        assert m.restore(30).step == 30
        m.save(40, {"w": np.full(3, 41)}, existing="replace", metrics={"late": 1.0})  # it does not go back
        assert aside(m) == []
        save(m, (31, 32, 33))
        assert m.steps() == [32, 33, 40] and m.latest_step() == 33
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and "step 31 is saved below the steps 40, which are set aside" in told[0]
    with face.CheckpointManager(tmp_path, keep_last=2) as m:
        assert m.restore().step == 33


@pytest.mark.parametrize("door", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("existing", ["fail", "replace", "skip"])
def test_a_step_in_the_place_of_one_set_aside_is_a_way_back(tmp_path, door, existing):
    face = sw if door == "numpy" else pytest.importorskip(f"shardwise.{door}")
    with face.CheckpointManager(tmp_path) as m:
        save(m, (10, 20, 30, 40))
        for first in (15, 20):  # 20 is set aside by then
            assert m.restore(10).step == 10
            save(m, (first, 40), existing=existing)
        save(m, [25], existing=existing)
        assert (m.steps(), aside(m)) == ([10, 15, 20, 25, 30, 40], [30])
        assert m.restore(20).step == 20
        save(m, [30], existing=existing)
        assert aside(m) == [40] and m.latest_step() == 30
    with face.CheckpointManager(tmp_path) as m:
        assert m.restore().step == 30


def test_dots_are_no_name_of_a_step(tmp_path):
    with sw.CheckpointManager(tmp_path) as m:
        save(m, [1])
        for name in (".", "..", "...", "a/b", "../a", "/a", "a\0b", ""):
            with pytest.raises(sw.InvalidArgument, match="pin a step: the name is .*, needed are 1 to 100 letters"):
                m.pin(1, name)
        m.pin(1, "v1.2-best_")
        assert m.pinned() == {"v1.2-best_": 1}


def test_two_jobs_in_one_folder_are_told_and_keep_their_own(tmp_path, caplog):
    with sw.CheckpointManager(tmp_path, keep_last=2) as one, sw.CheckpointManager(tmp_path, keep_last=2) as other:
        for step in range(1, 7):
            save(one, [step])
            save(other, [100 + step])
        assert one.steps() == [5, 6, 105, 106] and aside(one) == []
        assert one.collect_garbage()[1] == []
    told = [record.getMessage() for record in caplog.records if "another manager saves there" in record.getMessage()]
    assert len(told) == 2 and f"process {os.getpid()} on " in told[0]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".writer")]


FORKED = """
import os, sys, numpy as np, shardwise as sw
root, state = sys.argv[1], {"w": np.ones(3)}
m = sw.CheckpointManager(root, keep_last=2)
for step in (1, 2):
    m.save(step, state)
child = os.fork()
if child == 0:
    for act in (m.steps, m.close, m.collect_garbage, lambda: m.save(3, state), lambda: m.save_async(3, state)):
        try:
            act()
            os._exit(1)
        except sw.Unsupported as error:
            assert "is a fork of that one: make it here" in str(error), error
    del m
    with sw.CheckpointManager(root, keep_last=2) as own:
        for step in (11, 12, 13):
            own.save(step, state)
        assert own.steps() == [1, 2, 12, 13], own.steps()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
m.save(3, state)
assert m.steps() == [2, 3, 12, 13], m.steps()
assert [name for name in os.listdir(root) if name.startswith(".writer")]
print(os.getpid())
m.close()
"""


def test_a_forked_child_is_another_job(tmp_path):
    ended = subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], env=ENVIRONMENT, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if "another manager saves there" in line]
    assert len(told) == 1 and f"process {ended.stdout.strip()} on " in told[0]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".writer")]


def test_a_manager_that_an_error_ended_is_no_other_one(tmp_path, caplog):
    kept = []  # the traceback holds the manager
    for first in (10, 3):
        try:
            with sw.CheckpointManager(tmp_path, keep_last=2) as m:
                save(m, range(first, first + 3))
                raise ValueError("of the user's")
        except ValueError as error:
            kept.append((error, m))
    assert m.steps() == [4, 5, 11, 12] and aside(m) == [11, 12]
    assert not [one for one in caplog.records if "another manager" in one.getMessage()]


KILLED = """
import json, os, signal, sys, numpy as np, shardwise as sw
root, steps, options, replaces = json.loads(sys.argv[1])
m = sw.CheckpointManager(root, **options)
for step in steps:
    m.save(step, {"w": np.full(3, step)}, existing="replace" if step in replaces else "fail")
os.kill(os.getpid(), signal.SIGKILL)
"""


class Oracle:
    """The rules, as docs/checkpoints.md has them."""

    def __init__(self):
        self.steps, self.aside = set(), set()

    def run(self, steps, keep_last=0, keep_every=0):
        first = steps[0]
        before = {step for step in self.steps - self.aside if step < first}
        self.aside |= {step for step in self.steps if step > first}
        written = set()
        for step in steps:
            written.add(step)
            self.steps.add(step)
            self.aside.discard(step)
            counted = sorted((before | written) & self.steps - self.aside)
            kept = {step, *counted[-1:]}
            if not keep_last and not keep_every:
                kept.update(counted)
            if keep_last:
                kept.update(counted[-keep_last:])
            if keep_every:
                kept.update(one for one in counted if one % keep_every == 0)
            self.steps -= set(counted) - kept


@pytest.mark.parametrize("seed", range(12))
def test_the_steps_of_runs_that_begin_anywhere(tmp_path, seed):
    draw, oracle, root = random.Random(seed), Oracle(), str(tmp_path / "run")
    for turn in range(6):
        first, length = draw.randint(0, 40), draw.randint(1, 12)
        steps = list(range(first, first + length * 2, draw.choice((1, 2))))[:length]
        options = draw.choice(({}, {"keep_last": 1}, {"keep_last": 2}, {"keep_last": 3, "keep_every": 5}, {"keep_every": 4}))
        replaces = sorted(set(steps) & (oracle.steps - oracle.aside))
        if turn == 3:  # killed: its lease stays
            ended = subprocess.run([sys.executable, "-c", KILLED, json.dumps([root, steps, options, replaces])],
                                   env=ENVIRONMENT, timeout=120, capture_output=True, text=True)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
        else:
            with sw.CheckpointManager(root, **options) as m:
                for step in steps:
                    m.save(step, {"w": np.full(3, step)}, existing="replace" if step in replaces else "fail")
        oracle.run(steps, **options)
        with sw.CheckpointManager(root) as m:
            assert (m.steps(), aside(m)) == (sorted(oracle.steps), sorted(oracle.aside)), (turn, steps, options)
            assert m.latest_step() == max(oracle.steps - oracle.aside) == m.restore().value["w"][0]


@pytest.mark.parametrize("seed", range(6))
def test_no_job_removes_what_another_one_keeps(tmp_path, seed):
    draw = random.Random(seed)
    keep = [draw.randint(1, 3) for _ in range(3)]
    jobs = [sw.CheckpointManager(tmp_path, keep_last=number) for number in keep]
    written = [[3 * draw.randint(0, 50) + at] for at in range(3)]
    for job, steps in zip(jobs, written, strict=True):
        save(job, steps)
    alive = [0, 1, 2]
    for turn in range(30):
        at = draw.choice(alive)
        written[at].append(written[at][-1] + 3 * draw.randint(1, 3))
        save(jobs[at], written[at][-1:])
        own = [steps[-number:] for steps, number in zip(written, keep, strict=True)]
        assert jobs[0].steps() == sorted(sum(own, [])) and aside(jobs[0]) == []
        if turn == 15:  # its steps stay nevertheless
            jobs[alive.pop(draw.randrange(3))].close()
