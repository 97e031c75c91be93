"""Writes decompositions of the matrices in a tensor's last two dims. A program's decomposition gives one
matrix, and these functions take its parts (Decomposition in runtime/graph/attributes.h)."""

from __future__ import annotations

from ..._programs.text import ProgramText, Refused, Value


def need_floats(*operands: Value) -> None:
    """Raises Refused for an operand that is not f32 or f64."""
    for x in operands:
        if x.dtype not in ("f32", "f64"):
            raise Refused(f"found {x.dtype}, needed f32 or f64")


def cholesky(text: ProgramText, a: Value) -> Value:
    """Returns the lower factor of the lower triangle; NaN if there is no factor."""
    need_floats(a)
    return text.node("decompose", [a], a.dtype, a.shape, " cholesky")


def lu(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns the two factors in one matrix, and the row with which each row was swapped, i32, from 0."""
    factors, pivots = _with_line(text, "lu", a)
    return factors, text.convert(pivots, "i32")


def qr(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns R with LAPACK's reflections below it, and the factors of the reflections."""
    return _with_line(text, "qr", a)


def eigh(text: ProgramText, a: Value) -> tuple[Value, Value]:
    """Returns the eigenvectors and the ascending eigenvalues of the lower triangle."""
    return _with_line(text, "eigh", a)


def svd(text: ProgramText, a: Value) -> tuple[Value, Value, Value]:
    """Returns u, the descending singular values, and v, which is not transposed."""
    need_floats(a)
    *batch, rows, columns = a.shape
    least, dim = min(rows, columns), len(batch)
    both = text.node("decompose", [a], a.dtype, (*batch, rows + columns + 1, least), " svd")
    u, v = text.part(both, dim, 0, rows), text.part(both, dim, rows, rows + columns)
    return u, _last_row(text, both, least), v


def triangular_solve(text: ProgramText, a: Value, b: Value, *, right: bool, upper: bool, transpose: bool,
                     unit: bool) -> Value:
    """Solves a x = b, or x a = b with `right`. transpose: takes the transposed triangle. unit: the diagonal
    is all ones."""
    need_floats(a, b)
    words = {"right": right, "upper": upper, "transpose": transpose, "unit": unit}
    attributes = "".join(f" {word}" for word, is_set in words.items() if is_set)
    return text.node("triangular_solve", [a, b], b.dtype, b.shape, attributes)


def _with_line(text: ProgramText, kind: str, a: Value) -> tuple[Value, Value]:
    need_floats(a)
    *batch, rows, columns = a.shape
    both = text.node("decompose", [a], a.dtype, (*batch, rows + 1, columns), f" {kind}")
    return text.part(both, len(batch), 0, rows), _last_row(text, both, min(rows, columns))


def _last_row(text: ProgramText, x: Value, count: int) -> Value:
    *batch, rows, _ = x.shape
    line = text.part(text.part(x, len(batch), rows - 1, rows), len(batch) + 1, 0, count)
    return text.reshape(line, (*batch, count))
