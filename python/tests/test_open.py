"""Lazy reads: shardwise.torch.open, and files of other formats that open and load take as they are."""

import random

import numpy as np
import pytest

import shardwise as sw

SHAPES = {"a": (6, 5), "b": (), "c": (7,), "d": (3, 1, 4), "e": (0, 3)}


def arrays():
    draw = np.random.default_rng(1)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def any_index(draw, shape, steps=(None, 1, 2, -1, -2)):
    index = [draw.choice((draw.randrange(-n, n), slice(None)) if n and draw.random() < 0.3 else (
        slice(draw.choice((None, draw.randint(-n - 1, n + 1))), draw.choice((None, draw.randint(-n - 1, n + 1))), draw.choice(steps)),))
        for n in shape[: draw.randint(0, len(shape))]]
    return tuple([*index, ...] if draw.random() < 0.3 else index)


def files(folder):
    """The arrays in each format, by the formats' own libraries."""
    saved = arrays()
    np.savez(folder / "m.npz", **saved)
    found = [folder / "m.npz"]
    try:
        from safetensors.numpy import save_file

        (folder / "hub").mkdir()
        save_file(saved, folder / "m.safetensors", metadata={"by": "me"})
        save_file(saved, folder / "hub/model.safetensors")
        (folder / "hub/config.json").write_text("{}")
        found += [folder / "m.safetensors", folder / "hub"]
    except ImportError:
        print("without safetensors")
    try:
        import h5py

        with h5py.File(folder / "m.h5", "w") as file:
            for name, array in saved.items():
                file[name] = array
        found.append(folder / "m.h5")
    except ImportError:
        print("without h5py")
    return found


def test_files_of_other_formats_are_read_box_by_box(tmp_path):
    saved = arrays()
    for path in files(tmp_path):
        draw = random.Random(7)
        with sw.open(path) as c:
            assert sorted(c) == sorted(SHAPES) and c.objects == {} and c.step is None and c.path == str(path)
            for _ in range(100):
                name = draw.choice(list(SHAPES))
                index = any_index(draw, SHAPES[name])
                assert np.array_equal(c[name][index], saved[name][index]), (path, name, index)
            one, two = c.read([("a", np.s_[1, ::2]), "c"])
            assert np.array_equal(one, saved["a"][1, ::2]) and np.array_equal(two, saved["c"])
        with pytest.raises(sw.InvalidArgument, match="is closed"):
            c["a"][0]
        whole = sw.load(path, names=["a", "c"], rename={"a": "x"}, cast={"c": "f64"})
        assert np.array_equal(whole["x"], saved["a"]) and whole["c"].dtype == np.float64
        target = {name: np.zeros_like(array) for name, array in saved.items()}
        found = sw.load(path, target=target)
        assert all(np.array_equal(found[name], saved[name]) for name in saved) and found["a"] is target["a"]
        assert sw.info(path).nbytes == sum(array.nbytes for array in saved.values())
        assert path.name != "m.safetensors" or c_user(path) == {"safetensors_metadata": {"by": "me"}}


def c_user(path):
    with sw.open(path) as c:
        return c.user


def test_what_is_no_tensor_in_a_file_is_said(tmp_path):
    np.savez(tmp_path / "m.npz", w=np.ones(2), names=np.array(["a", "b"]))
    with pytest.warns(UserWarning, match='open .*m.npz: left out "names": '):
        assert list(sw.open(tmp_path / "m.npz")) == ["w"]


def test_damaged_and_missing_files(tmp_path):
    np.savez(tmp_path / "m.npz", w=np.ones(100))
    data = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[:-40])
    (tmp_path / "m.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    for name in ("cut.npz", "m.safetensors"):
        with pytest.raises(sw.Corrupt, match=name):
            sw.open(tmp_path / name)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/model.safetensors.index.json").write_text('{"weight_map": {"w": "gone.safetensors"}}')
    with pytest.raises(sw.NotFound, match=r"gone\.safetensors: No such file or directory$"):  # an import would not help
        sw.open(tmp_path / "hub")
    for name in ("none.npz", "none.safetensors", "none"):
        with pytest.raises(FileNotFoundError, match=name):
            sw.open(tmp_path / name)


def test_what_needs_a_checkpoint_says_how_to_make_one_of_a_file(tmp_path):
    np.savez(tmp_path / "m.npz", w=np.ones(2), **{"net/a": np.ones(1), "net/b": np.ones(1)})
    for call in (lambda: sw.verify(tmp_path / "m.npz"), lambda: sw.repair(tmp_path / "m.npz")):
        with pytest.raises(sw.NotFound, match=r"m\.npz: there is no such directory: found an archive of numpy.s: sw\.import_model\(.*\) makes a checkpoint of it"):
            call()
    with sw.open(tmp_path / "m.npz") as c, pytest.raises(sw.NameNotFound, match="there is no tensor 'net', nearest: 'net/a', 'net/b'"):
        c["net"]


def test_a_checkpoint_is_one_whatever_is_beside_it(tmp_path):
    sw.save(tmp_path / "model.safetensors", {"w": np.ones(2)})
    assert sw.load(tmp_path / "model.safetensors")["w"].tolist() == [1, 1]
    sw.save(tmp_path / "a", {"w": np.ones(2)})
    np.savez(tmp_path / "a/model.npz", v=np.ones(1))
    assert list(sw.open(tmp_path / "a")) == ["w"]


def test_torch_and_jax_load_files_of_other_formats(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    saved = arrays()
    paths = files(tmp_path)
    for path in paths:
        state = {"model": {name: torch.zeros(shape) for name, shape in SHAPES.items() if name != "b"}}
        found = swt.load(path, state, names=["a", "c", "d", "e"], rename={"*": "model.*"})
        assert found.tensors == 4 and all(np.array_equal(tensor.numpy(), saved[name]) for name, tensor in state["model"].items())
        with pytest.raises(sw.InvalidArgument, match=r"found none of the 1 names.*: rename=\{\"\*\": \"model\.\*\"\} puts 'model\.' before each"):
            swt.load(path, {"model": module_of(torch, saved)})
        assert swt.load_state_dict(path, "a")["a"].tolist() == saved["a"].tolist()
    jnp = pytest.importorskip("jax.numpy")
    import shardwise.jax as swj

    for path in paths:
        assert swj.load(path, {"a": jnp.zeros((6, 5))}, strict=False)["a"].tolist() == saved["a"].tolist()


def module_of(torch, saved):
    module = torch.nn.Module()
    for name, array in saved.items():
        module.register_buffer(name, torch.zeros(array.shape))
    return module


def test_torch_open_gives_tensors_by_any_index(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.uint16, torch.bool,
              torch.complex64, torch.int64]  # fmt: skip
    bits = torch.arange(6 * 5 * 2, dtype=torch.float32).reshape(6, 5, 2)
    state = {str(dtype): bits.to(dtype) for dtype in dtypes}
    swt.save(tmp_path / "a", {"of": state, "zero": torch.tensor(2.5, dtype=torch.bfloat16), "epoch": 3})
    draw = random.Random(3)
    with swt.open(tmp_path / "a") as c:
        assert c.objects == {"epoch": 3} and len(c) == 11 and c["zero"].dtype == torch.bfloat16 and c["zero"][...].item() == 2.5
        for name, tensor in state.items():
            lazy = c[f"of.{name}"]
            assert lazy.dtype == tensor.dtype and lazy.nbytes == tensor.nbytes and name in repr(lazy)
            for _ in range(20):
                index = any_index(draw, (6, 5, 2))
                read, expected = lazy[index], tensor.view(torch.uint8).numpy() if tensor.dtype.itemsize == 1 else as_bits(torch, tensor)
                assert type(read) is torch.Tensor and read.dtype == tensor.dtype
                assert np.array_equal(as_bits(torch, read), expected[index]), (name, index)
        one, two = c.read([("of.torch.bfloat16", np.s_[2, ::-1]), "zero"])
        assert one.tolist() == state["torch.bfloat16"].flip(1)[2].tolist() and two.shape == ()
        assert c.load("*float16")["of.torch.bfloat16"].dtype == torch.bfloat16 and c.load()["of"].keys() == state.keys()
        assert np.asarray(c["of.torch.float16"]).dtype == np.float16 and c["zero"][()].dim() == 0
    loose = swt.open(tmp_path / "a", names="of.*16", rename={"of.torch.*": "*"}, cast="f32")
    assert sorted(loose) == ["bfloat16", "float16", "uint16"] and loose["bfloat16"][0, 1:3].dtype == torch.float32
    with pytest.raises(sw.NameNotFound, match="there is no tensor 'x'"):
        loose["x"]
    with pytest.raises(sw.InvalidArgument, match="device is 'meta'"):
        swt.open(tmp_path / "a", device="meta")


def as_bits(torch, tensor):
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return tensor.contiguous().view(kind).numpy()


def test_torch_reads_into_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    w = torch.arange(30, dtype=torch.bfloat16).reshape(6, 5)
    swt.save(tmp_path / "a", {"w": w})
    with swt.open(tmp_path / "a") as c:
        for out, index in ((torch.zeros(6, 5, dtype=torch.bfloat16), ...), (torch.zeros(5, 6, dtype=torch.bfloat16).T, np.s_[:]),
                           (torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)), np.s_[3, 1:3]), (torch.zeros(3, 5, dtype=torch.bfloat16), np.s_[::2])):
            c["w"].read_into(out, index)
            assert torch.equal(out, w[index])
        for bad, why in ((torch.zeros(6, 5), "torch.float32"), (torch.zeros(5, 6, dtype=torch.bfloat16), r"\[5, 6\]"), (np.zeros((6, 5)), "numpy.ndarray")):
            with pytest.raises(sw.InvalidArgument, match=f"read_into: .*'w'.*{why}"):
                c["w"].read_into(bad)
