"""Runs layers as a pipeline over stages, by the shifted buffer of GSPMD (Xu et al., arXiv 2105.04663,
section 3.3): the stages are a dim, and a scan moves it by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._programs import pipelines as _pipelines


def pipeline(block: Callable[[Any, Any], Any], params: Any, x: Any, *, stages: int,
             micro_batches: int, axis: str | None = None) -> Any:
    """Returns x after all layers, as a pipeline over stages. block(x, layer) gets a micro-batch of x and one
    layer's slices of params along dim 0, and returns x's type. Values and gradients are those of the layers
    one after the other.

        def block(h, layer):
            return jnp.tanh(h @ layer["w"] + layer["b"])

        y = swj.pipeline(block, params, x, stages=4, micro_batches=8)

    It is a function of JAX, for jit, grad and capture(). In a program, mark dim 0 of the params with an axis
    of the mesh: each of its devices has the layers of one stage.

    params, x: arrays or pytrees of them, with the layers and the batch along dim 0. A micro-batch has every
    micro_batches-th row, so a batch that is cut over other devices stays cut.

    stages: divides the layers. micro_batches: divides the batch, and is as large as stages or larger.

    axis: the axis of the stages, for a block with jax.lax.with_sharding_constraint: spmd_axis_name of
    jax.vmap.

    Raises InvalidArgument for other numbers, and for a block that changes its type."""
    params, x = jax.tree.map(jnp.asarray, (params, x))
    each, rows = _pipelines.sizes(_named(params, "params"), _named(x, "x"), stages, micro_batches)
    _need_same_types(block, params, x, rows)
    layers = [jax.tree.map(lambda w: w.reshape(stages, each, *w.shape[1:])[:, number], params)
              for number in range(each)]
    of_all_stages = jax.vmap(block, spmd_axis_name=axis)

    def trip(buffer: Any, fed: Any) -> tuple[Any, Any]:
        buffer = jax.tree.map(lambda b, f: _padded(b[:-1], 0, 1, 0) + f, buffer, fed)
        for layer in layers:
            buffer = of_all_stages(buffer, layer)
        return buffer, buffer

    def micro_batch_rows(leaf: Any) -> Any:
        return leaf.reshape(rows, micro_batches, *leaf.shape[1:]).swapaxes(0, 1)

    def fed(micro: Any) -> Any:
        """A micro-batch a trip for stage 0, and zeros for the others."""
        all_trips = jnp.concatenate([micro, *[_bubble(micro)] * (stages - 1)])
        return _padded(all_trips[:, None], 1, 0, stages - 1)

    def last_stage(trips: Any) -> Any:
        own = trips[stages - 1:, stages - 1].swapaxes(0, 1)
        return own.reshape(rows * micro_batches, *own.shape[2:])

    micro = jax.tree.map(micro_batch_rows, x)
    first = jax.tree.map(lambda m: jnp.broadcast_to(_bubble(m), (stages, *m.shape[1:])), micro)
    return jax.tree.map(last_stage, jax.lax.scan(trip, first, jax.tree.map(fed, micro))[1])


def _bubble(micro: Any) -> Any:
    """Returns what bubbles run on: numbers of the data, since a block may have no finite gradient at zeros,
    and 0 times that is NaN."""
    return jax.lax.stop_gradient(micro[:1])


def _padded(leaf: Any, dim: int, before: int, after: int) -> Any:
    """Returns the array with zeros along a dim."""
    widths = [(before, after, 0) if d == dim else (0, 0, 0) for d in range(leaf.ndim)]
    return jax.lax.pad(leaf, jnp.zeros((), leaf.dtype), widths)


def _named(tree: Any, name: str) -> dict[str, Any]:
    """Returns the leaves by their names in messages."""
    return {name + jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _need_same_types(block: Callable[[Any, Any], Any], params: Any, x: Any, rows: int) -> None:
    """Calls the block without computing."""
    def once(params: Any, x: Any) -> Any:
        return block(jax.tree.map(lambda v: v[:rows], x), jax.tree.map(lambda w: w[0], params))

    made = _named(jax.eval_shape(once, params, x), "x")
    _pipelines.need_same({name: f"{v.dtype}{[rows, *v.shape[1:]]}" for name, v in _named(x, "x").items()},
                         {name: f"{v.dtype}{list(v.shape)}" for name, v in made.items()})
