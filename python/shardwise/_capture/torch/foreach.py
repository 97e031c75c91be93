"""Decomposes torch's operations on lists of tensors, which averaging, clipping and optimizers use, into
operations on single tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def taken_apart() -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions, by operation."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in dir(_aten):
        one = (getattr(_aten, name.removeprefix("_foreach_"), None) if name.startswith("_foreach_")
               and not name.endswith("_") else None)
        if one is not None:
            packet = getattr(_aten, name)
            table.update({getattr(packet, overload): _of_each(one)
                          for overload in packet.overloads() if not overload.endswith("out")})
    table[_aten._foreach_norm.Scalar] = _norms
    return table


def _of_each(one: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation on lists, made of one on tensors. A tensor of numbers, as in addcdiv, has a number
    for each tensor."""

    by_number = {_aten.maximum: _aten.clamp_min, _aten.minimum: _aten.clamp_max}

    def of(first: Any, *rest: Any, **options: Any) -> list[Any]:
        count = len(first) if isinstance(first, (list, tuple)) else len(rest[0])

        def part(given: Any, place: int) -> Any:
            several = isinstance(given, (list, tuple)) or (isinstance(given, Tensor) and given.dim() == 1)
            return given[place] if several else given

        made = []
        for place in range(count):
            values = [part(given, place) for given in (first, *rest)]
            if one in by_number and not isinstance(values[1], Tensor):
                made.append(by_number[one](*values))
            elif one in (_aten.addcmul, _aten.addcdiv) and len(values) > 3:
                factor = values[3]
                if isinstance(factor, Tensor):
                    values[1], factor = values[1] * factor.to(values[1].dtype), 1
                made.append(one(*values[:3], value=factor))
            else:
                made.append(one(*values, **options))
        return made

    return of


def _norms(tensors: list[Tensor], order: float = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(one, order, dtype=dtype) for one in tensors]
