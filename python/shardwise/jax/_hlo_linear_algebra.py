"""Decompositions of matrices in StableHLO: its own, and LAPACK's as JAX calls them on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxlib.mlir.dialects import stablehlo

from .._program_text import Number, Value
from . import _linear_algebra as algorithms
from ._hlo_ops import CUSTOM_CALLS
from ._hlo_writer import Op, rule
from ._jaxpr import write


def _written(op: Op, algorithm: Callable[..., Any], ranks: Sequence[int], *operands: Value) -> list[Value]:
    return write(op.text, algorithms.jaxpr_of(algorithm, ranks, operands), operands)


def _cholesky(op: Op, a: Value, lower: bool) -> list[Value]:
    """Of the triangle that it is told of; the other one is 0."""

    def factor(a: Any) -> Any:
        half = jnp.tril(a) if lower else jnp.triu(a).T
        found = algorithms.cholesky(half + jnp.tril(half, -1).T)
        return found if lower else found.T

    return _written(op, factor, [2], a)


@rule("stablehlo.cholesky")
def _own_cholesky(op: Op, a: Value) -> list[Value]:
    return _cholesky(op, a, bool(op.integer("lower")))


@rule("stablehlo.triangular_solve")
def _own_triangular_solve(op: Op, a: Value, b: Value) -> list[Value]:
    is_transposed = str(stablehlo.TransposeAttr(op.operation.attributes["transpose_a"]).value) != "NO_TRANSPOSE"
    solve = functools.partial(algorithms.triangular_solve, left=bool(op.integer("left_side")), lower=bool(op.integer("lower")),
                              transposed=is_transposed, unit=bool(op.integer("unit_diagonal")))
    return _written(op, solve, [2, 2], a, b)


def _letter(op: Op, name: str) -> str:
    """Of LAPACK's options."""
    return chr(int(op.operation.attributes["mhlo.backend_config"][name].value))


@CUSTOM_CALLS.rule("lapack_spotrf_ffi", "lapack_dpotrf_ffi")
def _potrf(op: Op, a: Value) -> list[Value]:
    """What could not be done is NaN, and is told by no number."""
    return [*_cholesky(op, a, _letter(op, "uplo") == "L"), Number(0, *op.results[1])]


@CUSTOM_CALLS.rule("lapack_strsm_ffi", "lapack_dtrsm_ffi")
def _trsm(op: Op, a: Value, b: Value) -> list[Value]:
    solve = functools.partial(algorithms.triangular_solve, left=_letter(op, "side") == "L", lower=_letter(op, "uplo") == "L",
                              transposed=_letter(op, "trans_x") != "N", unit=_letter(op, "diag") == "U")
    return _written(op, solve, [2, 2], a, b)


@CUSTOM_CALLS.rule("lapack_sgetrf_ffi", "lapack_dgetrf_ffi")
def _getrf(op: Op, a: Value) -> list[Value]:
    factors, pivots, _ = _written(op, algorithms.lu, [2], a)
    return [factors, op.text.elementwise("add", pivots, op.text.full(pivots, 1)), Number(0, *op.results[2])]


@CUSTOM_CALLS.rule("lapack_sgeqrf_ffi", "lapack_dgeqrf_ffi")
def _geqrf(op: Op, a: Value) -> list[Value]:
    return _written(op, algorithms.geqrf, [2], a)


@CUSTOM_CALLS.rule("lapack_sorgqr_ffi", "lapack_dorgqr_ffi")
def _orgqr(op: Op, a: Value, factors: Value) -> list[Value]:
    return _written(op, algorithms.householder_product, [2, 1], a, factors)
