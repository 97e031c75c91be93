"""Training steps of whole models as programs: losses and weights of three steps are JAX's, on any mesh."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax_steps
from jax_steps import trains_as_jax_does


def test_a_gpt_with_adamw_by_hand(rng):
    trains_as_jax_does(*jax_steps.gpt(rng), jax_steps.GPT_PLANS)


def needs_flax() -> None:
    pytest.importorskip("flax", reason="needs flax, which this environment has not")
    pytest.importorskip("optax", reason="needs optax, which this environment has not")


@pytest.mark.parametrize("remat", [False, True])
def test_a_gpt_of_flax_with_optax(rng, remat):
    needs_flax()
    trains_as_jax_does(*jax_steps.flax_gpt(rng, remat), jax_steps.FLAX_PLANS)


@pytest.mark.parametrize("name", ["moe", "vit", "resnet", "lstm"])
def test_other_models(rng, name):
    needs_flax()
    trains_as_jax_does(*getattr(jax_steps, name)(rng), getattr(jax_steps, f"{name.upper()}_PLANS"))
