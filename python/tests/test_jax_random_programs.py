"""Compares random programs, with their gradients, with JAX on one and on several devices."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import random
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardwise.jax as swj

# The steps take two arrays of 8 x 6 and are continuous: rounding, which differs by devices, changes no element by much.
STEPS: list[Any] = [
    lambda x, y: jnp.sin(x) * y,
    lambda x, y: x @ y.T @ x / 8,
    lambda x, y: jnp.concatenate([x[:3], y[3:]]),
    lambda x, y: jnp.cumsum(x, 0) / 4 + y,
    lambda x, y: x[::-1] + y[:, ::-1],
    lambda x, y: x.at[jnp.array([1, 1, 7])].add(y[:3]),
    lambda x, y: x[jnp.array([0, 2, 2, 1, 7, 5, 3, 9])] - y,
    lambda x, y: jax.nn.softmax(x) + y,
    lambda x, y: x.max(1, keepdims=True) * y,
    lambda x, y: jnp.roll(x, 2, 1) + jnp.tril(y),
    lambda x, y: jnp.pad(x, ((1, 0), (0, 2)))[:-1, 2:] + y,
    lambda x, y: lax.scan(lambda c, r: (jnp.tanh(c + r), c), x[0], y)[1] + x,
    lambda x, y: lax.fori_loop(1, 4, lambda i, v: v * 0.5 + x[i], y),
    lambda x, y: lax.cond(x[0, 0] > 5, jnp.sin, jnp.cos, y) + x,
    lambda x, y: jnp.einsum("ij,kj->ik", x, y) @ y / 8,
    lambda x, y: x.reshape(4, 12).T.reshape(8, 6) + y,
    lambda x, y: jax.nn.gelu(x) - jax.nn.relu(y),
    lambda x, y: jnp.take_along_axis(x, jnp.arange(48).reshape(8, 6) % 6, 1) * y,
    lambda x, y: lax.dynamic_update_slice(x, y[:2, :3], (3, 2)),
    lambda x, y: lax.map(lambda r: r[0] * r[1], (x, y)),
    lambda x, y: jax.checkpoint(lambda v: jnp.sin(v) * jnp.cos(v))(x) + y,
]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_compute_what_jax_computes(seed):
    """Makes programs of ten steps, with gradients; each step takes two of the arrays so far."""
    draw = random.Random(seed)
    steps = [(draw.choice(STEPS), draw.random(), draw.random()) for _ in range(10)]

    def value(x: Any, y: Any) -> Any:
        arrays = [x, y]
        for step, a, b in steps:
            arrays.append(jnp.tanh(step(arrays[int(a * len(arrays))], arrays[int(b * len(arrays))])))
        return sum(array.sum() for array in arrays), arrays[-1]

    def both(x: Any, y: Any) -> Any:
        return jax.value_and_grad(value, (0, 1), has_aux=True)(x, y)

    args = tuple(np.random.default_rng(seed).normal(size=(2, 8, 6)).astype(np.float32))
    theirs = jax.tree.map(np.asarray, jax.jit(both)(*args))
    for mesh, cut in (("d=1", {}), ("d=4", {"x": "d,-"}), ("d=3,m=2", {"x": "d,-", "y": "-,m"})):
        program = swj.capture(both, *args).mark(cut)
        for ours, expected in zip(jax.tree.leaves(program.run(*args, mesh=mesh)), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4, err_msg=mesh)
