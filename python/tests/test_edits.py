"""Chooses, renames and casts tensors that are read: by open, load, and the loads of torch and JAX."""

import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw


@pytest.fixture
def step(tmp_path):
    tensors = {"model.h.0.w": np.float32([1, 2]), "model.h.1.w": np.float32([3, 4]), "model.ln": np.float32([1.0039062]),
               "opt.w": np.float64([7]), "count": np.int64([5]), "note": "text"}
    sw.save(tmp_path / "step", tensors)
    return tmp_path / "step"


def test_load_selects_renames_and_casts(step):
    loaded = sw.load(step, names="model.*", rename={"model.*": "*"}, cast="bf16")
    assert list(loaded) == ["h.0.w", "h.1.w", "ln"]
    assert all(array.dtype == ml_dtypes.bfloat16 for array in loaded.values())
    assert loaded["h.1.w"].astype(float).tolist() == [3, 4] and loaded["ln"].astype(float).tolist() == [1]
    loaded = sw.load(step, rename={"model.h.*": "layers.*", "note": "memo"}, cast={"opt.*": np.float16})
    assert set(loaded) == {"layers.0.w", "layers.1.w", "model.ln", "opt.w", "count", "memo"}
    assert loaded["memo"] == "text" and loaded["opt.w"].dtype == np.float16 and loaded["model.ln"].dtype == np.float32
    with pytest.raises(sw.InvalidArgument, match='tensor "count" is i64, not all of whose values are exact as f64'):
        sw.load(step, cast={"count": "f64"})


def test_an_open_checkpoint_reads_any_box_of_what_it_shows(step, tmp_path):
    values = np.arange(300 * 70, dtype=np.float32).reshape(300, 70) / 7
    sw.save(tmp_path / "large", {"a": values, "b": values})
    with sw.open(tmp_path / "large", rename={"a": "b", "b": "a"}, cast={"a": "f16"}) as checkpoint:
        assert checkpoint["b"].dtype == np.float16 and checkpoint["a"].dtype == np.float32
        assert checkpoint["b"].nbytes * 2 == checkpoint["a"].nbytes
        assert np.array_equal(checkpoint["b"][10:200:3, 5], values[10:200:3, 5].astype(np.float16))
        assert np.array_equal(checkpoint["a"][-1], values[-1])
        assert np.array_equal(np.asarray(checkpoint["b"]), values.astype(np.float16))


def test_casts_are_those_of_numpy(tmp_path):
    random = np.random.default_rng(1)
    values = random.standard_normal(4096).astype(np.float32) * np.float32(10.0) ** random.integers(-45, 38, 4096)
    values[:4] = np.nan, np.inf, -np.inf, -0.0
    sw.save(tmp_path / "x", {"x": values})
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
        found = sw.load(tmp_path / "x", cast=dtype)["x"]
        with np.errstate(over="ignore"):
            expected = values.astype(dtype)
        assert found.dtype == expected.dtype
        assert np.array_equal(found.astype(np.float64), expected.astype(np.float64), equal_nan=True)
        assert np.signbit(found[3].astype(np.float32))


def test_what_does_not_fit_is_one_error(step):
    with pytest.raises(sw.InvalidArgument) as caught:
        sw.load(step, rename={"modle.ln": "x", "opt.w": "count"}, cast={"model.*": "i32", "none": "f32"})
    message = str(caught.value)
    assert 'rename "modle.ln=x" matches none of 6 tensors, nearest: "model.ln"' in message
    assert '"count" would be the name of 2 tensors' in message
    assert 'cast "model.*=i32": tensor "model.h.0.w" is f32, not all of whose values are exact as i32' in message
    assert 'cast "none=f32" matches none of 6 tensors' in message
    with pytest.raises(sw.NameNotFound, match="modle"):
        sw.load(step, names="modle.*", rename={"model.*": "*"})
    for rename in ({"a": 1}, ["a"], {"": "x"}):
        with pytest.raises(sw.InvalidArgument, match="needed are new names by patterns"):
            sw.load(step, rename=rename)
    for cast in (5, {"*": None}, "f33"):
        with pytest.raises(sw.InvalidArgument):
            sw.load(step, cast=cast)


def test_reshard_import_and_export_take_the_same(tmp_path):
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"model.w": np.float32([[1, 2]]), "model.ids": np.int32([4]), "opt.m": np.float64([5]), "note": "x"})
        step = manager.step(3)
    how = {"names": "model.*", "rename": {"model.*": "*"}, "cast": "bf16"}
    expected = {"w": [[1, 2]], "ids": [4]}

    def check(path):
        loaded = sw.load(path)
        assert {name: array.astype(float).tolist() for name, array in loaded.items()} == expected
        assert loaded["w"].dtype == ml_dtypes.bfloat16 and loaded["ids"].dtype == np.int32

    check(sw.reshard(step, tmp_path / "out", mesh="a=2", rules="w=-,a", **how))
    sw.export_model(step, tmp_path / "w.safetensors", **how)
    check(sw.import_model(tmp_path / "w.safetensors", tmp_path / "again"))
    sw.export_model(step, tmp_path / "all.safetensors")
    check(sw.import_model(tmp_path / "all.safetensors", tmp_path / "edited", **how))
    for call in (lambda: sw.reshard(step, tmp_path / "no", mesh="1", names=["modle.w"]),
                 lambda: sw.export_model(step, tmp_path / "no", names="modle.w"),
                 lambda: sw.import_model(tmp_path / "all.safetensors", tmp_path / "no", names="modle.w")):
        with pytest.raises(sw.InvalidArgument, match='select "modle.w" matches none of 3 tensors, nearest: "model.w"'):
            call()
    with pytest.raises(sw.InvalidArgument, match="names is empty"):
        sw.reshard(step, tmp_path / "no", mesh="1", names=[])
    assert sw.load(sw.reshard(step, tmp_path / "cast", mesh="1", rules="*=-", cast="f32"))["note"] == "x"


def test_the_command_says_that_objects_are_left_out(tmp_path):
    command = pathlib.Path(sw.__file__).parents[3] / "tools" / "shardwise"
    if not command.exists():
        pytest.skip(f"{command} is not built")
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"w": np.float32([1, 2]), "note": "x"})

    def reshard(target, *more):
        done = subprocess.run([command, "reshard", tmp_path / "run", tmp_path / target, "--mesh", "1", *more], text=True,
                              capture_output=True, check=True)
        return done.stderr, sw.open(tmp_path / target / "step-00000003").objects

    assert reshard("cast", "--cast", "*=bf16") == ("", {"note": "x"})
    assert reshard("renamed", "--rename", "w=v") == (
        "left out: objects that were saved beside the tensors, because the edits change which names there are\n", {})


def test_trees_stay_unless_names_change(tmp_path):
    sw.save(tmp_path / "x", {"a": [np.float32([1]), (np.float32([2]),)], "b": 3})
    assert isinstance(sw.load(tmp_path / "x", cast="f64")["a"][1], tuple)
    flat = sw.load(tmp_path / "x", rename={"a*": "z*"})
    assert set(flat) >= {"b"} and not set(flat) & {"a"} and len(flat) == 3


def test_torch_loads_under_new_names_and_as_other_dtypes(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    def made(bias=True):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 3, bias=bias), torch.nn.Linear(3, 2, bias=bias))

    module = made()
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    swt.save(tmp_path / "x", {"net": module, "opt": optimizer, "epoch": 4})

    other = made()
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    again = torch.optim.AdamW(other.parameters())
    loaded = swt.load(tmp_path / "x", {"model": other, "optim": again, "at": 0}, rename={"net.*": "model.*", "opt.*": "optim.*",
                                                                                       "epoch": "at"})
    assert loaded["at"] == 4 and loaded.missing == [] and loaded.unused == []
    for one, two in zip(module.parameters(), other.parameters()):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one]["exp_avg"], again.state[two]["exp_avg"])

    half = made().to(torch.bfloat16)
    swt.load(tmp_path / "x", {"net": half}, cast=torch.bfloat16, unused="ignore")
    assert torch.equal(half[0].weight, module[0].weight.to(torch.bfloat16))
    with pytest.raises(sw.InvalidArgument, match="torch.float32 .* there, torch.bfloat16"):
        swt.load(tmp_path / "x", {"net": half}, unused="ignore")
    state = swt.load_state_dict(tmp_path / "x", names="net.*", rename={"net.0.*": "first.*", "net.*": "*"}, cast="f64")
    assert all(value.dtype == torch.float64 for value in _leaves(state))


def _leaves(tree):
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree


def test_torch_skips_what_has_another_shape(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    module = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.arange(3)).sum().backward()
    optimizer.step()
    swt.save(tmp_path / "x", {"model": module, "opt": optimizer})
    grown = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 2))
    kept = grown[0].weight.clone()
    target = {"model": grown, "opt": torch.optim.AdamW(grown.parameters())}
    with pytest.raises(sw.InvalidArgument, match=r"\[5, 4\] there, .*\[7, 4\] here"):
        swt.load(tmp_path / "x", target)
    loaded = swt.load(tmp_path / "x", target, skip_mismatched=True)
    assert torch.equal(grown[0].weight, kept) and torch.equal(grown[1].weight, module[1].weight)
    assert "model.0.weight" in loaded.skipped and all("0.weight" in name for name in loaded.skipped)
    state = target["opt"].state
    assert grown[0].weight not in state
    assert torch.equal(state[grown[1].weight]["exp_avg"], optimizer.state[module[1].weight]["exp_avg"])


def test_tensors_grow_and_shrink_by_a_rule(tmp_path):
    words = np.arange(1, 11, dtype=np.float32).reshape(5, 2)
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"a": {"embed": words, "head": words}, "bias": np.int64([4, 5]), "note": "x"})
        step = manager.step(3)
    grown = np.concatenate([words, np.zeros((2, 2), np.float32)])
    how = {"resize": {"*embed": "pad:7,-", "*head": "slice:-,4"}, "transpose": {"*head": (1, 0)}}
    names = [name for name in sw.open(step) if name.endswith(("embed", "head"))]

    def check(loaded):
        embed, head = (next(array for name, array in loaded.items() if name.endswith(end)) for end in ("embed", "head"))
        assert embed.dtype == np.float32 and np.array_equal(embed, grown)
        assert np.array_equal(head, words.T[:, :4])

    assert sw.load(step, **how)["a"].keys() == {"embed", "head"}
    check(sw.load(step, **how)["a"])
    with sw.open(step, **how) as checkpoint:
        embed = checkpoint[names[0]]
        assert embed.shape == (7, 2) and np.array_equal(embed[4:6, 1], grown[4:6, 1]) and not embed[6].any()
        assert checkpoint.objects == {"note": "x"} and checkpoint["bias"].shape == (2,)
    check(sw.load(sw.reshard(step, tmp_path / "out", mesh="a=3", rules="*embed=a,-; *=-", **how))["a"])
    sw.export_model(step, tmp_path / "m.npz", **how)
    check(dict(np.load(tmp_path / "m.npz")))
    check(sw.load(sw.import_model(tmp_path / "m.npz", tmp_path / "again", resize={"*embed": "pad:7,2"})))
    with pytest.raises(sw.InvalidArgument) as caught:
        sw.load(step, resize={"*embed": "slice:7,-", "*head": "pad:1,1", "bais": "pad:3"})
    assert "3 edits do not fit: " in str(caught.value) and 'resize "bais=pad:3" matches none of 4 tensors, nearest: "bias"' in str(caught.value)
    with pytest.raises(sw.InvalidArgument, match=r'resize "\*=pad": needed is PATTERN=pad:EXTENT,... or PATTERN=slice:EXTENT'):
        sw.open(step, resize={"*": "pad"})
    for rules in ({"a": 7}, ["a"], {"a": ""}):
        with pytest.raises(sw.InvalidArgument, match="needed are new extents by patterns"):
            sw.load(step, resize=rules)


def test_only_one_of_two_tied_names_grows(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    module = torch.nn.Module()
    module.embed, module.head = torch.nn.Embedding(5, 2), torch.nn.Linear(2, 5, bias=False)
    module.head.weight = module.embed.weight
    swt.save(tmp_path / "x", {"model": module})
    with sw.open(tmp_path / "x", resize={"*embed.weight": "pad:6,-"}) as checkpoint:
        assert {name: tensor.shape for name, tensor in checkpoint.items()} == {"model.embed.weight": (6, 2),
                                                                               "model.head.weight": (5, 2)}
        assert np.array_equal(checkpoint["model.embed.weight"][:5], np.asarray(checkpoint["model.head.weight"]))


def test_torch_pads_and_slices_on_request(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    def trained(words):
        module = torch.nn.Sequential(torch.nn.Embedding(words, 4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(module.parameters())
        module(torch.arange(3)).sum().backward()
        optimizer.step()
        return module, optimizer

    module, optimizer = trained(5)
    swt.save(tmp_path / "x", {"model": module, "opt": optimizer})
    grown = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 2))
    kept = grown[0].weight.detach().clone()
    fresh = torch.optim.AdamW(grown.parameters())
    target = {"model": grown, "opt": fresh}
    swt.load(tmp_path / "x", target, resize={"*0.weight*": "pad"})
    assert torch.equal(grown[0].weight[:5], module[0].weight) and torch.equal(grown[0].weight[5:], kept[5:])
    moment = fresh.state[grown[0].weight]["exp_avg"]
    assert torch.equal(moment[:5], optimizer.state[module[0].weight]["exp_avg"]) and not moment[5:].any()

    shrunk = torch.nn.Sequential(torch.nn.Embedding(3, 4), torch.nn.Linear(4, 2))
    with pytest.raises(sw.InvalidArgument, match=r"\[5, 4\] there, .*\[3, 4\] here.*resize: 'model.0.\*' matches no tensor"):
        swt.load(tmp_path / "x", {"model": shrunk}, unused="ignore", resize={"model.0.*": "pad"})
    swt.load(tmp_path / "x", {"model": shrunk}, unused="ignore", resize={"model.0.*": "slice"})
    assert torch.equal(shrunk[0].weight, module[0].weight[:3])
    with torch.device("meta"):
        meta = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 2))
    with pytest.raises(sw.InvalidArgument, match="nothing that could pad it"):
        swt.load(tmp_path / "x", {"model": meta}, unused="ignore", resize={"model.0.*": "pad"})
    with pytest.raises(sw.InvalidArgument, match="resize"):
        swt.load(tmp_path / "x", target, resize={"*": "grow"})
    array = np.zeros((6, 4), np.float32)
    swt.load(tmp_path / "x", {"model.0.weight": array}, unused="ignore", resize={"model.0.weight": "pad"})
    assert np.array_equal(array[:5], module[0].weight.detach().numpy()) and not array[5:].any()
    turned = np.zeros((6, 4), np.float32)[::-1]  # torch cannot show its layout
    swt.load(tmp_path / "x", {"model.0.weight": turned}, unused="ignore", resize={"model.0.weight": "pad"})
    assert np.array_equal(turned, array)


def test_torch_names_the_nearest_of_all_that_is_missing(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    swt.save(tmp_path / "x", {"first.weight": torch.ones(2), "second.weight": torch.ones(2)})
    with pytest.raises(sw.InvalidArgument) as caught:
        swt.load(tmp_path / "x", {"frist.weight": torch.ones(2), "secnod.weight": torch.ones(2), "first.weight": torch.ones(2)})
    assert ("2 names of the state are not there: 'frist.weight' (nearest: 'first.weight'), 'secnod.weight' (nearest: "
            "'second.weight')") in str(caught.value)


def test_torch_tells_of_many_names_below_one_key_by_the_key(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    swt.save(tmp_path / "x", {"model": model, "optim": torch.optim.SGD(model.parameters(), momentum=0.9), "step": 1})
    here = f"checkpoint {tmp_path / 'x'} does not fit the state: "
    for target, text in (
            ({"modle": model, "step": 0}, "2 faults: 4 names of the state are not there: 'modle.*' (4 names) (nearest: 'model'); "
                               "'model.0.weight' is stored, 'modle.0.weight' asked for: write rename={\"model.*\": \"modle.*\"}, or a target with "
                               "the stored levels; 6 stored names are not in the state: 'model.*' (4 names), 'optim.param_groups', 'optim.state' (unused=\"ignore\" leaves them out)"),
            ({"model": model}, "1 fault: 3 stored names are not in the state: 'optim.param_groups', 'optim.state', 'step' (unused=\"ignore\" leaves them out)"),
            ({"model": model, "step": 0, "optim": None, "more": 3}, "1 fault: 1 name of the state is not there: 'more' (nearest: 'model')")):
        with pytest.raises(sw.InvalidArgument) as caught:
            swt.load(tmp_path / "x", target)
        assert str(caught.value) == here + text


def test_jax_loads_under_new_names_and_as_other_dtypes(tmp_path):
    jax = pytest.importorskip("jax")
    import shardwise.jax as swj

    tree = {"params": {"w": np.float32([1, 2]), "b": np.float32([3])}, "key": jax.random.key(1), "step": 3}
    swj.save(tmp_path / "x", tree)
    target = {"model": {"w": jax.ShapeDtypeStruct((2,), jax.numpy.bfloat16), "b": np.zeros(1, np.float32)}, "rng": jax.random.key(0),
              "step": 0}
    loaded = swj.load(tmp_path / "x", target, rename={"params/*": "model/*", "key": "rng"}, cast={"params/w": jax.numpy.bfloat16})
    assert loaded["model"]["w"].dtype == jax.numpy.bfloat16 and loaded["model"]["w"].tolist() == [1, 2]
    assert loaded["model"]["b"].tolist() == [3] and loaded["step"] == 3
    assert jax.random.key_data(loaded["rng"]).tolist() == jax.random.key_data(tree["key"]).tolist()
    cast = swj.load(tmp_path / "x", cast="f16")
    assert cast["params"]["w"].dtype == np.float16
    with pytest.raises(sw.InvalidArgument, match="'params/w' is not in the checkpoint, nearest 'parms/w'"):
        swj.load(tmp_path / "x", {"params": {"w": np.zeros(2, np.float32)}}, rename={"params/*": "parms/*"}, strict=False)
    grown = {"params": {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}}
    with pytest.raises(sw.InvalidArgument, match=r"'params/w' is float32 \[2\], the target float32 \[3\]"):
        swj.load(tmp_path / "x", grown, strict=False)
    loaded = swj.load(tmp_path / "x", grown, strict=False, skip_mismatched=True)
    assert loaded["params"]["w"] is grown["params"]["w"] and loaded["params"]["b"].tolist() == [3]


def test_values_of_each_rank_keep_their_place(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    state = {"w": torch.zeros(3), "rng": swt.rng(), "own": swt.PerRank(torch.full((2,), 7.0))}
    swt.save(tmp_path / "x", state)
    draws = torch.rand(3)
    torch.rand(3)
    swt.load(tmp_path / "x", state, rename={"w": "w"})
    assert torch.equal(torch.rand(3), draws)
    target = {"v": torch.ones(3), "rng": swt.rng(), "mine": swt.PerRank(None)}
    found = swt.load(tmp_path / "x", target, rename={"w": "v", "own@*": "mine@*"})
    assert torch.equal(torch.rand(3), draws) and found["mine"].tolist() == [7, 7] and not found.missing


def test_all_loads_take_names_and_resizes(tmp_path):
    jnp, torch = pytest.importorskip("jax.numpy"), pytest.importorskip("torch")
    import shardwise.jax as swj
    import shardwise.torch as swt

    saved = {"model": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}, "opt": {"m": np.zeros(2)}, "step": 3}
    with swj.CheckpointManager(tmp_path / "jax") as manager:
        manager.save(1, jax_tree := {key: value for key, value in saved.items()})
        wanted = {"model": {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}}
        for found in (swj.load(tmp_path / "jax/step-00000001", wanted, names="model/*"), manager.restore(wanted, names=["model/w", "model/b"]).value):
            assert found["model"]["w"].tolist() == saved["model"]["w"].tolist() and found.keys() == {"model"}
    path = tmp_path / "jax/step-00000001"
    assert swj.load(path, names=["*/w", "step"])["model/w"].shape == (2, 3) and jax_tree.keys() == swj.load(path).keys()
    renamed = swj.load(path, {"v": jnp.zeros((2, 3))}, names="model/w", rename={"model/*": "v"})
    assert renamed["v"].tolist() == saved["model"]["w"].tolist()
    grown = swj.load(path, names="model/w", resize={"*": "pad:3,-"})["model/w"]
    assert grown.shape == (3, 3) and not grown[2].any() and (grown[:2] == saved["model"]["w"]).all()
    with pytest.raises(sw.NameNotFound, match="there is no tensor 'modl/\\*'"):
        swj.load(path, names="modl/*")

    state = {"model": {name: torch.from_numpy(array.copy()) for name, array in saved["model"].items()}, "opt": torch.zeros(2), "step": 3}
    with swt.CheckpointManager(tmp_path / "torch") as manager:
        manager.save(1, state)
        for load in (lambda target, **how: swt.load(tmp_path / "torch/step-00000001", target, **how),
                     lambda target, **how: manager.restore(target, **how).value):
            mine = {"model": {"w": torch.zeros(2, 3), "b": torch.zeros(3)}}
            found = load(mine, names="model.*")
            assert found.unused == [] and torch.equal(mine["model"]["w"], state["model"]["w"])
            with pytest.raises(sw.InvalidArgument, match="1 stored name is not in the state: 'step'"):
                load(mine, names=["model.*", "step"])
            with pytest.raises(sw.InvalidArgument, match="'model.b'"):
                load(mine, names="model.w")
    for call in (lambda: sw.load(path, wanted), lambda: swt.load_state_dict(path, wanted), lambda: swj.load(path, names=wanted)):
        with pytest.raises(
            sw.InvalidArgument,
            match="names is a dict, needed are patterns, as 'layers/\\*'; a tree to fill goes to target=",
        ):
            call()
