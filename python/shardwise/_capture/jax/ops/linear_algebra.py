"""Writes decompositions of matrices, which LAPACK computes in a run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...._dtypes import NUMPY
from ...._programs.text import Refused, Value
from ...shared import linear_algebra
from .rules import Call, rule


def order_of_pivots(pivots: Any, *, size: int) -> Any:
    places = jnp.arange(size, dtype="i4")

    def change(order: Any, swap: Any) -> Any:
        j, pivot = swap
        return order[jnp.where(places == j, pivot, jnp.where(places == pivot, j, places))], None

    return lax.scan(change, places, (places[:len(pivots)], pivots))[0]


def product_of_reflections(a: Any, factors: Any) -> Any:
    """Returns the first columns of (1 - t v v') (1 - ..) .., as many as the vectors have. The product is
    1 - v T v', and 1 / T is 1 / t plus the upper triangle of v' v."""
    rows, columns = a.shape
    count = len(factors)
    v = jnp.tril(a[:, :count], -1) + jnp.eye(rows, count, dtype=a.dtype)
    t = factors[:, None]
    upper = jnp.eye(count, dtype=a.dtype) + t * jnp.triu(v.T @ v, 1)
    both = lax.linalg.triangular_solve(upper, t * v.T, left_side=True, lower=False, unit_diagonal=True)
    return jnp.eye(rows, columns, dtype=a.dtype) - v @ both[:, :columns]


def reflected(packed: Any, factors: Any, *, full: bool) -> Any:
    """Returns Q and R of LAPACK's reflections."""
    height, width = packed.shape
    count = height if full else min(height, width)
    vectors = jnp.pad(packed[:, :len(factors)], ((0, 0), (0, count - len(factors))))
    return product_of_reflections(vectors, factors), jnp.triu(packed[:count])


# Primitives.


def _written(call: Call, algorithm: Callable[..., Any], rank: int, *operands: Value) -> Sequence[Value]:
    """Writes a call of a function of single matrices or vectors. The first operand has this rank there."""
    for _ in operands[0].shape[rank:]:
        algorithm = jax.vmap(algorithm)
    is_wide = any(x.dtype == "f64" for x in operands)  # a step may enable f64 for a part only
    with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
        example = (np.broadcast_to(np.zeros((), NUMPY[x.dtype]), x.shape) for x in operands)
        return call.inlined(jax.make_jaxpr(algorithm)(*example), operands)


@rule("cholesky")
def _cholesky(call: Call, a: Value) -> Value:
    return linear_algebra.cholesky(call.text, a)


@rule("triangular_solve")
def _triangular_solve(call: Call, a: Value, b: Value) -> Value:
    params = call.params
    return linear_algebra.triangular_solve(
        call.text, a, b, right=not params["left_side"], upper=not params["lower"],
        transpose=params["transpose_a"], unit=params["unit_diagonal"],
    )


@rule("lu")
def _lu(call: Call, a: Value) -> Sequence[Value]:
    factors, pivots = linear_algebra.lu(call.text, a)
    order = functools.partial(order_of_pivots, size=a.shape[-2])
    return [factors, pivots, *_written(call, order, 1, pivots)]


@rule("lu_pivots_to_permutation")
def _order_of_pivots(call: Call, pivots: Value) -> Sequence[Value]:
    return _written(call, functools.partial(order_of_pivots, size=call.shape[-1]), 1, pivots)


@rule("householder_product")
def _householder_product(call: Call, a: Value, factors: Value) -> Sequence[Value]:
    linear_algebra.need_floats(a)
    return _written(call, product_of_reflections, 2, a, factors)


@rule("qr")
def _qr(call: Call, a: Value) -> Sequence[Value]:
    if call.params["pivoting"]:
        raise Refused("found one that changes columns (pivoting=True), needed one that does not")
    packed, factors = linear_algebra.qr(call.text, a)
    return _written(call, functools.partial(reflected, full=call.params["full_matrices"]), 2, packed, factors)


@rule("eigh")
def _eigh(call: Call, a: Value) -> Sequence[Value]:
    _need_all(call, a.shape[-1])
    rank = len(a.shape)
    turned = a if call.params["lower"] else call.text.transpose(a, [*range(rank - 2), rank - 1, rank - 2])
    return linear_algebra.eigh(call.text, turned)


@rule("svd")
def _svd(call: Call, a: Value) -> Sequence[Value]:
    rows, columns = a.shape[-2:]
    _need_all(call, min(rows, columns))
    u, values, v = linear_algebra.svd(call.text, a)
    if not call.params["compute_uv"]:
        return [values]
    if call.params["full_matrices"] and rows != columns:
        raise Refused("found full_matrices=True, needed full_matrices=False")
    rank = len(v.shape)
    return [values, u, call.text.transpose(v, [*range(rank - 2), rank - 1, rank - 2])]


def _need_all(call: Call, count: int) -> None:
    if call.params["subset_by_index"] not in (None, (0, count)):
        raise Refused("found some of the values (subset_by_index), needed all")
