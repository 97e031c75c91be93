"""Compares shardwise.torch.spmd with PyTorch/XLA: the same programs, losses and values, and shardings of all tensors they note.
seed_programs.py has the programs and says how seed_expected.json was made."""

import json
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from seed_programs import PROGRAMS, noting, with_our_imports

import shardwise.torch.spmd as spmd

EXPECTED = json.loads((pathlib.Path(__file__).parent / "seed_expected.json").read_text())
# A tensor without a mark, whose neighbours ask for different cuts: XLA cuts the update of GPT's norms as the next layer's weight, we as the sum
# over the batch comes; XLA gathers the features of all images, which we leave cut.
FREE = {"gpt": ("norm.weight", "norm1.weight", "norm2.weight", "norm.bias", "norm1.bias", "norm2.bias"), "images": ("features",)}
# XLA divides by the number of elements in it, torch and we by one less.
OTHER_VALUES = {("images", "1.running_var"): 1e-4}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_pytorch_xla_gives(name):
    noted, functions = noting(spmd.get_xla_sharding_spec)
    exec(with_our_imports(PROGRAMS[name]), functions)
    assert noted.keys() == EXPECTED[name].keys()
    for what, expected in EXPECTED[name].items():
        found = noted[what]
        torch.testing.assert_close(found["values"], expected["values"], rtol=OTHER_VALUES.get((name, what), 1e-5), atol=1e-5,
                                   msg=lambda told, what=what: f"{what}: {told}")
        assert found["sharding"] == expected["sharding"] or what.endswith(FREE.get(name, "none")), what
        assert found.get("shards") == expected.get("shards"), what
