"""Writes JAX's primitives as operations of programs, by RULES with one small function for each primitive."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding

from ...._dtypes import NUMPY
from ...._programs.text import Number, ProgramText, Refused, Rules, Shape, Value
from ...shared.elementary import FUNCTIONS


class Params(Mapping[str, Any]):
    """The parameters of an equation. Notes those that a rule has read."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def need_read(self, unread: str) -> None:
        """Raises Refused for a parameter that the rule has not read, except those in `unread`, which change
        no value."""
        for name in self._params:
            if name not in self._read and name not in unread.split() and name not in _HINTS:
                raise Refused(
                    f"found the parameter {name}={self._params[name]!r}, needed those that its rule knows"
                )


@dataclass
class Call:
    """An equation to write."""

    text: ProgramText
    params: Params
    avals: list[Any]  #: abstract values of the operands
    results: list[tuple[str, Shape]]
    inlined: Callable[[Any, Sequence[Value]], list[Value]]  #: writes a closed jaxpr
    #: writes a closed jaxpr in the scope of a kernel of attention
    in_kernel: Callable[[Any, Sequence[Value]], list[Value]]

    @property
    def dtype(self) -> str:
        return self.results[0][0]

    @property
    def shape(self) -> Shape:
        return self.results[0][1]


Rule = Callable[..., Value | Sequence[Value]]

#: Calls of a jaxpr that are inlined.
INLINED = {"jit", "pjit", "closed_call", "core_call", "core_closed_call",
           "custom_jvp_call", "custom_vjp_call",
           "custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint", "custom_lin", "named_call", "run_state"}

RULES = Rules()
rule = RULES.rule

#: Parameters that change no value, as they tell XLA how to compute, or repeat the types of the results.
_HINTS = "accuracy precision preferred_element_type out_dtype sharding out_sharding".split()

#: Such parameters of single primitives, in JAX since 0.6.
_OF_CALLS = """name inline keep_unused donated_invars ctx_mesh resource_env in_layouts out_layouts
    compiler_options_kvs abstracted_axes num_consts symbolic_zeros jvp_jaxpr_fun jvp_jaxpr_thunk
    fwd_jaxpr_thunk bwd out_trees differentiated policy prevent_cse function_type"""
_OF_INDICES = "indices_are_sorted unique_indices update_consts"
UNREAD = {
    **dict.fromkeys(INLINED, _OF_CALLS),
    "gather": f"{_OF_INDICES} fill_value",
    "scatter-sub": f"{_OF_INDICES} update_jaxpr",
    **dict.fromkeys((f"scatter{how}" for how in ("", "-add", "-mul", "-min", "-max")), _OF_INDICES),
    "approx_top_k": "aggregate_to_topk recall_target reduction_input_size_override",
    "argmax": "index_dtype",
    "argmin": "index_dtype",
    "bitcast_convert_type": "new_dtype",
    "broadcast_in_dim": "shape",
    "cond": "branches_platforms",
    "conj": "input_dtype",
    "convert_element_type": "new_dtype weak_type",
    "device_put": "srcs copy_semantics",
    "dynamic_slice": "slice_sizes",
    **dict.fromkeys(
        ("dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"),
        "seed variadic_args is_training",
    ),
    "eigh": "sort_eigenvalues algorithm implementation",
    "empty2": "dtype memory_space",
    "iota": "dtype shape",
    "iota_2x32_shape": "shape",
    "lu_pivots_to_permutation": "permutation_size",
    "name": "name",
    "pvary": "axes",
    "qr": "use_magma",
    "random_wrap": "impl",
    "reshard": "concrete_mesh",
    "rng_bit_generator": "dtype shape",
    "scan": "unroll linear _split_transpose",
    "shard_map": "check_vma check_rep rewrite auto",
    "sharding_constraint": "context_mesh resource_env layout unconstrained_dims",
    "sort": "is_stable",
    "squeeze": "dimensions",
    "svd": "algorithm full_matrices",
    "triangular_solve": "conjugate_a",
}

#: The reasons why some primitives have no rule.
REASONS = {
    **dict.fromkeys(("eig", "schur", "hessenberg", "tridiagonal"), "found a decomposition that takes as many "
                    "steps as its numbers ask for, needed cholesky, qr, lu, eigh or svd"),
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a",
                     "random_gamma_grad", "regularized_incomplete_beta"), "found a series of as many terms "
                    "as its numbers ask for, needed a function of a fixed number of operations"),
    "random_gamma": "found draws that are repeated until one is taken, needed those of one draw, as normal, "
                    "uniform and gumbel are",
    **dict.fromkeys(("pure_callback", "io_callback"),
                    "found a function that only Python can run, needed operations of JAX"),
}


# Element by element.


def _elementwise(op: str) -> Rule:
    return lambda call, *operands: call.text.elementwise(op, *operands)


_SAME_NAME = (
    """neg abs sign exp exp2 expm1 log log1p tanh logistic erf erf_inv sqrt rsqrt cbrt sin cos floor ceil
    is_finite population_count add sub mul div rem max min pow atan2 eq ne lt le gt ge shift_left
    shift_right_logical shift_right_arithmetic""")
_OTHER_NAME = {"not": "logical_not", "and": "logical_and", "or": "logical_or", "xor": "logical_xor",
               "add_any": "add"}

RULES.update({name: _elementwise(name) for name in _SAME_NAME.split()})
RULES.update({name: _elementwise(op) for name, op in _OTHER_NAME.items()})


@rule("copy", "stop_gradient", "name", "pvary")
def _same(call: Call, x: Value) -> Value:
    return x


@rule("device_put")
def _device_put(call: Call, *operands: Value) -> Sequence[Value]:
    """Writes a sharding as a mark, and ignores devices."""
    return [call.text.marked(x, spec_of(to, len(x.shape))) if isinstance(to, NamedSharding) else x
            for x, to in zip(operands, call.params["devices"])]


@rule("optimization_barrier")
def _barrier(call: Call, *operands: Value) -> Sequence[Value]:
    return [call.text.elementwise("optimization_barrier", x) for x in operands]


@rule("square")
def _square(call: Call, x: Value) -> Value:
    return call.text.elementwise("mul", x, x)


@rule("integer_pow")
def _integer_pow(call: Call, x: Value) -> Value:
    text, rest, base = call.text, abs(call.params["y"]), x
    power: Value | None = None
    while rest:
        if rest & 1:
            power = base if power is None else text.elementwise("mul", power, base)
        rest >>= 1
        base = text.elementwise("mul", base, base) if rest else base
    power = text.full(x, 1) if power is None else power
    return text.elementwise("div", text.full(x, 1), power) if call.params["y"] < 0 else power


def _elementary(function: Callable[[ProgramText, Value], Value]) -> Rule:
    return lambda call, x: function(call.text, x)


RULES.update({name: _elementary(function) for name, function in FUNCTIONS.items()})


@rule("round")
def _round(call: Call, x: Value) -> Value:
    text = call.text
    if int(call.params["rounding_method"]) == 1:
        return text.elementwise("round", x)
    is_negative = text.elementwise("lt", x, text.full(x, 0))
    whole = text.select(is_negative, text.elementwise("ceil", x), text.elementwise("floor", x))
    is_half = text.elementwise("ge", text.elementwise("abs", text.elementwise("sub", x, whole)),
                               text.full(x, 0.5))
    return text.select(is_half, text.elementwise("add", whole, text.elementwise("sign", x)), whole)


@rule("nextafter")
def _next_after(call: Call, x: Value, to: Value) -> Value:
    """Adds 1 to or subtracts 1 from the bits of x as a whole number."""
    text, bits = call.text, 8 * NUMPY[x.dtype].itemsize
    whole = text.bitcast(x, f"i{bits}", x.shape)
    grows = text.elementwise("eq", text.elementwise("lt", x, to), text.elementwise("gt", x, text.full(x, 0)))
    adjacent = text.elementwise("add", whole, text.select(grows, text.full(whole, 1), text.full(whole, -1)))
    least = text.select(text.elementwise("gt", to, text.full(to, 0)), text.full(whole, 1),
                        text.full(whole, 1 - 2 ** (bits - 1)))
    adjacent = text.select(text.elementwise("eq", x, text.full(x, 0)), least, adjacent)
    next_number = text.select(text.elementwise("eq", x, to), to, text.bitcast(adjacent, x.dtype, x.shape))
    is_number = text.elementwise("logical_and", text.elementwise("eq", x, x), text.elementwise("eq", to, to))
    return text.select(is_number, next_number, text.full(x, math.nan))


@rule("clamp")
def _clamp(call: Call, low: Value, x: Value, high: Value) -> Value:
    return call.text.elementwise("min", call.text.elementwise("max", x, low), high)


@rule("select_n")
def _select_n(call: Call, which: Value, *cases: Value) -> Value:
    text = call.text
    if which.dtype == "bool" and len(cases) == 2:
        return text.select(which, cases[1], cases[0])
    value = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        value = text.select(text.elementwise("eq", which, text.full(which, number)), cases[number], value)
    return value


@rule("convert_element_type")
def _convert(call: Call, x: Value) -> Value:
    return call.text.convert(x, call.dtype)


@rule("bitcast_convert_type")
def _bitcast(call: Call, x: Value) -> Value:
    return call.text.bitcast(x, call.dtype, call.shape)


@rule("reduce_precision")
def _reduce_precision(call: Call, x: Value) -> Value:
    bits = call.params["exponent_bits"], call.params["mantissa_bits"]
    dtype = {(8, 7): "bf16", (5, 10): "f16", (8, 23): "f32", (11, 52): "f64"}.get(bits)
    if dtype is None:
        raise Refused(f"found {bits[0]} bits of exponent and {bits[1]} of mantissa, needed those of bf16, "
                      "f16, f32 or f64")
    return call.text.convert(call.text.convert(x, dtype), x.dtype)


@rule("le_to")
def _le_to(call: Call, a: Value, b: Value) -> Value:
    """Compares in a total order: NaN is the largest."""
    text = call.text
    return text.elementwise("logical_or", text.elementwise("le", a, b), text.elementwise("ne", b, b))


@rule("lt_to")
def _lt_to(call: Call, a: Value, b: Value) -> Value:
    text = call.text
    is_number_and_nan = text.elementwise("logical_and", text.elementwise("eq", a, a),
                                         text.elementwise("ne", b, b))
    return text.elementwise("logical_or", text.elementwise("lt", a, b), is_number_and_nan)


# Layout.


def _with_data(numbers: Sequence[int], of_all: Sequence[int]) -> list[int]:
    """Returns a number for each dim. The data of typed keys has one more dim than the keys, which is taken
    whole."""
    return [*numbers, *of_all[len(numbers):]]


@rule("broadcast_in_dim")
def _broadcast(call: Call, x: Value, *dynamic: Value) -> Value:
    dims = call.params["broadcast_dimensions"]
    return call.text.broadcast(x, call.shape,
                               [*dims, *range(len(call.shape) - len(x.shape) + len(dims), len(call.shape))])


@rule("reshape", "squeeze")
def _reshape(call: Call, x: Value, *dynamic: Value) -> Value:
    """Reshapes x. `dimensions` is the order that the dims of x are read in."""
    order = call.params.get("dimensions") if "new_sizes" in call.params else None
    return call.text.reshape(x if order is None else call.text.transpose(x, order), call.shape)


@rule("transpose")
def _transpose(call: Call, x: Value) -> Value:
    return call.text.transpose(x, _with_data(call.params["permutation"], range(len(x.shape))))


@rule("slice")
def _slice(call: Call, x: Value) -> Value:
    params, ones = call.params, (1,) * len(x.shape)
    return call.text.slice(x, _with_data(params["start_indices"], (0,) * len(x.shape)),
                           _with_data(params["limit_indices"], x.shape),
                           _with_data(params["strides"] or (), ones))


@rule("empty2")
def _empty(call: Call) -> Value:
    """Writes zeros, which stand in the gradient of a branch for the residuals of the other branch."""
    return Number(0, call.dtype, call.shape)


@rule("pad")
def _pad(call: Call, x: Value, padding: Value) -> Value:
    text = call.text
    low, high, interior = zip(*call.params["padding_config"]) if x.shape else ((), (), ())
    if isinstance(padding, Number):
        return text.pad(x, low, high, interior, padding.value)
    is_padding = text.pad(Number(0, "i32", x.shape), low, high, interior, 1)
    return text.select(text.elementwise("eq", is_padding, text.full(is_padding, 1)), padding,
                       text.pad(x, low, high, interior, 0))


@rule("concatenate")
def _concatenate(call: Call, *parts: Value) -> Value:
    return call.text.concatenate(parts, call.params["dimension"])


@rule("stack")
def _stack(call: Call, *parts: Value) -> Value:
    axis = call.params["axis"]
    return call.text.concatenate([call.text.reshape(x, x.shape[:axis] + (1,) + x.shape[axis:])
                                  for x in parts], axis)


@rule("unstack")
def _unstack(call: Call, x: Value) -> Sequence[Value]:
    """Splits a dim into values; it is also the gradient of stack."""
    axis, text = call.params["axis"], call.text
    return [text.reshape(text.part(x, axis, place, place + 1), shape)
            for place, (_, shape) in enumerate(call.results)]


@rule("tile")
def _tile(call: Call, x: Value) -> Value:
    reps = call.params["reps"]
    shape = (1,) * (len(reps) - len(x.shape)) + x.shape
    repeated = tuple(extent for pair in zip(reps, shape) for extent in pair)
    wide = call.text.broadcast(call.text.reshape(x, shape), repeated, range(1, len(repeated), 2))
    return call.text.reshape(wide, call.shape)


@rule("split")
def _split(call: Call, x: Value) -> Sequence[Value]:
    parts, begin = [], 0
    for size in call.params["sizes"]:
        parts.append(call.text.part(x, call.params["axis"], begin, begin + size))
        begin += size
    return parts


@rule("rev")
def _reverse(call: Call, x: Value) -> Value:
    return call.text.reverse(x, call.params["dimensions"])


@rule("iota")
def _iota(call: Call, *dynamic: Value) -> Value:
    return call.text.iota(call.dtype, call.shape, call.params["dimension"])


def spec_of(sharding: Any, rank: int) -> str:
    """Returns a NamedSharding as a mark. Raises Refused."""
    if not isinstance(sharding, NamedSharding):
        raise Refused(f"found a {type(sharding).__name__}, needed a NamedSharding")
    entries = []
    for entry in sharding.spec:
        if entry is not None and not isinstance(entry, (str, tuple)):
            raise Refused(f"found {sharding.spec}, needed an axis or None for each dim")
        entries.append("-" if not entry else entry if isinstance(entry, str) else "+".join(entry))
    return ",".join(entries + ["-"] * (rank - len(entries)))


@rule("sharding_constraint", "reshard")
def _constrain(call: Call, x: Value) -> Value:
    sharding = call.params.get("sharding", call.params.get("dst_sharding"))
    return call.text.marked(x, spec_of(sharding, len(x.shape)))


# Reductions, products, order.


def _reduce(op: str, only: str = "") -> Rule:
    def reduce(call: Call, x: Value) -> Value:
        if only and x.dtype != only:
            raise Refused(f"found {x.dtype}, needed {only}")
        return call.text.reduce(op, x, call.params["axes"])

    return reduce


RULES.update({f"reduce_{name}": _reduce(f"reduce_{name}") for name in ("sum", "max", "min", "prod")})
RULES.update({"reduce_and": _reduce("reduce_min", "bool"), "reduce_or": _reduce("reduce_max", "bool")})


@rule("argmax")
def _argmax(call: Call, x: Value) -> Value:
    return call.text.convert(call.text.index_of("argmax", x, *call.params["axes"]), call.dtype)


@rule("argmin")
def _argmin(call: Call, x: Value) -> Value:
    return call.text.convert(call.text.index_of("argmin", x, *call.params["axes"]), call.dtype)


def _cumulative(op: str) -> Rule:
    return lambda call, x: call.text.along(op, x, call.params["axis"],
                                           " reverse" if call.params["reverse"] else "")


RULES.update({op: _cumulative(op) for op in ("cumsum", "cumprod", "cummax", "cummin")})
RULES["cumlogsumexp"] = _cumulative("cumlogsumexp")


@rule("dot_general")
def _dot_general(call: Call, a: Value, b: Value) -> Value:
    return _product(call, call.params["dimension_numbers"], a, b)


@rule("ragged_dot_general")
def _ragged_dot(call: Call, a: Value, b: Value, sizes: Value) -> Value:
    """Multiplies rows in groups whose lengths are in `sizes`. Each group has a product of all rows, with
    zeros for the rows of other groups, as in XLA on a CPU."""
    text, numbers = call.text, call.params["ragged_dot_dimension_numbers"]
    (a_summed, b_summed), (a_batch, _) = numbers.dot_dimension_numbers
    if a_batch or len(sizes.shape) != 1 or call.params.get("group_offset") is not None:
        raise Refused("found groups of batches, needed one dim in groups")
    (dim,) = numbers.lhs_ragged_dimensions
    table, wide = (sizes.shape[0], a.shape[dim]), (sizes.shape[0], *a.shape)
    ends = text.along("cumsum", sizes, 0)
    begin, end = (text.broadcast(x, table, [0]) for x in (text.elementwise("sub", ends, sizes), ends))
    place = text.iota(sizes.dtype, table, 1)
    is_inside = text.elementwise("logical_and", text.elementwise("le", begin, place),
                                 text.elementwise("lt", place, end))
    rows = text.select(text.broadcast(is_inside, wide, [0, dim + 1]),
                       text.broadcast(a, wide, range(1, len(wide))), Number(0, a.dtype, wide))
    summed = [d + 1 for d in a_summed]
    if dim in a_summed:  # the gradient of an operand that has one matrix for each group
        return _product(call, ((summed, b_summed), ((), ())), rows, b)
    return _product(call, (([0, *summed], [*numbers.rhs_group_dimensions, *b_summed]), ((), ())), rows, b)


def _product(call: Call, dimension_numbers: Any, a: Value, b: Value) -> Value:
    (a_summed, b_summed), (a_batch, b_batch) = dimension_numbers
    letters = map(chr, (*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1)))
    of_a, of_b = [""] * len(a.shape), [""] * len(b.shape)
    for i, j in (*zip(a_batch, b_batch), *zip(a_summed, b_summed)):
        of_a[i] = of_b[j] = next(letters)
    batch = [of_a[i] for i in a_batch]
    of_a_alone, of_b_alone = [i for i, c in enumerate(of_a) if not c], [j
                                                                        for j, c in enumerate(of_b) if not c]
    for i in of_a_alone:
        of_a[i] = next(letters)
    for j in of_b_alone:
        of_b[j] = next(letters)
    result = [*batch, *(of_a[i] for i in of_a_alone), *(of_b[j] for j in of_b_alone)]
    text = call.text
    if a.dtype != b.dtype:
        a, b = text.convert(a, call.dtype), text.convert(b, call.dtype)
    return text.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(result)}", a, b, call.dtype)


@rule("sort")
def _sort(call: Call, *operands: Value) -> Sequence[Value]:
    """Sorts by the first num_keys operands; the first has the highest rank."""
    text, dim = call.text, call.params["dimension"]
    words = " descending" if call.params.get("is_descending") else ""
    order: Value | None = None
    for key in reversed(operands[: call.params["num_keys"]]):
        sorted_key = key if order is None else text.take_along(key, order, dim)
        step = text.along("argsort", sorted_key, dim, words)
        order = step if order is None else text.take_along(order, step, dim)
    assert order is not None
    return [text.take_along(x, order, dim) for x in operands]


@rule("approx_top_k")
def _approximate_top_k(call: Call, x: Value) -> Sequence[Value]:
    """Writes an exact top k, as XLA does on a CPU."""
    params, text = call.params, call.text
    dim = params["reduction_dimension"] % len(x.shape)
    words = " descending" if params["is_max_k"] else ""
    order = text.part(text.along("argsort", x, dim, words), dim, 0, params["k"])
    return text.take_along(x, order, dim), order


@rule("top_k")
def _top_k(call: Call, x: Value) -> Sequence[Value]:
    dim = call.params.get("axis", -1) % len(x.shape)
    order = call.text.part(call.text.along("argsort", x, dim, " descending"), dim, 0, call.params["k"])
    return call.text.take_along(x, order, dim), order


# Control flow.


@rule("scan")
def _scan(call: Call, *operands: Value) -> Sequence[Value]:
    params = call.params
    carried = params["num_consts"] + params["num_carry"]
    return call.text.scan(operands[:params["num_consts"]], operands[params["num_consts"]:carried],
                          operands[carried:], params["length"], params["reverse"],
                          lambda values: call.inlined(params["jaxpr"], values))


@rule("cond")
def _cond(call: Call, *operands: Value) -> Sequence[Value]:
    """Writes a choice among several branches as a bisection."""
    branches = call.params["branches"]
    if isinstance(operands[0], Number):  # only one branch is needed
        return call.inlined(branches[min(max(int(operands[0].value), 0), len(branches) - 1)], operands[1:])

    def one_of(first: int, end: int, values: Sequence[Value]) -> list[Value]:
        which, *rest = values
        if end - first == 1:
            return call.inlined(branches[first], rest)
        middle = (first + end) // 2
        is_before = call.text.elementwise("lt", which, call.text.full(which, middle))
        return call.text.cond(is_before, values, lambda inside: one_of(first, middle, inside),
                              lambda inside: one_of(middle, end, inside))

    return one_of(0, len(branches), operands)


@rule("platform_index")
def _platform(call: Call) -> Value:
    """Returns the number of the case for a CPU, or of the default."""
    cases = call.params["platforms"]
    matching = [place for place, names in enumerate(cases) if names is None or "cpu" in names]
    if not matching:
        raise Refused(f"found cases for {', '.join(name for names in cases for name in names)}, "
                      "needed one for a CPU, or a default")
    return Number(min(matching, key=lambda place: cases[place] is None), call.dtype, call.shape)


@rule("custom_linear_solve")
def _custom_linear_solve(call: Call, *operands: Value) -> Sequence[Value]:
    """Inlines the solver that the call names."""
    counts, solve = call.params["const_lengths"], call.params["jaxprs"].solve
    before = counts.matvec + counts.vecmat
    return call.inlined(solve, [*operands[before:before + counts.solve], *operands[sum(counts):]])
