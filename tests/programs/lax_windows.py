"""What jax.lax computes of windows: reductions of them, and the gradient of the largest."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax
from jax._src.lax import windowed_reductions
from lax_case import Array, Case


@dataclasses.dataclass
class Windows:
    window: list[int]
    stride: list[int]
    low: list[int]
    high: list[int]
    dilation: list[int]

    @property
    def padding(self) -> list[tuple[int, int]]:
        return list(zip(self.low, self.high))


def windows_of(case: Case) -> Windows:
    return Windows(*json.loads(case.text))


def reduce_window(case: Case, x: Any, first: Any, combine: Callable[..., Any]) -> Any:
    a = windows_of(case)
    return lax.reduce_window(x, first, combine, a.window, a.stride, a.padding, window_dilation=a.dilation)


def window_max(case: Case, x: Array) -> Array:
    a = windows_of(case)
    wide = np.pad(x, [(max(low, 0), max(high, 0)) for low, high in a.padding], constant_values=-np.inf)
    wide = wide[tuple(slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(a.padding, wide.shape))]
    taps = [wide[tuple(slice(t * d, t * d + (n - 1) * s + 1, s)
                       for t, d, s, n in zip(tap, a.dilation, a.stride, case.shape))] for tap in np.ndindex(*a.window)]
    return np.max(np.stack(taps), 0)


def select_and_scatter_add(case: Case, x: Any, source: Any) -> Any:
    a = windows_of(case)
    return windowed_reductions._select_and_scatter_add(source, x, lax.ge_p, tuple(a.window), tuple(a.stride), a.padding)


def jax_lacks(case: Case) -> bool:
    """It gives no gradient for dilated windows and none where padding is negative; of scalars it aborts."""
    if case.op != "select_and_scatter_add":
        return False
    a = windows_of(case)
    return not a.window or any(d > 1 for d in a.dilation) or any(p < 0 for p in a.low + a.high)
