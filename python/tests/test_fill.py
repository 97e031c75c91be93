"""sw.load onto a target of numpy's arrays."""

import numpy as np
import pytest

import shardwise as sw

WORDS = np.arange(20, dtype=np.float32).reshape(5, 4)


def saved(path):
    sw.save(path, {"embed": WORDS, "layers": [WORDS + 1, {"b": np.arange(3)}], "lr": np.float64(0.5), "epoch": 3})
    return path


def zeros():
    return {"embed": np.zeros((5, 4), np.float32), "layers": [np.zeros((5, 4), np.float32), {"b": np.zeros(3, np.int64)}],
            "lr": np.float64(0), "epoch": 0}


def test_a_target_is_filled_in_place(tmp_path):
    saved(tmp_path / "x")
    target = zeros()
    turned = np.zeros((4, 10), np.float32)
    target["layers"][0] = turned.T[::2]  # has other strides
    found = sw.load(tmp_path / "x", target=target)
    assert found["embed"] is target["embed"] and np.array_equal(target["embed"], WORDS)
    assert np.array_equal(turned[:, ::2], WORDS.T + 1) and not turned[:, 1::2].any()
    assert found["layers"][1]["b"].tolist() == [0, 1, 2] and found["lr"] == 0.5 and type(found["lr"]) is np.float64
    assert found["epoch"] == 3 and target["epoch"] == 0
    part = sw.load(tmp_path / "x", target={"embed": None, "epoch": None}, strict=False)
    assert np.array_equal(part["embed"], WORDS) and part["epoch"] == 3 and list(part) == ["embed", "epoch"]
    part = sw.load(tmp_path / "x", "layers/*", target={"layers": (None, {"b": None})})
    assert type(part["layers"]) is tuple and np.array_equal(part["layers"][0], WORDS + 1) and part["layers"][1]["b"][2] == 2
    assert sw.load(tmp_path / "x", "e*", target={"embed": np.zeros((5, 4), np.float32), "epoch": 0})["epoch"] == 3
    flat = sw.load(tmp_path / "x", ["embed", "layers/0"], rename={"layers/*": "*"}, cast="f64",
                   target={"embed": np.zeros((5, 4)), "0": np.zeros((5, 4))})
    assert np.array_equal(flat["0"], WORDS + 1)


def test_all_that_does_not_fit_is_one_error_before_anything_changes(tmp_path):
    saved(tmp_path / "x")
    target = {"embd": np.ones((5, 4), np.float32), "layers": [np.ones((5, 3), np.float32), {"b": 7}], "lr": np.ones((), np.float32),
              "epoch": np.ones(2)}
    with pytest.raises(sw.InvalidArgument) as caught:
        sw.load(tmp_path / "x", target=target)
    assert str(caught.value) == (
        f"load {tmp_path / 'x'}: 6 of 6 leaves do not fit: 'embd' is not in the checkpoint, nearest 'embed'; "
        "'layers/0' is float32 [5, 4], the target float32 [5, 3]; 'layers/1/b' is int64 [3], the target a int; "
        "'lr' is float64 [], the target float32 []; 'epoch' is an object, a int, the target float64 [2]; "
        "'embed' is in the checkpoint, not in the target")
    assert (target["embd"] == 1).all() and (target["layers"][0] == 1).all()
    fixed = zeros()
    fixed["embed"].flags.writeable = False
    with pytest.raises(sw.InvalidArgument, match="1 of 5 leaves do not fit: 'embed' is read-only in the target, needed is an array that"):
        sw.load(tmp_path / "x", target=fixed)
    with pytest.raises(sw.InvalidArgument, match="the target is empty, needed is at least one of the checkpoint's names"):
        sw.load(tmp_path / "x", target={}, strict=False)
    with pytest.raises(TypeError, match="needed is a dict of arrays"):
        sw.load(tmp_path / "x", target=[WORDS])


def test_arrays_of_other_shapes_are_skipped_padded_and_sliced_on_request(tmp_path):
    saved(tmp_path / "x")
    other = {**zeros(), "embed": np.full((8, 4), 7, np.float32)}
    sw.load(tmp_path / "x", target=other, skip_mismatched=True)
    assert (other["embed"] == 7).all() and np.array_equal(other["layers"][0], WORDS + 1)
    sw.load(tmp_path / "x", target=other, resize={"em*": "pad"})
    assert np.array_equal(other["embed"], np.concatenate([WORDS, np.full((3, 4), 7)]))
    wide = {**zeros(), "embed": np.full((5, 6), 7, np.float32)}  # along the dim that is not the outermost
    sw.load(tmp_path / "x", target=wide, resize={"embed": "pad"})
    assert np.array_equal(wide["embed"], np.concatenate([WORDS, np.full((5, 2), 7)], 1))
    small = {**zeros(), "embed": np.zeros((2, 3), np.float32)}
    small["layers"][0] = np.zeros((9, 9), np.float32)
    sw.load(tmp_path / "x", target=small, skip_mismatched=True, resize={"embed": "slice"})
    assert np.array_equal(small["embed"], WORDS[:2, :3]) and not small["layers"][0].any()
    with pytest.raises(sw.InvalidArgument) as caught:
        sw.load(tmp_path / "x", target=small, resize={"embed": "pad", "layers/0": "pad", "haed": "slice"})
    assert str(caught.value) == (
        f"load {tmp_path / 'x'}: 2 of 5 leaves do not fit: 'embed' is float32 [5, 4], the target float32 [2, 3]; "
        "resize: 'embed', 'haed' matches no tensor of another shape that it allows")
    with pytest.raises(sw.InvalidArgument, match="resize is 'grow', needed is 'pad' or 'slice'"):
        sw.load(tmp_path / "x", target=small, resize={"*": "grow"})
    for given in ({"skip_mismatched": True}, {"resize": {"*": "pad"}}):
        (name, value), = given.items()
        with pytest.raises(sw.InvalidArgument) as caught:
            sw.load(tmp_path / "x", **given)
        assert str(caught.value) == f"load {tmp_path / 'x'}: {name} is {value!r}, needed is a target that has the new shapes"


def test_names_of_the_target_that_share_an_array_need_one_of_the_stored(tmp_path):
    sw.save(tmp_path / "x", {"embed": WORDS})  # as safetensors leave it
    tied = np.zeros_like(WORDS)
    found = sw.load(tmp_path / "x", target={"embed": tied, "head": tied})
    assert found["head"] is found["embed"] and np.array_equal(tied, WORDS)
    with pytest.raises(sw.InvalidArgument, match="1 of 2 leaves do not fit: 'head' is not in the checkpoint"):
        sw.load(tmp_path / "x", target={"embed": tied, "head": tied.copy()})


def test_a_tree_is_found_by_the_paths_that_another_library_stored(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    model = torch.nn.Linear(4, 3)
    swt.save(tmp_path / "x", {"model": model})  # as "model.weight"
    target = {"model": {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(3, np.float32)}}
    sw.load(tmp_path / "x", target=target)
    assert np.array_equal(target["model"]["weight"], model.weight.detach().numpy())
    assert np.array_equal(target["model"]["bias"], model.bias.detach().numpy())


def test_an_array_without_dims_is_filled(tmp_path):
    sw.save(tmp_path / "a", {"n": np.array(7.5), "w": np.ones(2)})
    target = {"n": np.zeros(()), "w": np.zeros(2)}
    found = sw.load(tmp_path / "a", target=target)
    assert found["n"] is target["n"] and target["n"].tolist() == 7.5
