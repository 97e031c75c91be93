"""Writes attention of `jax.nn.dot_product_attention(implementation="cudnn")` as JAX's own products in the
scope of a kernel, so that a plan has no memory for its scores. cuDNN is not needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from ...._dtypes import NUMPY
from ...._programs.text import Refused, Value
from .rules import Call, rule

_NEWEST = 1_000_000  #: a version of cuDNN that has everything


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Lets JAX trace kernels that it refuses without a GPU, as if this machine had the newest GPU."""
    known = {name: getattr(cudnn, name) for name in ("check_cudnn_version", "check_compute_capability")}
    setattr(cudnn, "check_cudnn_version", lambda: _NEWEST)
    setattr(cudnn, "check_compute_capability", lambda capability: True)
    try:
        yield
    finally:
        for name, function in known.items():
            setattr(cudnn, name, function)


def _attention(params: Any, operands: Sequence[Any]) -> Callable[..., tuple[Any, Any]]:
    """Returns a function of query, key, value and bias that returns the kernel's result and logsumexp. Takes
    the other operands from `operands`."""
    _, _, _, bias, query_lengths, key_lengths, *unknown = operands
    if any(x.size for x in unknown) or params["dropout_rate"]:
        raise Refused("found packed or paged sequences or dropout, "
                      "needed attention as jax.nn.dot_product_attention has it")
    is_swapped = params["layout"] == cudnn.AttentionLayout.BNTH.value
    window, mask = params["sliding_window_length"], params["mask_type"]

    def swapped(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2) if is_swapped else x

    def attention(query: Any, key: Any, value: Any, bias: Any) -> tuple[Any, Any]:
        result, rows = jax.nn.dot_product_attention(
            swapped(query), swapped(key), swapped(value), bias if bias.size else None, scale=params["scale"],
            is_causal=mask in (cudnn.MaskType.CAUSAL, cudnn.MaskType.PADDING_CAUSAL),
            query_seq_lengths=query_lengths if query_lengths.size else None, key_value_seq_lengths=key_lengths
            if key_lengths.size else None, local_window_size=None if window is None else (window - 1, 0),
            implementation="xla", return_residual=True)
        return swapped(result), jnp.swapaxes(rows, 1, 2).astype(jnp.float32)

    return attention


def _written(call: Call, function: Callable[..., Any], operands: Sequence[Value]) -> Sequence[Value]:
    example = [np.broadcast_to(np.zeros((), NUMPY[x.dtype]), x.shape) for x in operands]
    return call.in_kernel(jax.make_jaxpr(function)(*example), operands)


@rule("dot_product_attention_fwd_wrapper")
def _forward(call: Call, *operands: Value) -> Sequence[Value]:
    return _written(call, lambda *args: _attention(call.params, args[:10])(*args[:4])[:len(call.results)],
                    operands)


@rule("dot_product_attention_bwd_wrapper")
def _backward(call: Call, *operands: Value) -> Sequence[Value]:
    def gradients(*args: Any) -> Any:
        _, pull = jax.vjp(lambda *by: _attention(call.params, args[:10])(*by)[0], *args[:4])
        return pull(args[-1])[:len(call.results)]

    return _written(call, gradients, operands)
