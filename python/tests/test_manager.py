"""CheckpointManager: steps, retention, saves in the background, signals, forks."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import shardwise as sw

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=120)


def test_steps_come_and_go(tmp_path):
    with sw.CheckpointManager(tmp_path, keep_last=2) as m:
        assert m.latest() is None and m.steps() == []
        for step in range(5):
            m.save(step, {"w": np.full(3, step)}, user={"step": step})
        assert m.steps() == [3, 4]
        assert m.open()["w"][0] == 4 and m.open(3).user == {"step": 3}
        latest = m.latest()
        assert latest is not None and (latest.step, latest.rejected) == (4, [])
        with pytest.raises(KeyError, match="its steps are 3, 4"):
            m.step(1)
        with pytest.raises(FileExistsError):
            m.save(4, {})
        m.save(4, {"w": np.zeros(1)}, existing="replace")
        m.remove(3)
        assert m.steps() == [4]


def test_what_a_vanished_machine_left_goes_when_it_is_named(tmp_path):
    stem = ".step-00000001." + "a" * 32
    (tmp_path / (stem + ".tmp")).mkdir()
    (tmp_path / (stem + ".lease")).write_text('{"pid":1,"pid_namespace":1,"start":1,"boot":"b","host":"gone"}')
    manager = sw.CheckpointManager(tmp_path)
    both = [stem + ".lease", stem + ".tmp"]
    for hosts in ([], ["elsewhere"]):
        removed, kept = manager.collect_garbage(dead_hosts=hosts)
        assert (removed, sorted(kept)) == ([], both)
    removed, kept = manager.collect_garbage(dead_hosts=["elsewhere", "gone"])
    assert (sorted(removed), kept) == (both, [])
    assert os.listdir(tmp_path) == []


def test_retention_by_period_and_metric(tmp_path):
    with sw.CheckpointManager(tmp_path, keep_last=1, keep_every=4, best=("loss", "min", 2)) as m:
        for step, loss in enumerate([5, 1, 4, 2, 9, float("nan"), 8, 7]):
            m.save_async(step, {"w": np.zeros(2)}, metrics={"loss": loss}).result()
    assert m.steps() == [0, 1, 3, 4, 7]
    with sw.CheckpointManager(tmp_path, keep_last=1, best=("acc", "max", 1)) as again:  # metrics are on the disk
        again.save(8, {}, metrics={"acc": 1})
        again.save(9, {})
        assert again.steps() == [8, 9]


def test_no_step_is_removed_by_a_metric_that_is_not_there(tmp_path, caplog):
    with sw.CheckpointManager(tmp_path, keep_last=1, best=("loss", "min", 1)) as m:
        for save in (m.save, m.save_async):
            with pytest.raises(ValueError, match="save step 0: found the metrics 'los', needed also 'loss'"):
                save(0, {"w": np.zeros(2)}, metrics={"los": 3.0})
        for step in range(3):
            m.save(step, {"w": np.zeros(2)})
        assert m.steps() == [0, 1, 2]
        assert 'none of 3 has the metric "loss", by which best keeps steps: all stay' in caplog.text
        m.save(3, {"w": np.zeros(2)}, metrics={"loss": float("nan")})
        m.save(4, {"w": np.zeros(2)}, metrics={"loss": 1})
        m.save(5, {"w": np.zeros(2)}, metrics={"loss": 2})
        assert m.steps() == [4, 5]


def test_what_changes_after_save_async_is_not_saved(tmp_path, rng, waits_alone_let_others_run):
    w = rng.standard_normal((2000, 500), np.float32)
    was = w.copy()
    with sw.CheckpointManager(tmp_path) as m:
        user, metrics = {"lr": [1]}, {"loss": 0.5}
        pending = m.save_async(1, {"w": w, "t": w.T, "list": user["lr"]}, user=user, metrics=metrics)
        w[:] = 0
        user["lr"].append(2)
        metrics["loss"] = 3.0
        assert pending.result().logical_bytes == 2 * was.nbytes
        with m.open(1) as c:
            np.testing.assert_array_equal(c["t"], was.T)
            assert c.user == {"lr": [1]} and c.metrics == {"loss": 0.5} and c.objects == {"list": [1]}
        called = threading.Event()
        pending.add_done_callback(lambda p: called.set())
        assert called.is_set() and pending.done() and pending.exception() is None


def test_the_caller_does_not_wait_for_the_thread_that_saves(waits_alone_let_others_run):
    order = []
    pending = sw.PendingSave(0, lambda progress: order.append("saves"))
    order.append("returns")
    pending.result()
    assert order == ["returns", "saves"]


def test_an_error_in_the_background_comes_out_once(tmp_path):
    m = sw.CheckpointManager(tmp_path / "r")
    m.save(1, {"w": np.zeros(2)})
    pending = m.save_async(2, {"w": np.zeros(2)}, existing="replace")
    pending.result()
    os.rename(tmp_path / "r", tmp_path / "away")  # the root is gone
    (tmp_path / "r").write_text("not a directory")
    m.save_async(3, {"w": np.zeros(2)}, existing="replace").exception()
    m.save_async(4, {"w": np.zeros(2)}, existing="replace")
    with pytest.raises(sw.Error):
        m.wait()
    m.wait()
    os.unlink(tmp_path / "r")
    os.rename(tmp_path / "away", tmp_path / "r")
    m.save(5, {"w": np.zeros(2)})
    assert m.steps() == [1, 2, 5]


def test_damage_is_no_fresh_start(tmp_path):
    with sw.CheckpointManager(tmp_path) as m:
        m.save(1, {"w": np.zeros(2)})
        m.save(2, {"w": np.zeros(2)})
        for step, valid in ((2, 1), (1, None)):
            manifest = os.path.join(m.step(step), "manifest.json")
            with open(manifest, "r+b") as f:
                f.write(b"x")
            if valid is None:
                with pytest.raises(sw.Corrupt):
                    m.latest()
            else:
                latest = m.latest()
                assert latest.step == valid and len(latest.rejected) == 1


def test_steps_of_any_zeros_are_listed(tmp_path):
    sw.save(tmp_path / "step-7", {"w": np.zeros(1)})
    sw.save(tmp_path / "final", {"w": np.zeros(1)})
    with sw.CheckpointManager(tmp_path) as m:
        assert m.steps() == [7] and m.latest().path == str(tmp_path / "step-7")


# A shell may start its background jobs so that they, and their children, ignore SIGINT.
SLOW = """
import itertools, sys, os, signal, numpy as np, shardwise as sw
signal.signal(signal.SIGINT, signal.default_int_handler)
root = sys.argv[1]
w = np.random.default_rng(0).standard_normal((64, 1 << 20), np.float32)
sw.save(root + "/warm", {"w": w[:4]})
print("go", flush=True)
try:
    %s
except KeyboardInterrupt:
    print("interrupted", sorted(os.listdir(root)), flush=True)
"""


# Saves follow each other until it comes: one alone may have ended before, on a busy machine.
@pytest.mark.parametrize("what", ["while True: sw.save(root + '/a', {'w': w}, existing='replace')",
                                  "[sw.CheckpointManager(root).save(i, {'w': w}) for i in itertools.count()]"])
def test_ctrl_c_ends_a_save_and_leaves_no_attempt(tmp_path, what):
    child = subprocess.Popen([sys.executable, "-c", SLOW % what, str(tmp_path)], env=ENVIRONMENT, stdout=subprocess.PIPE,
                             text=True)
    assert child.stdout.readline() == "go\n"
    while child.poll() is None and not [n for n in os.listdir(tmp_path) if n.endswith(".tmp")]:
        pass  # until it is under way
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=240)
    assert "interrupted" in out and ".tmp" not in out and ".lease" not in out
    assert not [n for n in os.listdir(tmp_path) if n.startswith(".")]


HANDLER = """
import os, signal, sys, numpy as np, shardwise as sw
root, stop, LAST = sys.argv[1], [], 1_000_000
m = sw.CheckpointManager(root)
w = np.random.default_rng(0).standard_normal((64, 1 << 18), np.float32)
def handler(signum, frame):
    pending = m.save_async(LAST - 1, {"w": w + 1})
    m.save(LAST, {"w": np.ones(4)}, progress=lambda done, total: None)
    stop.append(pending.result().path)
signal.signal(signal.SIGTERM, handler)
print("go", flush=True)
step = 0
while not stop:
    %s
    step += 1
m.wait()
print(step, m.steps() == [*range(step), LAST - 1, LAST], bool(sw.verify(m.step(LAST - 1))),
      np.array_equal(m.open(LAST - 1)["w"], w + 1),
      all(np.array_equal(m.open(s)["w"], w) for s in range(step)), flush=True)
"""


@pytest.mark.parametrize("what", ["m.save(step, {'w': w})", "m.save(step, {'w': w}, progress=lambda done, total: None)",
                                  "m.save_async(step, {'w': w})"])
def test_a_handler_of_a_signal_may_save(tmp_path, what):
    """The signal arrives in a save, as SIGTERM of a preempted job does."""
    child = subprocess.Popen([sys.executable, "-c", HANDLER % what, str(tmp_path)], env=ENVIRONMENT, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert child.stdout.readline() == "go\n"
        while child.poll() is None and not [n for n in os.listdir(tmp_path) if n.endswith(".tmp")]:
            pass  # until a save is under way
        child.send_signal(signal.SIGTERM)
        out, errors = child.communicate(timeout=240)
    finally:
        child.kill()
    assert out.endswith(" True True True True\n"), (out, errors)


def test_a_callback_may_save(tmp_path):
    done, said = threading.Event(), []
    with sw.CheckpointManager(tmp_path) as m:

        def again(pending):
            try:
                said.append(m.save(2, {"w": np.zeros(2)}).path)
            except Exception as error:
                said.append(error)
            done.set()

        m.save_async(1, {"w": np.zeros(2)}).add_done_callback(again)
        assert done.wait(60)
        assert said == [str(tmp_path / "step-00000002")] and m.steps() == [1, 2]


CALLBACK = """
import sys, threading, numpy as np, shardwise as sw
done = threading.Event()
m = sw.CheckpointManager(sys.argv[1])
def again(pending):
    m.save(2, {"w": np.zeros(2)})
    done.set()
m.save_async(1, {"w": np.zeros((16, 1 << 18))}).add_done_callback(again)
m.wait()
print(done.wait(60), m.steps())
"""


def test_a_callback_may_save_while_the_manager_waits(tmp_path):
    run = subprocess.run([sys.executable, "-c", CALLBACK, str(tmp_path)], env=ENVIRONMENT, text=True, capture_output=True,
                         timeout=120)
    assert run.stdout == "True [1, 2]\n", run.stderr


def test_a_save_can_be_cancelled(tmp_path, rng):
    m = sw.CheckpointManager(tmp_path)
    pending = m.save_async(1, {"w": rng.standard_normal((64, 1 << 18))})
    pending.cancel()
    error = pending.exception()
    assert error is None or isinstance(error, sw.Cancelled)
    assert m.steps() == ([1] if error is None else [])
    m.wait()


def test_progress_is_told_and_may_stop_it(tmp_path, rng):
    w = rng.standard_normal((16, 1 << 18))
    told = []
    sw.save(tmp_path / "a", {"w": w}, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (w.nbytes, w.nbytes) and told == sorted(told)

    def stop(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        sw.save(tmp_path / "b", {"w": w}, progress=stop)


FORK = """
import os, sys, numpy as np, shardwise as sw
m = sw.CheckpointManager(sys.argv[1]); m.save(1, {"w": np.zeros(1 << 20)})
c = m.open(1)
pid = os.fork()
if pid == 0:
    said = []
    for call in (lambda: c["w"][0], lambda: m.save(2, {}), lambda: m.steps()):
        try:
            call(); said.append("no error")
        except sw.Unsupported as error:
            said.append("fork" if "fork" in str(error) else str(error))
    own = sw.open(m_path)["w"][0] if (m_path := os.path.join(sys.argv[1], "step-00000001")) else None
    print(said, float(own), flush=True)
    os._exit(0)
print("child", os.waitpid(pid, 0)[1], len(c["w"][:]), m.steps())
"""


def test_after_fork_what_is_inherited_says_so(tmp_path):
    done = run(FORK, str(tmp_path))
    assert "['fork', 'fork', 'fork'] 0.0" in done.stdout and "child 0 1048576 [1]" in done.stdout, done


END_OF_FORK = """
import os, sys, numpy as np, shardwise as sw
modules = set(sys.modules)
m = sw.CheckpointManager(sys.argv[1])
pending = m.save_async(1, {"w": np.ones(1 << 22)})
batches = iter(sw.Loader({"x": np.arange(1000.0)}, batch_size=2, threads=2))
next(batches)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # frees objects that threads of the parent refer to
print(os.waitpid(pid, 0)[1], pending.result().chunks > 0, m.restore().step)
print(sorted(set(sys.modules) - modules))  # a fork during an import leaves its lock taken
"""


def test_a_forked_child_ends_in_silence_and_no_call_imports(tmp_path):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", END_OF_FORK, tmp_path / "run"],
                          capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["0 True 1", "[]"], ""), done


FORK_IN_SAVE = """
import os, signal, sys, threading, numpy as np, shardwise as sw
forked = threading.Event()
m = sw.CheckpointManager(sys.argv[1])
in_save = threading.Event()
def progress(done, total):
    in_save.set()
    forked.wait()
saver = threading.Thread(target=lambda: m.save(1, {"w": np.ones(1000)}, progress=progress))
saver.start(); in_save.wait()  # it has the manager's lock
other = sw.CheckpointManager(sys.argv[1] + "2")
pending = other.save_async(2, {"w": np.ones(1 << 22)})
pid = os.fork()
if pid == 0:
    signal.alarm(60)  # a child that waits for its parent's threads would never end
    said = set()
    for call in (m.wait, m.close, lambda: m.save(2, {}), lambda: m.save_async(2, {}), m.steps, other.wait, other.close,
                 pending.result, pending.exception, pending.done, lambda: pending.add_done_callback(print)):
        try:
            call(); said.add("no error")
        except sw.Unsupported as error:
            said.add("fork" if "fork" in str(error) else str(error))
    own = sw.CheckpointManager(sys.argv[1] + "3")
    own.save(1, {"w": np.zeros(1000)})
    print(sorted(said), own.steps(), repr(pending) != "", flush=True)
    os._exit(0)
child = os.waitpid(pid, 0)[1]
forked.set(); saver.join(); pending.result()
print("child", child, m.steps(), other.steps())
"""


def test_a_child_forked_in_a_save_does_not_wait_for_its_parents_threads(tmp_path):
    done = run(FORK_IN_SAVE, str(tmp_path / "run"))
    assert "['fork'] [1] True" in done.stdout and "child 0 [1] [2]" in done.stdout, done


def test_the_gil_is_free_while_it_reads(tmp_path, rng, waits_alone_let_others_run):
    sw.save(tmp_path / "a", {"w": rng.standard_normal((64, 1 << 18), np.float32)})
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(1e-6):
            ticks += 1

    thread = threading.Thread(target=tick)
    with sw.open(tmp_path / "a") as c:
        w = c["w"]
        thread.start()
        for _ in range(1000):  # on a busy machine the other thread may have no turn in one
            before = ticks
            np.asarray(w)
            found = ticks - before
            if found > 10:
                break
        stop.set()
    thread.join()
    assert found > 10


SHORT = """
import os, signal, sys, numpy as np, shardwise as sw
m = sw.CheckpointManager(sys.argv[1])
m.save(1, {"w": np.zeros(100_000)})
m.save(2, {"w": np.ones(100_000)}, progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_progress_comes_before_the_commit_however_short_the_save_is(tmp_path):
    for _ in range(5):
        assert run(SHORT, str(tmp_path)).returncode == -signal.SIGKILL
        with sw.CheckpointManager(tmp_path) as m:
            assert m.steps() == [1]
            m.remove(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_progress_that_raises_after_the_commit_is_too_late(tmp_path, rng):
    def when_it_is_there(done, total):
        if (tmp_path / "step-00000001").exists():
            raise LookupError("too late")

    with sw.CheckpointManager(tmp_path) as m:
        m.save(1, {"w": rng.standard_normal(1000)}, progress=when_it_is_there)
        assert m.steps() == [1]


def damage(path):
    """Damages the tensor, not its description."""
    file = path / "shards-00000-of-00001.h5"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)


def test_a_restart_goes_back_past_damaged_bytes_and_says_so(tmp_path):
    def restore(checkpoint):
        return checkpoint["w"][:]

    with sw.CheckpointManager(tmp_path) as m:
        assert m.restore_latest(restore) is None
        for step in range(4):
            m.save(step, {"w": np.full(100, step)})
        (tmp_path / "step-00000003" / "manifest.json").unlink()
        damage(tmp_path / "step-00000002")
        found = m.restore_latest(restore)
        assert found.step == 1 and (found.value == 1).all()
        assert [os.path.basename(path) for path, _ in found.rejected] == ["step-00000003", "step-00000002"]
        assert "tensor \"w\"" in found.rejected[1][1]
        m.save(2, {"w": np.full(100, 2)})  # in place of the damaged one
        assert m.restore_latest(restore).step == 2
        damage(tmp_path / "step-00000002.g2")
        damage(tmp_path / "step-00000000")
        damage(tmp_path / "step-00000001")
        with pytest.raises(sw.Corrupt, match="none of 4 is whole; step-00000003: .*step-00000000: "):
            m.restore_latest(restore)
        with pytest.raises(ZeroDivisionError):  # an error that is no damage comes to the caller
            m.restore_latest(lambda checkpoint: 1 / 0)


def test_damaged_steps_are_replaced_once(tmp_path):
    w = {"w": np.zeros(100)}
    with sw.CheckpointManager(tmp_path) as m:
        for step in range(4):
            m.save(step, w)
        (tmp_path / "step-00000003" / "manifest.json").unlink()
        damage(tmp_path / "step-00000002")
        assert m.restore_latest(lambda checkpoint: checkpoint["w"][:]).step == 1
        for save in (m.save_async, m.save):
            step = 2 if save == m.save else 3
            pending = save(step, w)
            assert (pending if save == m.save else pending.result()).path.endswith(f"step-0000000{step}.g2")
            with pytest.raises(sw.AlreadyExists):
                m.save(step, w)


def test_pinned_steps_stay(tmp_path):
    with sw.CheckpointManager(tmp_path, keep_last=1) as m:
        for step in range(3):
            m.save(step, {"w": np.zeros(2)})
            if step == 1:
                m.pin(1, "before-lr-drop")
        assert m.steps() == [1, 2] and m.pinned() == {"before-lr-drop": 1}
        with pytest.raises(sw.InvalidArgument, match='remove step 1 of .*: it is pinned as "before-lr-drop": unpin that first'):
            m.remove(1)
        m.unpin("before-lr-drop")
        m.remove(1)
        with pytest.raises(sw.NotFound, match="there are none"):
            m.unpin("before-lr-drop")


def test_the_best_step(tmp_path):
    with sw.CheckpointManager(tmp_path, best=("accuracy", "max", 2)) as m:
        for step, accuracy in enumerate([0.5, 0.9, 0.7, 0.1]):
            m.save(step, {"w": np.zeros(2)}, metrics={"accuracy": accuracy})
        assert m.steps() == [1, 2, 3] and m.best() == 1
    with sw.CheckpointManager(tmp_path) as m, pytest.raises(sw.InvalidArgument, match="needed is best="):
        m.best()


def test_a_signal_asks_for_a_save(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    with sw.CheckpointManager(tmp_path, save_every=10, preemption_signals=[signal.SIGUSR2], preemption_grace=3600) as m:
        assert m.should_save(10) and not m.should_save(11) and m.time_left() is None
        m.request_save()
        assert m.should_save(12) and not m.should_save(13)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert not m.reached_preemption()
        assert m.should_save(14) and m.reached_preemption() and 3000 < m.time_left() < 3600
        m.save(14, {"w": np.zeros(2)})
    assert signal.getsignal(signal.SIGUSR2) == before
    with pytest.raises(sw.InvalidArgument, match="found 9, needed is a signal that can be handled"):
        sw.CheckpointManager(tmp_path, preemption_signals=[signal.SIGKILL])


def test_a_save_that_the_process_does_not_live_to_see_is_not_begun(tmp_path):
    with sw.CheckpointManager(tmp_path, preemption_signals=[signal.SIGUSR2], preemption_grace=1e-3) as m:
        m.save(1, {"w": np.zeros(1000)})
        os.kill(os.getpid(), signal.SIGUSR2)
        while m.time_left() > 0:
            pass
        with pytest.raises(sw.Cancelled, match="save step 2: the process ends in 0.0 s, needed are about"):
            m.save(2, {"w": np.zeros(1000)})
        assert m.steps() == [1]


def test_a_save_skipped_if_one_is_under_way(tmp_path):
    with sw.CheckpointManager(tmp_path, when_busy="skip") as m:
        may_go_on = threading.Event()
        first = m.save_async(1, {"w": np.zeros(2)})
        first.result()
        pending = sw.PendingSave(2, lambda progress: may_go_on.wait() and None)
        m._queue.add(pending, None)
        assert m.save_async(3, {"w": np.zeros(2)}).result().skipped
        may_go_on.set()
        pending.result()
        assert not m.save_async(4, {"w": np.zeros(2)}).result().skipped
        assert m.steps() == [1, 4]
    with pytest.raises(sw.InvalidArgument, match="when_busy is 'drop', needed is 'wait' or 'skip' or 'replace'"):
        sw.CheckpointManager(tmp_path, when_busy="drop")


def test_a_save_takes_the_place_of_the_one_that_waits(tmp_path):
    with sw.CheckpointManager(tmp_path, when_busy="replace") as m:
        may_go_on, w = threading.Event(), np.zeros(2)
        m.save(9, {"w": w})
        first = sw.PendingSave(1, lambda progress: may_go_on.wait() and None)
        m._queue.add(first, None)
        second = m.save_async(2, {"w": w})
        with pytest.raises(sw.AlreadyExists):
            m.save_async(9, {"w": w})
        assert not second.done()  # a value that cannot be saved replaces no waiting save
        w += 1
        third = m.save_async(3, {"w": w})
        assert second.done() and second.result().skipped and second.result().path == ""
        memory = m._pools[:]
        w += 1
        fourth = m.save_async(4, {"w": w})
        assert third.result().skipped and not fourth.done() and len(m._pools) == len(memory) <= 1  # two copies at most
        w += 1
        may_go_on.set()
        assert not fourth.result().skipped
        assert m.steps() == [4, 9] and (m.open(4)["w"][:] == 2).all()
    assert sw.CheckpointManager(tmp_path).steps() == [4, 9]


def test_a_save_that_has_begun_is_not_replaced_and_errors_are_told(tmp_path):
    def fails(progress):
        may_fail.wait()
        raise ValueError("the first is broken")

    with sw.CheckpointManager(tmp_path, when_busy="replace") as m:
        may_fail, has_begun, may_go_on = threading.Event(), threading.Event(), threading.Event()
        m._queue.add(sw.PendingSave(1, fails), None)
        turn = m._queue.turn("later")
        second = sw.PendingSave(2, lambda progress: turn.begins(sw.group.Call()) and has_begun.set() or may_go_on.wait() and None)
        m._queue.add(second, turn)
        may_fail.set()
        has_begun.wait()
        with pytest.raises(ValueError, match="the first is broken"):
            m.save_async(3, {"w": np.zeros(2)})
        fourth = m.save_async(4, {"w": np.zeros(2)})
        assert not second.done() and not fourth.done()
        may_go_on.set()
        m.close()
        assert second.done() and m.steps() == [4]
        may_fail.clear()
        m._queue.add(sw.PendingSave(5, fails), None)
        last = m.save_async(6, {"w": np.zeros(2)})
        may_fail.set()
        with pytest.raises(ValueError, match="the first is broken"):
            m.close()
        assert last.done() and m.steps() == [4, 6]


def test_what_has_not_changed_is_not_written_again(tmp_path):
    frozen, step = np.random.default_rng(1).random(1 << 18), np.zeros(1 << 18)
    with sw.CheckpointManager(tmp_path / "run", keep_last=1) as m:
        assert m.save(1, {"frozen": frozen, "w": step}).unchanged_bytes == 0
        assert m.save(2, {"frozen": frozen, "w": step + 1}).unchanged_bytes == frozen.nbytes
        assert m.steps() == [2] and (m.open()["frozen"][:] == frozen).all() and (m.open()["w"][:] == 1).all()
    with sw.CheckpointManager(tmp_path / "run", increments=False) as m:
        assert m.save(3, {"frozen": frozen}).unchanged_bytes == 0
    assert sw.save(tmp_path / "a", {"frozen": frozen}, unchanged_since=tmp_path / "run" / "step-00000003").unchanged_bytes == frozen.nbytes


def test_nothing_is_built_on_a_step_that_was_found_damaged(tmp_path):
    frozen = np.random.default_rng(1).random(1 << 18)
    with sw.CheckpointManager(tmp_path) as m:
        m.save(1, {"frozen": frozen}, user={})
        m.save(2, {"frozen": frozen + 1}, user={})
        shard = next((tmp_path / "step-00000002").glob("shards-*"))
        data = bytearray(shard.read_bytes())
        data[5000] ^= 1
        shard.write_bytes(data)
        found = m.restore_latest(lambda checkpoint: checkpoint["frozen"][:])
        assert found.step == 1
        assert m.save(3, {"frozen": frozen + 1}).unchanged_bytes == 0
        assert m.save(4, {"frozen": frozen + 1}).unchanged_bytes == frozen.nbytes
