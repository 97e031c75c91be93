"""Implements torch.autocast("xla", dtype=torch.bfloat16) for tensors of the emulated device. The operations
in the lower precision and those in f32 are those of PyTorch/XLA 2.9; all others take their operands
unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LOWER = ("mm", "matmul", "linear", "addmm", "einsum", "bmm", "baddbmm", "addbmm", "relu", "prelu",
          "conv1d", "conv2d", "conv3d",
          "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "max_pool2d")
_FULL = ("softmax.int", "log_softmax.int", "mse_loss", "l1_loss", "smooth_l1_loss", "nll_loss", "nll_loss2d",
         "binary_cross_entropy", "binary_cross_entropy_with_logits", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
         "prod", "prod.dim_int", "kl_div", "cdist", "batch_norm")
_WIDEST = ("cat", "stack")

#: The key of all tensors, which torch ignores unless autocast("xla") is on.
KEYS = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastXLA"))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Casts floats of 16 and 32 bits; torch does not cast those of 64."""
    is_cast = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16,
                                                                  torch.float16)
    return value.to(dtype) if is_cast else value


def _lower(leaves: list[Any]) -> torch.dtype:
    return torch.get_autocast_dtype("xla")


def _full(leaves: list[Any]) -> torch.dtype:
    return torch.float32


def _widest(leaves: list[Any]) -> torch.dtype:
    is_full = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float32 for leaf in leaves)
    return torch.float32 if is_full else torch.get_autocast_dtype("xla")


def _with(func: Any, dtype_of: Callable[[list[Any]], torch.dtype]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            leaves, tree = pytree.tree_flatten((args, kwargs))
            dtype = dtype_of(leaves)
            args, kwargs = pytree.tree_unflatten([_cast(leaf, dtype) for leaf in leaves], tree)
            return func(*args, **kwargs)

    return called


_library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_others: Any = torch.library.Library("_", "IMPL", "AutocastXLA")  # type: ignore[no-untyped-call]


def install() -> None:
    """Lets autocast("xla") work from now on."""
    for names, dtype_of in ((_LOWER, _lower), (_FULL, _full), (_WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            _library.impl(name, _with(getattr(getattr(torch.ops.aten, packet), overload or "default"),
                                      dtype_of), "AutocastXLA")
    _others.fallback(torch.library.fallthrough_kernel)
