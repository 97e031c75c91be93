"""Transposes, splits and joins tensors that are read: by open, load, and the loads of torch and JAX. Numpy is the oracle."""

import os

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, as all tests of it have it
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


def random_shape(random, rank):
    return tuple(int(extent) for extent in random.integers(1, 7, rank))


def random_box(random, shape):
    ends = [sorted(int(end) for end in random.integers(0, extent + 1, 2)) for extent in shape]
    return tuple(slice(begin, end) for begin, end in ends)


def random_edits(random):
    """Stored tensors, edits, and the edited tensors."""
    tensors, expected = {}, {}
    edits = {"transpose": {}, "split": {}, "join": {}, "cast": {}}
    for number in range(int(random.integers(1, 4))):
        rank = int(random.integers(1, 5))
        dim = int(random.integers(0, rank))
        shape = [*random_shape(random, rank)]
        parts = {}
        for part in "ab"[: int(random.integers(1, 3))]:
            shape[dim] = int(random.integers(0, 6))
            parts[f"{part}{number}"] = random.standard_normal(shape).astype(np.float32)
        is_cast = random.integers(0, 2)
        for name, array in parts.items():
            order = [int(axis) for axis in random.permutation(rank)]
            tensors[name] = np.ascontiguousarray(array.transpose(np.argsort(order)))
            edits["transpose"][name] = order
            if is_cast:
                edits["cast"][name] = "bf16"
        made = np.concatenate([*parts.values()], dim)
        made = made.astype(ml_dtypes.bfloat16) if is_cast else made
        counted = dim - rank if random.integers(0, 2) else dim  # from the end
        if len(parts) == 2:
            edits["join"][",".join(parts)] = f"c{number}@{counted}"
            expected[f"c{number}"] = made
        else:
            cuts = sorted(int(cut) for cut in random.integers(0, made.shape[dim] + 1, 2))
            extents = [cuts[0], cuts[1] - cuts[0], made.shape[dim] - cuts[1]]
            edits["split"][f"a{number}"] = f"x{number},y{number},z{number}@{counted}:{','.join(map(str, extents))}"
            expected |= {f"{part}{number}": array for part, array in zip("xyz", np.split(made, cuts, dim))}
    return tensors, edits, expected


@pytest.mark.parametrize("seed", range(40))
def test_any_box_of_what_is_changed_is_that_of_numpy(tmp_path, seed):
    random = np.random.default_rng(seed)
    tensors, edits, expected = random_edits(random)
    sw.save(tmp_path / "x", {**tensors, "count": 3})
    with sw.open(tmp_path / "x", **edits) as checkpoint:
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in checkpoint.items()} == {
            name: (array.shape, array.dtype) for name, array in expected.items()}
        assert checkpoint.objects == {"count": 3}
        for name, array in expected.items():
            for box in (..., *(random_box(random, array.shape) for _ in range(4))):
                assert np.array_equal(checkpoint[name][box], array[box])
    loaded = sw.load(tmp_path / "x", **edits)
    assert loaded.pop("count") == 3 and loaded.keys() == expected.keys()
    assert all(np.array_equal(loaded[name], array) for name, array in expected.items())


def test_large_tensors_change_part_by_part(tmp_path):
    """The array is larger than the memory that a read needs besides its result."""
    wide = np.arange(3 * 700 * 900, dtype=np.float32).reshape(2100, 900)
    sw.save(tmp_path / "x", {"h.0.qkv": wide, "h.1.qkv": wide + 1, "up": wide[:, :400], "gate": wide[:, 400:]})
    edits = {"transpose": {"*.qkv": (1, 0)}, "split": {"h.*.qkv": "*.q,*.k,*.v@1"}, "join": {"gate,up": "both@1"}}
    with sw.Checkpoint(tmp_path / "x", memory=1 << 20, **edits) as checkpoint:
        assert sorted(checkpoint) == ["0.k", "0.q", "0.v", "1.k", "1.q", "1.v", "both"]
        for layer in range(2):
            for part, name in enumerate("qkv"):
                expected = (wide + layer).T[:, part * 700 : (part + 1) * 700]
                assert np.array_equal(checkpoint[f"{layer}.{name}"], expected)
                assert np.array_equal(checkpoint[f"{layer}.{name}"][5:800:9, 3], expected[5:800:9, 3])
        assert np.array_equal(checkpoint["both"], np.concatenate([wide[:, 400:], wide[:, :400]], 1))


def test_a_part_reads_only_the_chunks_that_it_needs(tmp_path):
    rows = np.arange(8 * 512 * 1024, dtype=np.float32).reshape(8 * 512, 1024)  # 16 MiB
    sw.save(tmp_path / "x", {"w": rows})
    with sw.open(tmp_path / "x", split={"w": "a,b,c,d@0"}) as checkpoint:
        all_chunks = sw.info(tmp_path / "x") and sw.open(tmp_path / "x")["w"].chunks
        assert np.array_equal(checkpoint["c"], rows[2048:3072])
        assert checkpoint.stats()[0] <= all_chunks / 4 + 1
    with sw.open(tmp_path / "x", transpose={"w": (1, 0)}) as checkpoint:
        assert np.array_equal(checkpoint["w"][:, :512], rows[:512].T)
        assert checkpoint.stats()[0] <= all_chunks / 8 + 1


@pytest.mark.parametrize("seed", range(20))
def test_numbered_tensors_are_stacked_and_taken_apart_as_by_numpy(tmp_path, seed):
    random = np.random.default_rng(seed)
    rank, count = int(random.integers(0, 4)), int(random.integers(1, 13))
    shape, dim = random_shape(random, rank), int(random.integers(0, rank + 1))
    layers = {f"layers.{n}.w": random.standard_normal(shape).astype(np.float32) for n in range(count)}
    sw.save(tmp_path / "x", {**layers, "layers.b": np.ones(3)})
    order = tuple(int(axis) for axis in random.permutation(rank))
    edits = {"transpose": {"layers.*.w": order}} if rank else {}
    expected = np.stack([array.transpose(order) for array in layers.values()], dim)
    with sw.open(tmp_path / "x", join={"layers.#.*": f"layers.*@{dim}"}, **edits) as checkpoint:
        assert sorted(checkpoint) == ["layers.b", "layers.w"]
        for box in (..., *(random_box(random, expected.shape) for _ in range(4))):
            assert np.array_equal(checkpoint["layers.w"][box], expected[box])
    sw.save(tmp_path / "y", {"layers.w": expected})
    apart = sw.load(tmp_path / "y", split={"layers.*": f"layers.#.*@{dim - rank - 1}"})
    assert apart.keys() == layers.keys()
    assert all(np.array_equal(apart[name], array.transpose(order)) for name, array in layers.items())


def test_tensors_of_any_names_are_the_indices_of_a_new_dim(tmp_path):
    q, k = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    sw.save(tmp_path / "x", {"h.0.q": q, "h.0.k": k})
    stacked = sw.load(tmp_path / "x", join={"*.q,*.k": "*.qk@+-1"})
    assert list(stacked) == ["h.0.qk"] and np.array_equal(stacked["h.0.qk"], np.stack([q, k], axis=-1))
    sw.save(tmp_path / "y", stacked)
    apart = sw.load(tmp_path / "y", split={"*.qk": "*.q,*.k@+2"})
    assert sorted(apart) == ["h.0.k", "h.0.q"] and np.array_equal(apart["h.0.q"], q) and np.array_equal(apart["h.0.k"], k)


def test_what_does_not_fit_is_one_error(tmp_path):
    sw.save(tmp_path / "x", {"h.0.qkv": np.zeros((6, 4)), "h.0.b": np.zeros(6), "n": np.zeros((2, 4)), "note": "x"})
    with pytest.raises(sw.InvalidArgument) as caught:
        sw.load(tmp_path / "x", transpose={"h.0.b": (1, 0), "h.1*": "1,0"}, split={"*.qkv": "*.q,*.k@0:4,3"},
                join={"n,m": "nm@0", "n,note": "z@0"})
    assert ("5 edits do not fit: transpose \"h.0.b=1,0\": tensor \"h.0.b\" is [6], needed are 2 dims; "
            'transpose "h.1*=1,0" matches none of 4 tensors; '
            'split "*.qkv=*.q,*.k@0:4,3": tensor "h.0.qkv" is [6, 4], whose dim 0 has 6, not the sum of 4 + 3; '
            'join "n,m=nm@0" matches none of 4 tensors with "m"') in str(caught.value)
    for edits, needed in (({"transpose": {"n": 1}}, "as {'*.kernel': (1, 0)}"), ({"transpose": [(1, 0)]}, "orders of dims by patterns"),
                          ({"transpose": {"n": (-1, 0)}}, "needed is PATTERN=DIM,DIM"),
                          ({"split": {"n": ["a", "b"]}}, "as {'*.qkv': '*.q,*.k,*.v@0'}"),
                          ({"split": {"n": "a,b"}}, "needed is PATTERN=NAME,NAME,...@DIM"),
                          ({"join": {("n", "n"): "a@0"}}, "as {'*.q,*.k,*.v': '*.qkv@0'}"),
                          ({"join": {"n,n": "a"}}, "needed is PATTERN,PATTERN,...=NAME@DIM")):
        with pytest.raises(sw.InvalidArgument) as caught:
            sw.open(tmp_path / "x", **edits)
        assert needed in str(caught.value)


def test_values_that_are_no_tensors_are_not_stacked(tmp_path):
    sw.save(tmp_path / "x", {"step.0": 1, "step.1": 2, "epoch.0": 3, "w.0": np.ones(2)})
    for pattern, name in (("step.#", "step"), ("epoch.#", "epoch")):
        with pytest.raises(sw.InvalidArgument, match=f"join into '{name}': '{name}.0' is a value of type int, needed are tensors"):
            sw.load(tmp_path / "x", join={pattern: f"{name}@0"})
    assert sw.load(tmp_path / "x", join={"w.#": "w@0"})["w"].shape == (1, 2)


def test_reshard_import_and_export_take_the_same(tmp_path):
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"a.qkv": wide, "a.x": wide, "a.y": wide})
        step = manager.step(3)
    how = {"transpose": {"*.qkv": (1, 0)}, "split": {"*.qkv": "*.q,*.k,*.v@0"}, "join": {"*.x,*.y": "*.xy@1"}}
    expected = sw.load(step, **how)
    assert np.array_equal(expected["a.k"], wide.T[2:4]) and expected["a.xy"].shape == (4, 12)
    sw.export_model(step, tmp_path / "edited.safetensors", **how)
    sw.export_model(step, tmp_path / "all.safetensors")
    for path in (sw.reshard(step, tmp_path / "out", mesh="a=2", rules="*=-,a", **how),
                 sw.import_model(tmp_path / "edited.safetensors", tmp_path / "one"),
                 sw.import_model(tmp_path / "all.safetensors", tmp_path / "two", **how)):
        found = sw.load(path)
        assert found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def test_trees_stay_unless_names_change(tmp_path):
    sw.save(tmp_path / "x", {"a": [np.ones((2, 3)), {"w": np.arange(4)}], "b": 3})
    turned = sw.load(tmp_path / "x", transpose={"*": (1, 0)})
    assert turned["a"][0].shape == (3, 2) and turned["a"][1]["w"].shape == (4,) and turned["b"] == 3
    parts = sw.load(tmp_path / "x", split={"a/0": "a/0/top,a/0/low@0"})
    assert sorted(parts) == ["a/0/low", "a/0/top", "a/1/w", "b"]


def test_torch_loads_a_model_whose_parts_were_stored_as_one(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    class Split(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(4, 6) for _ in range(3))
            self.gate = torch.nn.Linear(4, 10)

    wide = {"net.qkv.weight": torch.randn(4, 18), "net.qkv.bias": torch.randn(18), "net.up.weight": torch.randn(3, 4),
            "net.down.weight": torch.randn(7, 4), "net.up.bias": torch.randn(3), "net.down.bias": torch.randn(7)}
    swt.save(tmp_path / "x", wide)
    edits = {"transpose": {"*.qkv.*": (1, 0)}, "split": {"*.qkv.*": "*.q.*,*.k.*,*.v.*@0"}, "join": {"*.up.*,*.down.*": "*.gate.*@0"}}
    model = Split()
    loaded = swt.load(tmp_path / "x", {"net": model}, **edits)
    assert loaded.missing == loaded.unused == []
    assert torch.equal(model.k.weight, wide["net.qkv.weight"].T[6:12]) and torch.equal(model.v.bias, wide["net.qkv.bias"][12:])
    assert torch.equal(model.gate.weight, torch.cat([wide["net.up.weight"], wide["net.down.weight"]]))

    swt.save(tmp_path / "y", {"net": {"qkv": wide["net.qkv.weight"], "up": torch.ones(3), "down": torch.ones(2)}})
    tree = swt.load_state_dict(tmp_path / "y", split={"*.qkv": "*.q,*.k@1"}, join={"*.up,*.down": "*.gate@0"})
    assert tree["net"]["gate"].shape == (5,) and torch.equal(tree["net"]["k"], wide["net.qkv.weight"][:, 9:])

    with pytest.raises(sw.InvalidArgument, match="resize is .*'pad'.*, needed is a target that has the new shapes"):
        swt.load_state_dict(tmp_path / "y", resize={"*.up": "pad"})
    tree = swt.load_state_dict(tmp_path / "y", resize={"*.up": "pad:5", "*.qkv": "slice:-,4"})
    assert tree["net"]["up"].tolist() == [1, 1, 1, 0, 0] and torch.equal(tree["net"]["qkv"], wide["net.qkv.weight"][:, :4])

    grown = Split()
    back = {"split": {"net.gate.*": "net.up.*,net.down.*@0:3,7"}, "join": {"*.q.*,*.k.*,*.v.*": "*.qkv.*@0"}}
    swt.save(tmp_path / "z", {"net": grown})
    state = swt.load_state_dict(tmp_path / "z", **back)["net"]
    assert torch.equal(state["qkv.weight"], torch.cat([grown.q.weight, grown.k.weight, grown.v.weight]))
    assert torch.equal(state["down.bias"], grown.gate.bias[3:])


def test_tied_weights_stay_tied(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    w = np.arange(6.0).reshape(2, 3)
    tied = torch.from_numpy(w)
    swt.save(tmp_path / "x", {"head": tied, "wte": tied})
    loaded = sw.load(tmp_path / "x", transpose={"*": (1, 0)})
    assert loaded["head"] is loaded["wte"] and np.array_equal(loaded["head"], w.T)
    loaded = sw.load(tmp_path / "x", transpose={"head": (1, 0)}, cast={"*": "f32"})
    assert np.array_equal(loaded["head"], w.T) and np.array_equal(loaded["wte"], w)
    split = sw.load(tmp_path / "x", split={"wte": "top,low@0"})
    assert np.array_equal(split["low"], w[1:]) and np.array_equal(split["head"], w)


def test_jax_loads_kernels_of_another_layout(tmp_path):
    jax = pytest.importorskip("jax", reason="needs JAX, which this environment has not")
    import shardwise.jax as swj

    tree = {"params": {"dense": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4)}, "keys": jax.random.split(jax.random.key(1), 3)}}
    swj.save(tmp_path / "x", tree)
    turned = swj.load(tmp_path / "x", transpose={"*/kernel": (1, 0)})
    assert np.array_equal(turned["params"]["dense"]["kernel"], tree["params"]["dense"]["kernel"].T)
    mesh = jax.make_mesh((2,), ("x",))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    target = {"params": {"q": jax.ShapeDtypeStruct((2, 3), np.float32, sharding=cut), "k": np.zeros((2, 3), np.float32),
                         "keys": tree["params"]["keys"]}}
    loaded = swj.load(tmp_path / "x", target, transpose={"*/kernel": (1, 0)}, split={"*/dense/kernel": "*/q,*/k@0"})
    assert np.array_equal(loaded["params"]["q"], tree["params"]["dense"]["kernel"].T[:2])
    assert np.array_equal(loaded["params"]["k"], tree["params"]["dense"]["kernel"].T[2:])
    assert np.array_equal(jax.random.key_data(loaded["params"]["keys"]), jax.random.key_data(tree["params"]["keys"]))
    data = swj.load(tmp_path / "x", transpose={"*": (1, 0)})["params/keys"]
    assert np.array_equal(data, np.asarray(jax.random.key_data(tree["params"]["keys"])).T), "numbers, no longer keys"


def test_jax_pads_and_slices_on_request(tmp_path):
    jax = pytest.importorskip("jax", reason="needs JAX, which this environment has not")
    import shardwise.jax as swj

    words = np.arange(20, dtype=np.float32).reshape(5, 4)
    tree = {"embed": words, "head": words.T.copy(), "mu": {"embed": words + 1}, "b": np.ones(3, np.float32)}
    swj.save(tmp_path / "x", tree)
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    copies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
    target = {"embed": jax.device_put(np.full((8, 4), 7, np.float32), rows), "head": jax.device_put(np.full((4, 8), 8, np.float32), copies),
              "mu": {"embed": np.zeros((8, 4), np.float32)}, "b": jax.numpy.zeros(3)}
    with pytest.raises(sw.InvalidArgument, match=r"'embed' is float32 \[5, 4\], the target float32 \[8, 4\]"):
        swj.load(tmp_path / "x", target)
    loaded = swj.load(tmp_path / "x", target, resize={"*embed": "pad", "head": "pad"})
    assert loaded["embed"].sharding == rows and loaded["head"].sharding == copies
    assert np.array_equal(loaded["embed"], np.concatenate([words, np.full((3, 4), 7)]))
    assert np.array_equal(loaded["head"], np.concatenate([words.T, np.full((4, 3), 8)], 1))
    assert np.array_equal(loaded["mu"]["embed"], np.concatenate([words + 1, np.zeros((3, 4))])) and loaded["b"].tolist() == [1] * 3
    assert not target["mu"]["embed"].any(), "the target stays"

    small = {"embed": jax.ShapeDtypeStruct((4, 2), np.float32, sharding=rows), "head": np.zeros((4, 3), np.float32),
             "mu": {"embed": jax.numpy.zeros((6, 4))}, "b": tree["b"]}
    loaded = swj.load(tmp_path / "x", small, resize={"mu/*": "pad", "*": "slice"})
    assert np.array_equal(loaded["embed"], words[:4, :2]) and np.array_equal(loaded["head"], words.T[:, :3])
    assert np.array_equal(loaded["mu"]["embed"][:5], words + 1) and not loaded["mu"]["embed"][5:].any()

    struct = {**target, "embed": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=rows)}
    with pytest.raises(sw.InvalidArgument, match="no elements that could pad it") as caught:
        swj.load(tmp_path / "x", struct, resize={"*": "pad", "haed": "slice"})
    assert "resize: 'haed' matches no tensor of another shape that it allows" in str(caught.value)
    with pytest.raises(sw.InvalidArgument, match="needed is a target"):
        swj.load(tmp_path / "x", resize={"*": "pad"})
    with pytest.raises(sw.InvalidArgument, match="resize is 'grow', needed is 'pad' or 'slice'"):
        swj.load(tmp_path / "x", target, resize={"*": "grow"})
    kept = swj.load(tmp_path / "x", target, skip_mismatched=True, resize={"embed": "pad"})
    assert kept["head"] is target["head"] and np.array_equal(np.asarray(kept["embed"])[:5], words)
