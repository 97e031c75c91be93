"""Traces attention that one kernel of a GPU computes. Its gradient recomputes the scores, as in torch's
kernels."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.utils.checkpoint import checkpoint

_OP = torch.ops.aten.scaled_dot_product_attention.default


class FusedAttention:
    """Decides whether a fused kernel of torch would compute the attention that is being traced, on a GPU."""

    #: no step selects these two, so the trace notices a step that selects backends
    TRACED = (SDPBackend.MATH, SDPBackend.OVERRIDEABLE)

    def __init__(self) -> None:
        self.calls = 0
        self.is_open = False
        self._before = set(_cur_sdpa_kernel_backends())

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Lets fused attention keep nothing of the square of the sequence's length for the gradient. Dropout
        draws the same numbers again. Attention without a kernel keeps its scores, as torch does.

        This is a kernel of the dispatcher, not a mode, as autograd calls no mode when a checkpoint around the
        attention recomputes. Other threads get torch's own kernel."""
        thread = threading.get_ident()

        def attention(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return _OP.decompose(*args, **kwargs)
            is_fused = _is_fused(self._allowed(), *args, **kwargs)
            kernel = functools.partial(self._called, is_fused)
            if not (is_fused and torch.is_grad_enabled()):
                return kernel(*args, **kwargs)
            return checkpoint(kernel, *args, use_reentrant=False, determinism_check="none", **kwargs)

        library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        try:
            for key in ("AutogradCPU", "AutogradCUDA"):  # torch's kernel would win over their common alias
                library.impl("scaled_dot_product_attention", attention, key)
            with sdpa_kernel(list(self.TRACED)):
                yield
        finally:
            library._destroy()

    def _allowed(self) -> set[SDPBackend]:
        """Returns the backends that the step has selected, or those selected around the capture."""
        now = set(_cur_sdpa_kernel_backends())
        return self._before if now == set(self.TRACED) else now

    def _called(self, is_fused: bool, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.is_open = is_fused
        try:
            with sdpa_kernel(list(self.TRACED)):
                return _OP.decompose(*args, **kwargs)
        finally:
            self.is_open = False


def _is_fused(allowed: set[SDPBackend], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attn_mask: torch.Tensor | None = None, *_: Any, **options: Any) -> bool:
    """Returns True if torch would choose a fused kernel on a GPU. Flash attention takes no mask, rows of at
    most 256 numbers, and 16 bits. Memory-efficient attention takes masks and f32, equally many heads of query
    and key, and rows that its loads of 16 bytes divide. Other attention, in f64 for example, computes its
    scores, unless the step refuses that."""
    if SDPBackend.MATH not in allowed:
        return True
    width, is_short = query.shape[-1], query.dtype in (torch.float16, torch.bfloat16)
    if any(one.dim() != 4 or one.dtype != query.dtype for one in (query, key,
                                                                  value)) or key.shape[-1] != width:
        return False
    is_flash = is_short and attn_mask is None and value.shape[-1] == width <= 256
    step = 8 if is_short else 4
    is_efficient = ((is_short or query.dtype == torch.float32) and query.shape[1] == key.shape[1]
                    and width % step == value.shape[-1] % step == 0)
    return (is_flash and SDPBackend.FLASH_ATTENTION in allowed or is_efficient
            and SDPBackend.EFFICIENT_ATTENTION in allowed)
