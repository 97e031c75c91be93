"""shardwise.jax in jobs of several processes of 4 CPU devices each."""

import os
import pathlib
import signal
import threading
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from processes import free_port, run_ranks

import shardwise as sw
import shardwise.jax as swj
import shardwise.jax.ocp as ocp
from stored_stats import names, stats_of_step


def start(rank: int, size: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {"w": rng.random((64, 24), dtype="f4"), "r": rng.random((512, 1024)), "s": np.float32(2.5),
            "t": rng.integers(0, 9, (16, 8, 4)).astype("i1"), "odd": np.arange(32.0).reshape(8, 4), "half": np.arange(8.0)}


def placed(value: Any, sharding: Any) -> jax.Array:
    return jax.make_array_from_callback(np.shape(value), sharding, lambda index: np.asarray(value)[index],
                                        dtype=value.dtype)


def trees(names: tuple[str, str] = ("data", "model")) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the tree to save, and the target to load."""
    jax.config.update("jax_enable_x64", True)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), names)
    turned = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), names)
    odd = Mesh(np.array(jax.devices()).reshape(2, 4), ("a-b", "c d"))
    local = Mesh(np.array(jax.local_devices()), ("a",))
    second = Mesh(np.array([d for d in jax.devices() if d.process_index == 1]), ("a",))
    how = {"w": (mesh, P("data", "model")), "r": (mesh, P()), "s": (mesh, P()), "t": (turned, P(("model", "data"), None)),
           "odd": (odd, P("c d")), "half": (second, P("a"))}
    tree: dict[str, Any] = {name: placed(value, NamedSharding(*how[name])) for name, value in arrays().items()}
    tree |= {"numpy": np.arange(5), "local": jnp.arange(6), "cut": placed(np.arange(8), NamedSharding(local, P("a"))),
             "text": "x", "empty": jnp.zeros((0, 2)), "n": None,
             "keys": placed(jax.random.key_data(jax.random.split(jax.random.key(0), 8)), NamedSharding(mesh, P(("data", "model"))))}
    tree["keys"] = jax.random.wrap_key_data(tree["keys"])
    back = {name: jax.ShapeDtypeStruct(np.shape(v), v.dtype, sharding=NamedSharding(turned, P("data") if np.ndim(v) else P()))
            for name, v in arrays().items()}
    back["keys"] = jax.ShapeDtypeStruct((8,), tree["keys"].dtype, sharding=NamedSharding(turned, P("data")))
    return tree, {**{name: swj.ANY for name in tree if tree[name] is not None}, **back, "n": None}


def right(got: dict[str, Any]) -> bool:
    """Returns whether the parts that this process has are right."""
    for name, value in arrays().items():
        for shard in got[name].addressable_shards:
            assert np.array_equal(np.asarray(shard.data), np.asarray(value)[shard.index]), name
    return got["text"] == "x" and got["numpy"].tolist() == list(range(5)) and got["cut"].tolist() == list(range(8))


def job(rank: int, size: int, port: int, root: str) -> list[Any]:
    start(rank, size, port)
    tree, target = trees()
    stats = swj.save(root + "/c", tree)
    ok = right(swj.load(root + "/c", target))
    pending = swj.save_async(root + "/d", tree)
    assert pending.result().path == root + "/d"
    said = []
    other = {**tree, "numpy": np.arange(5) + rank, "text": str(rank), "more": 1} if rank else {**tree, "text": "0"}
    w = tree["w"]
    wrong = rank == 1
    for bad in (other, {**tree, "bad": object()} if rank == 1 else tree,
                {"W" if wrong else "w": w}, {"w": jnp.float64(1)} if wrong else {"w": w},
                {"w": placed(arrays()["w"].astype("f8") if wrong else arrays()["w"], w.sharding)},
                {"w": placed(arrays()["w"][: 32 if wrong else 64], w.sharding)}, {"w": 1 if wrong else w},
                {"a": {"w": [w] if wrong else (w,)}}, {"b": 1, "a": [w]} if wrong else {"a": [w], "b": 1}):
        try:
            swj.save(root + ("/f" if "b" in bad else "/e"), bad, deadline=60)
        except Exception as error:  # noqa: BLE001
            said.append(f"{type(error).__name__}: {error}")
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=3)
    with ocp.CheckpointManager(root + "/m", options=options, deadline=60) as o:
        saved = [step for step in range(1, 10) if o.save(step, {"w": tree["w"], "step": step}, metrics={"rank": rank})]
        o.wait_until_finished()
        latest = o.restore(None, args=ocp.args.StandardRestore({"w": swj.ANY, "step": 0}))["step"]
        steps = o.all_steps()
        o.delete(6)
        steps += o.all_steps()
    heard = []
    with swj.CheckpointManager(root + "/n", save_every=0, preemption_signals=[signal.SIGUSR2], preemption_grace=3600, deadline=60) as m:
        for step in range(4):
            if (rank, step) == (1, 1):
                m.request_save()
            if (rank, step) == (0, 3):
                os.kill(os.getpid(), signal.SIGUSR2)
            heard.append(m.should_save(step))
            if heard[-1]:
                m.save_async(step, {"w": tree["w"]}, metrics={"rank": rank})
        heard.append(m.reached_preemption())
        m.wait()
        heard.append(m.steps())
        left = m.time_left()
    return [ok, stats.chunks, said, saved, steps, latest, o.metrics(9), heard, left is None]


def test_two_processes(tmp_path):
    first, second = run_ranks(job, 2, free_port(), str(tmp_path))
    assert first[3:8] == second[3:8] and first[0] and second[0]
    assert first[3:8] == [[1, 3, 6, 9], [6, 9, 9], 9, {"rank": 0.0}, [False, True, False, True, True, [1, 3]]]
    assert not first[8] and second[8]  # the signal came to process 0 alone
    for said in (first[2], second[2]):
        for text in ("3 values are not the same for all processes", "'numpy', which each process has for itself, differs between "
                     "process 0 and process 1", "process 0 has no 'more'", "'text', which"):
            assert said[0].startswith("InvalidArgument") and text in said[0]
        assert "'bad': builtins.object cannot be stored" in said[1]
        for text, why in zip(said[2:], ("process 1 has no 'w', as others have; process 0 has no 'W'",
                                        "'w' is f32 [64, 24] data,model on data=2,model=4@", "process 0, f64 [64, 24] data,model",
                                        "process 0, f32 [32, 24] data,model", ", an object for process 1",
                                        "the container at 'a/w' is tuple for process 0, list for process 1"), strict=True):
            assert text.startswith("InvalidArgument") and why in text
    assert sorted(os.listdir(tmp_path)) == ["c", "d", "f", "m", "n"]
    for name in ("c", "d"):
        assert sw.verify(tmp_path / name)
        got = swj.load(tmp_path / name)
        assert all(np.array_equal(got[n], v) for n, v in arrays().items()) and got["empty"].shape == (0, 2)
        assert got["numpy"].tolist() == list(range(5)) and got["local"].tolist() == list(range(6)) and got["n"] is None
        with sw.open(tmp_path / name) as c:
            assert "2048" in c["w"].mesh and c["odd"].mesh == "" and c["w"].spec == "data,model"
            # Both have written: arrays that both have are shared between them.
            assert {p.name for p in (tmp_path / name).glob("shards-*")} == {"shards-00000-of-00002.h5", "shards-00001-of-00002.h5"}
    one = jax.ShapeDtypeStruct((64, 24), np.float32, sharding=NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P(None, "x")))
    assert np.array_equal(swj.load(tmp_path / "c", {"w": one}, strict=False)["w"], arrays()["w"])


def told_to_end(rank: int, size: int, port: int, root: str, signals: list[int]) -> tuple[int, list[int]]:
    start(rank, size, port)
    with swj.CheckpointManager(root, save_every=0, preemption_signals=signals, deadline=60) as m:
        assert not m.should_save(0) and not m.reached_preemption()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        step = 1
        while not m.should_save(step):  # JAX's own notice takes its time
            step += 1
        assert m.reached_preemption()
        m.save(step, {"step": step})
    return step, m.steps()


@pytest.mark.parametrize("signals", [[signal.SIGTERM], []], ids=["ours", "of jax.distributed"])
def test_all_save_and_end_at_one_step_after_sigterm(tmp_path, signals):
    first, second = run_ranks(told_to_end, 2, free_port(), str(tmp_path), signals)
    assert first == second and first[1] == [first[0]] and (not signals or first[0] == 1)


def replacing(rank: int, size: int, port: int, root: str) -> list[Any]:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))

    def tree(step: int) -> dict[str, Any]:
        return {"w": placed(np.full(64, step, "f4"), sharding), "n": np.full(2, step)}

    with swj.CheckpointManager(root, when_busy="replace", keep_last=3) as m:
        may_go_on = threading.Event()
        m._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
        second, third, fourth = (m.save_async(step, tree(step)) for step in (2, 3, 4))
        assert second.result().skipped and third.result().skipped and m.is_saving()
        may_go_on.set()
        m.wait()
        assert not fourth.result().skipped and m.steps() == [4]
        for step in range(5, 15):
            m.save_async(step, tree(step))
        m.wait()
        steps = m.steps()
        assert np.asarray(m.restore(step=steps[0]).value["n"]).tolist() == [steps[0]] * 2
        return steps


def test_which_save_is_replaced_is_process_0s_to_say(tmp_path):
    first, second = run_ranks(replacing, 2, free_port(), str(tmp_path))
    assert first == second and first[-1] == 14 and len(first) <= 3


def telling(rank: int, size: int, port: int, root: str) -> None:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    with swj.CheckpointManager(root, keep_last=1, deadline=60) as m:
        for step in (1, 2):
            m.save(step, {"w": placed(np.full((64, 1000), step, "f4"), sharding)})


def test_process_0_keeps_what_both_saved(tmp_path):
    run_ranks(telling, 2, free_port(), str(tmp_path))
    assert names(tmp_path) == ["stats-step-00000002.json", "step-00000002"]
    found = stats_of_step(tmp_path, 2)
    assert found["logical_bytes"] == 64 * 1000 * 4 and found["blocked_seconds"] > 0 and found["memory_bytes"] > 0
    with sw.open(tmp_path / "step-00000002") as checkpoint:
        assert found["chunks"] == sum(checkpoint[name].chunks for name in checkpoint)


def going_back(rank: int, size: int, port: int, root: str) -> list[Any]:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    target = {"w": jax.ShapeDtypeStruct((64, 1000), np.float32, sharding=sharding)}
    with swj.CheckpointManager(root, deadline=60) as m:
        for step in (1, 2):
            m.save(step, {"w": placed(np.full((64, 1000), step, "f4"), sharding)})
        if rank == 0:  # only process 1 reads it, before both are told which step is the latest
            file = pathlib.Path(root, "step-00000002", "shards-00001-of-00002.h5")
            data = bytearray(file.read_bytes())
            data[4096] ^= 1
            file.write_bytes(data)
        found = m.restore(target)
        values = [float(np.asarray(shard.data).max()) for shard in found.value["w"].addressable_shards]
        m.save(2, {"w": placed(np.full((64, 1000), 3, "f4"), sharding)})
        again = m.restore(target).value["w"].addressable_shards
        return [values, found.step, "rank 1: " in found.rejected[0][1], float(np.asarray(again[0].data).max()), m.steps()]


def test_both_go_back_past_what_is_damaged_for_one(tmp_path):
    assert run_ranks(going_back, 2, free_port(), str(tmp_path)) == [[[1.0] * 4, 1, True, 3.0, [1, 2]]] * 2


def with_parity(rank: int, size: int, port: int, root: str) -> list[Any]:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    with swj.CheckpointManager(root, parity_blocks=2, deadline=60) as m:
        for step in (1, 2):
            m.save_async(step, {"w": placed(np.full((64, 1000), step, "f4"), sharding)})
    with swj.CheckpointManager(root, parity_blocks=2 + rank, deadline=60) as m:
        m.save_async(3, {"w": placed(np.full((64, 1000), 3, "f4"), sharding)})
        with pytest.raises(sw.Error, match="parity_blocks"):
            m.wait()
        return m.steps()


def test_each_process_writes_the_parity_of_its_file(tmp_path):
    assert run_ranks(with_parity, 2, free_port(), str(tmp_path)) == [[1, 2], [1, 2]]
    path = tmp_path / "step-00000002"
    report = sw.verify(path)
    assert report.ok and (report.parity_files, report.parity_blocks) == (2, 2)
    good = {file.name: file.read_bytes() for file in path.iterdir()}
    for file in path.glob("shards-*.h5"):
        data = bytearray(file.read_bytes())
        data[4096] ^= 1
        file.write_bytes(data)
    assert not sw.verify(path) and sw.repair(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == good
    with pytest.raises(sw.InvalidArgument, match="found -1 parity blocks, needed are 1 to 127"):
        swj.CheckpointManager(tmp_path, parity_blocks=-1)


def one_dies(rank: int, size: int, port: int, root: str) -> list[Any]:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    tree = {"w": placed(np.arange(64.0, dtype="f4"), sharding)}
    with swj.CheckpointManager(root, deadline=240) as m:
        m.save(0, tree)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    m = swj.CheckpointManager(root, deadline=4)
    try:
        m.save(1, tree)
    except sw.GroupError as error:
        return [str(error), m.steps()]
    return ["nothing was said"]


def ending(rank: int, size: int, port: int, root: str) -> str:
    start(rank, size, port)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
    tree = {"w": placed(np.arange(64.0, dtype="f4"), sharding)}
    # Process 1 is about to be ended: it is not there when the save would be done.
    with swj.CheckpointManager(root, preemption_signals=[signal.SIGUSR2], preemption_grace=1e-3 if rank else 3600, deadline=60) as m:
        m.save(1, tree)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGUSR2)
        assert m.should_save(2) and m.reached_preemption()
        try:
            m.save(2, tree)
        except sw.Cancelled as error:
            return str(error)
        finally:
            assert m.steps() == [1]
    return "it was saved"


def test_a_save_that_one_process_does_not_live_to_see_ends_for_all(tmp_path):
    said = run_ranks(ending, 2, free_port(), str(tmp_path))
    for text in said:
        assert "save step 2: the process ends in 0.0 s, needed are about" in text
    assert "rank 1" in said[0] and names(tmp_path) == ["stats-step-00000001.json", "step-00000001"]


def test_a_process_that_dies(tmp_path):
    told, _ = run_ranks(one_dies, 2, free_port(), str(tmp_path), may_die=True)
    assert "rank 1 of 2 did not come within 4 s" in told[0] and told[1:] == [[0]]
    assert sw.verify(tmp_path / "step-00000000")
    assert swj.load(tmp_path / "step-00000000")["w"].tolist() == list(range(64))
    with pytest.raises(sw.InvalidArgument, match="'w' is float32"):
        swj.load(tmp_path / "step-00000000", {"w": jax.ShapeDtypeStruct((64,), np.int8)})
