"""Attention that one kernel of a GPU computes: its gradient computes the scores again, as torch's kernels
do."""

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
    """Tells if a fused kernel of torch computes the attention that is traced now on a GPU."""

    #: no step asks for these two, so a step that asks is seen
    TRACED = (SDPBackend.MATH, SDPBackend.OVERRIDEABLE)

    def __init__(self) -> None:
        self.calls = 0
        self.is_open = False
        self._before = set(_cur_sdpa_kernel_backends())

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Nothing of the size of the sequence squared is kept for the gradient. Dropout draws the same again.
        Attention that no kernel computes keeps its scores, as torch does.

        A kernel of the dispatcher's, and no mode for torch functions: autograd calls no mode when a
        checkpoint around the attention computes again. Other threads get torch's own."""
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
            for key in ("AutogradCPU", "AutogradCUDA"):  # the alias of both would lose to torch's own
                library.impl("scaled_dot_product_attention", attention, key)
            with sdpa_kernel(list(self.TRACED)):
                yield
        finally:
            library._destroy()

    def _allowed(self) -> set[SDPBackend]:
        """The backends that the step has asked for, or that hold around the capture."""
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
    """As torch chooses on a GPU: flash attention takes no mask, rows of 256 numbers at most and 16 bits;
    memory-efficient attention takes masks and f32, as many heads of each, and rows that its loads divide (16
    bytes). Else the scores are written out, as in f64, unless the step refuses that."""
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
