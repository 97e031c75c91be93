"""Writes ATen's convolutions, pooling and interpolation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...._programs.text import Shape, Value, listed
from .rules import RULES, Builder, Type, rule

Numbers = Sequence[int]


@dataclass(frozen=True)
class _Convolution:
    """The attributes in runtime/graph/attributes.h. lhs: the dims of images and features in the operand. rhs:
    the dims of the result's and the operand's features in the kernel. out: the dims of images and features in
    the result."""

    stride: Numbers
    low: Numbers
    high: Numbers
    lhs_dilation: Numbers
    rhs_dilation: Numbers
    feature_groups: int = 1
    batch_groups: int = 1
    lhs: tuple[int, int] = (0, 1)
    rhs: tuple[int, int] = (0, 1)
    out: tuple[int, int] = (0, 1)

    def apply(self, build: Builder, x: Value, kernel: Value) -> Value:
        spatial = range(2, len(x.shape))
        shape = [0] * len(x.shape)
        shape[self.out[0]] = x.shape[self.lhs[0]] // self.batch_groups
        shape[self.out[1]] = kernel.shape[self.rhs[0]]
        for i, d in enumerate(spatial):
            extent = _dilated(x.shape[d], self.lhs_dilation[i]) + self.low[i] + self.high[i]
            shape[d] = (extent - _dilated(kernel.shape[d], self.rhs_dilation[i])) // self.stride[i] + 1
        lists = dict(lhs=[*self.lhs, *spatial], rhs=[*self.rhs, *spatial], out=[*self.out, *spatial],
                     stride=self.stride, low=self.low,
                     high=self.high, lhs_dilation=self.lhs_dilation, rhs_dilation=self.rhs_dilation)
        return build.convolution(x, kernel, shape, lists, self.feature_groups, self.batch_groups)


def _dilated(extent: int, dilation: int) -> int:
    return (extent - 1) * dilation + 1


def _spatial(numbers: Numbers, count: int) -> list[int]:
    """Returns a number for each dim; a single number stands for all."""
    return list(numbers) if len(numbers) == count else list(numbers) * count


def _groups_moved(build: Builder, kernel: Value, groups: int) -> Value:
    """Returns a kernel [groups * a, b, ..] as [groups * b, a, ..], reversed in space, so that the features of
    both sides change places inside their group."""
    a, b, *space = kernel.shape
    turned = build.reverse(kernel, range(2, len(kernel.shape)))
    split = build.reshape(turned, (groups, a // groups, b, *space))
    moved = build.transpose(split, [0, 2, 1, *range(3, len(split.shape))])
    return build.reshape(moved, (groups * b, a // groups, *space))


def _spread(build: Builder, x: Value, kernel: Value, forward: _Convolution, shape: Numbers) -> Value:
    """Returns the gradient, of that shape, of a convolution's operand: x spread by the strides, with the
    reversed kernel. A transposed convolution is the same."""
    space = range(len(forward.stride))
    reach = [_dilated(kernel.shape[i + 2], forward.rhs_dilation[i]) - 1 for i in space]
    low = [reach[i] - forward.low[i] for i in space]
    high = [shape[i + 2] + reach[i] - _dilated(x.shape[i + 2], forward.stride[i]) - low[i] for i in space]
    back = replace(forward, stride=[1 for _ in space], low=low, high=high, lhs_dilation=forward.stride)
    return back.apply(build, x, _groups_moved(build, kernel, forward.feature_groups))


def _of_kernel(build: Builder, x: Value, gradient: Value, forward: _Convolution, shape: Numbers) -> Value:
    """Returns the gradient of a convolution's kernel, of that shape, summed over the images."""
    space = range(len(forward.stride))
    high = []
    for i in space:
        reach = _dilated(shape[i + 2],
                         forward.rhs_dilation[i]) + _dilated(gradient.shape[i + 2], forward.stride[i]) - 1
        high.append(reach - x.shape[i + 2] - forward.low[i])
    back = replace(forward, stride=forward.rhs_dilation, high=high, rhs_dilation=forward.stride,
                   feature_groups=1, batch_groups=forward.feature_groups, lhs=(1, 0), rhs=(1, 0), out=(1, 0))
    return back.apply(build, x, gradient)


def _forward(x: Value, stride: Numbers, padding: Numbers, dilation: Numbers, groups: int) -> _Convolution:
    count = len(x.shape) - 2
    around = _spatial(padding, count)
    return _Convolution(_spatial(stride, count), around, around, [1] * count, _spatial(dilation, count),
                        groups)


@rule("convolution")
def _convolution(build: Builder, out: Type, x: Value, kernel: Value, bias: Value | None,
                 stride: Numbers, padding: Numbers,
                 dilation: Numbers, transposed: bool, output_padding: Numbers, groups: int) -> Value:
    forward = _forward(x, stride, padding, dilation, groups)
    made = _spread(build, x, kernel, forward, out.shape) if transposed else forward.apply(build, x, kernel)
    return made if bias is None else build.binary("add", made, build.broadcast(bias, made.shape, [1]))


@rule("convolution_backward")
def _convolution_backward(build: Builder, out: Sequence[Type | None], gradient: Value, x: Value,
                          kernel: Value, bias_sizes: Any, stride: Numbers, padding: Numbers,
                          dilation: Numbers, transposed: bool, output_padding: Numbers,
                          groups: int, wanted: Sequence[bool]) -> list[Value | None]:
    forward = _forward(x, stride, padding, dilation, groups)
    of_x = of_kernel = of_bias = None
    if wanted[0]:
        if transposed:  # output_padding may add places that no element of x reaches
            of_x = forward.apply(build, gradient, kernel)
            of_x = build.slice(of_x, [0] * len(x.shape), x.shape)
        else:
            of_x = _spread(build, gradient, kernel, forward, x.shape)
    if wanted[1]:
        operand, result = (gradient, x) if transposed else (x, gradient)
        of_kernel = _of_kernel(build, operand, result, forward, kernel.shape)
    if wanted[2]:
        of_bias = build.reduce("reduce_sum", gradient, [d for d in range(len(gradient.shape)) if d != 1])
    return [of_x, of_kernel, of_bias]


# Pooling takes windows of the last dims.


@dataclass(frozen=True)
class _Windows:
    window: Numbers
    stride: Numbers
    low: Numbers
    high: Numbers
    dilation: Numbers

    @property
    def words(self) -> str:
        return "".join(listed(name, numbers) for name, numbers in vars(self).items())


def _windows(x: Value, shape: Numbers, window: Numbers, stride: Numbers, padding: Numbers,
             dilation: Numbers = (1,)) -> _Windows:
    """Returns the windows of a result of that shape; with ceil_mode, the last windows reach over the edge."""
    count = 1 if len(window) == 1 and len(x.shape) < 4 else 2 if len(window) <= 2 else 3
    window = _spatial(window, count)
    steps, around, gaps = (_spatial(stride or window, count), _spatial(padding, count),
                           _spatial(dilation, count))
    before = len(x.shape) - count
    high = []
    for i in range(count):
        reach = (shape[before + i] - 1) * steps[i] + _dilated(window[i], gaps[i])
        high.append(reach - x.shape[before + i] - around[i])
    ones, zeros = [1] * before, [0] * before
    return _Windows([*ones, *window], [*ones, *steps], [*zeros, *around], [*zeros, *high], [*ones, *gaps])


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(build: Builder, out: Sequence[Type], x: Value, window: Numbers, stride: Numbers = (),
              padding: Numbers = (0,), dilation: Numbers = (1,), ceil_mode: bool = False) -> list[Value]:
    windows = _windows(x, out[0].shape, window, stride, padding, dilation)
    made = build.node("reduce_window_max", (x,), x.dtype, out[0].shape, windows.words)
    return [made, _places_of_most(build, x, made, windows, len(window))]


def _places_of_most(build: Builder, x: Value, most: Value, windows: _Windows, space: int) -> Value:
    """Returns the place, in its picture, of the first element of each window that is the largest, or NaN.
    Elements beyond the edge do not count."""
    nothing = [0] * len(x.shape)
    inside = build.pad(build.operand(True, "bool", x.shape), windows.low, windows.high, nothing, 0)
    padded = build.pad(x, windows.low, windows.high, nothing, 0)
    found: Value = build.operand(0, "i64", most.shape)
    for taps in reversed(list(itertools.product(*(range(windows.window[d]) for d in range(len(x.shape)))))):
        begin = [tap * gap for tap, gap in zip(taps, windows.dilation, strict=True)]
        end = [b + (n - 1) * step + 1 for b, n, step in zip(begin, most.shape, windows.stride, strict=True)]
        here = build.slice(padded, begin, end, windows.stride)
        is_it = build.binary("logical_or", build.binary("eq", here, most), build.binary("ne", here, here))
        is_it = build.binary("logical_and", is_it, build.slice(inside, begin, end, windows.stride))
        place: Value = build.operand(0, "i64", most.shape)
        for d in range(len(x.shape) - space, len(x.shape)):
            along = build.binary("add", build.binary("mul", build.iota("i64", most.shape, d),
                                                     windows.stride[d]), begin[d] - windows.low[d])
            place = build.binary("add", build.binary("mul", place, x.shape[d]), along)
        found = build.select(is_it, place, found)
    return build.as_index(found)


@rule("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(build: Builder, out: Type, gradient: Value, x: Value, window: Numbers, stride: Numbers,
                       padding: Numbers, dilation: Numbers, ceil_mode: bool, indices: Value) -> Value:
    windows = _windows(x, gradient.shape, window, stride, padding, dilation)
    return build.node("select_and_scatter_add", (x, gradient), x.dtype, x.shape, windows.words)


def _counts(build: Builder, x: Value, shape: Numbers, windows: _Windows, padding: Numbers, include_pad: bool,
            divisor: int | None) -> Value:
    """Returns the divisor of each window's sum."""
    if divisor is not None:
        return build.operand(divisor, x.dtype, shape)
    ones = build.operand(1, x.dtype, x.shape)
    if include_pad:  # elements that ceil_mode adds do not count
        around = [0] * (len(x.shape) - len(windows.low)) + list(windows.low)
        ones = build.operand(1, x.dtype, [n + 2 * p for n, p in zip(x.shape, around, strict=True)])
        high = [h - p for h, p in zip(windows.high, windows.low, strict=True)]
        if not any(high):
            return build.operand(math.prod(windows.window), x.dtype, shape)
        windows = replace(windows, low=[0] * len(high), high=high)
    elif not any(windows.low) and not any(windows.high):
        return build.operand(math.prod(windows.window), x.dtype, shape)
    return build.node("reduce_window_sum", (ones,), x.dtype, shape, windows.words)


@rule("avg_pool2d", "avg_pool3d")
def _avg_pool(build: Builder, out: Type, x: Value, window: Numbers, stride: Numbers = (),
              padding: Numbers = (0,), ceil_mode: bool = False,
              count_include_pad: bool = True, divisor_override: int | None = None) -> Value:
    windows = _windows(x, out.shape, window, stride, padding)
    total = build.node("reduce_window_sum", (x,), x.dtype, out.shape, windows.words)
    return build.binary("div", total,
                        _counts(build, x, out.shape, windows, padding, count_include_pad, divisor_override))


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(build: Builder, out: Type, gradient: Value, x: Value, window: Numbers,
                       stride: Numbers, padding: Numbers,
                       ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> Value:
    windows = _windows(x, gradient.shape, window, stride, padding)
    counts = _counts(build, x, gradient.shape, windows, padding, count_include_pad, divisor_override)
    share = build.binary("div", gradient, counts)
    rank = range(len(x.shape))
    spread = build.pad(share, [0 for _ in rank], [0 for _ in rank], [s - 1 for s in windows.stride], 0)
    low = [windows.window[d] - 1 - windows.low[d] for d in rank]
    high = [x.shape[d] - spread.shape[d] + windows.low[d] for d in rank]
    back = replace(windows, stride=[1 for _ in rank], low=low, high=high)
    return build.node("reduce_window_sum", (spread,), x.dtype, x.shape, back.words)


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_pool(build: Builder, out: Type, x: Value, sizes: Numbers) -> Value:
    """Writes windows of uneven sizes as a product with a matrix along each dim, as interpolation is."""
    window = _adaptive_window(x.shape, out.shape, len(sizes))
    return _avg_pool(build, out, x, window, window) if window else _along(
        build, x, _means(x.shape, out.shape, len(sizes)))


def _adaptive_backward(space: int) -> Callable[..., Value]:
    def backward(build: Builder, out: Type, gradient: Value, x: Value) -> Value:
        window = _adaptive_window(x.shape, gradient.shape, space)
        if window:
            return _avg_pool_backward(build, out, gradient, x, window, window, (0,), False, True, None)
        return _along(build, gradient, [matrix.T for matrix in _means(x.shape, gradient.shape, space)])

    return backward


RULES["_adaptive_avg_pool2d_backward"], RULES["_adaptive_avg_pool3d_backward"] = (_adaptive_backward(2),
                                                                                  _adaptive_backward(3))


def _adaptive_window(before: Shape, after: Shape, space: int) -> list[int]:
    """Returns the size of all windows; an empty list if sizes differ."""
    pairs = list(zip(before[-space:], after[-space:], strict=True))
    return [a // b for a, b in pairs] if all(a % b == 0 for a, b in pairs) else []


def _means(before: Shape, after: Shape, space: int) -> list[np.ndarray[Any, Any]]:
    made = []
    for extent, count in zip(before[-space:], after[-space:], strict=True):
        matrix = np.zeros((count, extent))
        for i in range(count):
            begin, end = i * extent // count, -(-(i + 1) * extent // count)
            matrix[i, begin:end] = 1 / (end - begin)
        made.append(matrix)
    return made


# The nearest elements are repeated, or taken at computed places.


def _nearest(is_exact: bool, build: Builder, out: Type, x: Value, sizes: Any = None, *scales: Any) -> Value:
    wide = _with_repeats(x.shape, out.shape)
    if wide and not any(_numbers_in(scales)):
        return build.reshape(build.broadcast(x, wide, [0, *(d for d in range(1, len(wide)) if d == 1
                                                            or d % 2 == 0)]), out.shape)
    for dim, places in _nearest_places(is_exact, x.shape, out.shape, scales):
        x = build.take(x, build.array(places), dim)
    return x


def _nearest_backward(is_exact: bool, build: Builder, out: Type, gradient: Value, sizes: Any, before: Any,
                      *scales: Any) -> Value:
    wide = _with_repeats(out.shape, gradient.shape)
    if wide and not any(_numbers_in(scales)):
        return build.reduce("reduce_sum", build.reshape(gradient, wide), range(3, len(wide), 2))
    for dim, places in _nearest_places(is_exact, out.shape, gradient.shape, scales):
        gradient = build.scatter_add(build.array(places), gradient, dim, out.shape[dim])
    return gradient


def _numbers_in(scales: Any) -> list[float]:
    return [scale for one in scales if one
            for scale in (one if isinstance(one, (list, tuple)) else [one]) if scale and scale != int(scale)]


def _nearest_places(is_exact: bool, before: Shape, after: Shape,
                    scales: Any) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Returns the nearest places for each dim of space, computed in f32 as in torch."""
    given = [scale for one in scales for scale in (one if isinstance(one, (list, tuple))
                                                   else [one])] or [None] * (len(before) - 2)
    made = []
    for dim, scale in zip(range(2, len(before)), given, strict=True):
        step = np.float32(1 / scale if scale else before[dim] / after[dim])
        places = (np.arange(after[dim], dtype=np.float32) + np.float32(0.5 if is_exact else 0)) * step
        made.append((dim, np.minimum(places.astype(np.int64), before[dim] - 1)))
    return made


for _space in (1, 2, 3):
    for _prefix, _is_exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
        RULES[f"{_prefix}{_space}d"] = functools.partial(_nearest, _is_exact)
        RULES[f"{_prefix}{_space}d_backward"] = functools.partial(_nearest_backward, _is_exact)


# Interpolation is a product with a matrix along each dim of space.


def _weights(before: int, after: int, align_corners: bool, scale: float | None,
             cubic: bool) -> np.ndarray[Any, Any]:
    """Returns [after, before], the weight of each element in each element of the result."""
    places = np.arange(after, dtype=np.float64)
    if align_corners:
        places *= (before - 1) / (after - 1) if after > 1 else 0.0
    else:
        places = (places + 0.5) * (1 / scale if scale else before / after) - 0.5
        places = places if cubic else np.maximum(places, 0)
    first = np.floor(places)
    rest = places - first
    near = [1 - rest, rest]
    if cubic:  # Keys' kernel with -0.75

        def of_next(x: Any) -> Any:
            return (1.25 * x - 2.25) * x * x + 1

        def of_others(x: Any) -> Any:
            return ((-0.75 * x + 3.75) * x - 6) * x + 3

        near = [of_others(rest + 1), of_next(rest), of_next(1 - rest), of_others(2 - rest)]
    matrix = np.zeros((after, before))
    for offset, weight in enumerate(near):
        column = np.clip(first + offset - (1 if cubic else 0), 0, before - 1).astype(int)
        np.add.at(matrix, (np.arange(after), column), weight)
    return matrix


def _smooth_weights(before: int, after: int, align_corners: bool, scale: float | None,
                    cubic: bool) -> np.ndarray[Any, Any]:
    """Returns [after, before], weights of kernels as wide as the elements that they combine (antialias=True).
    The sum of each row is 1."""
    if align_corners:
        step = (before - 1) / (after - 1) if after > 1 else 0.0
    else:
        step = 1 / scale if scale else before / after
    reach = (2.0 if cubic else 1.0) * max(step, 1.0)
    matrix = np.zeros((after, before))
    for i in range(after):
        centre = step * (i + 0.5)
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), before)
        far = np.abs((np.arange(first, last) - centre + 0.5) / max(step, 1.0))
        near = np.maximum(1 - far, 0)
        if cubic:  # Keys' kernel with -0.5
            near = np.where(far < 1, (1.5 * far - 2.5) * far * far + 1,
                            np.where(far < 2, ((-0.5 * far + 2.5) * far - 4) * far + 2, 0))
        matrix[i, first:last] = near / near.sum()
    return matrix


def _along(build: Builder, x: Value, matrices: Sequence[np.ndarray[Any, Any]]) -> Value:
    """Returns x with each of its last dims multiplied by a matrix."""
    made, letters = build.wide(x), "abcdefgh"[:len(x.shape)]
    for letter, matrix in zip(letters[-len(matrices):], matrices, strict=True):
        held = build.array(matrix.astype("f8" if made.dtype == "f64" else "f4"))
        made = build.einsum(f"{letters},z{letter}->{letters.replace(letter, 'z')}", made, held, made.dtype)
    return build.convert(made, x.dtype)


def _matrices(before: Shape, after: Shape, align_corners: bool, scales: Sequence[float | None], cubic: bool,
              weights_of: Callable[..., np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    given = scales or [None] * (len(before) - 2)
    return [weights_of(a, b, align_corners, scale, cubic)
            for a, b, scale in zip(before[2:], after[2:], given, strict=True)]


def _interpolate(cubic: bool, weights_of: Callable[..., Any], build: Builder, out: Type, x: Value,
                 sizes: Numbers, align_corners: bool, *scales: float | None) -> Value:
    return _along(build, x, _matrices(x.shape, out.shape, align_corners, scales, cubic, weights_of))


def _interpolate_backward(cubic: bool, weights_of: Callable[..., Any], build: Builder, out: Type,
                          gradient: Value, sizes: Numbers, before: Numbers, align_corners: bool,
                          *scales: float | None) -> Value:
    return _along(build, gradient, [m.T for m in _matrices(out.shape, gradient.shape, align_corners, scales,
                                                           cubic, weights_of)])


for _name, _cubic, _weights_of in (
        ("upsample_linear1d", False, _weights), ("upsample_bilinear2d", False, _weights),
        ("upsample_trilinear3d", False, _weights),
        ("upsample_bicubic2d", True, _weights), ("_upsample_bilinear2d_aa", False, _smooth_weights),
        ("_upsample_bicubic2d_aa", True, _smooth_weights)):
    RULES[_name] = functools.partial(_interpolate, _cubic, _weights_of)
    RULES[f"{_name}_backward"] = functools.partial(_interpolate_backward, _cubic, _weights_of)


def _with_repeats(small: Numbers, large: Numbers) -> Shape:
    """Returns [n, c, h, repeats, w, repeats]; an empty tuple if repeats are not whole numbers."""
    if any(b % a for a, b in zip(small[2:], large[2:], strict=True)):
        return ()
    return (*small[:2], *(n for a, b in zip(small[2:], large[2:], strict=True) for n in (a, b // a)))
