"""Decompositions of the matrices in a tensor's last two dims, as a program has them: each gives one matrix,
and these functions take its parts (Decomposition in runtime/graph/attributes.h)."""

from __future__ import annotations

from ..._programs.text import ProgramText, Refused, Value


def need_floats(*operands: Value) -> None:
    """Raises Refused."""
    for x in operands:
        if x.dtype not in ("f32", "f64"):
            raise Refused(f"found {x.dtype}, needed f32 or f64")


def cholesky(text: ProgramText, a: Value) -> Value:
    """Returns the lower factor, from the lower triangle; NaN without one."""
    need_floats(a)
    return text.node("decompose", [a], a.dtype, a.shape, " cholesky")


def lu(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns the two factors in one matrix, and the row that each row was swapped with: i32, from 0."""
    factors, pivots = _with_line(text, "lu", a)
    return factors, text.convert(pivots, "i32")


def qr(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns R, below it LAPACK's reflections, and their factors."""
    return _with_line(text, "qr", a)


def eigh(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns eigenvectors and eigenvalues, ascending, of the lower triangle."""
    return _with_line(text, "eigh", a)


def svd(text: ProgramText, a: Value) -> tuple[Value, Value, Value]:
    """Returns u, the singular values, descending, and v, which is not transposed."""
    need_floats(a)
    *batch, rows, columns = a.shape
    least, dim = min(rows, columns), len(batch)
    both = text.node("decompose", [a], a.dtype, (*batch, rows + columns + 1, least), " svd")
    u, v = text.part(both, dim, 0, rows), text.part(both, dim, rows, rows + columns)
    return u, _last_row(text, both, least), v


def triangular_solve(text: ProgramText, a: Value, b: Value, *, right: bool, upper: bool, transpose: bool,
                     unit: bool) -> Value:
    """Solves a x = b, or x a = b. `transpose`: of the transposed triangle. `unit`: of ones on its
    diagonal."""
    need_floats(a, b)
    words = {"right": right, "upper": upper, "transpose": transpose, "unit": unit}
    said = "".join(f" {word}" for word, is_said in words.items() if is_said)
    return text.node("triangular_solve", [a, b], b.dtype, b.shape, said)


def _with_line(text: ProgramText, kind: str, a: Value) -> tuple[Value, Value]:
    need_floats(a)
    *batch, rows, columns = a.shape
    both = text.node("decompose", [a], a.dtype, (*batch, rows + 1, columns), f" {kind}")
    return text.part(both, len(batch), 0, rows), _last_row(text, both, min(rows, columns))


def _last_row(text: ProgramText, x: Value, count: int) -> Value:
    *batch, rows, _ = x.shape
    line = text.part(text.part(x, len(batch), rows - 1, rows), len(batch) + 1, 0, count)
    return text.reshape(line, (*batch, count))
