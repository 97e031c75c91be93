"""Writes the text of a program for a front end: docs/programs.md, "The text". Types are worked out here as
far as the front end needs them; the text is checked when it is read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from .. import _core
from .._dtypes import NUMPY, exported, name_of
from .._errors import Error, Unsupported

Shape = tuple[int, ...]
FUSED_ATTENTION = "fused attention"  #: the planner's name for the scope of a kernel
MOST_NODES = 1_000_000  #: the most nodes that are written for a step
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
    """One number everywhere. Each use writes a constant of its own, so that the cut of one does not reach
    another use."""

    value: float | int
    dtype: str
    shape: Shape


Value = Node | Number

_OF_PARTS = {"f32": "c64", "f64": "c128"}
PARTS = {ours: part for part, ours in _OF_PARTS.items()}  #: dtypes of complex numbers, and of their parts


@dataclass(frozen=True, slots=True)
class Complex:
    """Numbers that are computed with as a pair of real tensors. Loops and branches take them as they take
    tensors."""

    real: Value
    imag: Value

    @property
    def dtype(self) -> str:
        return _OF_PARTS[self.real.dtype]

    @property
    def shape(self) -> Shape:
        return self.real.shape


def parts_of(values: Iterable[Any]) -> list[Any]:
    """Returns the values, with complex ones replaced by their two parts."""
    return [part for x in values for part in ((x.real, x.imag) if isinstance(x, Complex) else (x,))]


def together(parts: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """The inverse of parts_of(), for parts of values like those."""
    given = iter(parts)
    return [Complex(next(given), next(given)) if isinstance(x, Complex) else next(given) for x in like]


class Refused(Exception):
    """The reason why no program has an operation, without its name."""


class Place(Protocol):
    """The place that a front end has a node from, for messages. Its `str` is a line or a module."""

    @property
    def operation(self) -> str: ...


Function = TypeVar("Function", bound=Callable[..., Any])


class Rules(dict[str, Callable[..., Any]]):
    """The functions that write a front end's operations, by their names there."""

    def rule(self, *names: str) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            self.update(dict.fromkeys(names, function))
            return function

        return add


@dataclass(slots=True)
class _Line:
    op: str
    operands: tuple[int, ...]
    words: str  #: of the label or the other attributes
    dtype: str
    shape: Shape
    scope: str
    backward: bool
    source: Place | None
    body: int  #: that it is in
    bodies: tuple[int, ...] = ()  #: that it has
    dims: tuple[int, ...] = ()  #: the first attribute
    equation: str = ""  #: of a product
    results: tuple[int, ...] = ()  #: the lines of its bodies' results
    kind: str = ""
    mark: str | None = None


@dataclass(slots=True)
class _Body:
    """The program itself (the first body), or the body of a scan or cond: the lines of its inputs and
    outputs; the first ones may be carried."""

    carries: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def quoted(text: str) -> str:
    """As labels are written: quotes, backslashes and control characters are escaped."""
    inside = "".join(f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else "\\" + c if c in '"\\' else c
                     for c in text)
    return f'"{inside}"'


def listed(name: str, numbers: Iterable[int]) -> str:
    """A list of numbers as attributes have it."""
    text = ", ".join(str(int(number)) for number in numbers)
    return f" {name}=[{text}]" if text else ""


def _nodes(*values: Value) -> list[Value]:
    return [x for x in values if isinstance(x, Node)]


def _number_text(value: float | int, dtype: str) -> str:
    return repr(float(value)) if dtype in FLOATS else str(int(value))


class _Pairs:
    """Writes a body whose inputs and outputs have complex numbers as two parts."""

    def __init__(self, write: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._write = write
        self.results: Sequence[Any] = ()  #: of the last call of write()

    def __call__(self, values: list[Value], like: Sequence[Any]) -> list[Value]:
        self.results = self._write(together(values, like))
        return parts_of(self.results)


class ProgramText:
    """A program that grows. scope, backward and source are given to the nodes that are added now, which are
    in `body`: a number, 0 outside scans and conds. Nodes of one body are operands in that alone."""

    def __init__(self) -> None:
        self.scope, self.backward = "", False
        self.source: Place | None = None
        self.body = 0
        self._literals: list[_core.Literal] = []
        self._lines: list[_Line] = []
        self._bodies = [_Body()]
        self._refusals: dict[int, str] = {}
        self._kernels: Counter[tuple[str, bool]] = Counter()

    # ---- Lines.

    def node(self, op: str, operands: Sequence[Value], dtype: str, shape: Sequence[int], words: str = "",
             bodies: tuple[int, ...] = (), dims: Iterable[int] = (), equation: str = "") -> Node:
        numbers = tuple(self._written(operand).line for operand in operands)
        assert all(self._lines[number].body == self.body
                   for number in numbers), f"{op}: an operand is in another body"
        extents = tuple(int(extent) for extent in shape)
        if len(self._lines) >= MOST_NODES:
            raise Unsupported(
                f"capture: {self.source}: found more than {MOST_NODES} operations, needed at most that many"
            )
        self._lines.append(_Line(op, numbers, words, dtype, extents, self.scope, self.backward, self.source,
                                 self.body, bodies, tuple(int(dim) for dim in dims), equation))
        return Node(len(self._lines) - 1, dtype, extents)

    def _written(self, value: Value) -> Node:
        if isinstance(value, Node):
            return value
        return self.node("constant", (), value.dtype, value.shape,
                         " " + _number_text(value.value, value.dtype))

    def input(self, label: str, dtype: str, shape: Shape, kind: str) -> Node:
        node = self.node("input", (), dtype, shape, " " + quoted(label))
        self._lines[node.line].kind = kind
        self._bodies[self.body].inputs.append(node.line)
        return node

    def refused(self, reason: str, operands: Sequence[Value], dtype: str | None, shape: Shape) -> Node:
        """Stands for a tensor that cannot be computed: an error if something needs it."""
        node = self.node("", operands, dtype or "f32", shape)
        self._refusals[node.line] = reason
        return node

    def array(self, array: np.ndarray) -> Value:
        """Adds a literal: elements that are stored with the program."""
        dtype = name_of(array.dtype)
        array = np.asarray(array, NUMPY[dtype], order="C")
        if dtype in FLOATS or array.dtype.kind in "biu":
            bits = array.reshape(-1).view(f"u{array.itemsize}")
            if bits.size and (bits[:2] == bits[0]).all() and (bits == bits[0]).all():
                first = array.reshape(-1)[:1]
                return Number(first.astype(np.float64).item() if dtype in FLOATS else int(first.item()),
                              dtype, array.shape)
        self._literals.append(_core.Literal.of(exported(array)))
        return self.node("literal", (), dtype, array.shape, " " + self._literals[-1].hash)

    def marked(self, x: Value, spec: str) -> Node:
        """Returns x with a mark that cuts it so."""
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
        """Adds an elementwise operation; its operands are broadcast as numpy does it."""
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

    def bitcast(self, x: Value, dtype: str, shape: Shape) -> Value:
        """The bits of x. A wider number is made of the last dim, the lowest bits first; narrower ones are one
        dim more."""
        theirs, ours = NUMPY[x.dtype].itemsize, NUMPY[dtype].itemsize
        if ours == theirs:
            return self._as(x, dtype)
        x = self._as(x, f"u{8 * theirs}")
        if ours > theirs:
            parts = [self.reshape(self.convert(self.part(x, len(shape), place, place + 1), f"u{8 * ours}"),
                                  shape) for place in range(ours // theirs)]
            x = parts[0]
            for place, part in enumerate(parts[1:], 1):
                x = self.elementwise("logical_or", x, self.elementwise("shift_left", part,
                                                                       self.full(part, 8 * theirs * place)))
        else:
            shifted = [self.elementwise("shift_right_logical", x, self.full(x, 8 * ours * place))
                       for place in range(theirs // ours)]
            x = self.concatenate([self.reshape(self.convert(part, f"u{8 * ours}"), (*x.shape, 1))
                                  for part in shifted], len(x.shape))
        return self._as(x, dtype)

    def _as(self, x: Value, dtype: str) -> Value:
        return x if x.dtype == dtype else self.node("bitcast", [x], dtype, x.shape)

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
            inner = [dims[dim] for dim in line.dims]
            return self.broadcast(Node(operand, x.dtype, self._lines[operand].shape), shape, inner)
        return self.node("broadcast", [x], x.dtype, shape, dims=dims)

    def counts_along(self, x: Value, dim: int) -> bool:
        """True if each element is its place along the dim."""
        if not isinstance(x, Node):
            return x.shape[dim] <= 1 and x.value == 0
        line = self._lines[x.line]
        if line.op == "iota":
            return line.dims == (dim,)
        if line.op == "broadcast" and line.dims == (dim,):
            return self.counts_along(Node(line.operands[0], x.dtype, x.shape[dim:dim + 1]), 0)
        return False

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
        return x if list(order) == sorted(order) else self.node("transpose", [x], x.dtype, shape, dims=order)

    def slice(self, x: Value, begin: Sequence[int], end: Sequence[int],
              stride: Sequence[int] | None = None) -> Value:
        steps = [1] * len(begin) if stride is None else list(stride)
        shape = tuple(max(0, -(-(last - first) // step)) for first, last, step in zip(begin, end, steps))
        if isinstance(x, Number):
            return Number(x.value, x.dtype, shape)
        if shape == x.shape:
            return x
        return self.node("slice", [x], x.dtype, shape,
                         listed("begin", begin) + listed("end", end) + listed("stride", steps))

    def part(self, x: Value, dim: int, begin: int, end: int) -> Value:
        """Adds a slice of one dim."""
        first, last = [0] * len(x.shape), list(x.shape)
        first[dim], last[dim] = begin, end
        return self.slice(x, first, last)

    def pad(self, x: Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int],
            value: float | int) -> Value:
        """As lax.pad: low and high may be negative."""
        added = [max(n, 0) for n in low], [max(n, 0) for n in high]
        inside = [extent + (max(extent, 1) - 1) * gap for extent, gap in zip(x.shape, interior)]
        shape = [before + extent + after for before, extent, after in zip(added[0], inside, added[1])]
        padded: Value = x
        if tuple(shape) != x.shape:
            number = "" if value == 0 and not math.copysign(1, value) < 0 else " " + _number_text(
                value, x.dtype)
            padded = self.node("pad", [x], x.dtype, shape, listed("begin", added[0]) + listed("end", added[1])
                               + listed("stride", [gap + 1 for gap in interior]) + number)
        return self.slice(padded, [max(-n, 0) for n in low],
                          [extent + min(n, 0) for extent, n in zip(shape, high)])

    def concatenate(self, parts: Sequence[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        return self.node("concatenate", parts, parts[0].dtype, shape, dims=[dim])

    def reverse(self, x: Value, dims: Sequence[int]) -> Value:
        return self.node("reverse", [x], x.dtype, x.shape, dims=sorted(dims)) if dims else x

    def iota(self, dtype: str, shape: Sequence[int], dim: int) -> Value:
        """Adds an iota of one dim and broadcasts it: an elementwise op reads a broadcast in place, which
        takes no memory."""
        return self.broadcast(self.node("iota", (), dtype, [shape[dim]], dims=[0]), tuple(shape), [dim])

    def pair(self, x: Value) -> Complex:
        """A real tensor with a last dim of 2 as a complex one."""
        last = len(x.shape) - 1
        real, imag = (self.reshape(self.part(x, last, place, place + 1), x.shape[:-1]) for place in (0, 1))
        return Complex(real, imag)

    def in_one(self, x: Complex) -> Value:
        """Returns a complex tensor as a real one with a last dim of 2."""
        return self.concatenate([self.reshape(part, (*x.shape, 1)) for part in (x.real, x.imag)],
                                len(x.shape))

    # ---- Reductions, products, by index.

    def reduce(self, op: str, x: Value, dims: Sequence[int]) -> Value:
        shape = [extent for dim, extent in enumerate(x.shape) if dim not in dims]
        if all(x.shape[dim] == 1 for dim in dims):
            return self.reshape(x, shape)
        return self.node(op, [x], x.dtype, shape, dims=sorted(dims))

    def along(self, op: str, x: Value, dim: int, words: str = "") -> Node:
        """Adds an op with the shape of x: a cumulative one, or argsort."""
        return self.node(op, [x], "i32" if op == "argsort" else x.dtype, x.shape, words, dims=[dim])

    def einsum(self, equation: str, a: Value, b: Value, dtype: str) -> Node:
        operands, result = equation.split("->")
        extents = dict(zip(operands.replace(",", ""), a.shape + b.shape))
        wider = "" if dtype == a.dtype else f" in {dtype}"
        return self.node("dot_general", [a, b], dtype, [extents[c] for c in result], wider, equation=equation)

    def take(self, x: Value, ids: Value, dim: int) -> Node:
        return self.node("take", [x, ids], x.dtype, x.shape[:dim] + ids.shape + x.shape[dim + 1:], dims=[dim])

    def take_along(self, x: Value, ids: Value, dim: int) -> Node:
        return self.node("take_along", [x, ids], x.dtype, ids.shape, dims=[dim])

    def index_of(self, op: str, x: Value, dim: int) -> Node:
        """argmax or argmin."""
        extreme = self.reduce({"argmax": "reduce_max", "argmin": "reduce_min"}[op], x, [dim])
        return self.node("index_of", [x, extreme], "i32", extreme.shape, dims=[dim])

    def scatter_add(self, ids: Value, updates: Value, dim: int, extent: int) -> Node:
        shape = updates.shape[:dim] + (extent,) + updates.shape[dim + len(ids.shape):]
        return self.node("scatter_add", [ids, updates], updates.dtype, shape, dims=[dim, extent])

    def scatter_add_along(self, ids: Value, updates: Value, dim: int, extent: int) -> Node:
        shape = ids.shape[:dim] + (extent,) + ids.shape[dim + 1:]
        return self.node("scatter_add_along", [ids, updates], updates.dtype, shape, dims=[dim, extent])

    def plus(self, x: Value, added: Value) -> Value:
        """Returns x + added, without a sum if x is 0."""
        return added if isinstance(x, Number) and x.value == 0 else self.elementwise("add", x, added)

    def convolution(self, x: Value, kernel: Value, shape: Sequence[int], lists: Mapping[str, Sequence[int]],
                    feature_groups: int, batch_groups: int) -> Node:
        """lists: the attributes lhs, rhs, out, stride, low, high, lhs_dilation and rhs_dilation."""
        words = "".join(listed(name, numbers) for name, numbers in lists.items())
        for name, count in (("feature_groups", feature_groups), ("batch_groups", batch_groups)):
            words += f" {name}={count}" if count != 1 else ""
        return self.node("convolution", [x, kernel], x.dtype, shape, words)

    def dynamic_slice(self, x: Value, starts: Sequence[Value], shape: Sequence[int]) -> Node:
        return self.node("dynamic_slice", [x, *starts], x.dtype, shape, listed("end", shape))

    def dynamic_update_slice(self, x: Value, update: Value, starts: Sequence[Value]) -> Node:
        return self.node("dynamic_update_slice", [x, update, *starts], x.dtype, x.shape)

    # ---- Loops and branches. Numbers that are given to a body are numbers in it, and no operands.

    def scan(self, consts: Sequence[Value], carry: Sequence[Value], xs: Sequence[Value], length: int,
             reverse: bool, write: Callable[[list[Value]], Sequence[Value]]) -> list[Value]:
        """Adds a scan as jax.lax.scan does it: write() takes the body's consts, carry and a slice of each of
        the xs, and returns the next carry and a slice of each stacked result."""
        operands, given = [*consts, *carry, *xs], _Pairs(write)
        consts, carry, xs = parts_of(consts), parts_of(carry), parts_of(xs)
        carry = [self._written(x) for x in carry]
        shapes = [*(x.shape for x in (*consts, *carry)), *(x.shape[1:] for x in xs)]
        body = self._body((*consts, *carry, *xs), shapes, lambda values: given(values, operands), len(carry))
        stacked = sum(isinstance(x, Node) for x in xs)
        words = f" length=[{length}] carries=[{len(carry)}] xs=[{stacked}]" + (" reverse" if reverse else "")
        types = [(x.dtype, x.shape if place < len(carry) else (length, *x.shape))
                 for place, x in enumerate(self._given(body))]
        return together(self._results(self.node("scan", _nodes(*consts, *carry, *xs), "bool", (0,), words,
                                                (body,)), types), given.results)

    def cond(self, predicate: Value, operands: Sequence[Value], if_true: Callable[[
        list[Value]], Sequence[Value]], if_false: Callable[[list[Value]], Sequence[Value]]) -> list[Value]:
        """As jax.lax.cond."""
        outside, operands = operands, parts_of(operands)
        given, shapes = [_Pairs(if_true), _Pairs(if_false)], [x.shape for x in operands]
        bodies = (self._body(operands, shapes, lambda values: given[0](values, outside)),
                  self._body(operands, shapes, lambda values: given[1](values, outside)))
        types = [(x.dtype, x.shape) for x in self._given(bodies[0])]
        return together(self._results(self.node("cond", [predicate, *_nodes(*operands)], "bool", (0,), "",
                                                bodies), types), given[0].results)

    def _body(self, operands: Sequence[Value], shapes: Sequence[Shape],
              write: Callable[[list[Value]], Sequence[Value]], carries: int = 0) -> int:
        """Writes a body with an input of the shape for each operand."""
        outside, self.body = self.body, len(self._bodies)
        self._bodies.append(_Body(carries))
        try:
            inputs = [Number(x.value, x.dtype, shape) if isinstance(x, Number)
                      else self.input(str(place), x.dtype, shape, "")
                      for place, (x, shape) in enumerate(zip(operands, shapes))]
            self._bodies[self.body].outputs = [self._written(x).line for x in write(inputs)]
            return self.body
        finally:
            self.body = outside

    def _given(self, body: int) -> list[_Line]:
        return [self._lines[number] for number in self._bodies[body].outputs]

    def _results(self, node: Node, types: Sequence[tuple[str, Shape]]) -> list[Value]:
        results = [self.node("result", [node], *one) for one in types]
        self._lines[node.line].results = tuple(x.line for x in results)
        return [*results]

    # ---- The graph.

    @contextmanager
    def inside(self, scope: str, backward: bool, source: Any) -> Iterator[None]:
        before = self.scope, self.backward, self.source
        self.scope, self.backward, self.source = scope, backward, source
        yield
        self.scope, self.backward, self.source = before

    def kernel(self) -> str:
        """The scope of one more kernel of attention in the scope that is now: a second one has a number."""
        self._kernels[self.scope, self.backward] += 1
        number = self._kernels[self.scope, self.backward]
        return f"{self.scope}/{FUSED_ATTENTION}{f' [{number}]' if number > 1 else ''}".removeprefix("/")

    def graph(self, outputs: Sequence[Value]) -> tuple[_core.Graph, list[Place | None]]:
        """Returns the graph of all inputs and the lines that the outputs need, and the source of each of its
        nodes. Raises Unsupported, naming all that is refused, and the errors of the program's own checks,
        with the place."""
        results = [self._written(output).line for output in outputs]
        self._bodies[0].outputs = results
        needed = [False] * len(self._lines)
        self._need(self._bodies[0], needed)
        for number in reversed(range(len(self._lines))):
            if needed[number]:
                for operand in self._lines[number].operands:
                    needed[operand] = True
                if self._lines[number].bodies:
                    self._need_bodies(self._lines[number], needed)
        self._transpose_products(needed)
        self._raise_refusals([number for number in self._refusals if needed[number]])
        lines = self._texts(needed)
        try:
            made = _core.Graph.parse("".join(f"{text}\n" for text, _ in lines), self._literals)
        except Error as error:
            found = re.search(r"line (\d+): (.*)", str(error), re.DOTALL)
            place = lines[int(found[1]) - 1][1] if found and int(found[1]) <= len(lines) else None
            if found is None or place is None:
                raise
            raise type(error)(f"capture: {place}: {place.operation}: {found[2]}") from None
        return made, [line.source
                      for number, line in enumerate(self._lines) if needed[number] and line.body == 0]

    def _need_bodies(self, line: _Line, needed: list[bool]) -> None:
        """Removes the outputs of bodies that nothing needs; carried ones stay, as the next trip may need
        them."""
        carries = self._bodies[line.bodies[0]].carries
        kept = [place for place, result in enumerate(line.results) if place < carries or needed[result]]
        for body in (self._bodies[number] for number in line.bodies):
            body.outputs = [body.outputs[place] for place in kept]
            self._need(body, needed)
        for number, place in enumerate(kept):
            self._lines[line.results[place]].words = f" index=[{number}]"

    def _need(self, body: _Body, needed: list[bool]) -> None:
        for number in (*body.inputs, *body.outputs):
            needed[number] = True

    def _texts(self, needed: Sequence[bool]) -> list[tuple[str, Place | None]]:
        """The lines, each with its source."""
        inside: list[list[int]] = [[] for _ in self._bodies]
        for number, line in enumerate(self._lines):
            if needed[number]:
                inside[line.body].append(number)
        numbers = [0] * len(self._lines)
        texts: list[tuple[str, Place | None]] = []

        def write(body: int, indent: str) -> None:
            for place, number in enumerate(inside[body]):
                line, numbers[number] = self._lines[number], place
                texts.append((indent + _text_of(line, place, numbers), line.source))
                for inner in line.bodies:
                    if inner != line.bodies[0]:
                        texts.append((indent + "} else {", line.source))
                    write(inner, indent + "  ")
                if line.bodies:
                    texts.append((indent + "}", line.source))
            texts.append((indent + "return"
                          + "".join(f" %{numbers[output]}" for output in self._bodies[body].outputs), None))

        write(0, "")
        return texts

    def _transpose_products(self, needed: list[bool]) -> None:
        """A product that is only transposed is written as the product whose result has those dims: JAX makes
        the gradient of each weight in this way, and the transposed one would be another tensor of the
        weight's size."""
        uses = Counter(operand for number, line in enumerate(self._lines) if needed[number]
                       for operand in line.operands)
        for body in self._bodies:
            uses.update(body.outputs)
        for number, line in enumerate(self._lines):
            product = self._lines[line.operands[0]] if needed[number] and line.op == "transpose" else None
            if (product and product.op == "dot_general" and product.mark is None
                and uses[line.operands[0]] == 1):
                factors, result = product.equation.split("->")
                equation = f"{factors}->{''.join(result[dim] for dim in line.dims)}"
                needed[line.operands[0]] = False
                line.op, line.operands, line.scope, line.backward, line.source = (
                    product.op, product.operands, product.scope, product.backward, product.source)
                line.words, line.dims, line.equation = product.words, (), equation

    def _raise_refusals(self, lines: list[int]) -> None:
        """Raises Unsupported with each refusal, the number of places that have it, and the first of them."""
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
    attributes = (f' "{line.equation}"' if line.equation else "") + listed("dims", line.dims) + line.words
    text = f"%{number} = {line.op}({operands}){attributes} : {line.dtype}[{', '.join(map(str, line.shape))}]"
    if line.mark is not None:
        text += f" marked {line.mark or quoted('')}"
    if line.kind:
        text += f" kind={line.kind}"
    if line.backward:
        text += " backward"
    if line.bodies:
        text += " {"
    return text + (f"  # {quoted(line.scope)[1:-1]}" if line.scope else "")
