"""Lists the operations of torch that a trace decomposes, as programs have no rules for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from .ops import ctc as _aten_ctc
from .foreach import taken_apart

_aten = torch.ops.aten

# Operations that are simpler in our operations than in core ATen's decomposition.
_KEPT = ("lerp", "lerp_", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "embedding_dense_backward", "silu",
         "silu_", "select_scatter", "stack", "logsumexp", "_safe_softmax")

# Operations that core ATen keeps, and torch can decompose.
_TAKEN_APART = (_aten.native_batch_norm, _aten._native_batch_norm_legit,
                _aten._native_batch_norm_legit_functional, _aten._native_batch_norm_legit_no_training,
                _aten.native_group_norm, _aten._adaptive_avg_pool2d,
                _aten.native_dropout, _aten.linalg_vector_norm)


@functools.lru_cache(1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns decompositions of operations without rules into operations with rules."""
    table = {**dict(core_aten_decompositions()), **get_decompositions(_TAKEN_APART), **taken_apart()}
    kept = {op: rule for op, rule in table.items() if op._schema.name.removeprefix("aten::") not in _KEPT}
    return {**kept, **_aten_ctc.decompositions(), _aten.linalg_lstsq.default: _least_squares}


def _least_squares(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Decomposes aten::linalg_lstsq for a matrix of full rank, as the shapes of its results depend on the
    rank."""
    rows, columns = a.shape[-2:]
    b = b.unsqueeze(-1) if (is_vector := b.dim() == a.dim() - 1) else b
    q, r = torch.linalg.qr(a if rows >= columns else a.mT)
    if rows >= columns:
        made = torch.linalg.solve_triangular(r, q.mT @ b, upper=True)
    else:
        made = q @ torch.linalg.solve_triangular(r.mT, b, upper=False)
    empty = made.new_empty(0)
    has_residuals = rows > columns and driver not in (None, "gelsy")
    residuals = (a @ made - b).square().sum(-2) if has_residuals else empty
    values = torch.linalg.svdvals(a) if driver in ("gelsd", "gelss") else empty
    rank = torch.empty(0, dtype=torch.int64) if driver == "gels" else torch.full(a.shape[:-2],
                                                                                 min(rows, columns))
    return made.squeeze(-1) if is_vector else made, residuals, rank, values
