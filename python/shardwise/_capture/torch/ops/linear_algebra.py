"""Rules of ATen's decompositions of matrices: loops over columns, with as many operations as a plain one has, and sweeps of rotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._programs.text import Function, Refused, Value
from .graph import as_results, looped, written
from .rules import Builder, Scalar, rule

_SWEEPS = 10  #: of rotations of all pairs; the last ones change nothing up to 100 columns


def _needs_floats(function: Function) -> Function:
    def of(build: Builder, out: Any, x: Value, *rest: Any, **options: Any) -> Any:
        if x.dtype not in ("f32", "f64"):
            raise Refused(f"found {x.dtype}, needed f32 or f64")
        return function(build, out, x, *rest, **options)

    return of  # type: ignore[return-value]


def _decomposition(*names: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        return rule(*names)(_needs_floats(function))

    return add


def _at(x: Tensor, place: Tensor, dim: int) -> Tensor:
    """The slice of x at a place that is a tensor."""
    return x.index_select(dim, place.reshape(1)).squeeze(dim)


def _places(build: Builder, count: int) -> Value:
    return build.iota("i64", (count,), 0)


def _columns(build: Builder, stacked: Value) -> Value:
    """Moves the first dim of [columns, .., rows] to the end."""
    rank = len(stacked.shape)
    return build.transpose(stacked, [*range(1, rank), 0])


# Symmetric matrices.


def _cholesky(build: Builder, a: Value, upper: bool) -> Value:
    """Returns the factor, from the lower triangle. Column j is the remainder of a's, over the root of its
    diagonal element; NaN if that is negative."""
    if 0 in a.shape:
        return a
    if upper:
        return _turned(build, _cholesky(build, _turned(build, a), False))

    def column(rest: Tensor, j: Tensor) -> list[Tensor]:
        own = _at(rest, j, -1)
        found = torch.where(torch.arange(own.shape[-1]) >= j, own / _at(own, j, -1).sqrt().unsqueeze(-1), 0)
        return [rest - found.unsqueeze(-1) * found.unsqueeze(-2), found]

    return _columns(build, looped(build, column, [a], [_places(build, a.shape[-1])])[1])


def _turned(build: Builder, a: Value) -> Value:
    rank = len(a.shape)
    return build.transpose(a, [*range(rank - 2), rank - 1, rank - 2])


@_decomposition("linalg_cholesky_ex")
def _cholesky_ex(build: Builder, out: Any, a: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    return as_results(build, out, [_cholesky(build, a, upper), None])


@_decomposition("cholesky_solve")
def _cholesky_solve(build: Builder, out: Any, b: Value, factor: Value, upper: bool = False) -> Any:
    def solve(b: Tensor, factor: Tensor) -> Any:
        lower = factor.mT if upper else factor
        return torch.linalg.solve_triangular(lower.mT, torch.linalg.solve_triangular(lower, b, upper=False), upper=True)

    return as_results(build, out, written(build, solve, [b, factor]))


@_decomposition("cholesky_inverse")
def _cholesky_inverse(build: Builder, out: Any, factor: Value, upper: bool = False) -> Any:
    def invert(factor: Tensor) -> Any:
        lower = factor.mT if upper else factor
        half = torch.linalg.solve_triangular(lower, torch.eye(lower.shape[-1], dtype=lower.dtype).expand_as(lower), upper=False)
        return half.mT @ half

    return as_results(build, out, written(build, invert, [factor]))


# Triangles of rows in another order.


def _lu(build: Builder, a: Value) -> tuple[Value, Value, Value]:
    """The two factors in one matrix, which row each was changed with, from 0, and the order of all."""
    before, rows, columns = a.shape[:-2], a.shape[-2], a.shape[-1]
    order = build.broadcast_to(build.iota("i64", (*before, rows), len(before)), (*before, rows))
    if 0 in a.shape:
        return a, build.operand(0, "i64", (*before, min(rows, columns))), order

    def column(rest: Tensor, order: Tensor, j: Tensor) -> list[Tensor]:
        places = torch.arange(rows)
        own = _at(rest, j, -1)
        pivot = torch.where(places >= j, own.abs(), -1).argmax(-1, keepdim=True)
        changed = torch.where(places == j, pivot, torch.where(places == pivot, j, places))
        rest, order, own = rest.gather(-2, changed.unsqueeze(-1).expand_as(rest)), order.gather(-1, changed), own.gather(-1, changed)
        top, divisor = _at(rest, j, -2), _at(own, j, -1).unsqueeze(-1)
        factor = torch.where(places > j, own / torch.where(divisor == 0, 1, divisor), 0)
        rest = rest - factor.unsqueeze(-1) * torch.where(torch.arange(columns) > j, top, 0).unsqueeze(-2)
        is_own = (torch.arange(columns) == j) & (places > j).unsqueeze(-1)
        return [torch.where(is_own, factor.unsqueeze(-1), rest), order, pivot.squeeze(-1)]

    made, order, pivots = looped(build, column, [a, order], [_places(build, min(rows, columns))])
    return made, _columns(build, pivots), order


def _order_of(build: Builder, pivots: Value, rows: int) -> Value:
    """Returns the order of rows after they have been swapped with the pivots, one after the other, counted
    from 0."""
    before = pivots.shape[:-1]
    order = build.broadcast_to(build.iota("i64", (*before, rows), len(before)), (*before, rows))
    if 0 in pivots.shape:
        return order
    rank = len(pivots.shape)

    def change(order: Tensor, j: Tensor, pivot: Tensor) -> list[Tensor]:
        places, pivot = torch.arange(rows), pivot.unsqueeze(-1)
        return [order.gather(-1, torch.where(places == j, pivot, torch.where(places == pivot, j, places)))]

    return looped(build, change, [order], [_places(build, pivots.shape[-1]), build.transpose(pivots, [rank - 1, *range(rank - 1)])])[0]


def _from_one(build: Builder, pivots: Value) -> Value:
    return build.convert(build.binary("add", pivots, 1), "i32")


def _solved(lu: Tensor, order: Tensor, b: Tensor, left: bool = True, adjoint: bool = False) -> Any:
    """x of a x = b, or of x a = b, of a's factors and the order of its rows."""
    if not left:
        return _solved(lu, order, b.mT, adjoint=not adjoint).mT
    batch = np.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    lu, order, b = lu.expand(*batch, *lu.shape[-2:]), order.expand(*batch, -1), b.expand(*batch, *b.shape[-2:])
    solve = torch.linalg.solve_triangular
    if adjoint:
        half = solve(lu.mT, solve(lu.mT, b, upper=False), upper=True, unitriangular=True)
        return half.gather(-2, order.argsort(-1).unsqueeze(-1).expand_as(half))
    return solve(lu, solve(lu, b.gather(-2, order.unsqueeze(-1).expand_as(b)), upper=False, unitriangular=True), upper=True)


@_decomposition("linalg_lu_factor_ex")
def _lu_factor(build: Builder, out: Any, a: Value, *, pivot: bool = True, check_errors: bool = False) -> Any:
    _need_pivot(pivot)
    made, pivots, _ = _lu(build, a)
    return as_results(build, out, [made, _from_one(build, pivots), None])


def _need_pivot(pivot: bool) -> None:
    if not pivot:
        raise Refused("found one without pivots (pivot=False), needed one with them")


def _unpacked(lu: Tensor, order: Tensor) -> list[Tensor]:
    count = min(lu.shape[-2:])
    permutation = torch.nn.functional.one_hot(order, lu.shape[-2]).to(lu.dtype).mT
    return [permutation, lu[..., :count].tril(-1) + torch.eye(lu.shape[-2], count, dtype=lu.dtype), lu[..., :count, :].triu()]


@_decomposition("lu_unpack")
def _lu_unpack(build: Builder, out: Any, lu: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    order = _order_of(build, build.binary("sub", build.convert(pivots, "i64"), 1), lu.shape[-2])
    made = written(build, _unpacked, [lu, order])
    given = [unpack_pivots, unpack_data, unpack_data]
    return as_results(build, out, [value if is_wanted else build.operand(0, one.dtype, one.shape) for value, is_wanted, one in zip(made, given, out, strict=True)])


@_decomposition("linalg_lu")
def _lu_apart(build: Builder, out: Any, a: Value, *, pivot: bool = True) -> Any:
    _need_pivot(pivot)
    made, _, order = _lu(build, a)
    return as_results(build, out, written(build, _unpacked, [made, order]))


@_decomposition("linalg_lu_solve")
def _lu_solve(build: Builder, out: Any, lu: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Any:
    order = _order_of(build, build.binary("sub", build.convert(pivots, "i64"), 1), lu.shape[-1])
    return as_results(build, out, written(build, lambda lu, order, b: _solved(lu, order, b, left, adjoint), [lu, order, b]))


@_decomposition("_linalg_solve_ex")
def _solve(build: Builder, out: Any, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> Any:
    made, pivots, order = _lu(build, a)
    is_vector = len(out[0].shape) < len(a.shape) or (len(b.shape) == 1 and len(a.shape) == 2)

    def solve(lu: Tensor, order: Tensor, b: Tensor) -> Any:
        return _solved(lu, order, b.unsqueeze(-1), left).squeeze(-1) if is_vector else _solved(lu, order, b, left)

    return as_results(build, out, [*written(build, solve, [made, order, b]), made, _from_one(build, pivots), None])


@_decomposition("linalg_inv_ex")
def _inverse(build: Builder, out: Any, a: Value, *, check_errors: bool = False) -> Any:
    made, _, order = _lu(build, a)

    def invert(lu: Tensor, order: Tensor) -> Any:
        return _solved(lu, order, torch.eye(lu.shape[-1], dtype=lu.dtype).expand_as(lu))

    return as_results(build, out, [*written(build, invert, [made, order]), None])


def _lu_of_rows(build: Builder, a: Value) -> tuple[Value, Value, Value]:
    """As torch takes a determinant, and its gradient expects: of the transposed matrix, if a row of the matrix is in one piece."""
    return _lu(build, _turned(build, a) if build.examples[0].is_contiguous() else a)


def _sign_of_order(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(pivots == torch.arange(pivots.shape[-1]), 1, -1).to(dtype).prod(-1)


@_decomposition("_linalg_det")
def _determinant(build: Builder, out: Any, a: Value) -> Any:
    made, pivots, _ = _lu_of_rows(build, a)

    def determinant(lu: Tensor, pivots: Tensor) -> Tensor:
        return lu.diagonal(dim1=-2, dim2=-1).prod(-1) * _sign_of_order(pivots, lu.dtype)

    return as_results(build, out, [*written(build, determinant, [made, pivots]), made, _from_one(build, pivots)])


@_decomposition("_linalg_slogdet")
def _log_determinant(build: Builder, out: Any, a: Value) -> Any:
    made, pivots, _ = _lu_of_rows(build, a)

    def of(lu: Tensor, pivots: Tensor) -> list[Tensor]:
        own = lu.diagonal(dim1=-2, dim2=-1)
        return [own.sign().prod(-1) * _sign_of_order(pivots, lu.dtype), own.abs().log().sum(-1)]

    return as_results(build, out, [*written(build, of, [made, pivots]), made, _from_one(build, pivots)])


# Reflections.


def _geqrf(build: Builder, a: Value) -> tuple[Value, Value]:
    """As LAPACK has it: R, below it the vectors, whose first element is 1; and their factors."""
    before, rows, columns = a.shape[:-2], a.shape[-2], a.shape[-1]
    if 0 in a.shape:
        return a, build.operand(0, a.dtype, (*before, min(rows, columns)))

    def column(rest: Tensor, j: Tensor) -> list[Tensor]:
        places, own = torch.arange(rows), _at(rest, j, -1)
        below = torch.where(places > j, own * own, 0).sum(-1).sqrt()
        alpha = _at(own, j, -1)
        size = (alpha * alpha + below * below).sqrt()
        beta = torch.where(below == 0, alpha, torch.where(alpha < 0, size, -size))
        factor = torch.where(below == 0, 0, (beta - alpha) / torch.where(beta == 0, 1, beta))
        vector = torch.where(places > j, own / torch.where(below == 0, 1, alpha - beta).unsqueeze(-1), torch.where(places == j, 1, 0))
        taken = (vector.unsqueeze(-2) @ rest).squeeze(-2) * factor.unsqueeze(-1)
        rest = rest - vector.unsqueeze(-1) * torch.where(torch.arange(columns) > j, taken, 0).unsqueeze(-2)
        made = torch.where(places > j, vector, torch.where(places == j, beta.unsqueeze(-1), own))
        return [torch.where(torch.arange(columns) == j, made.unsqueeze(-1), rest), factor]

    made, factors = looped(build, column, [a], [_places(build, min(rows, columns))])
    return made, _columns(build, factors)


def _product_of_reflections(build: Builder, vectors: Value, factors: Value) -> Value:
    """Its columns, as many as there are of the vectors."""
    rows, columns, count = vectors.shape[-2], vectors.shape[-1], factors.shape[-1]
    begin = written(build, lambda x: torch.eye(rows, columns, dtype=x.dtype).expand_as(x), [vectors])
    if not count or 0 in vectors.shape:
        made: Value = begin[0]
        return made

    def reflect(q: Tensor, j: Tensor, factor: Tensor, own: Tensor) -> list[Tensor]:
        places = torch.arange(rows)
        vector = torch.where(places > j, own, torch.where(places == j, 1, 0))
        return [q - (factor.unsqueeze(-1) * vector).unsqueeze(-1) * (vector.unsqueeze(-2) @ q)]

    rank = len(vectors.shape)
    own = build.transpose(build.part(vectors, rank - 1, 0, count), [rank - 1, *range(rank - 1)])
    first = build.transpose(factors, [rank - 2, *range(rank - 2)])
    return looped(build, reflect, begin, [_places(build, count), first, own], reverse=True)[0]


@_decomposition("geqrf")
def _reflections(build: Builder, out: Any, a: Value) -> Any:
    return as_results(build, out, list(_geqrf(build, a)))


@_decomposition("linalg_householder_product")
def _householder_product(build: Builder, out: Any, vectors: Value, factors: Value) -> Any:
    return as_results(build, out, [_product_of_reflections(build, vectors, factors)])


@_decomposition("linalg_qr")
def _qr(build: Builder, out: Any, a: Value, mode: str = "reduced") -> Any:
    made, factors = _geqrf(build, a)
    rows, columns = a.shape[-2:]
    height = rows if mode == "complete" else min(rows, columns)
    upper = written(build, lambda x: x[..., :height, :].triu(), [made])
    if mode == "r":
        return as_results(build, out, [build.operand(0, a.dtype, out[0].shape), *upper])
    width = min(rows, columns)
    vectors = written(build, lambda x: torch.nn.functional.pad(x[..., :width], (0, height - width)), [made])
    return as_results(build, out, [_product_of_reflections(build, vectors[0], factors), *upper])


# Rotations.


def _orthogonal_columns(build: Builder, a: Value) -> tuple[Value, Value]:
    """a v, whose columns are orthogonal, and v, a product of rotations. Each trip turns half as many pairs of columns as there are, so that all pairs
    have met after as many trips as there are columns, but one."""
    columns = a.shape[-1] + a.shape[-1] % 2
    half = columns // 2

    def begin(x: Tensor) -> list[Tensor]:
        x = torch.nn.functional.pad(x, (0, columns - x.shape[-1]))
        v = torch.eye(columns, dtype=x.dtype).expand(*x.shape[:-2], -1, -1)
        both = torch.cat([x, v], -2)
        return [both[..., :half], both[..., half:]]

    def turn(one: Tensor, other: Tensor) -> list[Tensor]:
        x, y = one[..., :rows, :], other[..., :rows, :]
        a, b, c = (x * x).sum(-2, keepdim=True), (y * y).sum(-2, keepdim=True), (x * y).sum(-2, keepdim=True)
        is_there = c.abs() > torch.finfo(x.dtype).eps * 0.25 * (a * b).sqrt()
        slope = (b - a) / (2 * torch.where(is_there, c, 1))
        tangent = torch.where(slope < 0, -1.0, 1.0).to(x.dtype) / (slope.abs() + (1 + slope * slope).sqrt())
        tangent = torch.where(is_there, tangent, 0)
        cosine = (1 + tangent * tangent).rsqrt()
        one, other = cosine * one - cosine * tangent * other, cosine * tangent * one + cosine * other
        if half == 1:
            return [one, other]
        return [torch.cat([one[..., :1], other[..., :1], one[..., 1:-1]], -1), torch.cat([other[..., 1:], one[..., -1:]], -1)]

    rows = a.shape[-2]
    made = looped(build, turn, written(build, begin, [a]), length=_SWEEPS * (columns - 1))

    def end(one: Tensor, other: Tensor) -> list[Tensor]:
        both = torch.cat([one, other], -1)
        return [both[..., :rows, :], both[..., rows:, :]]

    found, v = written(build, end, made)
    return found, v


def _need_values(x: Value) -> None:
    if 0 in x.shape:
        raise Refused("found a matrix without elements")


@_decomposition("_linalg_eigh")
def _symmetric_eigen(build: Builder, out: Any, a: Value, triangle: str = "L", compute_v: bool = True) -> Any:
    """Shifts the matrix by a multiple of the identity that makes all eigenvalues positive, so that they are
    its singular values."""
    _need_values(a)
    size = a.shape[-1]

    def definite(a: Tensor) -> list[Tensor]:
        lower = a.tril() if triangle.upper() == "L" else a.triu().mT
        whole = lower + lower.tril(-1).mT
        shift = 1.5 * whole.abs().sum(-1).amax(-1)[..., None, None] + torch.finfo(a.dtype).tiny
        return [whole, whole + shift * torch.eye(size, dtype=a.dtype)]

    whole, shifted = written(build, definite, [a])
    _, v = _orthogonal_columns(build, shifted)

    def sorted_(whole: Tensor, v: Tensor) -> list[Tensor]:
        v = v[..., :size, :size]
        values = (v * (whole @ v)).sum(-2)
        values, order = values.sort(-1)
        return [values, v.gather(-1, order.unsqueeze(-2).expand_as(v))]

    values, vectors = written(build, sorted_, [whole, v])
    return as_results(build, out, [values, vectors if compute_v else build.operand(0, a.dtype, out[1].shape)])


@_decomposition("_linalg_svd")
def _singular(build: Builder, out: Any, a: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    _need_values(a)
    if full_matrices and compute_uv and a.shape[-1] != a.shape[-2]:
        raise Refused("found full_matrices=True, needed full_matrices=False")
    is_wide = a.shape[-1] > a.shape[-2]
    tall = _turned(build, a) if is_wide else a
    size = tall.shape[-1]

    def apart(columns: Tensor, v: Tensor) -> list[Tensor]:
        values = torch.linalg.vector_norm(columns, dim=-2)[..., :size]
        values, order = values.sort(-1, descending=True)
        u, v = (x.gather(-1, order.unsqueeze(-2).expand(*x.shape[:-1], size)) for x in (columns, v[..., :size, :]))
        return [u / torch.where(values == 0, 1, values).unsqueeze(-2), values, v]

    u, values, v = written(build, apart, list(_orthogonal_columns(build, tall)))
    u, v = (v, u) if is_wide else (u, v)
    if not compute_uv:
        return as_results(build, out, [build.operand(0, a.dtype, out[0].shape), values, build.operand(0, a.dtype, out[2].shape)])
    return as_results(build, out, [u, values, _turned(build, v)])


@_decomposition("linalg_pinv")
def _pseudo_inverse(build: Builder, out: Any, a: Value, rcond: Value | Scalar | None = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Any:
    """Inverts with the singular values that are larger than `atol` or `rtol` allow, or than the precision of
    numbers."""
    _need_values(a)
    least = rcond if rtol is None else rtol
    if least is None:
        least = 0.0 if atol else max(a.shape[-2:]) * (1.1920929e-07 if a.dtype == "f32" else 2.220446049250313e-16)
    bounds = [build.operand(one, a.dtype, one.shape if isinstance(one, Value) else ()) for one in (0.0 if atol is None else atol, least)]

    def invert(a: Tensor, absolute: Tensor, relative: Tensor) -> Any:
        u, values, vt = torch.linalg.svd((a.tril() + a.tril(-1).mT) if hermitian else a, full_matrices=False)
        is_kept = values > torch.maximum(relative.unsqueeze(-1) * values[..., :1], absolute.unsqueeze(-1))
        return (vt.mT * torch.where(is_kept, 1 / torch.where(is_kept, values, 1), 0).unsqueeze(-2)) @ u.mT

    return as_results(build, out, written(build, invert, [a, *bounds]))


# The exponential.


@_decomposition("linalg_matrix_exp")
def _exponential(build: Builder, out: Any, a: Value) -> Any:
    """The series of a part of the matrix that is small enough, squared as often as it was halved."""
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
