"""Defines the table of rules, which write ATen operations as operations of programs.

A rule is a function `rule(build, out, *operands)`. `build` appends nodes, and `out` is the type of the result
in torch (a list of types if there are several). The operands are those of the call, with a `Value` for each
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...._arrays.torch_tensors import OURS, array_of
from ...._programs.text import FLOATS, Node, Number, ProgramText, Refused, Rules, Shape, Value

Scalar = bool | int | float

#: The rules by the name of the ATen operation, for all its overloads.
RULES = Rules()
rule = RULES.rule

#: The rules of Python functions of numbers that the step takes from tensors by .item(). These numbers are f64
#: tensors without dims.
NUMBERS: dict[Any, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class Type:
    dtype: str
    shape: Shape

    @classmethod
    def of(cls, value: torch.Tensor | torch.SymFloat) -> Type:
        """Returns the type of a tensor or of a computed number. Raises Refused for dtypes without a name."""
        if not isinstance(value, torch.Tensor):
            return cls("f64", ())
        if value.dtype not in OURS:
            raise Refused(f"found the dtype {value.dtype}, needed one that programs have")
        return cls(OURS[value.dtype], tuple(value.shape))


def is_float(x: Value) -> bool:
    return x.dtype in FLOATS


def number_of(x: Value) -> Scalar | None:
    """Returns the number that all elements equal; None if there is no such number."""
    return x.value if isinstance(x, Number) else None


def replaced(shape: Sequence[int], dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1:])


def dims_of(x: Value, dims: int | Iterable[int] | None) -> list[int]:
    """Returns dims counted from the front, in order; all dims for None or an empty list."""
    given = [dims] if isinstance(dims, int) else list(dims or range(len(x.shape)))
    return sorted(d % len(x.shape) for d in given) if x.shape else []


class Builder(ProgramText):
    """Appends nodes in torch's forms: with operands of other dtypes and shapes, and sums that keep dims."""

    def __init__(self) -> None:
        super().__init__()
        #: the operands of the operation in torch: tensors without memory, and numbers
        self.examples: list[Any] = []
        self.random_key: Value | None = None  #: an input, if the step draws random numbers
        self.draw = 0  #: the number of the operation's draw
        self._indices: set[int] = set()
        self._places: dict[int, tuple[Shape, list[int], int]] = {}
        self._transposed: dict[int, tuple[Value, list[int]]] = {}

    # Element by element.

    def unary(self, op: str, x: Value) -> Value:
        return self.elementwise(op, x)

    def binary(self, op: str, a: Value, b: Value | Scalar) -> Value:
        return self.elementwise(op, a, self.full(a, b) if isinstance(b, (bool, int, float)) else b)

    def convert(self, x: Value, dtype: str) -> Value:
        if isinstance(x, Number) and x.dtype not in FLOATS and dtype in ("f32", "f64"):
            return Number(float(x.value), dtype, x.shape)
        if x.dtype != dtype and dtype == "bool":
            return self.binary("ne", x, 0)
        return super().convert(x, dtype)

    def operand(self, x: Value | Scalar, dtype: str, shape: Sequence[int]) -> Value:
        """Returns a tensor or a number as a tensor of this dtype and shape."""
        if isinstance(x, (bool, int, float)):
            number = float(x) if dtype in FLOATS else bool(x) if dtype == "bool" else int(x)
            return Number(number, dtype, tuple(shape))
        return self.broadcast_to(self.convert(x, dtype), tuple(shape))

    def wide(self, x: Value) -> Value:
        """Returns x in the dtype that torch computes with inside an operation."""
        return self.convert(x, "f32") if x.dtype in ("f16", "bf16") else x

    # Layout.

    def cut(self, x: Value, dim: int, begin: int, end: int, stride: int = 1) -> Value:
        """Returns a slice along one dim."""
        begins, ends, strides = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        begins[dim], ends[dim], strides[dim] = begin, max(begin, end), stride
        return self.slice(x, begins, ends, strides)

    def padded(self, x: Value, low: Sequence[int], high: Sequence[int], number: Scalar = 0) -> Value:
        return self.pad(x, low, high, [0] * len(x.shape), number)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Transposes x. Merges two transpositions into one, as a linear layer transposes its weight, and its
        gradient back."""
        source, before = self._source_of(x)
        order = [before[d] for d in order]
        made = super().transpose(source, order)
        if made is not source and not isinstance(made, Number):
            self._transposed[made.line] = source, order
        return made

    def _source_of(self, x: Value) -> tuple[Value, list[int]]:
        """Returns the value whose transposition x is, and the order of its dims."""
        own = x, list(range(len(x.shape)))
        return own if isinstance(x, Number) else self._transposed.get(x.line, own)

    # Sums and products.

    def reduced(self, op: str, x: Value, dims: Sequence[int], keep: bool = False) -> Value:
        made = self.reduce(op, x, dims)
        return self.reshape(made, [1 if d in dims else n for d, n in enumerate(x.shape)]) if keep else made

    def mean(self, x: Value, dims: Sequence[int], keep: bool = False) -> Value:
        total = self.reduced("reduce_sum", x, dims, keep)
        return self.binary("div", total, float(math.prod(x.shape[d] for d in dims)))

    def product(self, equation: str, a: Value, b: Value) -> Value:
        """Adds a product. Transposed operands are replaced by the values before the transposition, such as a
        weight."""
        operands, result = equation.split("->")
        of_a, of_b = operands.split(",")
        (a, from_a), (b, from_b) = self._source_of(a), self._source_of(b)
        of_a = "".join(of_a[from_a.index(d)] for d in range(len(of_a)))
        of_b = "".join(of_b[from_b.index(d)] for d in range(len(of_b)))
        return self.einsum(f"{of_a},{of_b}->{result}", a, b, a.dtype)

    def batched_product(self, a: Value, b: Value) -> Value:
        """Adds a product of matrices. torch merges samples and heads into one dim; the product keeps both, so
        that each may be cut."""
        apart = next((shape for x in (a, b) if (shape := self._merged_from(x)) and len(shape) == 4), None)
        if apart is None or any((shape := self._merged_from(x)) is None or shape[0] != apart[0]
                                for x in (a, b)):
            return self.product("bij,bjk->bik", a, b)

        def split(x: Value) -> Value:
            source, order = self._source_of(x)
            return self.transpose(self.reshape(source, (*apart[:2], *source.shape[1:])),
                                  [0, *(dim + 1 for dim in order)])

        return self.reshape(self.product("abij,abjk->abik", split(a), split(b)),
                            (a.shape[0], a.shape[1], b.shape[2]))

    def _merged_from(self, x: Value) -> Shape | None:
        """Returns the shape of x before its leading dims were merged: [16, 4, 128, 32] for [64, 128, 32]."""
        source, order = self._source_of(x)
        if isinstance(source, Number) or self._lines[source.line].op != "reshape" or order[0] != 0:
            return None
        shape = self._lines[self._lines[source.line].operands[0]].shape
        return shape if len(shape) >= 4 and shape[-2:] == source.shape[1:] else None

    # Indexing.

    def argsort(self, x: Value, dim: int, descending: bool) -> Value:
        return self.along("argsort", x, dim, " descending" if descending else "")

    def as_index(self, ids: Value) -> Value:
        """Returns indices as i64, and notes that they count from the front."""
        made = self.convert(ids, "i64")
        if not isinstance(made, Number):
            self._indices.add(made.line)
        return made

    def from_front(self, ids: Value, extent: int) -> Value:
        """Returns indices that all count from the front, where negative ones counted from the end."""
        if (not isinstance(ids, Number) and ids.line in self._indices) or (isinstance(ids, Number)
                                                                           and ids.value >= 0):
            return ids
        return self.select(self.binary("lt", ids, 0), self.binary("add", ids, extent), ids)

    def counted(self, dtype: str, shape: Sequence[int], steps: Sequence[int], begin: int) -> Value:
        """Returns the sum of `begin` and of the place along each dim times its step."""
        made: Value = Number(begin, dtype, tuple(shape))
        for dim, step in enumerate(steps):
            if shape[dim] > 1 and step:
                along = self.iota(dtype, shape, dim)
                along = along if step == 1 else self.binary("mul", along, step)
                made = along if number_of(made) == 0 else self.binary("add", along, made)
        return made

    def noted_places(self, made: Value, steps: Sequence[int], begin: int) -> Value:
        """Notes a result of counted(), so that places_of() finds it."""
        if isinstance(made, Node):
            self._places[made.line] = made.shape, list(steps), begin
        return made

    def places_of(self, ids: Value) -> tuple[Shape, list[int], int] | None:
        """Returns shape, steps and begin of noted places, also after a reshape; None for other values."""
        if not isinstance(ids, Node):
            return None
        line = self._lines[ids.line]
        return self._places.get(line.operands[0] if line.op == "reshape" else ids.line)


def literal(build: Builder, tensor: torch.Tensor) -> Value:
    """Returns a constant for a tensor that the step holds, and no module or optimizer. Raises Refused."""
    Type.of(tensor)
    return build.array(array_of(tensor))
