"""Meshes, specs and shardings against a brute-force rule."""

import itertools
import types
from typing import Any

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
    with pytest.raises(sw.InvalidArgument, match="found no step number"):
        sw.reshard(tmp_path / "final", tmp_path / "c", mesh="data=2")


def test_hybrid_meshes_order_devices_by_slice_and_torus():
    # Two slices of 2x2 devices, ids 0 to 3 and 4 to 7; listed in any order.
    devices = [sw.Device(i, coords=(i % 4 // 2, i % 2), slice_index=i // 4) for i in (5, 0, 3, 6, 1, 7, 2, 4)]
    mesh = sw.HybridMesh((2, 2), (2, 1), ("data", "model"), devices=devices)
    assert mesh.shape == {"data": 4, "model": 2} and isinstance(mesh, sw.Mesh)
    # Rows 0 and 1 are in one slice, rows 2 and 3 in the other; neighbours in a row are in one slice.
    slices = mesh.get_logical_mesh() // 4
    np.testing.assert_array_equal(slices, [[0, 0], [0, 0], [1, 1], [1, 1]])
    assert sorted(mesh.devices) == list(range(8))
    sw.Sharding(mesh, "data,model").box(5, (8, 4))
    by_process = [sw.Device(i, process_index=i // 2) for i in range(4)]
    outer = sw.HybridMesh((1, 2), (2, 1), ("a", "b"), devices=by_process, process_is_granule=True)
    np.testing.assert_array_equal(outer.get_logical_mesh(), [[0, 1], [2, 3]])
    with pytest.raises(sw.InvalidArgument, match="2 ici sizes, 1 dcn sizes"):
        sw.HybridMesh((2, 2), (2,), devices=devices)
    with pytest.raises(sw.InvalidArgument):
        sw.HybridMesh((2, 2), (3, 1), devices=devices)


def test_device_meshes_follow_the_torus():
    devices = [sw.Device(4 * y + x, coords=(x, y)) for x in range(4) for y in range(2)]
    mesh = sw.device_mesh({"data": 2, "model": 4}, devices)
    place = {d.id: d.coords for d in devices}
    for row in mesh.get_logical_mesh():  # neighbours along "model" are neighbours in the torus
        for a, b in zip(row, row[1:]):
            assert sum(abs(i - j) for i, j in zip(place[a], place[b])) == 1
    assert sw.device_mesh({"d": 3}, [sw.Device(7), sw.Device(2), sw.Device(5)]).devices == [2, 5, 7]
    with pytest.raises(sw.InvalidArgument):
        sw.device_mesh({"d": 4}, devices)


def test_minibatches_of_processes():
    # Devices in an order that gives each process two tiles that are no neighbours.
    sharding = sw.Sharding(sw.Mesh({"data": 4}, [0, 2, 1, 3]), "data,-")
    rows = np.arange(8 * 3).reshape(8, 3)
    for process in range(2):
        batch = sharding.minibatch((4, 3), process, lambda device: device // 2)
        assert batch.global_shape == (8, 3) and (batch.index, batch.count) == (process, 2)
        assert set(batch.local) == {2 * process, 2 * process + 1}
        brought = np.concatenate([rows[batch.boxes[d]] for d in sorted(batch.local, key=lambda d: batch.local[d][0].start)])
        for device, box in batch.local.items():
            assert batch.boxes[device] == sharding.box(device, (8, 3))
            np.testing.assert_array_equal(brought[box], rows[batch.boxes[device]])
    with pytest.raises(sw.NotFound):
        sharding.minibatch((4, 3), 5, lambda device: device // 2)
    with pytest.raises(sw.InvalidArgument):
        sharding.minibatch((3, 3), 0, lambda device: device // 2)


TORI: list[Any] = [  # kind, extents of chips, cores of a chip, sizes of axes
    ("TPU v4", (2, 2, 1), 1, (2, 2)), ("TPU v4", (4, 4, 4), 1, (4, 16)), ("TPU v4", (2, 2, 4), 1, (8, 2)),
    ("TPU v4", (4, 4, 4), 1, (8, 8)), ("TPU v5 lite", (4, 2, 1), 1, (2, 4)), ("TPU v5p", (2, 2, 2), 2, (4, 4)),
    ("TPU v5p", (2, 4, 1), 2, (2, 8)), ("TPU v3", (4, 4, 1), 2, (4, 8)),
]  # fmt: skip


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(("kind", "extents", "cores", "sizes"), TORI)
def test_devices_of_chips_are_ordered_as_by_jax(monkeypatch, kind, extents, cores, sizes, contiguous):
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    from jax._src import mesh_utils

    monkeypatch.setattr(mesh_utils, "device_kind_handler_dict", {})  # the orders by kind have a test of their own
    places = [(x, y, z, core) for z, y, x, core in itertools.product(*map(range, extents[::-1]), range(cores))]
    devices = [types.SimpleNamespace(id=number, coords=(x + 2, y, z), core_on_chip=core, process_index=number // 4, slice_index=0,
                                     platform="tpu", device_kind=kind) for number, (x, y, z, core) in enumerate(places)]
    options = {"contiguous_submeshes": contiguous}
    try:
        expected = [device.id for device in mesh_utils.create_device_mesh(sizes, devices, **options).flat]
    except (ValueError, NotImplementedError):
        with pytest.raises(sw.InvalidArgument):
            sw.device_mesh({"a": sizes[0], "b": sizes[1]}, devices, **options)
        return
    ours = [sw.Device(d.id, d.coords, d.slice_index, d.process_index, d.core_on_chip) for d in devices]
    for given in (devices, ours):
        assert sw.device_mesh({"a": sizes[0], "b": sizes[1]}, given, **options).devices == expected


def test_meshes_of_others_are_plain_meshes(monkeypatch):
    devices = [sw.Device(i, slice_index=i // 2) for i in range(4)]
    hybrid = sw.HybridMesh((1, 2), (2, 1), ("a", "b"), devices=devices)
    of_jax = types.SimpleNamespace(axis_names=("a", "b"), shape={"a": 2, "b": 2}, devices=np.array(devices).reshape(2, 2))
    of_torch = types.SimpleNamespace(mesh_dim_names=("a", "b"), mesh=np.arange(4).reshape(2, 2))
    for found in (sw.HybridMesh.from_jax(of_jax), sw.HybridMesh.from_torch(of_torch), sw.Mesh.from_jax(of_jax)):
        assert type(found) is sw.Mesh and found == hybrid and found.shape == {"a": 2, "b": 2}
