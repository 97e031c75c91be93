"""Meshes, specs and shardings against a brute-force rule."""

import numpy as np
import pytest

import shardwise as sw


def test_boxes_cover_every_element_once_per_replica(rng):
    for _ in range(200):
        sizes = [int(n) for n in rng.integers(1, 4, 3)]
        mesh = sw.Mesh(list(zip("abc", sizes)), [int(d) for d in rng.permutation(int(np.prod(sizes))) * 3])
        axes = list(rng.permutation(list("abc")))
        entries = [tuple(axes.pop() for _ in range(rng.integers(0, len(axes) + 1))) for _ in range(2)]
        sharding = sw.Sharding(mesh, sw.PartitionSpec(*entries))
        shape = tuple(int(n) for n in rng.integers(0, 9, 2))
        count = np.zeros(shape, int)
        for device, box in sharding.boxes(shape).items():
            count[box] += 1
            ways = [int(np.prod([mesh.shape[a] for a in entry])) for entry in entries]
            position = np.unravel_index(mesh.devices.index(device), sizes)
            at = [int(np.ravel_multi_index([position["abc".index(a)] for a in e], [mesh.shape[a] for a in e])) if e else 0
                  for e in entries]
            for dim, (i, w, n) in enumerate(zip(at, ways, shape)):
                block = -(-n // w)
                assert (box[dim].start, box[dim].stop) == (min(i * block, n), min((i + 1) * block, n))
        assert (count == sharding.num_replicas).all()


def test_texts_and_errors():
    mesh = sw.Mesh({"data": 4, "model": 2})
    assert str(mesh) == "data=4,model=2" and mesh == sw.Mesh("data=4,model=2") and mesh.size == 8
    spec = sw.PartitionSpec("data", None, ("model",))
    assert str(spec) == "data,-,model" and sw.PartitionSpec.parse("data,-,model") == spec and len(spec) == 3
    assert str(sw.PartitionSpec(("data", "model"))) == "data+model" and spec[1] is None
    assert sw.Sharding(mesh, "data,-").shard_shape((10, 3)) == (3, 3)
    with pytest.raises(sw.NameNotFound, match="datta"):
        sw.Sharding(mesh, "datta,-")
    with pytest.raises(sw.InvalidArgument):
        sw.Sharding(mesh, "data", "strict").shard_shape((10,))
    with pytest.raises(sw.InvalidArgument):
        sw.Mesh("data=0")


def test_pictures_and_plans():
    before, after = sw.Sharding("x=4", "x,-"), sw.Sharding("x=4", "-,x")
    assert before._repr_svg_().startswith("<svg") and "<svg" in before.picture((7, 3))._repr_svg_()
    plan = sw.TransferPlan(before, after, (8, 8))
    assert plan.classify() == "all_to_all" and plan.moved_elements == 48
    a = np.arange(64).reshape(8, 8)
    held = {d: a[b] for d, b in before.boxes((8, 8)).items()}
    got = {d: np.full((8, 8), -1) for d in range(4)}
    for source, target, box in plan.copies:
        row = before.box(source, (8, 8))[0].start
        got[target][box] = held[source][box[0].start - row : box[0].stop - row, box[1]]
    for d, box in after.boxes((8, 8)).items():
        np.testing.assert_array_equal(got[d][box], a[box])
    assert "fetch" in sw.explain_reshard(before, after, (8, 8))


def test_jax_shardings_go_both_ways():
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    from jax.sharding import NamedSharding, PartitionSpec

    devices = np.array(jax.devices()[:1])
    mesh = jax.sharding.Mesh(devices.reshape(1, 1), ("a", "b"))
    for spec in (PartitionSpec("a", None), PartitionSpec(("a", "b")), PartitionSpec(None, "b"), PartitionSpec()):
        ours = sw.Sharding.from_jax(NamedSharding(mesh, spec), 2)
        assert ours.to_jax().is_equivalent_to(NamedSharding(mesh, spec), 2)


def test_resharding(tmp_path, rng):
    with sw.CheckpointManager(tmp_path / "a") as m:
        w = rng.standard_normal((64, 32))
        m.save(7, {"w": w, "b": np.arange(3), "step": 7}, user={"x": 1})
    path = sw.reshard(m.step(7), tmp_path / "b", mesh="data=2,model=4", rules="w=data,model; *=-", files=4)
    with sw.open(path) as c:
        assert c["w"].mesh == "data=2,model=4" and c["w"].spec == "data,model" and c.user == {"x": 1} and c.step == 7
        assert c.objects == {"step": 7}
        np.testing.assert_array_equal(np.asarray(c["w"]), w)
    with pytest.raises(sw.InvalidArgument, match="nope"):
        sw.reshard(m.step(7), tmp_path / "c", mesh="data=2", rules="nope=data")
    assert "w" in sw.explain(path, mesh="model=8", rules="w=model,-; *=-")
    sw.save(tmp_path / "final", {"w": w})
    with pytest.raises(sw.InvalidArgument, match="it has no step"):
        sw.reshard(tmp_path / "final", tmp_path / "c", mesh="data=2")
