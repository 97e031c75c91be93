"""Writes ATen's reductions, products and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...._programs.text import Refused, Value
from .rules import RULES, Builder, Scalar, Type, dims_of, is_float, rule


@rule("sum")
def _sum(build: Builder, out: Type, x: Value, dims: Any = None, keep: bool = False, *,
         dtype: Any = None) -> Value:
    return build.reduced("reduce_sum", build.convert(x, out.dtype), dims_of(x, dims), keep)


@rule("mean")
def _mean(build: Builder, out: Type, x: Value, dims: Any = None, keep: bool = False, *,
          dtype: Any = None) -> Value:
    wide = build.wide(build.convert(x, out.dtype))
    return build.convert(build.mean(wide, dims_of(x, dims), keep), out.dtype)


@rule("prod")
def _prod(build: Builder, out: Type, x: Value, dims: Any = None, keep: bool = False, *,
          dtype: Any = None) -> Value:
    return build.reduced("reduce_prod", build.convert(x, out.dtype), dims_of(x, dims), keep)


def _extreme(op: str) -> Callable[..., Value]:
    return lambda build, out, x, dims=None, keep=False: build.reduced(op, x, dims_of(x, dims), keep)


RULES["amax"], RULES["amin"] = _extreme("reduce_max"), _extreme("reduce_min")


def _quantifier(op: str) -> Callable[..., Value]:
    return lambda build, out, x, dims=None, keep=False: build.reduced(op, build.convert(x, "bool"),
                                                                      dims_of(x, dims), keep)


RULES["any"], RULES["all"] = _quantifier("reduce_max"), _quantifier("reduce_min")


def _index_of(op: str) -> Callable[..., Value]:
    def of(build: Builder, out: Type, x: Value, dim: int | None = None, keep: bool = False) -> Value:
        if dim is None:
            x, dim = build.reshape(x, (math.prod(x.shape),)), 0
        dim %= len(x.shape)
        return build.reshape(build.as_index(build.index_of(op, x, dim)), out.shape)

    return of


RULES["argmax"], RULES["argmin"] = _index_of("argmax"), _index_of("argmin")


def _extreme_and_index(reduction: str, index: str) -> Callable[..., Any]:
    def of(build: Builder, out: Any, x: Value, dim: int | None = None, keep: bool = False) -> Any:
        if dim is None:
            return build.reduced(reduction, x, dims_of(x, None))
        return [build.reduced(reduction, x, dims_of(x, dim), keep), RULES[index](build, out[1], x, dim, keep)]

    return of


RULES["max"], RULES["min"] = (_extreme_and_index("reduce_max", "argmax"),
                              _extreme_and_index("reduce_min", "argmin"))


def _cumulative(op: str) -> Callable[..., Value]:
    def of(build: Builder, out: Type, x: Value, dim: int, *, dtype: Any = None) -> Value:
        x = build.convert(x, out.dtype)
        return build.along(op, x, dim % len(x.shape)) if x.shape else x

    return of


RULES["cumsum"], RULES["cumprod"] = _cumulative("cumsum"), _cumulative("cumprod")
RULES["logcumsumexp"] = _cumulative("cumlogsumexp")


def _variance(build: Builder, x: Value, dims: Sequence[int], keep: bool,
              correction: Scalar) -> tuple[Value, Value]:
    """Returns the variance, and the mean with kept dims."""
    mean = build.mean(x, dims, keep=True)
    centred = build.binary("sub", x, build.broadcast_to(mean, x.shape))
    total = build.reduced("reduce_sum", build.binary("mul", centred, centred), dims, keep)
    return build.binary("div", total, max(0.0, math.prod(x.shape[d] for d in dims) - float(correction))), mean


@rule("var")
def _var(build: Builder, out: Type, x: Value, dims: Any = None, unbiased: Any = None, keepdim: bool = False,
         *, correction: Scalar | None = 1) -> Value:
    correction = ((1 if unbiased else 0) if isinstance(unbiased, bool) else 1 if correction is None
                  else correction)
    made, _ = _variance(build, build.wide(x), dims_of(x, dims), keepdim, correction)
    return build.convert(made, x.dtype)


@rule("var_mean")
def _var_mean(build: Builder, out: Sequence[Type], x: Value, dims: Any = None, *,
              correction: Scalar | None = 1, keepdim: bool = False) -> list[Value]:
    made, mean = _variance(build, build.wide(x), dims_of(x, dims), keepdim,
                           1 if correction is None else correction)
    return [build.convert(made, x.dtype), build.convert(build.reshape(mean, out[1].shape), x.dtype)]


@rule("logsumexp")
def _logsumexp(build: Builder, out: Type, x: Value, dims: Any, keep: bool = False) -> Value:
    own = dims_of(x, dims)
    most = build.reduced("reduce_max", x, own, keep=True)
    finite = build.select(build.unary("is_finite", most), most, build.full(most, 0))
    total = build.reduced("reduce_sum",
                          build.unary("exp", build.binary("sub", x, build.broadcast_to(finite, x.shape))),
                          own, keep=True)
    return build.reshape(build.binary("add", build.unary("log", total), finite), out.shape)


def _centred(build: Builder, x: Value, dim: int) -> tuple[Value, list[int]]:
    """Returns x minus its maximum, in the dtype of the computation, and the dims."""
    dims = dims_of(x, dim)
    wide = build.wide(x)
    return build.binary("sub", wide, build.broadcast_to(build.reduced("reduce_max", wide, dims, keep=True),
                                                        x.shape)), dims


@rule("_softmax")
def _softmax(build: Builder, out: Type, x: Value, dim: int, half_to_float: bool) -> Value:
    centred, dims = _centred(build, x, dim)
    powers = build.unary("exp", centred)
    total = build.broadcast_to(build.reduced("reduce_sum", powers, dims, keep=True), x.shape)
    return build.convert(build.binary("div", powers, total), out.dtype)


@rule("_safe_softmax")
def _safe_softmax(build: Builder, out: Type, x: Value, dim: int, dtype: Any = None) -> Value:
    """Returns the softmax, with zeros in a row that is all -inf."""
    x = build.convert(x, out.dtype)
    made = _softmax(build, out, x, dim, False)
    nothing = build.reduced("reduce_min", build.binary("eq", x, -math.inf), dims_of(x, dim), keep=True)
    return build.select(build.broadcast_to(nothing, x.shape), build.full(made, 0), made)


@rule("_log_softmax")
def _log_softmax(build: Builder, out: Type, x: Value, dim: int, half_to_float: bool) -> Value:
    centred, dims = _centred(build, x, dim)
    total = build.reduced("reduce_sum", build.unary("exp", centred), dims, keep=True)
    made = build.binary("sub", centred, build.broadcast_to(build.unary("log", total), x.shape))
    return build.convert(made, out.dtype)


@rule("native_layer_norm")
def _layer_norm(build: Builder, out: Sequence[Type], x: Value, shape: Sequence[int], weight: Value | None,
                bias: Value | None, epsilon: float) -> list[Value]:
    wide = build.wide(x)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    variance, mean = _variance(build, wide, dims, True, 0)
    scale = build.unary("rsqrt", build.binary("add", variance, epsilon))
    made = build.binary("mul", build.binary("sub", wide, build.broadcast_to(mean, x.shape)),
                        build.broadcast_to(scale, x.shape))
    if weight is not None:
        made = build.binary("mul", made, build.operand(weight, wide.dtype, x.shape))
    if bias is not None:
        made = build.binary("add", made, build.operand(bias, wide.dtype, x.shape))
    return [build.convert(made, x.dtype), build.convert(mean, out[1].dtype),
            build.convert(scale, out[2].dtype)]


@rule("_weight_norm_interface")
def _weight_norm(build: Builder, out: Sequence[Type], v: Value, g: Value, dim: int = 0) -> list[Value]:
    """Returns g v / |v| for each element along the dim, and |v|."""
    norm = build.unary("sqrt",
                       build.reduced("reduce_sum", build.binary("mul", v, v), _all_but(v, dim), keep=True))
    scale = build.binary("div", build.reshape(g, norm.shape), norm)
    return [build.binary("mul", v, build.broadcast_to(scale, v.shape)),
            build.convert(build.reshape(norm, out[1].shape), out[1].dtype)]


@rule("_weight_norm_interface_backward")
def _weight_norm_backward(build: Builder, out: Sequence[Type], gradient: Value, v: Value, g: Value,
                          norms: Value, dim: int) -> list[Value]:
    norm = build.convert(norms, v.dtype)
    of_g = build.binary("div", build.reduced("reduce_sum", build.binary("mul", gradient, v), _all_but(v, dim),
                                             keep=True), norm)
    across = build.binary("sub", gradient, build.binary(
        "mul", v, build.broadcast_to(build.binary("div", of_g, norm), v.shape)))
    return [build.binary("mul", across, build.broadcast_to(build.binary("div", g, norm), v.shape)),
            build.reshape(of_g, out[1].shape)]


def _all_but(x: Value, dim: int) -> list[int]:
    return [d for d in range(len(x.shape)) if d != dim % len(x.shape)]


# Products.


def _product(equation: str) -> Callable[..., Value]:
    return lambda build, out, a, b: build.product(equation, a, b)


RULES.update(mm=_product("ij,jk->ik"), bmm=lambda build, out, a, b: build.batched_product(a, b),
             mv=_product("ij,j->i"), dot=_product("i,i->"))


@rule("addmm", "baddbmm", "addmv")
def _addmm(build: Builder, out: Type, c: Value, a: Value, b: Value, *, beta: Scalar = 1,
           alpha: Scalar = 1) -> Value:
    letters = "bijk"[3 - len(a.shape):]
    equation = {(2, 2): "ij,jk->ik", (3,
                                      3): "bij,bjk->bik", (2, 1): "ij,j->i"}.get((len(a.shape), len(b.shape)))
    if equation is None:
        raise Refused(f"a product of tensors of {len(a.shape)} and {len(b.shape)} dims ({letters})")
    product = build.batched_product(a, b) if len(a.shape) == 3 else build.product(equation, a, b)
    product = product if alpha == 1 else build.binary("mul", product, alpha)
    if beta == 0:
        return product
    c = build.broadcast_to(c, out.shape)
    return build.binary("add", c if beta == 1 else build.binary("mul", c, beta), product)


# Products of groups of rows, each with its own matrix. ends[i] is the end of group i. Each group has a
# product of all rows, with zeros for the rows of other groups, so that groups may be cut.


def _in_groups(build: Builder, x: Value, ends: Value, dim: int) -> Value:
    """Returns [groups, *x], which has for each group x with zeros outside the group along the dim."""
    groups, extent = ends.shape[0], x.shape[dim]
    ends = build.convert(ends, "i64")
    begins = build.padded(build.cut(ends, 0, 0, groups - 1), [1], [0])
    place = build.iota("i64", (groups, extent), 1)
    begin, end = (build.broadcast(one, (groups, extent), [0]) for one in (begins, ends))
    is_inside = build.binary("logical_and", build.binary("le", begin, place), build.binary("lt", place, end))
    shape = (groups, *x.shape)
    wide = build.broadcast(x, shape, list(range(1, len(shape))))
    return build.select(build.broadcast(is_inside, shape, [0, dim + 1]), wide, build.full(wide, 0))


@rule("_grouped_mm")
def _grouped_mm(build: Builder, out: Type, a: Value, b: Value, ends: Value | None = None,
                bias: Value | None = None, *, offs: Value | None = None, out_dtype: Any = None) -> Value:
    ends = offs if ends is None else ends
    if bias is not None or (ends is None) != (len(a.shape) == len(b.shape) == 3):
        raise Refused("_grouped_mm with a bias, or without offs")
    if ends is None:
        made = build.batched_product(a, b)
    elif len(b.shape) == 3:
        made = build.product("gsi,gio->so", _in_groups(build, a, ends, 0), b)
    elif len(a.shape) == 3:
        made = build.product("goi,gis->os", a, _in_groups(build, b, ends, 1))
    else:  # the gradient of the matrices
        made = build.product("is,gso->gio", a, _in_groups(build, b, ends, 0))
    return build.convert(made, out.dtype)


@rule("grouped_mm_fallback")
def _grouped_mm_of_transformers(build: Builder, out: Type, x: Value, weight: Value, offs: Value) -> Value:
    """Writes the product that transformers uses for experts during a trace."""
    return build.product("gsi,gio->so", _in_groups(build, x, offs, 0), weight)


@rule("grouped_mm_fallback_backward")
def _of_grouped_mm(build: Builder, out: Sequence[Type], x: Value, weight: Value, offs: Value,
                   gradient: Value) -> list[Value]:
    gradients = _in_groups(build, gradient, offs, 0)
    return [build.product("gso,gio->si", gradients, weight), build.product("si,gso->gio", x, gradients)]


@rule("histc")
def _histc(build: Builder, out: Type, x: Value, bins: int = 100, least: Scalar = 0,
           most: Scalar = 0) -> Value:
    """Counts elements by bins, as for experts. The last bin includes `most`."""
    if least >= most:
        raise Refused("histc of bins that the values say, needed min and max")
    size = math.prod(x.shape)
    wide = build.reshape(build.wide(x) if is_float(x) else build.convert(x, "f32"), (size,))
    place = build.unary("floor", build.binary("div", build.binary("mul", build.binary("sub", wide, least),
                                                                  bins), most - least))
    place = build.select(build.binary("le", wide, most), build.binary("min", place, bins - 1),
                         build.full(place, -1))
    numbers = build.convert(build.iota("i32", (size, bins), 1), wide.dtype)
    hits = build.binary("eq", build.broadcast(place, (size, bins), [0]), numbers)
    return build.reduced("reduce_sum", build.convert(hits, out.dtype), [0])
