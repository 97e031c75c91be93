"""Arguments of a captured step are tensors, and never objects that hold the weights."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwise as sw  # noqa: E402
import shardwise.torch as swt  # noqa: E402


@dataclass
class Held:
    inside: Any


class Slots:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


def test_a_module_or_an_optimizer_is_no_argument() -> None:
    for device in ("cpu", "meta"):
        model = torch.nn.Linear(4, 4, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        x = torch.ones(2, 4, device=device)
        loop = Held(None)
        loop.inside = [loop, model]
        for given, named in ((model, "given"), ([model], "given.0"), ({"net": (x, model)}, "given.net.1"), (Held(model), "given.inside"),
                             (Held({"a": [Held(model)]}), "given.inside.a.0.inside"), (loop, "given.inside.1"), (optimizer, "given"),
                             (scheduler, "given"), (torch.nn.ModuleList([model]), "given"), (SimpleNamespace(n=1, m=model), "given.m"),
                             (Slots(model), "given.inside"), (UserDict(net=model), "given.data.net"), (model.forward, "given.model"),
                             (partial(torch.nn.functional.linear, weight=model), "given.weight"), (lambda x: model(x), "given.model")):
            with pytest.raises(sw.InvalidArgument, match=rf"capture: found \w+ in the argument '{named}', needed tensors there: .*uses="):
                swt.capture(lambda given, x: model(x), given, x)


def test_a_tensor_in_an_object_is_no_argument() -> None:
    x = torch.ones(2, 4)
    for given in (Held(x), SimpleNamespace(inside=[x]), Slots({"a": x}), UserDict(inside=x), lambda: x, Held(Held(x))):
        with pytest.raises(sw.InvalidArgument, match=r"capture: found a tensor in the argument 'given\.[.\w]+', in an object of \w+, needed .*dict\(batch\)"):
            swt.capture(lambda given: x, given)
    program = swt.capture(lambda given, scale: given["inside"] * scale[0], {"inside": x}, (2.0, SimpleNamespace(n=1), torch.float32))
    assert [one.label for one in program.inputs] == ["given.inside"]


def test_what_the_error_says_takes_the_new_weights() -> None:
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    held = {"model": model}
    for program in (swt.capture(lambda x: model(x), x), swt.capture(lambda x: held["model"](x), x, uses=[model])):
        with torch.no_grad():
            model.weight.add_(1)
        torch.testing.assert_close(program.run(x, devices=1), model(x))
