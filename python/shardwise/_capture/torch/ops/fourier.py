"""Writes ATen's Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._programs.text import Complex, Value
from ...shared.fourier import of_real, to_real, transformed
from .complex import OF_BOTH
from .rules import Builder, Type, replaced, rule


def _scaled(build: Builder, x: Value, count: int, normalization: int) -> Value:
    """Divides by the root of the count for normalization 1, by the count for 2."""
    return build.binary("mul", x, (1, 1 / math.sqrt(count), 1 / count)[normalization]) if normalization else x


def _both_scaled(build: Builder, x: Complex, count: int, normalization: int) -> Complex:
    return Complex(_scaled(build, x.real, count, normalization), _scaled(build, x.imag, count, normalization))


def _from_front(dims: Sequence[int], rank: int) -> list[int]:
    return [dim % rank for dim in dims]


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@OF_BOTH.rule("_fft_c2c")
def _of_complex(build: Builder, out: Type, x: Complex, dims: Sequence[int], normalization: int,
                forward: bool) -> Complex:
    dims = _from_front(dims, len(x.shape))
    return _both_scaled(build, transformed(build, x, dims, -1 if forward else 1), _count(x.shape, dims),
                        normalization)


@OF_BOTH.rule("_fft_r2c")
def _of_real(build: Builder, out: Type, x: Value, dims: Sequence[int], normalization: int,
             onesided: bool) -> Complex:
    dims = _from_front(dims, len(x.shape))
    made = of_real(build, x, dims) if onesided else transformed(build, Complex(x, build.full(x, 0)),
                                                                dims[::-1], -1)
    return _both_scaled(build, made, _count(x.shape, dims), normalization)


@OF_BOTH.rule("_fft_c2r")
def _to_real(build: Builder, out: Type, x: Complex, dims: Sequence[int], normalization: int,
             size: int) -> Value:
    dims = _from_front(dims, len(x.shape))
    return _scaled(build, to_real(build, x, dims, size), _count(replaced(x.shape, dims[-1], size), dims),
                   normalization)


@rule("fft_fftfreq", "fft_rfftfreq")
def _frequencies(build: Builder, out: Type, count: int, spacing: float = 1.0, **_: Any) -> Value:
    """Returns the frequencies. Those of the second half are negative, unless the result has only the first
    half."""
    places = np.arange(out.shape[0])
    places = np.where(places > (count - 1) // 2, places - count, places) if out.shape[0] == count else places
    return build.convert(
        build.array((places / (count * spacing)).astype("f8" if out.dtype == "f64" else "f4")), out.dtype)
