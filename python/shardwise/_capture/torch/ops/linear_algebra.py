"""Writes ATen's decompositions of matrices, which LAPACK computes in a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._programs.text import Refused, Value
from ...shared import linear_algebra
from .graph import as_results, looped, written
from .rules import Builder, Scalar, rule


def _places(build: Builder, count: int) -> Value:
    return build.iota("i64", (count,), 0)


# Triangles.


@rule("linalg_solve_triangular")
def _solve_triangular(build: Builder, out: Any, a: Value, b: Value, *, upper: bool, left: bool = True,
                      unitriangular: bool = False) -> Value:
    batch = out.shape[:-2]
    a, b = build.broadcast_to(a, (*batch, *a.shape[-2:])), build.broadcast_to(b, out.shape)
    return linear_algebra.triangular_solve(
        build, a, b, right=not left, upper=upper, transpose=False, unit=unitriangular
    )


@rule("triangular_solve")
def _triangular_solve(build: Builder, out: Any, b: Value, a: Value, upper: bool = True,
                      transpose: bool = False, unitriangular: bool = False) -> Any:
    batch = out[0].shape[:-2]
    a, b = build.broadcast_to(a, (*batch, *a.shape[-2:])), build.broadcast_to(b, out[0].shape)
    solved = linear_algebra.triangular_solve(
        build, a, b, right=False, upper=upper, transpose=transpose, unit=unitriangular
    )
    return as_results(build, out, [solved, None])


# Symmetric matrices.


def _cholesky(build: Builder, a: Value, upper: bool) -> Value:
    """Returns the factor, computed from the triangle that it fills."""
    factor = linear_algebra.cholesky(build, _turned(build, a) if upper else a)
    return _turned(build, factor) if upper else factor


def _turned(build: Builder, a: Value) -> Value:
    rank = len(a.shape)
    return build.transpose(a, [*range(rank - 2), rank - 1, rank - 2])


@rule("linalg_cholesky_ex")
def _cholesky_ex(build: Builder, out: Any, a: Value, *, upper: bool = False,
                 check_errors: bool = False) -> Any:
    return as_results(build, out, [_cholesky(build, a, upper), None])


@rule("cholesky_solve")
def _cholesky_solve(build: Builder, out: Any, b: Value, factor: Value, upper: bool = False) -> Any:
    def solve(b: Tensor, factor: Tensor) -> Any:
        lower = factor.mT if upper else factor
        return torch.linalg.solve_triangular(lower.mT, torch.linalg.solve_triangular(lower, b, upper=False),
                                             upper=True)

    return as_results(build, out, written(build, solve, [b, factor]))


@rule("cholesky_inverse")
def _cholesky_inverse(build: Builder, out: Any, factor: Value, upper: bool = False) -> Any:
    def invert(factor: Tensor) -> Any:
        lower = factor.mT if upper else factor
        half = torch.linalg.solve_triangular(
            lower, torch.eye(lower.shape[-1], dtype=lower.dtype).expand_as(lower), upper=False)
        return half.mT @ half

    return as_results(build, out, written(build, invert, [factor]))


# Triangles of rows in another order.


def _lu(build: Builder, a: Value) -> tuple[Value, Value]:
    """Returns the two factors in one matrix, and the row with which each row was swapped, i64, from 0."""
    factors, pivots = linear_algebra.lu(build, a)
    return factors, build.convert(pivots, "i64")


def _order_of(build: Builder, pivots: Value, rows: int) -> Value:
    """Returns the order of rows after they are swapped with the pivots, which count from 0, one after
    another."""
    before = pivots.shape[:-1]
    order = build.broadcast_to(build.iota("i64", (*before, rows), len(before)), (*before, rows))
    if 0 in pivots.shape:
        return order
    rank = len(pivots.shape)

    def change(order: Tensor, j: Tensor, pivot: Tensor) -> list[Tensor]:
        places, pivot = torch.arange(rows), pivot.unsqueeze(-1)
        return [order.gather(-1, torch.where(places == j, pivot, torch.where(places == pivot, j, places)))]

    return looped(build, change, [order], [_places(build, pivots.shape[-1]),
                                           build.transpose(pivots, [rank - 1, *range(rank - 1)])])[0]


def _from_one(build: Builder, pivots: Value) -> Value:
    return build.convert(build.binary("add", pivots, 1), "i32")


def _solved(lu: Tensor, order: Tensor, b: Tensor, left: bool = True, adjoint: bool = False) -> Any:
    """Returns x of a x = b, or of x a = b, for a's factors and the order of its rows."""
    if not left:
        return _solved(lu, order, b.mT, adjoint=not adjoint).mT
    batch = np.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, order, b = (lu.expand(*batch, *lu.shape[-2:]), order.expand(*batch, -1),
                    b.expand(*batch, *b.shape[-2:]))
    solve = torch.linalg.solve_triangular
    if adjoint:
        half = solve(lu.mT, solve(lu.mT, b, upper=False), upper=True, unitriangular=True)
        return half.gather(-2, order.argsort(-1).unsqueeze(-1).expand_as(half))
    return solve(lu, solve(lu, b.gather(-2, order.unsqueeze(-1).expand_as(b)), upper=False,
                           unitriangular=True), upper=True)


@rule("linalg_lu_factor_ex")
def _lu_factor(build: Builder, out: Any, a: Value, *, pivot: bool = True, check_errors: bool = False) -> Any:
    _need_pivot(pivot)
    made, pivots = _lu(build, a)
    return as_results(build, out, [made, _from_one(build, pivots), None])


def _need_pivot(pivot: bool) -> None:
    if not pivot:
        raise Refused("found one without pivots (pivot=False), needed one with them")


def _unpacked(lu: Tensor, order: Tensor) -> list[Tensor]:
    count = min(lu.shape[-2:])
    permutation = torch.nn.functional.one_hot(order, lu.shape[-2]).to(lu.dtype).mT
    return [permutation, lu[..., :count].tril(-1) + torch.eye(lu.shape[-2], count, dtype=lu.dtype),
            lu[..., :count, :].triu()]


@rule("lu_unpack")
def _lu_unpack(build: Builder, out: Any, lu: Value, pivots: Value, unpack_data: bool = True,
               unpack_pivots: bool = True) -> Any:
    order = _order_of(build, build.binary("sub", build.convert(pivots, "i64"), 1), lu.shape[-2])
    made = written(build, _unpacked, [lu, order])
    given = [unpack_pivots, unpack_data, unpack_data]
    return as_results(build, out, [value if is_wanted else build.operand(0, one.dtype, one.shape)
                                   for value, is_wanted, one in zip(made, given, out, strict=True)])


@rule("linalg_lu")
def _lu_apart(build: Builder, out: Any, a: Value, *, pivot: bool = True) -> Any:
    _need_pivot(pivot)
    made, pivots = _lu(build, a)
    order = _order_of(build, pivots, a.shape[-2])
    return as_results(build, out, written(build, _unpacked, [made, order]))


@rule("linalg_lu_solve")
def _lu_solve(build: Builder, out: Any, lu: Value, pivots: Value, b: Value, *, left: bool = True,
              adjoint: bool = False) -> Any:
    order = _order_of(build, build.binary("sub", build.convert(pivots, "i64"), 1), lu.shape[-1])
    return as_results(build, out, written(build, lambda lu, order, b: _solved(lu, order, b, left, adjoint),
                                          [lu, order, b]))


@rule("_linalg_solve_ex")
def _solve(build: Builder, out: Any, a: Value, b: Value, *, left: bool = True,
           check_errors: bool = False) -> Any:
    made, pivots = _lu(build, a)
    order = _order_of(build, pivots, a.shape[-2])
    is_vector = len(out[0].shape) < len(a.shape) or (len(b.shape) == 1 and len(a.shape) == 2)

    def solve(lu: Tensor, order: Tensor, b: Tensor) -> Any:
        return _solved(lu, order, b.unsqueeze(-1), left).squeeze(-1) if is_vector else _solved(
            lu, order, b, left)

    return as_results(build, out,
                      [*written(build, solve, [made, order, b]), made, _from_one(build, pivots), None])


@rule("linalg_inv_ex")
def _inverse(build: Builder, out: Any, a: Value, *, check_errors: bool = False) -> Any:
    made, pivots = _lu(build, a)
    order = _order_of(build, pivots, a.shape[-2])

    def invert(lu: Tensor, order: Tensor) -> Any:
        return _solved(lu, order, torch.eye(lu.shape[-1], dtype=lu.dtype).expand_as(lu))

    return as_results(build, out, [*written(build, invert, [made, order]), None])


def _lu_of_rows(build: Builder, a: Value) -> tuple[Value, Value]:
    """Returns the factors that torch computes a determinant from, and that its gradient expects: those of
    the transposed matrix, if rows of the matrix are contiguous."""
    return _lu(build, _turned(build, a) if build.examples[0].is_contiguous() else a)


def _sign_of_order(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(pivots == torch.arange(pivots.shape[-1]), 1, -1).to(dtype).prod(-1)


@rule("_linalg_det")
def _determinant(build: Builder, out: Any, a: Value) -> Any:
    made, pivots = _lu_of_rows(build, a)

    def determinant(lu: Tensor, pivots: Tensor) -> Tensor:
        return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * _sign_of_order(pivots, lu.dtype)

    return as_results(build, out,
                      [*written(build, determinant, [made, pivots]), made, _from_one(build, pivots)])


@rule("_linalg_slogdet")
def _log_determinant(build: Builder, out: Any, a: Value) -> Any:
    made, pivots = _lu_of_rows(build, a)

    def of(lu: Tensor, pivots: Tensor) -> list[Tensor]:
        own = lu.diagonal(dim1=-2, dim2=-1)
        return [own.sign().prod(-1) * _sign_of_order(pivots, lu.dtype), own.abs().log().sum(-1)]

    return as_results(build, out, [*written(build, of, [made, pivots]), made, _from_one(build, pivots)])


# Reflections.


def _product_of_reflections(vectors: Tensor, factors: Tensor) -> Tensor:
    """Returns the first columns of (1 - t v v') (1 - ..) .., as many as the vectors have. The product is
    1 - v T v', and 1 / T is 1 / t plus the upper triangle of v' v."""
    (rows, columns), count = vectors.shape[-2:], factors.shape[-1]
    v = vectors[..., :count].tril(-1) + torch.eye(rows, count, dtype=vectors.dtype)
    t = factors.unsqueeze(-1)
    upper = torch.eye(count, dtype=vectors.dtype) + t * (v.mT @ v).triu(1)
    both = torch.linalg.solve_triangular(upper, t * v.mT, upper=True, unitriangular=True)
    made: Tensor = torch.eye(rows, columns, dtype=vectors.dtype) - v @ both[..., :columns]
    return made


@rule("geqrf")
def _reflections(build: Builder, out: Any, a: Value) -> Any:
    return as_results(build, out, list(linear_algebra.qr(build, a)))


@rule("linalg_householder_product")
def _householder_product(build: Builder, out: Any, vectors: Value, factors: Value) -> Any:
    return as_results(build, out, written(build, _product_of_reflections, [vectors, factors]))


@rule("linalg_qr")
def _qr(build: Builder, out: Any, a: Value, mode: str = "reduced") -> Any:
    made, factors = linear_algebra.qr(build, a)
    rows, columns = a.shape[-2:]
    height = rows if mode == "complete" else min(rows, columns)
    upper = written(build, lambda x: x[..., :height, :].triu(), [made])
    if mode == "r":
        return as_results(build, out, [build.operand(0, a.dtype, out[0].shape), *upper])
    width = min(rows, columns)
    vectors = written(build, lambda x: torch.nn.functional.pad(x[..., :width], (0, height - width)), [made])
    return as_results(build, out, [*written(build, _product_of_reflections, [vectors[0], factors]), *upper])


# Eigenvalues and singular values.


def _need_values(x: Value) -> None:
    if 0 in x.shape:
        raise Refused("found a matrix without elements")


@rule("_linalg_eigh")
def _symmetric_eigen(build: Builder, out: Any, a: Value, triangle: str = "L", compute_v: bool = True) -> Any:
    vectors, values = linear_algebra.eigh(build, a if triangle.upper() == "L" else _turned(build, a))
    return as_results(build, out, [values, vectors if compute_v else build.operand(0, a.dtype, out[1].shape)])


@rule("_linalg_svd")
def _singular(build: Builder, out: Any, a: Value, full_matrices: bool = False, compute_uv: bool = True, *,
              driver: str | None = None) -> Any:
    if full_matrices and compute_uv and a.shape[-1] != a.shape[-2]:
        raise Refused("found full_matrices=True, needed full_matrices=False")
    u, values, v = linear_algebra.svd(build, a)
    if not compute_uv:
        u, v = (build.operand(0, a.dtype, one.shape) for one in (out[0], out[2]))
        return as_results(build, out, [u, values, v])
    return as_results(build, out, [u, values, _turned(build, v)])


@rule("linalg_pinv")
def _pseudo_inverse(build: Builder, out: Any, a: Value, rcond: Value | Scalar | None = None,
                    hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Any:
    """Inverts with the singular values above the limits of `atol` and `rtol`, or above the precision of
    numbers."""
    _need_values(a)
    least = rcond if rtol is None else rtol
    if least is None:
        least = 0.0 if atol else max(a.shape[-2:]) * (1.1920929e-07 if a.dtype == "f32"
                                                      else 2.220446049250313e-16)
    bounds = [build.operand(one, a.dtype, one.shape if isinstance(one, Value) else ())
              for one in (0.0 if atol is None else atol, least)]

    def invert(a: Tensor, absolute: Tensor, relative: Tensor) -> Any:
        u, values, vt = torch.linalg.svd((a.tril() + a.tril(-1).mT) if hermitian else a, full_matrices=False)
        is_kept = values > torch.maximum(relative.unsqueeze(-1) * values[..., :1], absolute.unsqueeze(-1))
        return (vt.mT * torch.where(is_kept, 1 / torch.where(is_kept, values, 1), 0).unsqueeze(-2)) @ u.mT

    return as_results(build, out, written(build, invert, [a, *bounds]))


# The exponential.


@rule("linalg_matrix_exp")
def _exponential(build: Builder, out: Any, a: Value) -> Any:
    """Halves the matrix until it is small enough, sums the series, and squares the sum as often."""
    _need_values(a)
    terms, most = (18, 32) if a.dtype == "f64" else (11, 16)
    eye = torch.eye(a.shape[-1], dtype=torch.float64)

    def series(a: Tensor) -> list[Tensor]:
        size = a.abs().sum(-2).amax(-1)
        halved = torch.clamp((size * 2 + torch.finfo(a.dtype).tiny).log2().ceil(), 0, most)
        small = a * torch.exp2(-halved)[..., None, None]
        one = eye.to(a.dtype).expand_as(a)
        made = one
        for term in range(terms, 0, -1):
            made = one + (small @ made) / term
        return [made, halved]

    made, halved = written(build, series, [a])

    def square(halved: Tensor, made: Tensor, j: Tensor) -> list[Tensor]:
        return [torch.where((j < halved)[..., None, None], made @ made, made)]

    return as_results(build, out, [looped(build, square, [made], [_places(build, most)], consts=[halved])[0]])
