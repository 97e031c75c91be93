"""Decompositions of matrices, written as loops over columns: as many operations as a plain one has, one column after the other."""

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
from .rules import Call, rule


def cholesky(a: Any) -> Any:
    """Returns the lower factor; NaN if a has no factor, as in XLA. Column j is the remainder of a's, over the
    root of its diagonal element."""
    if not a.size:
        return a
    places = jnp.arange(a.shape[0])

    def column(rest: Any, j: Any) -> Any:
        own = lax.dynamic_index_in_dim(rest, j, 1, keepdims=False)
        found = jnp.where(places >= j, own / jnp.sqrt(own[j]), 0)
        return rest - found[:, None] * found[None, :], found

    columns = lax.scan(column, a, places)[1]
    is_definite = jnp.all(jnp.diagonal(columns) > 0)
    return jnp.where(is_definite, columns.T, jnp.nan)


def triangular_solve(a: Any, b: Any, *, left: bool, lower: bool, transposed: bool, unit: bool) -> Any:
    """x of a x = b, or of x a = b: row after row, each taken from the rows that are left of b."""
    if not b.size:
        return b
    if not left:
        return triangular_solve(a, b.T, left=True, lower=lower, transposed=not transposed, unit=unit).T
    if transposed:
        a, lower = a.T, not lower
    if not lower:
        return triangular_solve(a[::-1, ::-1], b[::-1], left=True, lower=True, transposed=False, unit=unit)[::-1]

    def row(rest: Any, given: Any) -> Any:
        j, column = given
        found = lax.dynamic_index_in_dim(rest, j, 0, keepdims=False)
        found = found if unit else found / column[j]
        return rest - jnp.where(jnp.arange(len(a)) > j, column, 0)[:, None] * found[None, :], found

    return lax.scan(row, b, (jnp.arange(len(a)), a.T))[1]


def lu(a: Any) -> Any:
    """The two factors in one matrix, which row each was changed with, and the order of all."""
    rows, columns = jnp.arange(a.shape[0], dtype="i4"), jnp.arange(a.shape[1], dtype="i4")
    if not a.size:
        return a, rows[:0], rows

    def column(given: Any, j: Any) -> Any:
        rest, order = given
        own = lax.dynamic_index_in_dim(rest, j, 1, keepdims=False)
        pivot = jnp.argmax(jnp.where(rows >= j, jnp.abs(own), -1)).astype("i4")
        changed = jnp.where(rows == j, pivot, jnp.where(rows == pivot, j, rows))
        rest, own, order = rest[changed], own[changed], order[changed]
        top = lax.dynamic_index_in_dim(rest, j, 0, keepdims=False)
        factor = jnp.where(rows > j, own / jnp.where(own[j] == 0, 1, own[j]), 0)
        rest = rest - factor[:, None] * jnp.where(columns > j, top, 0)[None, :]
        return (jnp.where((columns == j)[None, :] & (rows > j)[:, None], factor[:, None], rest), order), pivot

    (found, order), pivots = lax.scan(column, (a, rows), columns[:min(a.shape)])
    return found, pivots, order


def order_of_pivots(pivots: Any, *, size: int) -> Any:
    places = jnp.arange(size, dtype="i4")

    def change(order: Any, given: Any) -> Any:
        j, pivot = given
        return order[jnp.where(places == j, pivot, jnp.where(places == pivot, j, places))], None

    return lax.scan(change, places, (places[:len(pivots)], pivots))[0]


def geqrf(a: Any) -> Any:
    """Returns, by reflections as in LAPACK, R and below it the vectors, whose first element is 1; and their
    factors."""
    rows, columns = jnp.arange(a.shape[0]), jnp.arange(a.shape[1])
    if not a.size:
        return a, a.ravel()

    def column(rest: Any, j: Any) -> Any:
        own = lax.dynamic_index_in_dim(rest, j, 1, keepdims=False)
        below = jnp.sqrt(jnp.sum(jnp.where(rows > j, own * own, 0)))
        alpha = own[j]
        size = jnp.sqrt(alpha * alpha + below * below)
        beta = jnp.where(below == 0, alpha, jnp.where(alpha < 0, size, -size))
        factor = jnp.where(below == 0, 0, (beta - alpha) / jnp.where(beta == 0, 1, beta))
        vector = jnp.where(rows > j, own / jnp.where(below == 0, 1, alpha - beta), jnp.where(rows == j, 1, 0))
        rest = rest - jnp.where(columns > j, factor * (vector @ rest), 0)[None, :] * vector[:, None]
        made = jnp.where(rows > j, vector, jnp.where(rows == j, beta, own))
        return jnp.where((columns == j)[None, :], made[:, None], rest), factor

    return lax.scan(column, a, columns[:min(a.shape)])


def householder_product(a: Any, factors: Any) -> Any:
    """The columns of the product of reflections."""
    rows = jnp.arange(a.shape[0])
    if not factors.size:
        return jnp.eye(a.shape[0], a.shape[1], dtype=a.dtype)

    def reflect(q: Any, given: Any) -> Any:
        j, factor, own = given
        vector = jnp.where(rows > j, own, jnp.where(rows == j, 1, 0))
        return q - factor * vector[:, None] * (vector @ q)[None, :], None

    count = len(factors)
    given = jnp.arange(count), factors, a[:, :count].T
    return lax.scan(reflect, jnp.eye(a.shape[0], a.shape[1], dtype=a.dtype), given, reverse=True)[0]


def qr(a: Any, *, full: bool) -> Any:
    made, factors = geqrf(a)
    height, width = a.shape
    count = height if full else min(height, width)
    vectors = jnp.pad(made[:, :len(factors)], ((0, 0), (0, count - len(factors))))
    return householder_product(vectors, factors), jnp.triu(made[:count])


# ---- Primitives.


def _written(call: Call, algorithm: Callable[..., Any], rank: int, *operands: Value) -> Sequence[Value]:
    """Writes a call of a function of single matrices or vectors; the first has this rank. Raises Refused."""
    for x in operands:
        if x.dtype not in ("f32", "f64", "i32"):
            raise Refused(f"found {x.dtype}, needed f32 or f64")
    for _ in operands[0].shape[rank:]:
        algorithm = jax.vmap(algorithm)
    is_wide = any(x.dtype == "f64" for x in operands)  # of a step that switches it on for a part
    with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
        example = (np.broadcast_to(np.zeros((), NUMPY[x.dtype]), x.shape) for x in operands)
        return call.inlined(jax.make_jaxpr(algorithm)(*example), operands)


@rule("cholesky")
def _cholesky(call: Call, a: Value) -> Sequence[Value]:
    return _written(call, cholesky, 2, a)


@rule("triangular_solve")
def _triangular_solve(call: Call, a: Value, b: Value) -> Sequence[Value]:
    params = call.params
    solve = functools.partial(triangular_solve, left=params["left_side"], lower=params["lower"], transposed=params["transpose_a"],
                              unit=params["unit_diagonal"])
    return _written(call, solve, 2, a, b)


@rule("lu")
def _lu(call: Call, a: Value) -> Sequence[Value]:
    return _written(call, lu, 2, a)


@rule("lu_pivots_to_permutation")
def _order_of_pivots(call: Call, pivots: Value) -> Sequence[Value]:
    return _written(call, functools.partial(order_of_pivots, size=call.shape[-1]), 1, pivots)


@rule("householder_product")
def _householder_product(call: Call, a: Value, factors: Value) -> Sequence[Value]:
    return _written(call, householder_product, 2, a, factors)


@rule("qr")
def _qr(call: Call, a: Value) -> Sequence[Value]:
    if call.params["pivoting"]:
        raise Refused("found one that changes columns (pivoting=True), needed one that does not")
    return _written(call, functools.partial(qr, full=call.params["full_matrices"]), 2, a)
