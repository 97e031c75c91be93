"""while as scan: a loop that counts, as jax.lax.scan and fori_loop are lowered. What a trip does with the counter is followed first,
through calls; then the body is written, where a slice by the counter is one of what is gone through or stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .._program_text import PARTS, Complex, Number, Refused, Value
from ._hlo_writer import RETURNS, Op, outside_values, rule, splat, tensor_type
from ._while import MOST_TRIPS, trips

_UNKNOWN = "how many steps it takes is known only when it runs, needed a loop of a fixed length, as jax.lax.scan and fori_loop"

_COUNTERS = {f"tensor<{dtype}>" for dtype in ("i32", "i64", "ui32", "ui64")}


@dataclass(frozen=True, slots=True)
class _Line:
    """An integer: scale * trip + start."""

    scale: int
    start: int


@dataclass(frozen=True, slots=True)
class _Given:
    """What the body is given and has not changed: a carried tensor by its number, or a value from outside."""

    what: Any


@dataclass(frozen=True, slots=True)
class _Updated:
    """A carried tensor with a slice replaced, that of the trip."""

    number: int
    key: tuple[tuple[Any, ...], Any]


_Known = _Line | _Given | _Updated | None


@dataclass
class _Use:
    """What a body does with what it is given."""

    by_others: set[Any] = field(default_factory=set)  #: _Given.what; a counter is one of them, too
    slices: dict[tuple[tuple[Any, ...], Any], Any] = field(default_factory=dict)  #: by place: of what
    updates: dict[int, int] = field(default_factory=dict)  #: by number: how many


class _Followed:
    """A body whose trips go through slices 0, 1, .. or, reversed, the last first."""

    def __init__(self, op: Op, counter: int, start: int, step: int, length: int, reverse: bool) -> None:
        self._op, self._counter, self._length = op, counter, length
        self._slice = _Line(-1, length - 1) if reverse else _Line(1, 0)
        self.use = _Use()
        (block,) = op.operation.regions[1].blocks
        known: dict[Any, _Known] = {argument: _Given(number) for number, argument in enumerate(block.arguments)}
        known[block.arguments[counter]] = _Line(step, start)
        self.given = self._block(block, known, op.path[1], [])

    def _block(self, block: Any, known: dict[Any, _Known], path: tuple[Any, ...], calling: list[str]) -> list[_Known]:
        for op in (one.operation for one in block.operations):
            self._op.writer.visit()
            operands = [self._known(operand, known) for operand in op.operands]
            if op.name in RETURNS:
                return operands
            results: Sequence[_Known] | None = None
            if op.name == "func.call":
                results = self._call(op, operands, path, calling)
            elif len(op.results) == 1:
                found = self._one(op, operands, path)
                results = None if found is None else [found]
            if results is None:
                self._used(operands)
                self._used([self._known(value, known) for value in outside_values(op.regions)] if len(op.regions) else ())
                results = [None] * len(op.results)
            known.update(zip(op.results, results))
        return []

    def _known(self, value: Any, known: dict[Any, _Known]) -> _Known:
        if value in known:
            return known[value]
        number = self._op.number_of(value)
        if isinstance(number, int) and isinstance(value.type, ir.RankedTensorType) and not value.type.shape:
            known[value] = _Line(0, int(number))
        else:
            known[value] = _Given(value)
        return known[value]

    def _used(self, operands: Sequence[_Known]) -> None:
        for one in operands:
            if isinstance(one, _Given):
                self.use.by_others.add(one.what)
            elif isinstance(one, _Updated):
                self.use.by_others.add(one.number)
            elif isinstance(one, _Line) and one.scale:
                self.use.by_others.add(self._counter)

    def _call(self, op: Any, operands: list[_Known], path: tuple[Any, ...], calling: list[str]) -> list[_Known] | None:
        name = str(op.attributes["callee"].value)
        block = self._op.writer.block_of(name)
        if block is None or name in calling:
            return None
        self._op.writer.call()
        key = next(iter(op.results), None)
        return self._block(block, dict(zip(block.arguments, operands)), (*path, key), [*calling, name])

    def _one(self, op: Any, operands: list[_Known], path: tuple[Any, ...]) -> _Known:
        """Of an operation with one result; None if that is nothing that is followed."""
        name, lines = op.name, [one for one in operands if isinstance(one, _Line)]
        key = path, op.results[0]
        if name == "stablehlo.constant":
            return self._known(op.results[0], {})
        if name == "stablehlo.dynamic_slice" and isinstance(operands[0], _Given) \
                and self._is_of_trip(op, operands[1:], list(op.attributes["slice_sizes"])):
            self.use.slices[key] = operands[0].what
            return _Given(key)  # of no name that anything asks for
        if name == "stablehlo.dynamic_update_slice" and isinstance(operands[0], _Given) and isinstance(operands[0].what, int) \
                and self._is_of_trip(op, operands[2:], list(op.operands[1].type.shape)):
            self._used(operands[1:2])
            self.use.updates[operands[0].what] = self.use.updates.get(operands[0].what, 0) + 1
            return _Updated(operands[0].what, key)
        if len(lines) != len(operands) or not lines or str(op.results[0].type) not in _COUNTERS:
            return None
        if name in ("stablehlo.add", "stablehlo.subtract"):
            sign = 1 if name == "stablehlo.add" else -1
            return _Line(lines[0].scale + sign * lines[1].scale, lines[0].start + sign * lines[1].start)
        return lines[0] if name in ("stablehlo.convert", "stablehlo.reshape") else None

    def _is_of_trip(self, op: Any, starts: Sequence[_Known], sizes: list[int]) -> bool:
        """Whether it is the whole of one slice along dim 0, of as many as there are trips."""
        shape = list(op.operands[0].type.shape)
        return bool(starts) and starts[0] == self._slice and all(one == _Line(0, 0) for one in starts[1:]) \
            and shape[0] == self._length and sizes == [1, *shape[1:]]


def _asked(value: Any) -> list[Any]:
    """The operations that must all be true; None for what is none."""
    if isinstance(value.owner, ir.Block):
        return [None]
    op = value.owner.operation
    if op.name == "stablehlo.and":
        return [one for part in op.operands for one in _asked(part)]
    # JAX makes a strong type of a weak one: whether it is another than false.
    is_not_false = op.name == "stablehlo.compare" and str(op.operands[0].type) == "tensor<i1>" and _is_false(op.operands[1]) \
        and stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value == "NE"
    is_same = op.name == "stablehlo.convert" and op.operands[0].type == value.type
    return _asked(op.operands[0]) if is_same or is_not_false else [op]


def _is_false(value: Any) -> bool:
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        value = value.owner.operation.operands[0]
    return splat(value) == 0


def _counted(op: Op, compare: Any, operands: Sequence[Value]) -> tuple[int, int, int, int]:
    """The number of the counter, its start, its step, and after how many trips the comparison is false. Raises Refused."""
    condition, body = (region.blocks[0] for region in op.operation.regions)
    if compare is None or compare.name != "stablehlo.compare":
        raise Refused(_UNKNOWN)
    arguments, returned = list(condition.arguments), list(list(body.operations)[-1].operation.operands)

    def number_of(value: Any) -> float | int | None:
        """A constant, or what is carried without a change."""
        if value in arguments:
            place = arguments.index(value)
            given = operands[place]
            return given.value if isinstance(given, Number) and returned[place] == body.arguments[place] else None
        return op.number_of(value)

    direction = stablehlo.ComparisonDirectionAttr(compare.attributes["comparison_direction"]).value
    left, right = compare.operands
    if left not in arguments or number_of(left) is not None:
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    limit = number_of(right)
    counter = arguments.index(left) if left in arguments else -1
    start = operands[counter]
    if counter < 0 or limit is None or not isinstance(start, Number) or start.shape or start.dtype[0] not in "iu":
        raise Refused(_UNKNOWN)
    step = _step(op, counter)
    first, last = int(start.value), int(limit)
    length = trips(direction.lower(), first, last, step, start.dtype) if direction != "EQ" else None
    if length is None:
        raise Refused(_UNKNOWN)
    return counter, first, step, length


def _step(op: Op, counter: int) -> int:
    """What a trip adds to the counter. Raises Refused."""
    found = _Followed(op, counter, 0, 1, 0, False).given[counter]  # as if the counter was the trip
    if not isinstance(found, _Line) or found.scale != 1:
        raise Refused(_UNKNOWN)
    return found.start


@rule("stablehlo.while")
def _while(op: Op, *operands: Value) -> Sequence[Value]:
    asked = _asked(list(op.operation.regions[0].blocks[0].operations)[-1].operation.operands[0])
    if len(asked) > 1:
        return _until(op, operands, asked)
    counter, start, step, length = _counted(op, asked[0], operands)
    followed = _Followed(op, counter, start, step, length, False)
    reverse = not followed.use.slices and not followed.use.updates
    if reverse:
        followed = _Followed(op, counter, start, step, length, True)
        reverse = bool(followed.use.slices or followed.use.updates)
    return _scan(op, operands, followed, counter, start + step * length, length, reverse)


def _until(op: Op, operands: Sequence[Value], asked: Sequence[Any]) -> list[Value]:
    """A loop that may end before it has counted to its limit: as many trips as that, of which those after its end do nothing."""
    lengths = []
    for compare in asked:
        try:
            lengths.append(_counted(op, compare, operands)[3])
        except Refused:
            continue
    if not lengths or min(lengths) > MOST_TRIPS:
        raise Refused(_UNKNOWN)
    condition, body = (region.blocks[0] for region in op.operation.regions)
    outside = outside_values(op.operation.regions)

    def values_of(block: Any, given: Sequence[Value]) -> dict[Any, Value]:
        return dict(zip([*outside, *block.arguments], given))

    def trip(given: list[Value]) -> Sequence[Value]:
        (goes_on,) = op.writer.block(condition, values_of(condition, given), op.path)
        return op.text.cond(goes_on, given, lambda inside: op.writer.block(body, values_of(body, inside), op.path), lambda inside: inside[len(outside):])

    return op.text.scan([op.values[value] for value in outside], operands, (), min(lengths), False, trip)


def _scan(op: Op, operands: Sequence[Value], followed: _Followed, counter: int, end: int, length: int, reverse: bool) -> Sequence[Value]:
    text, writer, use = op.text, op.writer, followed.use
    (block,) = op.operation.regions[1].blocks
    arguments = list(block.arguments)
    numbers = range(len(arguments))
    types = [tensor_type(argument.type) for argument in arguments]
    sliced = set(use.slices.values())
    kept = {n for n in numbers if followed.given[n] == _Given(n)}  # carried without a change
    stacked: dict[int, tuple[tuple[Any, ...], Any]] = {}
    for n in numbers:
        given, others = followed.given[n], [other for m, other in enumerate(followed.given) if m != n]
        is_elsewhere = any(other == _Given(n) or (isinstance(other, _Updated) and other.number == n) for other in others)
        if isinstance(given, _Updated) and given.number == n and use.updates[n] == 1 and not is_elsewhere \
                and n not in use.by_others and n not in sliced:
            stacked[n] = given.key
    # What is gone through, each tensor once; only what does not change is. Other slices are taken by the counter.
    outside = outside_values([op.operation.regions[1]])
    through = [what for what in [*kept, *outside] if what in sliced]
    by_counter = sliced.difference(through) | (use.updates.keys() - stacked.keys())
    use.by_others |= by_counter | ({counter} if by_counter else set())
    is_counter_used = counter in use.by_others or _is_given(followed, counter)
    carried = [n for n in numbers if n not in kept and n not in stacked and (n != counter or is_counter_used)]
    moved = {other.what for m, other in enumerate(followed.given) if isinstance(other, _Given) and other != _Given(m)}  # to other places
    of_whole = (use.by_others | moved).difference(carried)

    wholes = [n for n in kept if n in of_whole] + [value for value in outside if value in of_whole or isinstance(op.values[value], Number)]

    def value_of(what: Any) -> Value:
        return operands[what] if isinstance(what, int) else op.values[what]

    consts, xs = [value_of(what) for what in wholes], [value_of(what) for what in through]

    def write(given: list[Value]) -> list[Value]:
        values: dict[Any, Value] = {}
        for n in numbers:
            values[arguments[n]] = _nothing(*types[n])  # of what nothing asks for
        for value in outside:
            values[value] = _nothing(op.values[value].dtype, op.values[value].shape)
        inside = dict(zip([*wholes, *carried], given))
        for what, x in inside.items():
            values[arguments[what] if isinstance(what, int) else what] = x
        slices = dict(zip(through, given[len(inside):]))
        for key, what in use.slices.items():
            if what in slices:
                writer.sliced[key] = slices[what]
        writer.updated.update(stacked.values())
        found = writer.block(block, values, op.path)
        return [found[n] for n in carried] + [found[n] for n in stacked]

    made = text.scan(consts, [operands[n] for n in carried], xs, length, reverse, write)
    results: dict[int, Value] = dict(zip([*carried, *stacked], made))
    results[counter] = results.get(counter, Number(end, *types[counter]))
    return [results.get(n, operands[n]) for n in numbers]


def _nothing(dtype: str, shape: Sequence[int]) -> Any:
    zeros = Number(0, PARTS.get(dtype, dtype), tuple(shape))
    return Complex(zeros, zeros) if dtype in PARTS else zeros


def _is_given(followed: _Followed, counter: int) -> bool:
    """Whether another carried tensor becomes what the counter is."""
    return any(isinstance(one, _Line) and one.scale for n, one in enumerate(followed.given) if n != counter)
