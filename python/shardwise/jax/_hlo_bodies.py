"""What the small bodies of StableHLO's operations do: combine two numbers, or say which comes first. Those that only compare and
select are known by what they give for each order that their operands can be in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .._program_text import Refused

MOST_OPERATIONS = 16  #: of a body that combines
_BOTH_WAYS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min", "and": "and", "or": "or"}
_COMBINATIONS = {f"{theirs}({operands})": ours for theirs, ours in _BOTH_WAYS.items() for operands in ("a,b", "b,a")} | {
    "b": "set", "subtract(a,b)": "sub",
    "select(NE(subtract(a,b),subtract(a,b)),add(a,b),add(maximum(a,b),log_plus_one(exponential(negate(abs(subtract(a,b)))))))": "logaddexp"}
_FLOATS = np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan])
_INTEGERS, _NATURALS, _BOOLEANS = np.array([-2, -1, 0, 1, 2]), np.array([0, 1, 2, 3]), np.array([False, True])
MOST_ROWS = 200_000  #: of orders that are tried

NumberOf = Callable[[Any], float | int | None]  #: of what a body has from outside


def _expression(value: Any, names: dict[Any, str]) -> str:
    """As one line: "add(a,b)"."""
    if value in names or isinstance(value.owner, ir.Block):
        return names.get(value, "?")
    op = value.owner.operation
    name = op.name.partition(".")[2]
    if name == "compare":
        name = str(stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value)
    names[value] = f"{name}({','.join(_expression(operand, names) for operand in op.operands)})"
    return names[value]


def combination(region: Any) -> str:
    """Of a body of two numbers, a and b: "add", "sub", "mul", "max", "min", "and", "or", "logaddexp", or "set" if it gives b. Raises
    Refused."""
    (block,) = region.blocks
    *before, last = [op.operation for op in block.operations]
    names = ", ".join(sorted({op.name.partition(".")[2] for op in before}))
    if len(block.arguments) == 2 and len(last.operands) == 1 and len(before) <= MOST_OPERATIONS:
        found = _COMBINATIONS.get(_expression(last.operands[0], dict(zip(block.arguments, "ab"))))
        if found is not None:
            return found
    raise Refused(f"found a body of {names or 'nothing'}, needed a sum, a product, a maximum, a minimum, and, or or")


def selection(region: Any) -> str:
    """Of a body that compares its two numbers: "GE", "GT", "LE", .. Raises Refused."""
    (block,) = region.blocks
    op = next(iter(block.operations)).operation
    if op.name != "stablehlo.compare" or list(op.operands) != list(block.arguments):
        raise Refused(f"found a selection by {op.name.partition('.')[2]}, needed a comparison")
    return str(stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value)


def _values(dtype: str) -> np.ndarray:
    return _BOOLEANS if dtype == "bool" else _INTEGERS if dtype[0] == "i" else _NATURALS if dtype[0] == "u" else _FLOATS


def _grid(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Each combination, a row of them all. Raises Refused if they are too many."""
    if np.prod([float(len(one)) for one in values]) > MOST_ROWS:
        raise Refused("found a comparison of too many numbers, needed three at most")
    return [grid.reshape(-1) for grid in np.meshgrid(*values, indexing="ij")]


def _total(x: np.ndarray) -> np.ndarray:
    """Integers in the total order of floats: -0 is before 0, NaN is the last."""
    if x.dtype.kind != "f":
        return x
    bits = np.where(np.isnan(x), np.nan, x).astype(np.float64).view(np.int64)
    return np.where(np.isnan(x), np.int64(2**63 - 1), bits ^ ((bits >> 63) & np.int64(2**63 - 1)))


_COMPARE: dict[str, Callable[..., np.ndarray]] = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
                                                  "GE": np.greater_equal}
_LOGICAL: dict[str, Callable[..., np.ndarray]] = {"stablehlo.and": np.logical_and, "stablehlo.or": np.logical_or,
                                                  "stablehlo.xor": np.logical_xor, "stablehlo.not": np.logical_not}


def _computed(block: Any, operands: Sequence[np.ndarray], number_of: NumberOf) -> list[np.ndarray]:
    """What it gives, of bodies that compare with each other, 0, infinities and NaN. Raises Refused."""
    known: dict[Any, np.ndarray] = dict(zip(block.arguments, operands))

    def value_of(value: Any) -> np.ndarray:
        if value not in known:
            number = number_of(value)
            if number is None or not (number == 0 or number != number or number in (np.inf, -np.inf)):
                raise Refused("found a body that compares with a number of its own, needed one that compares its operands")
            known[value] = np.full(operands[0].shape, number)
        return known[value]

    for op in (one.operation for one in block.operations):
        if op.name == "stablehlo.constant":
            continue
        values = [value_of(operand) for operand in op.operands]
        if op.name == "stablehlo.return":
            return values
        if op.name == "stablehlo.compare":
            attributes = op.attributes
            if "compare_type" in attributes and stablehlo.ComparisonTypeAttr(attributes["compare_type"]).value == "TOTALORDER":
                values = [_total(x) for x in values]
            made = _COMPARE[stablehlo.ComparisonDirectionAttr(attributes["comparison_direction"]).value](*values)
        elif op.name == "stablehlo.select":
            made = np.where(*values)
        elif op.name in _LOGICAL and all(x.dtype == bool for x in values):
            made = _LOGICAL[op.name](*values)
        else:
            raise Refused(f"found a body with {op.name.partition('.')[2]}, needed one that compares and selects")
        known[op.results[0]] = made
    raise Refused("found a body that gives nothing, needed one that compares and selects")


def extreme_with_index(region: Any, dtype: str, number_of: NumberOf) -> str:
    """Of a body of (a, i) and (b, j): "argmax" or "argmin" if it gives the extreme, NaN before all, and the lesser index of equal
    ones. Raises Refused."""
    (block,) = region.blocks
    a, i, b, j = _grid([_values(dtype), _INTEGERS[2:], _values(dtype), _INTEGERS[2:]])
    value, index = _computed(block, [a, i, b, j], number_of)
    are_both_nan = (a != a) & (b != b)
    for name, is_before in (("argmax", a > b), ("argmin", a < b)):
        takes_a = is_before | (a != a)
        takes_i = takes_a | ((a == b) & (i < j))
        same = np.equal(value, np.where(takes_a, a, b)) | ((value != value) & ((a != a) | (b != b)))
        if same.all() and (np.equal(index, np.where(takes_i, i, j)) | are_both_nan).all():
            return name
    raise Refused("found another body than that of argmax or argmin, needed one of these")


def order(region: Any, dtypes: Sequence[str], number_of: NumberOf) -> tuple[int, bool]:
    """Of a body that says whether a comes before b: by how many of the first operands, and whether the largest comes first. What
    it says of -0 and 0 is not asked for, and of NaN only if it orders them. Raises Refused."""
    (block,) = region.blocks
    arguments = list(block.arguments)
    used = [number for number, argument in enumerate(arguments) if list(argument.uses)]
    keys = max(used, default=0) // 2 + 1
    grid = _grid(list(itertools.chain.from_iterable((_values(d), _values(d)) for d in dtypes[:keys])))
    rows = grid[0].shape
    operands = grid + [np.zeros(rows) for _ in arguments[2 * keys:]]
    (said,) = _computed(block, operands, number_of)
    is_same_zero, has_nan = np.zeros(rows, bool), np.zeros(rows, bool)
    before, after, equal = np.zeros(rows, bool), np.zeros(rows, bool), np.ones(rows, bool)
    for a, b in zip(grid[::2], grid[1::2]):
        a_nan, b_nan = a != a, b != b
        has_nan |= a_nan | b_nan
        is_same_zero |= (a == 0) & (b == 0) & (np.signbit(a.astype(float)) != np.signbit(b.astype(float)))
        before |= equal & ((a < b) | (b_nan & ~a_nan))
        after |= equal & ((a > b) | (a_nan & ~b_nan))
        equal &= (a == b) | (a_nan & b_nan)
    for expected, is_descending in ((before, False), (after, True)):
        same = (said == expected) | is_same_zero
        if (same | has_nan).all() and (same.all() or (keys == 1 and not said[has_nan].any())):
            return keys, is_descending
    raise Refused("found another comparison than that of the first operands, all ascending or all descending, needed one of these")
