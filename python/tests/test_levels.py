"""Targets that ask for names on other levels than they are stored: the error says what to write, and that works."""

import re

import numpy as np
import pytest

import shardwise as sw


def advice(error):
    return eval(re.search(r"write rename=(\{.*?\})", str(error.value))[1])


@pytest.mark.parametrize("stored,asked", [("model/net/{}", "model/{}"), ("model/{}", "{}"), ("{}", "model/{}"), ("a/b/{}", "c/{}")])
def test_numpy_targets_on_other_levels(tmp_path, stored, asked):
    def tree(levels, value):
        found = {name: np.full(2, value, "f4") for name in ("w", "b")}
        for key in reversed(levels.split("/")[:-1]):
            found = {key: found}
        return found

    sw.save(tmp_path / "x", tree(stored, 3))
    target = tree(asked, 0)
    with pytest.raises(sw.InvalidArgument) as error:
        sw.load(tmp_path / "x", target=target)
    assert repr(stored.format("w")) in str(error.value) and repr(asked.format("w")) in str(error.value)
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    wanted = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), target)
    with pytest.raises(sw.InvalidArgument) as error:
        swj.load(tmp_path / "x", wanted)
    assert swj.load(tmp_path / "x", wanted, rename=advice(error)) is not None


@pytest.mark.parametrize("strict", [True, False])
def test_modules_on_other_levels(tmp_path, strict):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    saved = torch.nn.Linear(2, 3)
    states = {"deep": {"model": {"net": saved}}, "flat": {"model": saved}, "bare": dict(saved.state_dict()),
              "inner": {"model": torch.nn.ModuleDict({"net": saved})}}
    for name, state in states.items():
        swt.save(tmp_path / name, state)
    for name, place in (("deep", lambda m: {"model": m}), ("flat", lambda m: {"model": {"net": m}}), ("flat", lambda m: {"other": m}),
                        ("inner", lambda m: {"model": m}), ("flat", lambda m: m.state_dict()), ("deep", lambda m: {"m": m})):
        module = torch.nn.Linear(2, 3)
        with pytest.raises(sw.InvalidArgument, match="is stored, '.*weight' asked for") as error:
            swt.load(tmp_path / name, place(module), strict=strict)
        swt.load(tmp_path / name, place(module), rename=advice(error))
        assert torch.equal(module.weight, saved.weight) and torch.equal(module.bias, saved.bias)
