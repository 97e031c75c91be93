"""shardwise.jax.Loader: global arrays on 8 CPU devices."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from processes import free_port, run_ranks

import shardwise as sw
import shardwise.jax as swj


def table(n=64):
    return {"x": np.arange(n * 8, dtype=np.float32).reshape(n, 2, 4), "y": np.arange(n, dtype=np.int32)}


def mesh():
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def test_batches_are_global_arrays_on_their_shardings():
    shardings = {"x": NamedSharding(mesh(), P("data", None, "model")), "y": NamedSharding(mesh(), P("data"))}
    host = list(sw.Loader(table(), batch_size=16, seed=3, epochs=2))
    kept = []
    for h, b in zip(host, swj.Loader(table(), shardings, batch_size=16, seed=3, epochs=2, prefetch=1), strict=True):
        assert b.index == h.index and b["x"].sharding == shardings["x"] and b["x"].shape == (16, 2, 4)
        assert (np.asarray(b["x"]) == h["x"]).all() and (np.asarray(b["y"]) == h["y"]).all()
        assert np.asarray(b.mask).all() and np.isclose(np.asarray(b.weights).sum(), 1)
        kept.append((b, h["x"].copy()))
    # JAX may use the memory as it is: no later batch is written there.
    assert all((np.asarray(b["x"]) == h).all() for b, h in kept)


def test_one_sharding_cuts_the_batch_of_all_fields():
    batch = next(swj.Loader(table(), NamedSharding(mesh(), P(("data", "model"))), batch_size=16))
    assert batch["x"].addressable_shards[0].data.shape == (2, 2, 4) and batch["y"].addressable_shards[0].data.shape == (2,)
    with pytest.raises(sw.InvalidArgument, match="one entry"):
        swj.Loader(table(), NamedSharding(mesh(), P("data", "model")), batch_size=16)
    with pytest.raises(sw.InvalidArgument, match="mesh follows"):
        swj.Loader(table(), NamedSharding(mesh(), P("data")), batch_size=16, mesh="data=4")


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(sw.InvalidArgument):
        next(swj.Loader(table(), NamedSharding(mesh(), P("data")), batch_size=6))


def test_resumes_from_its_state():
    sharding = NamedSharding(mesh(), P("data"))
    expected = [np.asarray(b["y"]).tolist() for b in swj.Loader(table(), sharding, batch_size=8, seed=1)]
    loader = swj.Loader(table(), sharding, batch_size=8, seed=1)
    found = [np.asarray(next(loader)["y"]).tolist() for _ in range(3)]
    again = swj.Loader(table(), NamedSharding(mesh(), P("model")), batch_size=8)
    again.load_state_dict(loader.state_dict())
    assert found + [np.asarray(b["y"]).tolist() for b in again] == expected


def of_two_processes(rank, size, port):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    asked = set()

    class Counts:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            asked.add(i)
            return {"x": table()["x"][i], "y": np.int32(i)}

    grid = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    shardings = {"x": NamedSharding(grid, P("data", None, "model")), "y": NamedSharding(grid, P("data"))}
    source = sw.sources.callback(64, {"x": (np.float32, (2, 4)), "y": (np.int32, ())}, Counts().__getitem__, name="counts")
    found = []
    for batch in swj.Loader(source, shardings, batch_size=16, seed=2):
        assert batch["x"].shape == (16, 2, 4)
        found.append({name: [(s.index, np.asarray(s.data)) for s in batch[name].addressable_shards] for name in batch})
    return found, asked


def test_each_process_reads_what_its_devices_hold():
    whole = list(sw.Loader(table(), batch_size=16, seed=2))
    for found, asked in run_ranks(of_two_processes, 2, free_port()):
        assert len(asked) == 32  # half of the rows
        for batch, parts in zip(whole, found, strict=True):
            for name in ("x", "y"):
                assert len(parts[name]) == 4
                assert all((batch[name][index] == data).all() for index, data in parts[name])


def test_fields_that_jax_makes_narrower_are_told():
    import warnings

    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), P("data"))
    wide = {"x": np.zeros((8, 2), np.float32), "label": np.arange(8)}
    with pytest.warns(UserWarning, match=r"'label' \(int64 to int32\).*jax_enable_x64"):
        loader = swj.Loader(wide, sharding, batch_size=8)
    assert next(loader)["label"].dtype == np.int32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swj.Loader({"x": wide["x"]}, sharding, batch_size=8).close()
