"""Attention of JAX that a kernel of cuDNN computes is planned without memory for its scores; JAX's default is XLA, which has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

import shardwise.jax as swj

BATCH, LENGTH, HEADS, WIDTH = 2, 128, 4, 16
SCORES = BATCH * HEADS * LENGTH * LENGTH * 4  #: bytes in f32
NUMBERS = np.random.default_rng(0)


def array(*shape: int) -> Any:
    return jnp.asarray(NUMBERS.normal(size=shape), jnp.bfloat16)


PARAMS = {name: array(64, heads, WIDTH) for name, heads in (("q", HEADS), ("k", HEADS), ("v", HEADS))}
X = array(BATCH, LENGTH, 64)
LENGTHS = jnp.array([100, LENGTH], jnp.int32)
MASK = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))


def step_of(implementation: str | None, **how: Any) -> Any:
    def loss(params: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, params[name]) for name in "qkv")
        with jax.named_scope("layer0"):
            made = jax.nn.dot_product_attention(q, k, v, implementation=implementation, **how)
            made = jax.nn.dot_product_attention(made, k, v, implementation=implementation, **how)
        return (made.astype(jnp.float32) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        return jax.value_and_grad(loss)(params, x)

    return step


@pytest.mark.parametrize("how", [
    {}, {"is_causal": True}, {"is_causal": True, "local_window_size": (3, 0)}, {"mask": MASK}, {"scale": 0.1},
    {"query_seq_lengths": LENGTHS, "key_value_seq_lengths": LENGTHS}, {"bias": array(1, HEADS, LENGTH, LENGTH)},
], ids=lambda how: "+".join(how) or "plain")
def test_a_kernel_gives_what_xla_gives_and_has_no_memory_for_scores(how: dict[str, Any]) -> None:
    program = swj.capture(step_of("cudnn", **how), PARAMS, X)
    for mine, right in zip(jax.tree.leaves(program.run(PARAMS, X, mesh="d=1")), jax.tree.leaves(step_of("xla", **how)(PARAMS, X))):
        scale = float(jnp.abs(right).max())
        np.testing.assert_allclose(np.asarray(mine, np.float32) / scale, np.asarray(right, np.float32) / scale, atol=2**-8)
    fused, written = program.plan("d=1"), program.plan("d=1", attention="written")
    assert written.peak_bytes - fused.peak_bytes >= 2 * SCORES  # they and their gradient
    assert all(one["bytes"] < SCORES for one in fused.to_json()["memory"]["largest"])
    assert "planned as a fused kernel" in fused.report()
    assert {"layer0/fused attention", "layer0/fused attention [2]"} <= {line.rpartition("  # ")[2] for line in program.text.splitlines()}


@pytest.mark.parametrize("implementation", ["xla", None])
def test_attention_of_xla_is_planned_as_written(implementation: str | None) -> None:
    program = swj.capture(step_of(implementation), PARAMS, X)
    plan = program.plan("d=1")
    assert plan.to_json()["attention"] is None and plan.peak_bytes > 2 * SCORES


@pytest.mark.parametrize("again", [False, True])
def test_layers_of_a_loop_are_kernels(again: bool) -> None:
    weights = array(3, 64, 3, HEADS, WIDTH)

    def step(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            q, k, v = jnp.einsum("btd,dknh->kbtnh", x, w)
            return x + jax.nn.dot_product_attention(q, k, v, implementation="cudnn").reshape(x.shape), None

        def loss(weights: Any) -> Any:
            return (jax.lax.scan(jax.checkpoint(layer) if again else layer, x, weights)[0].astype(jnp.float32) ** 2).mean()

        return jax.grad(loss)(weights)

    program = swj.capture(step, weights, X)
    fused, written = program.plan("d=1"), program.plan("d=1", attention="written")
    assert written.peak_bytes - fused.peak_bytes >= 2 * SCORES
    assert len(program.run(weights, X, mesh="d=1")) == 3


def test_grouped_heads_and_a_batch_of_vmap_are_kernels() -> None:
    keys = array(BATCH, LENGTH, 1, WIDTH)
    program = swj.capture(lambda q, k: jax.nn.dot_product_attention(q, k, k, implementation="cudnn"), array(BATCH, LENGTH, HEADS, WIDTH), keys)
    assert program.plan("d=1").to_json()["attention"] == "fused"
    each = jax.vmap(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"))
    queries = array(3, BATCH, LENGTH, HEADS, WIDTH)
    program = swj.capture(each, queries)
    assert program.plan("d=1").to_json()["attention"] == "fused"
    right = jax.vmap(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="xla"))(queries)
    np.testing.assert_allclose(np.asarray(program.run(queries, mesh="d=1"), np.float32), np.asarray(right, np.float32), atol=2**-5)


def test_a_capture_leaves_jax_as_it_was() -> None:
    known = cudnn.check_cudnn_version, cudnn.check_compute_capability
    swj.capture(step_of("cudnn"), PARAMS, X)
    with pytest.raises(ZeroDivisionError):
        swj.capture(lambda x: x / (1 // 0), X)
    assert (cudnn.check_cudnn_version, cudnn.check_compute_capability) == known
