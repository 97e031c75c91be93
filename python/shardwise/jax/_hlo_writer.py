"""Writes the functions of a StableHLO module as a program: calls in place, each operation by its rule (_hlo_ops.py, _hlo_loops.py)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from .._dtypes import NUMPY
from .._errors import InvalidArgument, Unsupported
from .._program_text import FLOATS, MOST_NODES, PARTS, Complex, Number, ProgramText, Refused, Rules, Shape, Value
from .._program_text import parts_of as both_parts
from . import _complex
from ._hlo_marks import GspmdMesh, shardy_specs
from ._jaxpr import scope_of_stack
from ._primitives import RULES as PRIMITIVES
from ._primitives import Call

DOING = "read StableHLO"
MOST_VISITED, MOST_CALLS = 2 * MOST_NODES, 100_000  #: operations, of functions as often as they are called, and calls
MOST_ELEMENTS = 2**62  #: of a tensor
MOST_HELD = 2**31  #: of a constant that is not one number everywhere
RETURNS = ("func.return", "stablehlo.return", "sdy.return")

#: By operations' names with their dialect. A rule is given the operation and its operands.
RULES = Rules()
rule = RULES.rule

#: Those of operations that take or give complex numbers.
COMPLEX_RULES = Rules()

_DTYPES = {"i1": "bool", "f8E4M3FN": "f8_e4m3fn", "f8E5M2": "f8_e5m2", "f8E4M3FNUZ": "f8_e4m3fnuz", "f8E5M2FNUZ": "f8_e5m2fnuz",
           "f8E8M0FNU": "f8_e8m0fnu", "complex<f32>": "c64", "complex<f64>": "c128",
           **{f"i{bits}": f"i{bits}" for bits in (8, 16, 32, 64)}, **{f"ui{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
           **{name: name for name in ("bf16", "f16", "f32", "f64")}}


@dataclass(slots=True)
class Place:
    """An operation, for messages: its line, of the step or of the text, and its scope."""

    line: str
    scope: str
    operation: str

    def __str__(self) -> str:
        where = f"{self.line} in {self.scope}" if self.line and self.scope else self.line or self.scope
        return where or "an unknown line"


# ---- Locations.

# What JAX adds to the scopes of a step: calls, loops, branches.
_ADDED = re.compile(r"(?:^|/)(?:while/(?:body|cond)|while|cond|branch_\d+_fun|scan|closed_call|core_call|checkpoint|remat2?|rematted_computation|"
                    r"custom_jvp_call|custom_vjp_call|pjit|jit|shard_map)(?=/|$)")


@lru_cache(maxsize=65536)
def scope_of(stack: str) -> tuple[str, bool]:
    """Of a path as JAX has it in a location, "jit(step)/transpose(jvp(layer0))/mlp": "layer0/mlp", and that it is of a gradient."""
    without_calls = re.sub(r"jit\([^()]*\)", "", stack)
    while (shorter := _ADDED.sub("", without_calls)) != without_calls:
        without_calls = shorter
    return scope_of_stack(without_calls.strip("/"))


def name_and_line(location: Any, source: str) -> tuple[str, str]:
    """The path that a location is called by, and the line: of the innermost function of the step, or of the text itself."""
    name = function = ""
    while True:
        if isinstance(location, ir.NameLoc):
            name, function, location = name or location.name_str, location.name_str, location.child_loc
        elif isinstance(location, ir.CallSiteLoc):
            location = location.callee
        elif isinstance(location, ir.FusedLoc) and location.locations:
            location = location.locations[0]
        elif isinstance(location, ir.FileLineColLoc):
            if location.filename in ("-", "<stdin>"):
                return name, f"{source}{location.start_line}"
            told = f" ({function})" if function and function != name else ""
            return name, f"{location.filename}:{location.start_line}:{location.start_col}{told}"
        else:
            return name, ""


# ---- Types and constants.


def is_dynamic(kind: Any) -> bool:
    return isinstance(kind, ir.UnrankedTensorType) or (isinstance(kind, ir.RankedTensorType) and not kind.has_static_shape)


def element_dtype(kind: Any) -> str:
    """Our name of an element type. Raises Refused."""
    found = _DTYPES.get(str(kind))
    if found is None:
        raise Refused(f"found the dtype {kind}, needed one that programs have")
    return found


def tensor_type(kind: Any) -> tuple[str, Shape]:
    """Raises Refused."""
    if not isinstance(kind, ir.RankedTensorType):
        raise Refused(f"found the type {kind}, needed a tensor")
    shape = tuple(kind.shape)
    if math.prod(shape) >= MOST_ELEMENTS:
        raise Refused(f"found the type {kind}, needed fewer than 2^62 elements")
    return element_dtype(kind.element_type), shape


def _numbers_of(attribute: Any, dtype: str, shape: Shape) -> np.ndarray:
    """Elements as the printed attribute has them: those of dtypes that numpy has not itself."""
    inside = str(attribute)[len("dense<"):].rpartition("> : ")[0]
    if inside.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(inside[3:-1]), NUMPY[dtype]).reshape(shape)
    words = re.findall(r"[^\s,\[\]]+", inside)
    bits = np.dtype(f"u{NUMPY[dtype].itemsize}")
    return np.array([np.array(int(word, 16), bits).view(NUMPY[dtype]) if word.startswith("0x") else NUMPY[dtype].type(float(word))
                     for word in words], NUMPY[dtype]).reshape(shape)


def _splat_of(attribute: Any) -> Any:
    return attribute.get_splat_value().value


def constant(text: ProgramText, attribute: Any, dtype: str, shape: Shape) -> Value:
    """Raises Refused."""
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise Refused("found a constant that is not in the module itself, needed dense<..>")
    if attribute.is_splat and not dtype.startswith("f8"):
        value = _splat_of(attribute)
        return Number(float(value) if dtype in FLOATS else int(value), dtype, shape)
    if math.prod(shape) > MOST_HELD:
        raise Refused(f"found {math.prod(shape)} numbers, needed at most {MOST_HELD}")
    if attribute.is_splat:  # of a dtype that is not computed with
        return text.array(np.array([_splat_of(attribute)] * math.prod(shape), NUMPY[dtype]).reshape(shape))
    if dtype == "bf16" or dtype.startswith("f8"):
        return text.array(_numbers_of(attribute, dtype, shape))
    return text.array(np.ascontiguousarray(np.asarray(attribute)).reshape(shape))


def splat(value: Any) -> float | int | None:
    """Of a value that is one number everywhere, as the module has it."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "stablehlo.constant" or isinstance(value.type.element_type, ir.ComplexType):
        return None
    attribute = owner.operation.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    found: float | int = _splat_of(attribute)
    return found


# ---- Regions.


def outside_values(regions: Sequence[Any]) -> list[Any]:
    """What regions use of what is around them, each once."""
    inside: set[Any] = set()
    found: dict[Any, None] = {}

    def visit(region: Any) -> None:
        for block in region.blocks:
            inside.update(block.arguments)
            for op in (one.operation for one in block.operations):
                for operand in op.operands:
                    if operand not in inside:
                        found[operand] = None
                inside.update(op.results)
                for inner in op.regions:
                    visit(inner)

    for region in regions:
        visit(region)
    return [value for value in found if value not in inside]


def parts_of(values: Iterable[Any]) -> list[Any]:
    """Themselves; of a tuple that is made here, its parts."""
    found: list[Any] = []
    for value in values:
        is_tuple = not isinstance(value.owner, ir.Block) and value.owner.operation.name == "stablehlo.tuple"
        found += parts_of(value.owner.operation.operands) if is_tuple else [value]
    return found


# ---- Operations.


class Op:
    """An operation that is to be written."""

    __slots__ = ("writer", "operation", "results", "values", "path", "own", "part")

    def __init__(self, writer: Writer, operation: Any, results: list[tuple[str, Shape]], values: dict[Any, Value], path: Path,
                 own: str) -> None:
        """own: what its location is called by, after that of the path."""
        self.writer, self.operation, self.results, self.values, self.path, self.own = writer, operation, results, values, path, own
        self.part = ""  #: of complex numbers: "real" or "imag", if it is written for that

    @property
    def text(self) -> ProgramText:
        return self.writer.text

    @property
    def dtype(self) -> str:
        return self.results[0][0]

    @property
    def shape(self) -> Shape:
        return self.results[0][1]

    def integer(self, name: str, otherwise: int = 0) -> int:
        attributes = self.operation.attributes
        return int(attributes[name].value) if name in attributes else otherwise

    def integers(self, name: str, otherwise: Sequence[int] = ()) -> list[int]:
        attributes = self.operation.attributes
        if name not in attributes:
            return list(otherwise)
        attribute = attributes[name]
        if isinstance(attribute, ir.DenseElementsAttr):
            return [int(n) for n in np.asarray(attribute).reshape(-1)]
        return list(attribute)

    def string(self, name: str) -> str:
        attributes = self.operation.attributes
        if name not in attributes:
            return ""
        attribute = attributes[name]
        return str(attribute.value if hasattr(attribute, "value") else attribute)

    def number_of(self, value: Any) -> float | int | None:
        """Of what is a number everywhere."""
        known = self.values.get(value)
        if isinstance(known, Number):
            return known.value
        return splat(value)

    def primitive(self, name: str, params: Mapping[str, Any], *operands: Any) -> Sequence[Any]:
        """As a primitive of JAX that does the same is written."""
        is_complex = any(isinstance(x, Complex) for x in operands) or any(dtype in PARTS for dtype, _ in self.results)
        found: Any = (_complex.rule_of(name) if is_complex else PRIMITIVES[name])(Call(self.text, params, [], self.results, self._branch, self._branch), *operands)
        return [found] if isinstance(found, (Value, Complex)) else found

    def call(self, name: str, operands: Sequence[Value]) -> list[Value]:
        """A function, in place."""
        key = next(iter(self.operation.results), None)
        return self.writer.function(name, operands, (self.own, (*self.path[1], key)))

    def _branch(self, region: Any, operands: Sequence[Value]) -> list[Value]:
        """A region without arguments of its own, that uses these of what is around it (outside_values)."""
        outside, block = region
        return self.writer.block(block, dict(zip(outside, operands)), self.path)


#: The calls that an operation is in: what the innermost is called by, and the results of each.
Path = tuple[str, tuple[Any, ...]]


class Writer:
    """Writes functions of a module."""

    def __init__(self, text: ProgramText, functions: Mapping[str, Any], mesh: GspmdMesh, source: str) -> None:
        self.text, self.mesh = text, mesh
        self.sliced: dict[tuple[tuple[Any, ...], Any], Value] = {}  #: in loops: results that are slices of what is gone through
        self.updated: set[tuple[tuple[Any, ...], Any]] = set()  #: in loops: results that are slices of what is stacked
        self.meshes: dict[str, tuple[tuple[str, int], ...]] = {}  #: of Shardy, by name: axes and sizes
        self.region: Any = None  #: that is written now: sdy.manual_computation
        self._functions, self._source = functions, source
        self._calling: list[str] = []
        self._visited = self._calls = 0
        self._root = self._line = ""  #: what paths of @main begin with; the line of the innermost call
        self._types: dict[Any, tuple[str, Shape]] = {}

    def function(self, name: str, operands: Sequence[Value], path: Path) -> list[Value]:
        """Raises Refused."""
        function = self._functions.get(name)
        if function is None or not function.regions[0].blocks:
            raise Refused(f"found a call of @{name}, which the module does not hold")
        if name in self._calling:
            raise Refused(f"found that @{name} calls itself, needed functions that end")
        self.call()
        (block,) = function.regions[0].blocks
        self._calling.append(name)
        line, self._line = self._line, self.text.source.line if isinstance(self.text.source, Place) else ""
        try:
            return self.block(block, dict(zip(block.arguments, operands)), path)
        finally:
            self._calling.pop()
            self._line = line

    def visit(self) -> None:
        """Counts operations: few functions that call each other are many."""
        self._visited += 1
        if self._visited > MOST_VISITED:
            raise Unsupported(f"{DOING}: found more than {MOST_VISITED} operations, needed at most that many")

    def call(self) -> None:
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise Unsupported(f"{DOING}: found more than {MOST_CALLS} calls, needed at most that many")

    def block_of(self, name: str) -> Any:
        """Of a function, or None."""
        function = self._functions.get(name)
        return function.regions[0].blocks[0] if function is not None and function.regions[0].blocks else None

    def block(self, block: Any, values: dict[Any, Value], path: Path) -> list[Value]:
        """What it returns. values: of its arguments and what it uses from outside."""
        for op in block.operations:
            operation = op.operation
            if operation.name == "stablehlo.tuple":
                continue
            operands = [values[operand] for operand in parts_of(operation.operands)]
            if operation.name in RETURNS:
                return operands
            values.update(zip(operation.results, self._operation(operation, operands, values, path)))
        raise Refused("found a block without an end")

    def _operation(self, operation: Any, operands: list[Value], values: dict[Any, Value], path: Path) -> Sequence[Value]:
        text, name = self.text, operation.name
        self.visit()
        own, line = name_and_line(operation.location, self._source)
        if not path[1] and not self._root:
            self._root = own.partition("/")[0] + "/"
        if path[0] and not own.startswith(self._root):  # in a function: after what called it
            own = f"{path[0]}/{own}"
        scope, backward = scope_of(own.rpartition("/")[0])
        before = text.scope, text.backward, text.source
        text.scope, text.backward, text.source = scope, backward, Place(line or self._line, scope, name.removeprefix("stablehlo."))
        try:
            # Of a call, what is inside says what no program has.
            results = [] if name == "func.call" else [self._type(result.type) for result in operation.results]
            is_complex = any(isinstance(x, Complex) for x in operands) or any(dtype in PARTS for dtype, _ in results)
            if name not in (COMPLEX_RULES if is_complex else RULES):
                raise Refused("found complex numbers" if is_complex and name in RULES else "")
            made = (COMPLEX_RULES if is_complex else RULES)[name](Op(self, operation, results, values, path, own), *operands)
            given: list[Any] = [made] if isinstance(made, (Value, Complex)) else list(made)
            return self._marked(operation, given, results)
        except Refused as refused:
            told = name.removeprefix("stablehlo.")
            reason = f"{told}: {refused}" if str(refused) else told
            return [self._refused(reason, operands, *self._known_type(result.type)) for result in operation.results]
        finally:
            text.scope, text.backward, text.source = before

    def _refused(self, reason: str, operands: Sequence[Value], dtype: str | None, shape: Shape) -> Any:
        found = self.text.refused(reason, both_parts(operands), PARTS.get(dtype or "", dtype), shape)
        return Complex(found, found) if dtype in PARTS else found

    def _marked(self, operation: Any, given: list[Any], types: Sequence[tuple[str, Shape]]) -> list[Any]:
        """What an annotation of an operation says."""
        if "sdy.sharding" in operation.attributes:
            specs = shardy_specs(operation.attributes["sdy.sharding"], [len(shape) for _, shape in types])
            given = [x if spec is None else self.marked(x, spec) for x, spec in zip(given, specs)]
        return given

    def marked(self, x: Any, spec: str) -> Any:
        """Both parts of what is complex."""
        return Complex(self.text.marked(x.real, spec), self.text.marked(x.imag, spec)) if isinstance(x, Complex) else self.text.marked(x, spec)

    def _type(self, kind: Any) -> tuple[str, Shape]:
        """Raises Refused, and Unsupported for a shape that only a run knows."""
        found = self._types.get(kind)
        if found is None:
            if is_dynamic(kind):
                raise Unsupported(f"{DOING}: {self.text.source}: found the shape of {kind}, which depends on data, needed one that is "
                                  f"known: fixed sizes in place of \"?\"")
            self._types[kind] = found = tensor_type(kind)
        return found

    def _known_type(self, kind: Any) -> tuple[str | None, Shape]:
        try:
            return self._type(kind)
        except Refused:
            return None, ()

    def argument_type(self, value: Any, label: str) -> tuple[str, Shape]:
        """Of an argument or a result of the module."""
        line = name_and_line(value.location, self._source)[1]
        self.text.source = Place(f"{line} ({label})" if line else label, "", "input")
        try:
            return self._type(value.type)
        except Refused as refused:
            raise InvalidArgument(f"{DOING}: {label}: {refused}") from None
        finally:
            self.text.source = None


def operations_of(operation: Any) -> Iterator[Any]:
    """Itself, and all inside."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield from operations_of(op.operation)
