"""Compares every op of our programs with jax.lax, whose names and meaning they have (runtime/graph/op.h).

lax_cases (C++) runs a table of special values and random programs, on one device and on eight, and writes each node
with its operands and results. Here jax.lax computes the node from the same operands.

Results of integers and bool are equal; floats of ops that round once are equal, too, signs of zeros included; where
one is NaN, the other is. Other floats differ by at most ULPS units in the last place, sums by their rounding errors.

JAX on a CPU takes numbers too small to be normal as zeros, and rounds f16 and bf16 more or less often. So it is given
floats of at most 4 bytes as f64, which has room for them and for results of two of them; the result is rounded
here, once. It is given them as they are, too, for where there are NaN, infinities and zeros. Where f64 itself is too
small to be normal, numpy is asked instead.
"""

import dataclasses
import functools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
# Not optimised, it compiles in half the time.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from lax_case import BITS, COMPUTED, DTYPES, FLOATS, INTEGERS, NAMES, NUMBERS, Array, Case, read_cases
from lax_windows import jax_lacks, reduce_window, select_and_scatter_add, window_max, windows_of

jax.config.update("jax_enable_x64", True)

# Cases of random programs that are compiled for each op that is not elementwise, at 10 ms each.
SHAPES = 8


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[Case]]:
    return read_cases(tmp_path_factory.mktemp("lax") / "cases")


@pytest.fixture(autouse=True)
def numpy_says_nothing_of_nan() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def is_float(dtype: Any) -> bool:
    return NAMES[dtype] in FLOATS


def is_small(x: Array) -> Array:
    """Too small to be normal."""
    return (x != 0) & (np.abs(x) < ml_dtypes.finfo(x.dtype).smallest_normal)


def in_order(x: Array) -> Array:
    """Floats as integers, neighbours one apart and both zeros one number."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.int64(-1 << (8 * x.dtype.itemsize - 1)) - bits, bits)


def ulps(a: Array, b: Array) -> Array:
    """0 where both are NaN or equal."""
    x, y = in_order(a), in_order(b)
    far = np.abs(x.astype(np.float64) - y.astype(np.float64))
    near = np.where(far < 2**52, np.abs(x - y), np.int64(2**52))
    return np.where(np.isnan(a) & np.isnan(b), 0, np.where(np.isnan(a) | np.isnan(b), 2**52, near))


def differs(found: Array, expected: Array, most_ulps: int, zeros_have_signs: Array) -> Array:
    if not is_float(found.dtype):
        return found != expected
    wrong = ulps(found, expected) > most_ulps
    wrong |= np.isfinite(found) != np.isfinite(expected) if most_ulps == 0 else False
    zeros = (found == 0) & (expected == 0) & zeros_have_signs
    return wrong | (zeros & (np.signbit(found) != np.signbit(expected)))


# Element by element: the dtypes that each takes, what JAX has for it, and numpy for f64 too small to be normal.

def logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def integer_power(base: Array, exponent: Array) -> Array:
    """lax has none of two integers: a negative power is the reciprocal, truncated."""
    mask = (1 << 8 * base.dtype.itemsize) - 1
    def power(b: int, e: int) -> int:
        return pow(b, e, mask + 1) if e >= 0 else {1: 1, -1: -1 if e % 2 else 1}.get(b, 0) & mask
    values = [power(b, e) & mask for b, e in zip(base.tolist(), exponent.tolist())]
    return np.array(values, np.uint64).astype(f"u{base.dtype.itemsize}").view(base.dtype)


ULPS = {"exp2": 4, "expm1": 4, "log1p": 4, "erf_inv": 4, "cbrt": 4, "atan2": 4,
        "exp": 4, "log": 4, "tanh": 4, "logistic": 4, "erf": 4, "sin": 4, "cos": 4, "pow": 4, "rsqrt": 1}
# lax itself is off: tanh(19.1) is 1, it gives 1 - 7 units; so are log1p around -0.4 and erf_inv around 0.64.
FARTHER = {("tanh", "f64"): 8, ("log1p", "f64"): 256, ("erf_inv", "f64"): 32}


ELEMENTWISE: dict[str, tuple[set[str], Callable[..., Any], Callable[..., Any]]] = {
    "neg": (NUMBERS, lax.neg, np.negative),
    "abs": (NUMBERS, jnp.abs, np.abs),
    "sign": (NUMBERS, lax.sign, np.sign),
    "exp": (set(FLOATS), lax.exp, np.exp),
    "exp2": (set(FLOATS), lambda x: lax.pow(jnp.full_like(x, 2), x), np.exp2),  # lax.exp2 is exp of a rounded product
    "expm1": (set(FLOATS), lax.expm1, np.expm1),
    "log": (set(FLOATS), lax.log, np.log),
    "log1p": (set(FLOATS), lax.log1p, np.log1p),
    "erf_inv": (set(FLOATS), lax.erf_inv, lambda x: x * (math.sqrt(math.pi) / 2)),  # of numbers near 0
    "cbrt": (set(FLOATS), lax.cbrt, np.cbrt),
    "atan2": (set(FLOATS), lax.atan2, np.arctan2),
    "tanh": (set(FLOATS), lax.tanh, np.tanh),
    "logistic": (set(FLOATS), lax.logistic, logistic),
    "erf": (set(FLOATS), lax.erf, np.vectorize(math.erf, otypes=[np.float64])),
    "sqrt": (set(FLOATS), lax.sqrt, np.sqrt),
    "rsqrt": (set(FLOATS), lax.rsqrt, lambda x: 1 / np.sqrt(x)),
    "sin": (set(FLOATS), lax.sin, np.sin),
    "cos": (set(FLOATS), lax.cos, np.cos),
    "floor": (set(FLOATS), lax.floor, np.floor),
    "ceil": (set(FLOATS), lax.ceil, np.ceil),
    "round": (set(FLOATS), lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), np.round),
    "is_finite": (set(FLOATS), lax.is_finite, np.isfinite),
    "logical_not": (BITS, lax.bitwise_not, np.invert),
    "population_count": (set(INTEGERS), lax.population_count, np.bitwise_count),
    "shift_left": (set(INTEGERS), lax.shift_left, np.left_shift),
    "shift_right_logical": (set(INTEGERS), lax.shift_right_logical, np.right_shift),
    "shift_right_arithmetic": (set(INTEGERS), lax.shift_right_arithmetic, np.right_shift),
    "add": (NUMBERS, lax.add, np.add),
    "sub": (NUMBERS, lax.sub, np.subtract),
    "mul": (NUMBERS, lax.mul, np.multiply),
    "div": (NUMBERS, lax.div, np.divide),
    "rem": (NUMBERS, lax.rem, np.fmod),
    "max": (COMPUTED, lax.max, np.maximum),
    "min": (COMPUTED, lax.min, np.minimum),
    "pow": (NUMBERS, lax.pow, np.power),
    "eq": (COMPUTED, lax.eq, np.equal),
    "ne": (COMPUTED, lax.ne, np.not_equal),
    "lt": (COMPUTED, lax.lt, np.less),
    "le": (COMPUTED, lax.le, np.less_equal),
    "gt": (COMPUTED, lax.gt, np.greater),
    "ge": (COMPUTED, lax.ge, np.greater_equal),
    "logical_and": (BITS, lax.bitwise_and, np.bitwise_and),
    "logical_or": (BITS, lax.bitwise_or, np.bitwise_or),
    "logical_xor": (BITS, lax.bitwise_xor, np.bitwise_xor),
    "select": (COMPUTED, lax.select, np.where),
}


def small_in(operands: list[Array], made: Array) -> Array:
    """Where a number too small to be normal may be, in f64."""
    small = np.zeros(made.shape, bool)
    floats = [x for x in operands if x.dtype == np.float64]
    for x in floats:
        small |= is_small(x)
    if floats and made.dtype == np.float64:
        small |= is_small(made) | ((made == 0) & np.logical_and.reduce([x != 0 for x in floats]))
    return small


def widened(x: Array) -> Array:
    return x.astype(np.float64) if is_float(x.dtype) else x


def of_dtype(op: str, operands: list[Array], made: Array, dtype: Any) -> Array:
    """What lax made of widened operands."""
    small = small_in(operands, made)
    if small.any() and op != "select":
        made = made.copy()
        made[small] = ELEMENTWISE[op][2](*(x[small] for x in operands))
    return made.astype(dtype)


def is_other_kind(operands: list[Array], found: Array, own: Array) -> Array:
    """Where lax gives a NaN, an infinity or a zero, or a sign of these, and we do not, or the reverse."""
    least = ml_dtypes.finfo(found.dtype).smallest_normal
    small = (np.abs(found) <= least) & (found != 0) | is_small(own)  # lax makes it zero before it is rounded up
    for x in operands:
        if is_float(x.dtype):
            small |= is_small(x)
    same = (np.isnan(found) == np.isnan(own)) & (np.isinf(found) == np.isinf(own)) & ((found == 0) == (own == 0))
    signs = ((found != 0) & ~np.isinf(found)) | np.isnan(found) | (np.signbit(found) == np.signbit(own))
    return ~small & ~(same & signs)


# Moved, reduced, by index: the dtypes, and what JAX has for it.

def starts(case: Case, first: int, part: tuple[int, ...]) -> list[int]:
    """Clamped: lax adds the extent to negative ones first."""
    whole = case.operands[0].shape
    return [int(np.clip(s, 0, w - p)) for s, w, p in zip(case.operands[first:], whole, part)]


def along(ids: Any, dim: int) -> tuple[Any, ...]:
    grids = list(jnp.indices(ids.shape, sparse=True))
    grids[dim] = ids
    return tuple(grids)


def number_of_terms(case: Case) -> int:
    """The most that are added up for one element."""
    if case.op in ("reduce_sum", "reduce_prod"):
        return math.prod(case.operands[0].shape[d] for d in case.dims)
    if case.op == "reduce_window_sum":
        return math.prod(windows_of(case).window)
    if case.op.startswith("cum"):
        return case.operands[0].shape[case.dims[0]]
    return max(x.size for x in case.operands)


def convolution(case: Case, x: Any, w: Any) -> Any:
    lhs, rhs, out, stride, low, high, lhs_dilation, rhs_dilation, (features, batches) = json.loads(case.text)
    return lax.conv_general_dilated(
        x, w, stride, list(zip(low, high)), lhs_dilation, rhs_dilation,
        lax.ConvDimensionNumbers(tuple(lhs), tuple(rhs), tuple(out)), features, batches, precision="highest")


def scatter(case: Case, x: Any, ids: Any, updates: Any) -> Any:
    """jax.numpy counts negative ids from the end first, which lax's scatter does not."""
    combination, mode = json.loads(case.text)
    extent = x.shape[case.dims[0]]
    ids = jnp.where(ids < 0, extent, ids) if mode == 2 else jnp.clip(ids, 0, extent - 1)
    at = x.at[(slice(None),) * case.dims[0] + (ids,)]
    return getattr(at, ("set", "add", "mul", "min", "max")[combination])(updates, mode="drop")


MOVES: dict[str, Callable[..., Any]] = {
    "bitcast": lambda c, x: x,
    "literal": lambda c: as_bits(np.frombuffer(bytes.fromhex(c.text), c.dtype).reshape(c.shape)),
    "identity": lambda c, x: x,
    "stop_gradient": lambda c, x: lax.stop_gradient(x),
    "optimization_barrier": lambda c, x: lax.optimization_barrier(x),
    "broadcast": lambda c, x: lax.broadcast_in_dim(x, c.shape, c.dims),
    "transpose": lambda c, x: lax.transpose(x, c.dims),
    "reshape": lambda c, x: lax.reshape(x, c.shape),
    "slice": lambda c, x: lax.slice(x, c.begin, c.end, c.stride),
    "concatenate": lambda c, *x: lax.concatenate(x, c.dims[0]),
    "reverse": lambda c, x: lax.rev(x, c.dims),
    "take": lambda c, x, ids: jnp.take(x, ids, c.dims[0], mode="clip"),
    "take_along": lambda c, x, ids: jnp.take_along_axis(x, ids, c.dims[0], mode="clip"),
    "dynamic_slice": lambda c, x, *_: lax.dynamic_slice(x, starts(c, 1, c.shape), c.shape),
    "dynamic_update_slice": lambda c, x, y, *_: lax.dynamic_update_slice(x, y, starts(c, 2, c.operands[1].shape)),
    "enter_manual": lambda c, x: x,
    "leave_manual": lambda c, x: x,
}
SUMS: dict[str, Callable[..., Any]] = {
    "reduce_sum": lambda c, x: lax.reduce_sum(x, c.dims),
    "reduce_prod": lambda c, x: lax.reduce_prod(x, c.dims),
    "cumsum": lambda c, x: lax.cumsum(x, c.dims[0], descends(c)),
    "cumprod": lambda c, x: lax.cumprod(x, c.dims[0], descends(c)),
    "cumlogsumexp": lambda c, x: lax.cumlogsumexp(x, c.dims[0], descends(c)),
    "dot_general": lambda c, x, y: jnp.einsum(c.text, x, y, precision="highest",
                                           preferred_element_type=None if is_float(c.dtype) else c.dtype),
    "convolution": lambda c, x, w: convolution(c, x, w),
    "reduce_window_sum": lambda c, x: reduce_window(c, x, np.zeros((), x.dtype), lax.add),
    "select_and_scatter_add": select_and_scatter_add,
    "scatter": scatter,
    "scatter_add": lambda c, ids, x: jnp.zeros(c.shape, x.dtype).at[(slice(None),) * c.dims[0] + (ids,)].add(x),
    "scatter_add_along": lambda c, ids, x: jnp.zeros(c.shape, x.dtype).at[along(ids, c.dims[0])].add(x),
}
def so_far(case: Case, x: Array, function: Any) -> Array:
    """-0 is less than 0, which numpy does not say."""
    rows = list(np.moveaxis(x, case.dims[0], 0))[::-1 if descends(case) else 1]
    for i in range(1, len(rows)):
        a, b = rows[i - 1], rows[i]
        first = np.signbit(a) == (function is np.minimum)
        rows[i] = np.where((a == 0) & (b == 0), np.where(first, a, b), function(a, b))
    return np.moveaxis(np.stack(rows[::-1 if descends(case) else 1]), 0, case.dims[0])


def least_of(dtype: Any) -> Any:
    return np.array(-np.inf if is_float(dtype) else False if dtype == np.bool_ else np.iinfo(dtype).min, dtype)


def index_of(numpy: Any, case: Case, x: Any, y: Any) -> Any:
    wanted = numpy.expand_dims(y, case.dims[0])
    is_it = (x == wanted) | ((x != x) & (wanted != wanted))
    first = numpy.argmax(is_it, case.dims[0])
    return numpy.where(is_it.any(case.dims[0]), first, 2**31 - 1).astype(np.int32)


ORDERS: dict[str, tuple[Callable[..., Any], Callable[..., Array]]] = {
    "reduce_max": (lambda c, x: lax.reduce_max(x, c.dims), lambda c, x: np.max(x, tuple(c.dims))),
    "reduce_min": (lambda c, x: lax.reduce_min(x, c.dims), lambda c, x: np.min(x, tuple(c.dims))),
    "reduce_window_max": (lambda c, x: reduce_window(c, x, least_of(x.dtype), lax.max), window_max),
    "cummax": (lambda c, x: lax.cummax(x, c.dims[0], descends(c)), lambda c, x: so_far(c, x, np.maximum)),
    "cummin": (lambda c, x: lax.cummin(x, c.dims[0], descends(c)), lambda c, x: so_far(c, x, np.minimum)),
    "index_of": (functools.partial(index_of, jnp), functools.partial(index_of, np)),
    "argsort": (lambda c, x: jnp.argsort(x, axis=c.dims[0], stable=True, descending=descends(c)).astype(np.int32),
                lambda c, x: stable_order(x, c.dims[0], descends(c))),
}
TAKES = {**{op: set(DTYPES) for op in ("input", *MOVES)}, **{op: NUMBERS for op in SUMS}, **{op: COMPUTED for op in ORDERS},
         "cummax": NUMBERS, "cummin": NUMBERS, "cumlogsumexp": set(FLOATS),
         **{op: dtypes for op, (dtypes, _, _) in ELEMENTWISE.items()}, "pad": COMPUTED, "convert": COMPUTED,
         "constant": COMPUTED, "iota": NUMBERS, "random_bits": {"u32"}, "manual_all_reduce": COMPUTED,
         "enter_manual": COMPUTED, "leave_manual": COMPUTED}


def descends(case: Case) -> bool:
    return int(case.number[1], 16) != 0


def stable_order(x: Array, dim: int, descending: bool) -> Array:
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    last = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - last, dim)


def as_bits(x: Array) -> Array:
    return x if x.dtype == np.complex128 else x.view(f"u{x.dtype.itemsize}")


def all_reduce(case: Case, x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "x")
    by_column = jax.sharding.PartitionSpec(None, "x")
    combine = {1: lax.psum, 2: lax.pmax, 3: lax.pmin}[int(case.number[1], 16)]
    made = jax.shard_map(lambda mine: combine(mine, "x"), mesh=mesh, in_specs=by_column, out_specs=by_column)(x)
    # pmax and pmin between devices of a CPU may ignore a NaN, which lax.max and lax.min do not.
    return made if x.dtype != np.float64 else jnp.where(jnp.isnan(x).any(1, keepdims=True), np.nan, made)


def asked(case: Case) -> tuple[Callable[..., Any], list[Array]]:
    """The function of JAX for a case, and its arrays."""
    op = case.op
    if op in MOVES:
        return MOVES[op], [x if op in ("take", "take_along") and i == 1 else as_bits(x) for i, x in enumerate(case.operands)]
    if op == "pad":
        sizes = [(low, high, stride - 1) for low, high, stride in zip(case.begin, case.end, case.stride)]
        value = as_bits(case.number_of_dtype().reshape(1))[0]
        return lambda c, x: lax.pad(x, value, sizes), [as_bits(x) for x in case.operands]
    if op == "iota":
        # Whole numbers that a narrow float has not are rounded twice in lax.
        exact = np.int64 if is_float(case.dtype) else case.dtype
        return lambda c: lax.broadcasted_iota(exact, c.shape, c.dims[0]), []
    wide = [x.astype(np.float64) if is_float(x.dtype) else x for x in case.operands]
    if op in ORDERS:
        return ORDERS[op][0], wide
    if op == "manual_all_reduce":
        return all_reduce, wide
    return SUMS[op], wide


def ask_all(cases: list[Case]) -> list[Array]:
    """Cases that JAX cannot tell apart are asked at once, as are those of dtypes of one size if it moves bits."""
    alike: dict[str, list[int]] = defaultdict(list)
    questions = [asked(case) for case in cases]
    for i, (case, (_, operands)) in enumerate(zip(cases, questions)):
        by_value = [x.tolist() for x in case.operands if case.op.startswith("dynamic") and x.ndim == 0]
        number = case.number_of_dtype().tobytes() if case.op == "pad" else case.number
        key = (case.op, case.dims, case.begin, case.end, case.stride, case.text, number, case.shape, by_value,
               [(x.dtype, x.shape) for x in operands], case.op == "dot_general" and case.dtype,
               case.op in ("literal", "iota", "manual_all_reduce") and i)
        alike[str(key)].append(i)
    made: list[Any] = [None] * len(cases)
    groups = list(alike.values())
    for first in range(0, len(groups), 32):
        chunk = groups[first:first + 32]
        stacks = [[np.stack(xs) for xs in zip(*(questions[i][1] for i in group))] for group in chunk]
        answers = jax.jit(functools.partial(answer, [(questions[group[0]][0], cases[group[0]]) for group in chunk]))(stacks)
        for group, answered in zip(chunk, answers):
            for i, x in zip(group, np.asarray(answered)):
                made[i] = x
    return made


def answer(questions: list[tuple[Callable[..., Any], Case]], stacks: list[list[Any]]) -> list[Any]:
    return [jax.vmap(functools.partial(function, case))(*xs) if len(xs) > 0 and xs[0].shape[0] > 1 else
            jnp.expand_dims(function(case, *(x[0] for x in xs)), 0) for (function, case), xs in zip(questions, stacks)]


def expected_of(case: Case, made: Array) -> Array:
    if case.op in MOVES or case.op == "pad":
        return made
    if case.op in ORDERS:
        x = case.operands[0]
        if x.dtype == np.float64 and is_small(x).any():
            goes = case.op in ("index_of", "reduce_max", "reduce_min")
            some = np.any(is_small(x), tuple(case.dims), keepdims=not goes)
            asked_of = True if case.op == "reduce_window_max" else some
            made = np.where(asked_of, ORDERS[case.op][1](case, *case.operands), made)
    if case.op == "manual_all_reduce" and case.dtype == np.float64 and is_small(case.operands[0]).any():
        x, combine = case.operands[0], {1: np.sum, 2: np.max, 3: np.min}[int(case.number[1], 16)]
        made = np.where(is_small(x).any(1, keepdims=True), combine(x, 1, keepdims=True), made)
    return made.astype(case.dtype)


def wrong_in(case: Case, made: Array, total: Array | None) -> str:
    for found in case.found:
        if case.op in MOVES or case.op == "pad":
            wrong = as_bits(found) != made
        elif total is not None:
            # Added up in f32 at least, and rounded: once, and before it those parts that devices have.
            unit = 2.0**-53 if case.dtype == np.float64 else 2.0**-24
            most = (number_of_terms(case) * unit + float(ml_dtypes.finfo(case.dtype).eps)) * total + 2.0**-126
            wide, expected = found.astype(np.float64), expected_of(case, made)
            wrong = ~((np.abs(wide - made) <= most) | (found == expected) | (np.isnan(found) & np.isnan(expected)))
        else:
            wrong = differs(found, expected_of(case, made), 0, np.array(case.zeros))
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
            return (f"{case.origin}: {case.signature()} at {at}: found {np.atleast_1d(found)[at]!r}, lax gives "
                    f"{np.atleast_1d(expected_of(case, made))[at]!r}; {int(wrong.sum())} in all")
    return ""


def all_of(cases: list[Case], operand: int) -> Array:
    """That operand of all cases, one after the other; the results if `operand` is their number."""
    return np.concatenate([(case.operands + [found])[operand].ravel() for case in cases for found in case.found])


def first_wrong(op: str, wrong: Array, operands: list[Array], found: Array, expected: Array) -> list[str]:
    return [f"{op} of {', '.join(repr(x[at]) for x in operands)}: found {found[at]!r}, lax gives {expected[at]!r}, "
            f"one of {int(wrong.sum())}" for at in np.flatnonzero(wrong)[:3]]


def test_every_op_has_cases_of_each_dtype_that_it_takes(written: tuple[list[str], list[Case]]) -> None:
    ops, cases = written
    found = defaultdict(set)
    for case in cases:
        if case.origin == "table":
            by_operand = case.op in ELEMENTWISE and case.op != "select" or case.op in ("bitcast", *ORDERS)
            found[case.op].add(NAMES[case.operands[0].dtype if by_operand else case.dtype])
    elsewhere = ("decompose", "triangular_solve")  # python/tests/test_decompositions.py
    ops = [op for op in ops if op not in ("scan", "cond", "result", *elsewhere)]  # see test_scans
    assert {op: found[op] for op in ops} == {op: TAKES[op] for op in ops}


def test_what_is_computed_element_by_element(written: tuple[list[str], list[Case]]) -> None:
    by_op: dict[str, dict[Any, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in written[1]:
        if case.op in ELEMENTWISE:
            by_op[case.op][*(x.dtype for x in case.operands), case.dtype].append(case)
    wrong = []
    for op, groups in by_op.items():
        operands = [[all_of(cases, i) for i in range(len(cases[0].operands))] for cases in groups.values()]
        if op == "pow":  # of a float to an integer, which lax rounds to the float's dtype first, too
            operands = [[x, y.astype(x.dtype)] for x, y in operands]
        wide = [[widened(x) for x in xs] for xs in operands]
        has_kinds = [is_float(dtypes[-1]) for dtypes in groups]
        owned = [xs for xs, has_kind in zip(operands, has_kinds) if has_kind]
        asked = [*wide, *owned] if op != "pow" else [xs for xs in [*wide, *owned] if is_float(xs[0].dtype)]
        answers = [np.asarray(x) for x in jax.jit(lambda questions: [ELEMENTWISE[op][1](*xs) for xs in questions])(asked)]
        own = iter(answers[len(answers) - len(owned):])
        made = iter(answers)
        for (*_, dtype), cases, xs, ws in zip(groups, groups.values(), operands, wide):
            found = all_of(cases, -1)
            signs = np.concatenate([np.full(x.size, case.zeros) for case in cases for x in case.found])
            is_int_power = op == "pow" and not is_float(dtype)
            expected = integer_power(*xs) if is_int_power else of_dtype(op, ws, next(made), dtype)
            most = FARTHER.get((op, NAMES[dtype]), ULPS.get(op, 0)) if is_float(dtype) else 0
            wrong += first_wrong(op, differs(found, expected, most, signs), xs, found, expected)
            if is_float(dtype):
                kind = next(own)
                wrong += first_wrong(op, is_other_kind(xs, found, kind) & signs, xs, found, kind)
    assert not wrong, "\n".join(wrong)


def nearest(number: Fraction, dtype: Any) -> Any:
    """The float nearest to a number, ties to even."""
    info = ml_dtypes.finfo(dtype)
    exponent = max(math.frexp(number)[1] - 1, info.minexp) - info.nmant
    rounded = round(number / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return dtype.type(math.copysign(math.inf, rounded) if abs(rounded) > Fraction(float(info.max)) else float(rounded))


def test_conversions_and_constants(written: tuple[list[str], list[Case]]) -> None:
    groups: dict[Any, list[tuple[Array, Array]]] = defaultdict(list)
    for case in written[1]:
        if case.op == "convert":
            groups[case.operands[0].dtype, case.dtype] += [(case.operands[0].ravel(), x.ravel()) for x in case.found]
        elif case.op == "constant":
            kind = DTYPES[case.number[0]]
            number = np.array([int(case.number[1], 16)], np.uint64).view(kind)
            groups[kind, case.dtype] += [(np.repeat(number, x.size), x.ravel()) for x in case.found]
    given = [np.concatenate([x for x, _ in cases]) for cases in groups.values()]
    converted = jax.jit(lambda xs: [lax.convert_element_type(x, to) for x, (_, to) in zip(xs, groups)])(given)
    wrong = []
    for x, made, ((_, to), cases) in zip(given, converted, groups.items()):
        found, expected = np.concatenate([y for _, y in cases]), np.array(made)
        bad = differs(found, expected, 0, np.array(True))
        # Numbers too small to be normal are zeros to lax, and to f16 and bf16 it rounds some numbers twice.
        for at in np.flatnonzero(bad):
            if is_float(x.dtype) and not np.isfinite(x[at]):
                continue
            exact = Fraction(float(x[at])) if is_float(x.dtype) else Fraction(int(x[at]))
            if to == np.bool_:
                expected[at] = exact != 0
            elif is_float(to) and (abs(exact) <= float(ml_dtypes.finfo(to).smallest_normal) or
                                   is_float(x.dtype) and is_small(x[at]) or to.itemsize == 2):
                expected[at] = math.copysign(1, x[at]) * np.abs(nearest(exact, to))
        wrong += first_wrong(f"convert to {NAMES[to]}", differs(found, expected, 0, np.array(True)), [x], found, expected)
    assert not wrong, "\n".join(wrong)


def philox(key: int, block: int) -> list[int]:
    """lax has other random numbers: these are those of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"."""
    low = 0xffffffff
    counter, keys = [block & low, block >> 32, 0, 0], [key & low, key >> 32]
    for _ in range(10):
        products = [0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]]
        counter = [products[1] >> 32 ^ counter[1] ^ keys[0], products[1] & low,
                   products[0] >> 32 ^ counter[3] ^ keys[1], products[0] & low]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return counter


def scanned(name: str, first: Array, xs: Array, w: Array) -> list[Any]:
    """What the scans of lax_cases give."""
    if name == "two carries":
        (a, b), ys = lax.scan(lambda two, x: ((two[1] + x, two[0]), two[0] - x), (first, first * 2), xs)
        return [a, b, ys]
    if name == "cond in scan":
        def body(h: Any, x: Any) -> Any:
            y = lax.cond(x.sum() > 0, lambda a: lax.clamp(-3.0, a @ w, 3.0), lambda a: a - x, h)
            return lax.clamp(-9.0, y, 9.0), y
        return list(lax.scan(body, first, xs))
    if name == "nothing stacked":
        return list(lax.scan(lambda h, _: (lax.clamp(-9.0, h + h - 1, 9.0), h), first, None, length=4))
    return list(lax.scan(lambda h, x: (lax.clamp(-3.0, h @ w + x, 3.0), h * x), first, xs, reverse=name != "net"))


def test_scans(written: tuple[list[str], list[Case]]) -> None:
    cases = [case for case in written[1] if case.op == "scan"]
    assert len({case.text for case in cases}) == 5
    for case in cases:
        given = [x.astype(np.float64) for x in case.operands]
        made = scanned(case.text, *given)
        loss = lambda *xs: sum((y * y).sum() for y in scanned(case.text, *xs))
        expected = [*made, *jax.grad(loss, argnums=(0, 1, 2))(*given)]
        np.testing.assert_array_equal(case.found[0], expected[case.dims[0]], f"{case.text}, output {case.dims[0]}")


def test_what_lax_has_not(written: tuple[list[str], list[Case]]) -> None:
    for case in written[1]:
        if case.op == "random_bits":
            size, key = math.prod(case.shape), int(case.operands[0])
            words = [word for block in range(-(-size // 4)) for word in philox(key, block)]
            for found in case.found:
                assert found.ravel().tolist() == words[:size]
        elif case.op == "input":
            assert len(case.found) == 1  # the same bytes wherever it is an output


def test_what_is_moved_reduced_and_indexed(written: tuple[list[str], list[Case]]) -> None:
    chosen: list[Case] = []
    count: Counter[str] = Counter()
    for case in written[1]:
        if case.op in ELEMENTWISE or case.op in ("convert", "constant", "random_bits", "input", "scan",
                                                 "decompose", "triangular_solve"):
            continue
        if jax_lacks(case):
            continue
        is_chosen = case.origin == "table" or case.origin.startswith(("convolution", "windows"))
        count[case.op] += not is_chosen
        if is_chosen or count[case.op] <= SHAPES:
            chosen.append(case)
    sums = [case for case in chosen if is_float(case.dtype) and not case.origin.startswith(("convolution", "windows")) and (
        case.op in SUMS or case.op == "manual_all_reduce" and int(case.number[1], 16) == 1)]
    absolute = [dataclasses.replace(case, operands=[
        np.abs(x) if is_float(x.dtype) and (case.op, i) != ("select_and_scatter_add", 0) else x
        for i, x in enumerate(case.operands)]) for case in sums]
    made = ask_all(chosen + absolute)
    totals = {id(case): total for case, total in zip(sums, made[len(chosen):])}
    wrong = [text for case, x in zip(chosen, made) if (text := wrong_in(case, x, totals.get(id(case))))]
    assert not wrong, "\n".join(wrong)
