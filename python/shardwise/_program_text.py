"""The text of a program as a front end writes it: docs/programs.md, "The text". Types are worked out here as far as the
front end needs them; what is written is checked when the text is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from ._dtypes import NUMPY, name_of
from ._errors import Unsupported

Shape = tuple[int, ...]
MOST_NODES = 1_000_000  #: that are written of a step
FLOATS = ("f64", "f32", "f16", "bf16")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")


@dataclass(frozen=True, slots=True)
class Node:
    """A tensor that is a line of the text."""

    line: int
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Number:
    """One number everywhere. Each use writes a constant of its own, so that nothing else hears how that one is cut."""

    value: float | int
    dtype: str
    shape: Shape


Value = Node | Number


class Refused(Exception):
    """Why no program has what is asked for, without its name."""


@dataclass(slots=True)
class _Line:
    op: str
    operands: tuple[int, ...]
    words: str  #: of the label or the attributes
    dtype: str
    shape: Shape
    scope: str
    backward: bool
    source: Any  #: of the front end
    kind: str = ""
    mark: str | None = None


def quoted(text: str) -> str:
    """As labels are written: quotes, backslashes and control characters are escaped."""
    inside = "".join(f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else "\\" + c if c in '"\\' else c for c in text)
    return f'"{inside}"'


def listed(name: str, numbers: Iterable[int]) -> str:
    """A list of numbers as attributes have it."""
    text = ", ".join(str(int(number)) for number in numbers)
    return f" {name}=[{text}]" if text else ""


def _number_text(value: float | int, dtype: str) -> str:
    return repr(float(value)) if dtype in FLOATS else str(int(value))


class ProgramText:
    """A program that grows. scope, backward and source are given to the nodes that are added now."""

    def __init__(self) -> None:
        self.scope, self.backward, self.source = "", False, None
        self.literals: list[_core.Literal] = []
        self._lines: list[_Line] = []
        self._refusals: dict[int, str] = {}

    # ---- What others are made of.

    def node(self, op: str, operands: Sequence[Value], dtype: str, shape: Sequence[int], words: str = "") -> Node:
        numbers = tuple(self._written(operand).line for operand in operands)
        extents = tuple(int(extent) for extent in shape)
        if len(self._lines) >= MOST_NODES:
            raise Unsupported(f"capture: {self.source}: found more than {MOST_NODES} operations, needed at most that many: loops are "
                              f"unrolled")
        self._lines.append(_Line(op, numbers, words, dtype, extents, self.scope, self.backward, self.source))
        return Node(len(self._lines) - 1, dtype, extents)

    def _written(self, value: Value) -> Node:
        if isinstance(value, Node):
            return value
        return self.node("constant", (), value.dtype, value.shape, " " + _number_text(value.value, value.dtype))

    def input(self, label: str, dtype: str, shape: Shape, kind: str) -> Node:
        node = self.node("input", (), dtype, shape, " " + quoted(label))
        self._lines[node.line].kind = kind
        return node

    def refused(self, reason: str, operands: Sequence[Value], dtype: str | None, shape: Shape) -> Node:
        """Stands for a tensor that cannot be computed: an error if something needs it."""
        node = self.node("", operands, dtype or "f32", shape)
        self._refusals[node.line] = reason
        return node

    def array(self, array: np.ndarray) -> Value:
        """Elements that the program holds."""
        dtype = name_of(array.dtype)
        array = np.asarray(array, NUMPY[dtype], order="C")
        if dtype in FLOATS or array.dtype.kind in "biu":
            bits = array.reshape(-1).view(f"u{array.itemsize}")
            if bits.size and (bits[:2] == bits[0]).all() and (bits == bits[0]).all():
                first = array.reshape(-1)[:1]
                return Number(first.astype(np.float64).item() if dtype in FLOATS else int(first.item()), dtype, array.shape)
        self.literals.append(_core.Literal.of(array.ctypes.data, array.nbytes))
        return self.node("literal", (), dtype, array.shape, " " + self.literals[-1].hash)

    def marked(self, x: Value, spec: str) -> Node:
        """x, which is to be cut like this."""
        node = self._written(x)
        line = self._lines[node.line]
        if line.mark == spec:
            return node
        if line.op != "input" or line.mark is not None:
            node = self.node("identity", [node], node.dtype, node.shape)
        self._lines[node.line].mark = spec
        return node

    # ---- Element by element.

    def elementwise(self, op: str, *operands: Value) -> Node:
        """Of operands that numpy can broadcast."""
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        dtype = "bool" if op in COMPARISONS else operands[-1 if op == "select" else 0].dtype
        return self.node(op, [self.broadcast_to(operand, shape) for operand in operands], dtype, shape)

    def full(self, like: Value, value: float | int) -> Number:
        return Number(value, like.dtype, like.shape)

    def select(self, condition: Value, if_true: Value, if_false: Value) -> Node:
        return self.elementwise("select", condition, if_true, if_false)

    def convert(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        if isinstance(x, Number) and x.dtype in FLOATS and dtype in FLOATS:
            value = np.float64(x.value).astype(NUMPY[x.dtype]).astype(NUMPY[dtype])
            return Number(float(value), dtype, x.shape)
        return self.node("convert", [x], dtype, x.shape)

    # ---- Layout.

    def broadcast(self, x: Value, shape: Shape, dims: Sequence[int]) -> Value:
        """Dim i of x is dim dims[i] of the result."""
        if isinstance(x, Number):
            return Number(x.value, x.dtype, shape)
        if x.shape == shape:
            return x
        line = self._lines[x.line]
        if line.op == "broadcast" and line.mark is None:  # of a broadcast: of what that was made of
            (operand,) = line.operands
            inner = [int(dim) for dim in re.findall(r"\d+", line.words)]
            return self.broadcast(Node(operand, x.dtype, self._lines[operand].shape), shape, [dims[dim] for dim in inner])
        return self.node("broadcast", [x], x.dtype, shape, listed("dims", dims))

    def broadcast_to(self, x: Value, shape: Shape) -> Value:
        return self.broadcast(x, shape, range(len(shape) - len(x.shape), len(shape)))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        extents = tuple(int(extent) for extent in shape)
        if isinstance(x, Number):
            return Number(x.value, x.dtype, extents)
        line = self._lines[x.line]
        if line.op == "reshape" and line.mark is None:  # of a reshape: of what that was made of
            (operand,) = line.operands
            x = Node(operand, x.dtype, self._lines[operand].shape)
        return x if x.shape == extents else self.node("reshape", [x], x.dtype, extents)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Dim i of the result is dim order[i] of x."""
        shape = tuple(x.shape[dim] for dim in order)
        if isinstance(x, Number):
            return Number(x.value, x.dtype, shape)
        return x if list(order) == sorted(order) else self.node("transpose", [x], x.dtype, shape, listed("dims", order))

    def slice(self, x: Value, begin: Sequence[int], end: Sequence[int], stride: Sequence[int] | None = None) -> Value:
        steps = [1] * len(begin) if stride is None else list(stride)
        shape = tuple(max(0, -(-(last - first) // step)) for first, last, step in zip(begin, end, steps))
        if isinstance(x, Number):
            return Number(x.value, x.dtype, shape)
        if shape == x.shape:
            return x
        return self.node("slice", [x], x.dtype, shape, listed("begin", begin) + listed("end", end) + listed("stride", steps))

    def part(self, x: Value, dim: int, begin: int, end: int) -> Value:
        """Of one dim."""
        first, last = [0] * len(x.shape), list(x.shape)
        first[dim], last[dim] = begin, end
        return self.slice(x, first, last)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int], value: float | int) -> Value:
        """As lax.pad: low and high may be negative."""
        added = [max(n, 0) for n in low], [max(n, 0) for n in high]
        inside = [extent + (max(extent, 1) - 1) * gap for extent, gap in zip(x.shape, interior)]
        shape = [before + extent + after for before, extent, after in zip(added[0], inside, added[1])]
        padded: Value = x
        if tuple(shape) != x.shape:
            number = "" if value == 0 and not math.copysign(1, value) < 0 else " " + _number_text(value, x.dtype)
            padded = self.node("pad", [x], x.dtype, shape, listed("begin", added[0]) + listed("end", added[1])
                               + listed("stride", [gap + 1 for gap in interior]) + number)
        return self.slice(padded, [max(-n, 0) for n in low], [extent + min(n, 0) for extent, n in zip(shape, high)])

    def concatenate(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        return self.node("concatenate", parts, parts[0].dtype, shape, listed("dims", [dim]))

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        return self.node("reverse", [x], x.dtype, x.shape, listed("dims", sorted(dims))) if dims else x

    def iota(self, dtype: str, shape: Sequence[int], dim: int) -> Node:
        return self.node("iota", (), dtype, shape, listed("dims", [dim]))

    # ---- Reductions, products, by index.

    def reduce(self, op: str, x: Value, dims: Sequence[int]) -> Value:
        shape = [extent for dim, extent in enumerate(x.shape) if dim not in dims]
        if all(x.shape[dim] == 1 for dim in dims):
            return self.reshape(x, shape)
        return self.node(op, [x], x.dtype, shape, listed("dims", sorted(dims)))

    def along(self, op: str, x: Value, dim: int, words: str = "") -> Node:
        """Of the same shape as x: a cumulative op, or the order of its elements."""
        return self.node(op, [x], "i32" if op == "argsort" else x.dtype, x.shape, listed("dims", [dim]) + words)

    def einsum(self, equation: str, a: Value, b: Value, dtype: str) -> Node:
        operands, result = equation.split("->")
        extents = dict(zip(operands.replace(",", ""), a.shape + b.shape))
        wider = "" if dtype == a.dtype else f" in {dtype}"
        return self.node("dot_general", [a, b], dtype, [extents[c] for c in result], f' "{equation}"{wider}')

    def take(self, x: Value, ids: Value, dim: int) -> Node:
        return self.node("take", [x, ids], x.dtype, x.shape[:dim] + ids.shape + x.shape[dim + 1:], listed("dims", [dim]))

    def take_along(self, x: Value, ids: Value, dim: int) -> Node:
        return self.node("take_along", [x, ids], x.dtype, ids.shape, listed("dims", [dim]))

    def dynamic_slice(self, x: Value, starts: Sequence[Value], shape: Sequence[int]) -> Node:
        return self.node("dynamic_slice", [x, *starts], x.dtype, shape, listed("end", shape))

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Node:
        return self.node("dynamic_update_slice", [x, update, *starts], x.dtype, x.shape)

    # ---- The end.

    @contextmanager
    def inside(self, scope: str, backward: bool, source: Any) -> Iterator[None]:
        before = self.scope, self.backward, self.source
        self.scope, self.backward, self.source = scope, backward, source
        yield
        self.scope, self.backward, self.source = before

    def finished(self, outputs: Sequence[Value]) -> tuple[str, list[Any]]:
        """The text, of what the outputs need and all inputs, and the source of each of its lines. Raises Unsupported,
        naming all that is refused."""
        results = [self._written(output).line for output in outputs]
        needed = [line.op == "input" for line in self._lines]
        for result in results:
            needed[result] = True
        for number in reversed(range(len(self._lines))):
            if needed[number]:
                for operand in self._lines[number].operands:
                    needed[operand] = True
        self._transpose_products(needed, results)
        self._raise_refusals([number for number in self._refusals if needed[number]])
        numbers = [0] * len(self._lines)
        texts: list[str] = []
        sources: list[Any] = []
        for number, line in enumerate(self._lines):
            if needed[number]:
                numbers[number] = len(texts)
                texts.append(_text_of(line, len(texts), numbers))
                sources.append(line.source)
        return "\n".join([*texts, "return" + "".join(f" %{numbers[result]}" for result in results), ""]), sources

    def _transpose_products(self, needed: list[bool], results: list[int]) -> None:
        """A product that is only transposed is written as the product whose result has those dims: JAX makes the gradient of
        each weight in this way, and the transposed one would be another tensor of the weight's size."""
        uses = Counter(operand for number, line in enumerate(self._lines) if needed[number] for operand in line.operands)
        uses.update(results)
        for number, line in enumerate(self._lines):
            product = self._lines[line.operands[0]] if needed[number] and line.op == "transpose" else None
            if product and product.op == "dot_general" and product.mark is None and uses[line.operands[0]] == 1:
                before, letters, after = re.split(r'(?<=>)(\w*)(?=")', product.words)
                order = [int(dim) for dim in re.findall(r"\d+", line.words)]
                needed[line.operands[0]] = False
                line.op, line.operands = product.op, product.operands
                line.words = before + "".join(letters[dim] for dim in order) + after

    def _raise_refusals(self, lines: list[int]) -> None:
        """Each with how many places have it and the first of them."""
        places: dict[str, list[Any]] = {}
        for number in lines:
            found = places.setdefault(self._refusals[number], [])
            if self._lines[number].source not in found:
                found.append(self._lines[number].source)
        if places:
            told = "; ".join(f"{reason} ({f'{len(found)}, first ' if len(found) > 1 else ''}at {found[0]})"
                             for reason, found in places.items())
            raise Unsupported(f"capture: found what no program has: {told}")


def _text_of(line: _Line, number: int, numbers: list[int]) -> str:
    operands = ", ".join(f"%{numbers[operand]}" for operand in line.operands)
    text = f"%{number} = {line.op}({operands}){line.words} : {line.dtype}[{', '.join(map(str, line.shape))}]"
    if line.mark is not None:
        text += f" marked {line.mark or quoted('')}"
    if line.kind:
        text += f" kind={line.kind}"
    if line.backward:
        text += " backward"
    return text + (f"  # {quoted(line.scope)[1:-1]}" if line.scope else "")
