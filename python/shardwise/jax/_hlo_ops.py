"""What each operation of StableHLO and CHLO is in a program. Where a primitive of JAX does the same, its rule is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from .._dtypes import NUMPY
from .._elementary import FUNCTIONS
from .._program_text import FLOATS, Number, ProgramText, Refused, Rules, Value
from . import _hlo_bodies
from ._generators import random_bits
from ._hlo_marks import shardy_specs
from ._hlo_writer import RULES, Op, constant, outside_values, rule

_Rule = Callable[..., Value | Sequence[Value]]

# ---- Element by element.


def _elementwise(name: str) -> _Rule:
    return lambda op, *operands: op.text.elementwise(name, *operands)


def _primitive(name: str, **params: Any) -> _Rule:
    return lambda op, *operands: op.primitive(name, params, *operands)


_SAME_NAME = """abs atan2 cbrt ceil floor is_finite logistic rsqrt shift_left shift_right_arithmetic shift_right_logical sign sqrt
    tanh"""
_OTHER_NAME = {"cosine": "cos", "divide": "div", "exponential": "exp", "exponential_minus_one": "expm1", "log": "log",
               "log_plus_one": "log1p", "negate": "neg", "popcnt": "population_count",
               "power": "pow", "remainder": "rem", "round_nearest_even": "round", "sine": "sin", "subtract": "sub", "and": "logical_and",
               "or": "logical_or", "xor": "logical_xor", "not": "logical_not"}
_PRIMITIVES = {"stablehlo.tan": "tan", "chlo.next_after": "nextafter", "stablehlo.clamp": "clamp", **{f"chlo.{name}": name for name in ("square", *FUNCTIONS)}}

RULES.update({f"stablehlo.{name}": _elementwise(name) for name in _SAME_NAME.split()})
RULES.update({f"stablehlo.{name}": _elementwise(ours) for name, ours in _OTHER_NAME.items()})
RULES.update({"chlo.erf": _elementwise("erf"), "chlo.erf_inv": _elementwise("erf_inv")})
RULES.update({theirs: _primitive(name) for theirs, name in _PRIMITIVES.items()})
RULES["stablehlo.round_nearest_afz"] = _primitive("round", rounding_method=0)


def _combined(name: str, of_booleans: str) -> _Rule:
    return lambda op, a, b: op.text.elementwise(of_booleans if op.dtype == "bool" else name, a, b)


RULES["stablehlo.add"], RULES["stablehlo.multiply"] = _combined("add", "logical_or"), _combined("mul", "logical_and")
RULES["stablehlo.maximum"], RULES["stablehlo.minimum"] = _combined("max", "logical_or"), _combined("min", "logical_and")


@rule("stablehlo.optimization_barrier")
def _barrier(op: Op, *operands: Value) -> Sequence[Value]:
    return [op.text.elementwise("optimization_barrier", x) for x in operands]


@rule("stablehlo.compare")
def _compare(op: Op, a: Value, b: Value) -> Value:
    attributes = op.operation.attributes
    direction = stablehlo.ComparisonDirectionAttr(attributes["comparison_direction"]).value
    is_total = "compare_type" in attributes and stablehlo.ComparisonTypeAttr(attributes["compare_type"]).value == "TOTALORDER"
    if is_total and a.dtype in FLOATS:
        a, b = _in_order(op.text, a), _in_order(op.text, b)
    return op.text.elementwise(direction.lower(), a, b)


def _in_order(text: ProgramText, x: Value) -> Value:
    """Integers in the total order of floats: -0 is before 0, and NaN beyond infinity."""
    bits = 8 * NUMPY[x.dtype].itemsize
    whole = text.node("bitcast", [x], f"i{bits}", x.shape)
    is_negative = text.elementwise("lt", whole, text.full(whole, 0))
    return text.select(is_negative, text.elementwise("logical_xor", whole, text.full(whole, 2 ** (bits - 1) - 1)), whole)


@rule("stablehlo.select")
def _select(op: Op, condition: Value, if_true: Value, if_false: Value) -> Value:
    return op.text.select(condition, if_true, if_false)


@rule("stablehlo.convert")
def _convert(op: Op, x: Value) -> Value:
    return op.text.convert(x, op.dtype)


@rule("stablehlo.bitcast_convert")
def _bitcast(op: Op, x: Value) -> Sequence[Value]:
    return op.primitive("bitcast_convert_type", {}, x)


@rule("stablehlo.rng_bit_generator")
def _bit_generator(op: Op, state: Value) -> Sequence[Value]:
    algorithm = stablehlo.RngAlgorithmAttr(op.operation.attributes["rng_algorithm"]).value
    return random_bits(op.text, str(algorithm), state, *op.results[1])


@rule("stablehlo.reduce_precision")
def _reduce_precision(op: Op, x: Value) -> Sequence[Value]:
    return op.primitive("reduce_precision", {"exponent_bits": op.integer("exponent_bits"), "mantissa_bits": op.integer("mantissa_bits")}, x)


@rule("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def _is_infinite(op: Op, x: Value) -> Value:
    """The one or the other infinity, or either."""
    text, name = op.text, op.operation.name
    x = text.elementwise("abs", x) if name == "chlo.is_inf" else x
    return text.elementwise("eq", x, text.full(x, -math.inf if name == "chlo.is_neg_inf" else math.inf))


# ---- Layout.


@rule("stablehlo.constant")
def _constant(op: Op) -> Value:
    return constant(op.text, op.operation.attributes["value"], op.dtype, op.shape)


@rule("chlo.constant_like")
def _constant_like(op: Op, x: Value) -> Value:
    value = op.operation.attributes["value"].value
    return Number(float(value) if op.dtype in FLOATS else int(value), op.dtype, op.shape)


@rule("stablehlo.iota")
def _iota(op: Op) -> Value:
    return op.text.iota(op.dtype, op.shape, op.integer("iota_dimension"))


@rule("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(op: Op, x: Value) -> Value:
    dims, text = op.integers("broadcast_dimensions"), op.text
    order = sorted(range(len(dims)), key=dims.__getitem__)
    x = text.transpose(x, order)
    if math.prod(x.shape) == math.prod(op.shape):
        return text.reshape(x, op.shape)
    return text.broadcast(x, op.shape, [dims[place] for place in order])


@rule("stablehlo.broadcast")
def _broadcast(op: Op, x: Value) -> Value:
    return op.text.broadcast_to(x, op.shape)


@rule("stablehlo.reshape")
def _reshape(op: Op, x: Value) -> Value:
    return op.text.reshape(x, op.shape)


@rule("stablehlo.transpose")
def _transpose(op: Op, x: Value) -> Value:
    return op.text.transpose(x, op.integers("permutation"))


@rule("stablehlo.slice")
def _slice(op: Op, x: Value) -> Value:
    return op.text.slice(x, op.integers("start_indices"), op.integers("limit_indices"), op.integers("strides"))


@rule("stablehlo.pad")
def _pad(op: Op, x: Value, padding: Value) -> Sequence[Value]:
    sides = zip(op.integers("edge_padding_low"), op.integers("edge_padding_high"), op.integers("interior_padding"))
    return op.primitive("pad", {"padding_config": list(sides)}, x, padding)


@rule("stablehlo.concatenate")
def _concatenate(op: Op, *parts: Value) -> Value:
    return op.text.concatenate(parts, op.integer("dimension"))


@rule("stablehlo.reverse")
def _reverse(op: Op, x: Value) -> Value:
    return op.text.reverse(x, op.integers("dimensions"))


@rule("stablehlo.get_dimension_size")
def _dimension_size(op: Op, x: Value) -> Value:
    return Number(x.shape[op.integer("dimension")], op.dtype, op.shape)


@rule("stablehlo.get_tuple_element")
def _tuple_element(op: Op, *parts: Value) -> Value:
    return parts[op.integer("index")]


# ---- By index.


@rule("stablehlo.dynamic_slice")
def _dynamic_slice(op: Op, x: Value, *starts: Value) -> Value | Sequence[Value]:
    taken = op.writer.sliced.get((op.path[1], op.operation.results[0]))
    if taken is not None:
        taken = getattr(taken, op.part) if op.part else taken
        return op.text.reshape(taken, op.shape)
    return op.primitive("dynamic_slice", {}, x, *starts)


@rule("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(op: Op, x: Value, update: Value, *starts: Value) -> Value | Sequence[Value]:
    if (op.path[1], op.operation.results[0]) in op.writer.updated:
        return op.text.reshape(update, update.shape[1:])  # what a loop stacks
    return op.primitive("dynamic_update_slice", {}, x, update, *starts)


def _ids_last(text: ProgramText, ids: Value, dim: int) -> Value:
    """With the dim of index vectors at the end; if it is beyond the last, there is one index in each."""
    if dim == len(ids.shape):
        return text.reshape(ids, (*ids.shape, 1))
    return text.transpose(ids, [*(d for d in range(len(ids.shape)) if d != dim), dim])


def _without(dims: Sequence[int], vector: int) -> list[int]:
    """Dims of ids, now that the dim of index vectors is the last."""
    return [dim - (dim > vector) for dim in dims]


@rule("stablehlo.gather")
def _gather(op: Op, x: Value, ids: Value) -> Sequence[Value]:
    found = stablehlo.GatherDimensionNumbers(op.operation.attributes["dimension_numbers"])
    numbers = SimpleNamespace(offset_dims=found.offset_dims, collapsed_slice_dims=found.collapsed_slice_dims,
                              operand_batching_dims=found.operand_batching_dims, start_index_map=found.start_index_map,
                              start_indices_batching_dims=_without(found.start_indices_batching_dims, found.index_vector_dim))
    params = {"dimension_numbers": numbers, "slice_sizes": op.integers("slice_sizes"), "mode": "CLIP", "fill_value": None}
    return op.primitive("gather", params, x, _ids_last(op.text, ids, found.index_vector_dim))


_SCATTERS = {"set": "scatter", "add": "scatter-add", "sub": "scatter-sub", "mul": "scatter-mul", "min": "scatter-min", "max": "scatter-max"}


@rule("stablehlo.scatter")
def _scatter(op: Op, *operands: Value) -> Sequence[Value]:
    if len(operands) != 3:
        raise Refused(f"found {len(operands) // 2} tensors, needed one")
    x, ids, updates = operands
    found = stablehlo.ScatterDimensionNumbers(op.operation.attributes["scatter_dimension_numbers"])
    name = _SCATTERS.get(_hlo_bodies.combination(op.operation.regions[0]))
    if name is None or (x.dtype == "bool" and name not in ("scatter", "scatter-min", "scatter-max")):
        raise Refused(f"found a body of {x.dtype} that is no sum, product, maximum or minimum of numbers")
    numbers = SimpleNamespace(update_window_dims=found.update_window_dims, inserted_window_dims=found.inserted_window_dims,
                              operand_batching_dims=found.input_batching_dims,
                              scatter_indices_batching_dims=_without(found.scatter_indices_batching_dims, found.index_vector_dim),
                              scatter_dims_to_operand_dims=found.scattered_dims_to_operand_dims)
    params = {"dimension_numbers": numbers, "mode": "FILL_OR_DROP"}
    return op.primitive(name, params, x, _ids_last(op.text, ids, found.index_vector_dim), updates)


# ---- Reductions, products, order.


def _neutral(kind: str, dtype: str) -> float | int:
    """That changes nothing when it is combined."""
    if kind in ("add", "or"):
        return 0
    if kind == "logaddexp":
        return -math.inf
    if kind in ("mul", "and"):
        return 1
    if dtype == "bool":
        return int(kind == "min")
    if dtype in FLOATS:
        return -math.inf if kind == "max" else math.inf
    limits = np.iinfo(NUMPY[dtype])
    return int(limits.min if kind == "max" else limits.max)


def _is_neutral(init: Value, kind: str) -> bool:
    return isinstance(init, Number) and init.value == _neutral(kind, init.dtype)


_OF_BOOLEANS = {"add": "or", "mul": "and", "max": "or", "min": "and"}
_REDUCTIONS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min", "and": "reduce_and", "or": "reduce_or"}
_COMBINED = {"and": "logical_and", "or": "logical_or"}


@rule("stablehlo.reduce")
def _reduce(op: Op, *operands: Value) -> Value | Sequence[Value]:
    dims, region = op.integers("dimensions"), op.operation.regions[0]
    count = len(operands) // 2
    if count == 2:
        return _extreme_with_index(op, dims, *operands)
    if count != 1:
        raise Refused(f"found {count} tensors, needed one, or a tensor and the index along it")
    x, init = operands
    kind = _hlo_bodies.combination(region)
    if x.dtype == "bool":
        kind = _OF_BOOLEANS.get(kind, kind)
    if kind not in _REDUCTIONS:
        raise Refused(f"found the combination {kind}, needed a sum, a product, a maximum, a minimum, and, or or")
    (reduced,) = op.primitive(_REDUCTIONS[kind], {"axes": dims}, x)
    return reduced if _is_neutral(init, kind) else op.text.elementwise(_COMBINED.get(kind, kind), reduced, init)


def _extreme_with_index(op: Op, dims: Sequence[int], x: Value, ids: Value, init: Value, first: Value) -> Sequence[Value]:
    text = op.text
    name = _hlo_bodies.extreme_with_index(op.operation.regions[0], x.dtype, op.number_of)
    kind = name[3:]
    if len(dims) != 1 or not text.counts_along(ids, dims[0]) or not _is_neutral(init, kind):
        raise Refused(f"found {name} of other indices than those along a dim, needed an iota")
    return text.reduce(f"reduce_{kind}", x, dims), text.convert(text.index_of(name, x, dims[0]), op.results[1][0])


def _sides(op: Op, rank: int) -> list[tuple[int, int]]:
    """The padding, low and high, of each dim."""
    numbers = op.integers("padding", [0] * 2 * rank)
    return list(zip(numbers[::2], numbers[1::2]))


_CUMULATIVE = {"add": "cumsum", "mul": "cumprod", "max": "cummax", "min": "cummin", "logaddexp": "cumlogsumexp"}


@rule("stablehlo.reduce_window")
def _reduce_window(op: Op, *operands: Value) -> Value | Sequence[Value]:
    if len(operands) != 2:
        raise Refused(f"found {len(operands) // 2} tensors, needed one")
    x, init = operands
    rank = len(x.shape)
    kind = _hlo_bodies.combination(op.operation.regions[0])
    if not _is_neutral(init, kind):
        raise Refused("found a value to begin with that changes the result, needed a neutral one")
    window, ones = op.integers("window_dimensions"), [1] * rank
    sides = _sides(op, rank)
    params = {"window_dimensions": window, "window_strides": op.integers("window_strides", ones), "padding": sides,
              "base_dilation": op.integers("base_dilations", ones), "window_dilation": op.integers("window_dilations", ones)}
    wide = [dim for dim in range(rank) if window[dim] != 1]
    if kind in _CUMULATIVE and len(wide) == 1 and window[wide[0]] == x.shape[wide[0]] and x.dtype != "bool" \
            and all(params[name] == ones for name in ("window_strides", "base_dilation", "window_dilation")):
        before = [(0, 0) if dim not in wide else (x.shape[dim] - 1, 0) for dim in range(rank)]
        if sides in (before, [(high, low) for low, high in before]):
            return op.primitive(_CUMULATIVE[kind], {"axis": wide[0], "reverse": sides != before}, x)
    name = {"add": "reduce_window_sum", "max": "reduce_window_max", "min": "reduce_window_min"}.get(kind)
    if name is None or x.dtype == "bool":
        raise Refused(f"found {kind} of {x.dtype} over windows, needed a sum, a maximum or a minimum of numbers")
    return op.primitive(name, params, x)


@rule("stablehlo.select_and_scatter")
def _select_and_scatter(op: Op, x: Value, source: Value, init: Value) -> Sequence[Value]:
    select, scatter = op.operation.regions
    if _hlo_bodies.combination(scatter) != "add" or not _is_neutral(init, "add"):
        raise Refused("found another combination than a sum that begins with 0")
    rank = len(x.shape)
    params = {"select_prim": SimpleNamespace(name=_hlo_bodies.selection(select).lower()), "padding": _sides(op, rank),
              "window_dimensions": op.integers("window_dimensions", [1] * rank), "window_strides": op.integers("window_strides", [1] * rank)}
    return op.primitive("select_and_scatter_add", params, source, x)


@rule("stablehlo.dot_general")
def _dot_general(op: Op, a: Value, b: Value) -> Sequence[Value]:
    numbers = stablehlo.DotDimensionNumbers(op.operation.attributes["dot_dimension_numbers"])
    summed = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    batch = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
    return op.primitive("dot_general", {"dimension_numbers": (summed, batch)}, a, b)


@rule("stablehlo.dot")
def _dot(op: Op, a: Value, b: Value) -> Sequence[Value]:
    return op.primitive("dot_general", {"dimension_numbers": (([len(a.shape) - 1], [0]), ([], []))}, a, b)


@rule("stablehlo.convolution")
def _convolution(op: Op, x: Value, kernel: Value) -> Sequence[Value]:
    numbers = stablehlo.ConvDimensionNumbers(op.operation.attributes["dimension_numbers"])
    spatial = list(numbers.kernel_spatial_dimensions)
    ones = [1] * len(spatial)
    reversed_dims = [dim for dim, is_reversed in zip(spatial, op.integers("window_reversal", [0] * len(spatial))) if is_reversed]
    dims = SimpleNamespace(
        lhs_spec=(numbers.input_batch_dimension, numbers.input_feature_dimension, *numbers.input_spatial_dimensions),
        rhs_spec=(numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension, *spatial),
        out_spec=(numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions))
    params = {"dimension_numbers": dims, "padding": _sides(op, len(spatial)),
              "window_strides": op.integers("window_strides", ones), "lhs_dilation": op.integers("lhs_dilation", ones),
              "rhs_dilation": op.integers("rhs_dilation", ones), "feature_group_count": op.integer("feature_group_count", 1),
              "batch_group_count": op.integer("batch_group_count", 1)}
    return op.primitive("conv_general_dilated", params, x, op.text.reverse(kernel, reversed_dims))


@rule("stablehlo.sort")
def _sort(op: Op, *operands: Value) -> Sequence[Value]:
    keys, is_descending = _hlo_bodies.order(op.operation.regions[0], [x.dtype for x in operands], op.number_of)
    params = {"dimension": op.integer("dimension") % len(operands[0].shape), "num_keys": keys, "is_descending": is_descending}
    return op.primitive("sort", params, *operands)


@rule("chlo.top_k")
def _top_k(op: Op, x: Value) -> Sequence[Value]:
    values, ids = op.primitive("top_k", {"k": op.results[0][1][-1]}, x)
    return values, op.text.convert(ids, op.results[1][0])


# ---- Batch norm, as PyTorch/XLA has it: a mean and a variance for each feature.


class _BatchNorm:
    def __init__(self, op: Op, x: Value) -> None:
        self._op, self._feature = op, op.integer("feature_index")
        self._others = [dim for dim in range(len(x.shape)) if dim != self._feature]
        self._x, self._count = x, math.prod(x.shape[dim] for dim in self._others)
        self._epsilon = float(op.operation.attributes["epsilon"].value)

    def wide(self, of_features: Value) -> Value:
        return self._op.text.broadcast(of_features, self._x.shape, [self._feature])

    def sum(self, x: Value) -> Value:
        return self._op.text.reduce("reduce_sum", x, self._others)

    def mean(self, x: Value) -> Value:
        total = self.sum(x)
        return self._op.text.elementwise("div", total, self._op.text.full(total, self._count))

    def centered(self, mean: Value) -> Value:
        return self._op.text.elementwise("sub", self._x, self.wide(mean))

    def scale(self, variance: Value) -> Value:
        """1 over the deviation, of each feature."""
        text = self._op.text
        return text.elementwise("rsqrt", text.elementwise("add", variance, text.full(variance, self._epsilon)))

    def normalized(self, mean: Value, variance: Value) -> Value:
        return self._op.text.elementwise("mul", self.centered(mean), self.wide(self.scale(variance)))

    def result(self, mean: Value, variance: Value, scale: Value, offset: Value) -> Value:
        text = self._op.text
        scaled = text.elementwise("mul", self.normalized(mean, variance), self.wide(scale))
        return text.elementwise("add", scaled, self.wide(offset))


@rule("stablehlo.batch_norm_inference")
def _batch_norm_inference(op: Op, x: Value, scale: Value, offset: Value, mean: Value, variance: Value) -> Value:
    return _BatchNorm(op, x).result(mean, variance, scale, offset)


@rule("stablehlo.batch_norm_training")
def _batch_norm_training(op: Op, x: Value, scale: Value, offset: Value) -> Sequence[Value]:
    norm = _BatchNorm(op, x)
    mean = norm.mean(x)
    centered = norm.centered(mean)
    variance = norm.mean(op.text.elementwise("mul", centered, centered))
    return norm.result(mean, variance, scale, offset), mean, variance


@rule("stablehlo.batch_norm_grad")
def _batch_norm_grad(op: Op, x: Value, scale: Value, mean: Value, variance: Value, grad: Value) -> Sequence[Value]:
    """Of x: scale / deviation * (grad - mean(grad) - normalized * mean(grad * normalized))."""
    text, norm = op.text, _BatchNorm(op, x)
    normalized = norm.normalized(mean, variance)
    product = text.elementwise("mul", grad, normalized)
    common = text.elementwise("mul", normalized, norm.wide(norm.mean(product)))
    inside = text.elementwise("sub", text.elementwise("sub", grad, norm.wide(norm.mean(grad))), common)
    of_x = text.elementwise("mul", inside, norm.wide(text.elementwise("mul", scale, norm.scale(variance))))
    return of_x, norm.sum(product), norm.sum(grad)


# ---- Calls, branches, annotations.


@rule("func.call")
def _call(op: Op, *operands: Value) -> Sequence[Value]:
    return op.call(op.string("callee").removeprefix("@"), operands)


@rule("stablehlo.composite")
def _composite(op: Op, *operands: Value) -> Value | Sequence[Value]:
    """An operation that is known by its name, or else what it is made of."""
    name = op.string("name")
    if name in ("chlo.erf", "chlo.erf_inv", "chlo.top_k", *_PRIMITIVES):
        found: Value | Sequence[Value] = RULES[name](op, *operands)
        return found
    return op.call(op.string("decomposition").removeprefix("@"), operands)


@rule("stablehlo.case", "stablehlo.if")
def _branches(op: Op, which: Value) -> Sequence[Value]:
    """An index that is none of a branch stands for the last; the rule of cond takes the first for what is below 0."""
    regions, text = list(op.operation.regions), op.text
    outside = outside_values(regions)
    if op.operation.name == "stablehlo.if":
        which, regions = text.convert(which, "i32"), regions[::-1]
    else:
        if not _is_branch(op, op.operation.operands[0].owner):
            which = text.select(text.elementwise("lt", which, text.full(which, 0)), text.full(which, len(regions) - 1), which)
    params = {"branches": [(outside, region.blocks[0]) for region in regions]}
    return op.primitive("cond", params, which, *(op.values[value] for value in outside))


def _is_branch(op: Op, owner: Any) -> bool:
    """Of what an index comes from: it is never below 0, as those that JAX makes."""
    if isinstance(owner, ir.Block):
        return False
    name, operands = owner.operation.name, owner.operation.operands
    return (name == "stablehlo.convert" and str(operands[0].type) == "tensor<i1>") or (name == "stablehlo.clamp" and op.number_of(operands[0]) == 0)


@rule("sdy.sharding_constraint", "sdy.reshard")
def _constraint(op: Op, x: Value) -> Value:
    (spec,) = shardy_specs(op.operation.attributes["sharding"], [len(x.shape)])
    return x if spec is None else op.text.marked(x, spec)


@rule("sdy.propagation_barrier")
def _same(op: Op, x: Value) -> Value:
    return x


@rule("sdy.sharding_group")
def _nothing(op: Op, x: Value) -> Sequence[Value]:
    return ()


@rule("sdy.named_computation")
def _named_computation(op: Op, *operands: Value) -> Sequence[Value]:
    (block,) = op.operation.regions[0].blocks
    return op.writer.block(block, dict(zip(block.arguments, operands)), op.path)


def _manual(op: Op, *operands: Value) -> Value:
    raise Refused("a step says what each device does, as shard_map has it, needed one that is written for one device")


#: By their targets.
CUSTOM_CALLS = Rules()


@rule("stablehlo.custom_call")
def _custom_call(op: Op, *operands: Value) -> Value | Sequence[Value]:
    target = op.string("call_target_name")
    if target in CUSTOM_CALLS:
        called: Value | Sequence[Value] = CUSTOM_CALLS[target](op, *operands)
        return called
    if target == "Sharding":
        spec = op.writer.mesh.spec(op.string("mhlo.sharding"), len(op.shape))
        return operands[0] if spec is None else op.text.marked(operands[0], spec)
    if target in ("SPMDFullToShardShape", "SPMDShardToFullShape"):
        return _manual(op, *operands)
    if target in ("mhlo.erf", "mhlo.topk"):  # as jax.export had them before there were composites
        found: Value | Sequence[Value] = RULES["chlo.erf" if target == "mhlo.erf" else "chlo.top_k"](op, *operands)
        return found
    if target == "ApproxTopK":  # exact, as on a CPU
        return _approximate_top_k(op, operands[0])
    raise Refused(f"@{target}")


def _approximate_top_k(op: Op, x: Value) -> Sequence[Value]:
    attributes = op.operation.attributes
    options = attributes["mhlo.backend_config"] if "mhlo.backend_config" in attributes else None
    (comparator,) = attributes["called_computations"]
    block = op.writer.block_of(str(comparator.value))
    compare = next(iter(block.operations)).operation if block is not None else None
    if options is None or compare is None or compare.name != "stablehlo.compare" or list(compare.operands) != list(block.arguments)[:2]:
        raise Refused("@ApproxTopK: found another form than JAX gives it")
    is_max = str(stablehlo.ComparisonDirectionAttr(compare.attributes["comparison_direction"]).value) == "GT"
    params = {"reduction_dimension": int(options["reduction_dim"].value), "k": int(options["top_k"].value), "is_max_k": is_max}
    return op.primitive("approx_top_k", params, x)
