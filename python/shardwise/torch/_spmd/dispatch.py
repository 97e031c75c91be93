"""Dispatches torch's operations on tensors of the emulated device. Most are recorded; the host draws random
numbers, and computes operations that depend on values."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..._errors import Unsupported
from .recording import now
from .tensors import DEVICE, Hooks, LazyTensor, meta_of, recorded, uploaded, value_of

_aten = torch.ops.aten


def _dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _aten._linalg_check_errors.default:
        return None
    _refuse_sparse(func, args, kwargs)
    if func in (_aten.detach.default, _aten.alias.default):
        source = args[0]
        return LazyTensor(source._root, source._meta, source._path, source._at)
    if func is _aten.empty_like.default:
        func = _aten.zeros_like.default
    if func._schema.name.startswith("aten::_foreach_"):
        return _of_each(func, args, kwargs)
    device = kwargs.get("device")
    if func is _aten._to_copy.default and device is not None and device.type not in ("lazy", "meta"):
        return func(value_of(args[0]), **kwargs)
    if func is _aten.copy_.default and not isinstance(args[0], LazyTensor):
        return args[0].copy_(value_of(args[1]))
    if func is _aten.copy_.default and _is_fresh(args[0]) and not isinstance(args[1], LazyTensor):
        return _given(args[0], args[1])
    if torch.Tag.inplace_view in func.tags:
        raise Unsupported(f"{func} of a tensor on {DEVICE}: found a change of its shape in place, "
                          "needed an operation that gives another tensor")
    if torch.Tag.nondeterministic_seeded in func.tags:
        return _drawn(func, args, kwargs)
    if device is not None and device.type != "lazy":
        return func(*pytree.tree_map(meta_of, args), **kwargs)
    if torch.Tag.data_dependent_output in func.tags or (torch.Tag.dynamic_output_shape in func.tags
                                                        and _has_mask(func, args)):
        return _on_host(func, args, kwargs)
    return recorded(func, args,
                    {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")})


def _refuse_sparse(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuses sparse gradients, as torch's error would say that the gradient is on another device."""
    at = next((n for n, argument in enumerate(func._schema.arguments) if argument.name == "sparse"), None)
    if at is None or not (kwargs.get("sparse") or (len(args) > at and args[at])):
        return
    if torch.is_grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        raise Unsupported(f"{func._schema.name.removeprefix('aten::').strip('_')} of a tensor on {DEVICE}: "
                          "found sparse=True, whose gradient is a sparse tensor, needed sparse=False, "
                          "and a dense optimizer as SGD or Adam")


def _of_each(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Applies an operation on lists to each of their tensors."""
    name = func._schema.name.removeprefix("aten::_foreach_")
    one = getattr(_aten, {"norm": "linalg_vector_norm"}.get(name, name))
    if name.rstrip("_") in ("addcmul", "addcdiv") and len(args) == 4:
        args, kwargs = args[:3], {**kwargs, "value": args[3]}
    made = [one(*(arg[n] if isinstance(arg, (list, tuple)) else arg for arg in args),
                **{key: arg[n] if isinstance(arg, (list, tuple)) else arg for key, arg in kwargs.items()})
            for n in range(len(args[0]))]
    return made if func._schema.returns else None


def _is_fresh(tensor: Any) -> bool:
    """Returns True if only this tensor sees its root, which then may get a value at once."""
    return isinstance(tensor, LazyTensor) and not tensor._path


def _given(tensor: LazyTensor, value: torch.Tensor) -> LazyTensor:
    """Gives a tensor a value, as if it had been made with it."""
    root = tensor._root
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(value)
    if root.version == now.recording.version and root.number in now.recording.read:
        return recorded(_aten.copy_.default, (tensor, uploaded(plain)), {})  # type: ignore[no-any-return]
    now.recording.changed.pop(root.number if root.version == now.recording.version else -1, None)
    root.value, root.version, root.placement = plain, -1, root.mark
    return tensor


def _drawn(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draws random numbers on the host by torch's own generator, so that they are those of a run without this
    device."""
    if func is _aten.native_dropout.default:
        x, p = args[0], args[1] if args[2] else 0.0
        kept = torch.empty_like(x._meta, device="cpu").bernoulli_(1 - p)
        return (recorded(_aten.mul.Tensor, (x, uploaded(kept / (1 - p) if p < 1 else kept)), {}),
                uploaded(kept.bool()))
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, LazyTensor)]
    if func._schema.name.endswith("_") and len(tensors) == 1:
        drawn = func(torch.empty_like(args[0]._meta, device="cpu"), *args[1:], **kwargs)
        return _given(args[0], drawn) if _is_fresh(args[0]) else args[0].copy_(uploaded(drawn))
    if func._schema.name.endswith("_like"):
        return uploaded(func(torch.empty_like(args[0]._meta, device="cpu"), *args[1:],
                             **{**kwargs, "device": torch.device("cpu")}))
    return _on_host(func, args, kwargs)


def _has_mask(func: Any, args: Any) -> bool:
    """Returns True if the shape of an operation's result depends on values."""
    if func._schema.name not in ("aten::index", "aten::index_put", "aten::index_put_"):
        return True
    return any(isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bool, torch.uint8)
               for leaf in pytree.tree_leaves(args[1]))


def _on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Computes on the host an operation whose result depends on values, which only a run gives."""
    host = pytree.tree_map(lambda leaf: value_of(leaf) if isinstance(leaf, LazyTensor) else leaf,
                           (args, kwargs))
    if host[1].get("device") is not None:
        host[1]["device"] = torch.device("cpu")
    made = pytree.tree_map(lambda leaf: uploaded(leaf) if isinstance(leaf, torch.Tensor) else leaf,
                           func(*host[0], **host[1]))
    return args[0].copy_(made) if func._schema.name.endswith("_") else made


# Operations that make tensors on the device.


def _empty(size: Iterable[int], dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    with now.lock:
        return recorded(_aten.zeros.default, (list(size),),  # type: ignore[no-any-return]
                        {"dtype": dtype or torch.get_default_dtype()})


def _empty_strided(size: Iterable[int], stride: Any, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    return _empty(size, dtype)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copies for torch.tensor(.., device=DEVICE), which LazyTensor does not see."""
    with now.lock:
        return _given(target, value_of(source)) if _is_fresh(target) else target  # type: ignore[arg-type]


def _by_host(func: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _on_host(func, args, kwargs)


_library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def install() -> None:
    """Lets torch make these tensors on DEVICE from now on."""
    if not hasattr(torch, "lazy"):  # torch.utils.checkpoint asks this module for random states
        torch._register_device_module("lazy", types.ModuleType("torch.lazy"))
    _library.impl("empty.memory_format", _empty, "Lazy")
    _library.impl("empty_strided", _empty_strided, "Lazy")
    _library.impl("_copy_from", _copy_from, "Lazy")
    for name in ("arange", "arange.start", "arange.start_step", "linspace", "eye", "eye.m", "randperm",
                 "tril_indices", "triu_indices"):
        packet, _, overload = name.partition(".")
        _library.impl(name, _by_host(getattr(getattr(_aten, packet), overload or "default")), "Lazy")


Hooks.dispatched = _dispatched
