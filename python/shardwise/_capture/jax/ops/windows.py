"""Writes primitives over windows: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...._dtypes import NUMPY
from ...._programs.text import FLOATS, Refused, Value, listed
from .rules import Call, rule


@rule("conv_general_dilated")
def _convolution(call: Call, x: Value, kernel: Value) -> Value:
    params, text, dims = call.params, call.text, call.params["dimension_numbers"]
    if x.dtype != call.dtype or kernel.dtype != call.dtype:
        x, kernel = text.convert(x, call.dtype), text.convert(kernel, call.dtype)
    low, high = _sides(params["padding"])
    lists = {"lhs": dims.lhs_spec, "rhs": dims.rhs_spec, "out": dims.out_spec,
             "stride": params["window_strides"], "low": low, "high": high,
             "lhs_dilation": params["lhs_dilation"], "rhs_dilation": params["rhs_dilation"]}
    return text.convolution(x, kernel, call.shape, lists, params["feature_group_count"],
                            params["batch_group_count"])


def _sides(padding: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [low for low, _ in padding], [high for _, high in padding]


def _window_words(call: Call, dilation: Sequence[int]) -> str:
    low, high = _sides(call.params["padding"])
    return (listed("window", call.params["window_dimensions"])
            + listed("stride", call.params["window_strides"])
            + listed("low", low) + listed("high", high) + listed("dilation", dilation))


def _reduce_window(op: str, call: Call, x: Value, nothing: float | int) -> Value:
    gaps = [dilation - 1 for dilation in call.params["base_dilation"]]
    x = call.text.pad(x, [0] * len(gaps), [0] * len(gaps), gaps, nothing)
    return call.text.node(op, [x], x.dtype, call.shape, _window_words(call, call.params["window_dilation"]))


def _least(dtype: str) -> float | int:
    return -math.inf if dtype in FLOATS else int(np.iinfo(NUMPY[dtype]).min)


@rule("reduce_window_sum")
def _reduce_window_sum(call: Call, x: Value) -> Value:
    return _reduce_window("reduce_window_sum", call, x, 0)


@rule("reduce_window_max")
def _reduce_window_max(call: Call, x: Value) -> Value:
    return _reduce_window("reduce_window_max", call, x, _least(x.dtype))


@rule("reduce_window_min")
def _reduce_window_min(call: Call, x: Value) -> Value:
    if x.dtype not in FLOATS:
        raise Refused(f"found {x.dtype}, needed a floating dtype")
    text = call.text
    return text.elementwise("neg",
                            _reduce_window("reduce_window_max", call, text.elementwise("neg", x), -math.inf))


@rule("select_and_scatter_add")
def _select_and_scatter_add(call: Call, source: Value, x: Value) -> Value:
    select = call.params["select_prim"].name
    if select not in ("ge", "le") or (select == "le" and x.dtype not in FLOATS):
        raise Refused(f"found the selection {select} of {x.dtype}, needed the largest, "
                      "or the least of floats")
    largest = call.text.elementwise("neg", x) if select == "le" else x
    words = _window_words(call, [1] * len(x.shape))
    return call.text.node("select_and_scatter_add", [largest, source], call.dtype, call.shape, words)
