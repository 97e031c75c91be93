"""Compares layers for pictures with torch: values and gradients of their sum with weights, on one device and on several.

layer_cases (C++) writes random cases with their results; torch is asked for the same here.
"""

import json
import os
import pathlib
import subprocess
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
F = torch.nn.functional

CASES = 700


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path: pathlib.Path = tmp_path_factory.mktemp("layers") / "cases.json"
    subprocess.run([os.environ["LAYER_CASES"], path, str(CASES)], check=True)
    return json.loads(path.read_text())


def tensor(array: list[Any]) -> Any:
    shape, numbers = array
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def results(case: dict[str, Any], inputs: list[Any]) -> list[Any]:
    x = inputs[0]
    match case["layer"]:
        case "max_pool":
            return [F.max_pool2d(x, case["window"], case["stride"], case["padding"], case["dilation"])]
        case "avg_pool":
            return [F.avg_pool2d(x, case["window"], case["stride"], case["padding"],
                                 count_include_pad=case["count_include_pad"])]
        case "resize":
            return [F.interpolate(x, size=case["extents"], mode=case["mode"])]
        case "groupnorm":
            return [F.group_norm(x, case["groups"], *inputs[1:3])]
        case "batchnorm":
            mean, variance = inputs[3].detach().clone(), inputs[4].detach().clone()
            made = F.batch_norm(x, mean, variance, *inputs[1:3], training=case["training"])
            return [made, mean, variance] if case["training"] else [made]
    raise ValueError(case["layer"])


def test_values_and_gradients_are_those_of_torch(cases: list[dict[str, Any]]) -> None:
    seen = set()
    for number, case in enumerate(cases):
        inputs = [tensor(x) for x in case["inputs"]]
        weights = inputs.pop()
        wanted = inputs[:3]
        for x in wanted:
            x.requires_grad_()
        expected = results(case, inputs)
        gradients = torch.autograd.grad((expected[0] * weights).sum(), wanted)
        for found in case["found"]:
            assert len(found) == len(expected) + len(gradients)
            for y, z in zip(found, [*expected, *gradients]):
                shown = {name: value for name, value in case.items() if name not in ("inputs", "found")}
                torch.testing.assert_close(tensor(y), z.detach(), rtol=1e-9, atol=1e-9,
                                           msg=lambda text: f"case {number} {shown}: {text}")
        seen.add(case["layer"])
    assert seen == {"max_pool", "avg_pool", "resize", "groupnorm", "batchnorm"}
