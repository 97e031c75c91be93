"""Replaces five names of torch, for one thread only, and methods of single modules during a trace. Both
branches are computed if torch branches on values."""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules.adaptive import _ASMoutput as _AdaptiveOutput
from torch.optim import _adafactor
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.overrides import TorchFunctionMode

from ..._errors import Unsupported

_ABSENT = object()
_TRACING = threading.Lock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Raises Unsupported while another capture traces, as the two would find each other's tensors in
    modules."""
    if not _TRACING.acquire(blocking=False):
        raise Unsupported("capture: found another capture that traces now, needed one at a time in a process")
    try:
        yield
    finally:
        _TRACING.release()


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Replaces names of torch for this thread. torch.compiler.is_compiling() returns True, so that libraries
    skip checks of values, and a recurrent network is not one operation of mkldnn."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(torch.compiler._compile_session_context())
        undo.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        for holder, name, ours in _NAMES:
            theirs = vars(holder).get(name, _ABSENT)
            undo.callback(_put, holder, name, theirs)
            known = getattr(holder, name, None) or getattr(builtins, name)
            setattr(holder, name, _in_this_thread(ours, known))
        yield


def _put(holder: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        if name in vars(holder):
            delattr(holder, name)
    else:
        setattr(holder, name, value)


def _in_this_thread(ours: Any, theirs: Any) -> Any:
    thread = threading.get_ident()
    if isinstance(ours, property):
        return property(_in_this_thread(ours.fget, theirs.__get__),
                        _in_this_thread(ours.fset, theirs.__set__))

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (ours if threading.get_ident() == thread else theirs)(*args, **kwargs)

    return chosen


# Replacements of names of torch.


def _to_list(tensor: torch.Tensor) -> Any:
    """Replaces tolist(), which bypasses the modes."""
    return [_to_list(one) for one in tensor.unbind()] if tensor.dim() else tensor.item()


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Replaces the setter of .data, whose change no graph records."""
    if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        raise Unsupported(
            f"capture: found .data of {tensor.dtype} {list(tensor.shape)} set to {value.dtype} "
            f"{list(value.shape)}, needed one of the same"
        )
    with torch.no_grad():
        tensor.data.copy_(value)


def _without_gradients(mode: bool) -> Any:
    """Replaces inference mode, which drops the records that a trace needs."""
    return torch.no_grad() if mode else contextlib.nullcontext()


def _extreme(known: Callable[..., Any], computed: Callable[..., Any], *numbers: Any, **options: Any) -> Any:
    """Computes an extreme in each run if one of the numbers is known only then."""
    if not any(isinstance(number, (torch.SymFloat, torch.Tensor)) for number in numbers):
        return known(*numbers, **options)
    return functools.reduce(computed, (n.item() if isinstance(n, torch.Tensor) else n for n in numbers))


_DATA = vars(torch._C.TensorBase)["data"]
_NAMES: list[tuple[Any, str, Any]] = [
    (FunctionalTensor, "tolist", _to_list),
    (FunctionalTensor, "data", property(_DATA.__get__, _set_data)),
    (torch._C, "_InferenceMode", _without_gradients),
    (_adafactor, "max", functools.partial(_extreme, max, torch.sym_max)),
    (_adafactor, "min", functools.partial(_extreme, min, torch.sym_min)),
]


class Functions(TorchFunctionMode):
    """A mode that stacks the operands of torch.tensor([x.max(), x.min()]), as torch would ask for values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        data: Any = args[0] if args else None
        options = dict(kwargs or {})
        if func is not torch.tensor or not _is_list_of_numbers(data):
            return func(*args, **options)
        made = torch.stack([one.detach() for one in data]).to(options.pop("dtype", None) or data[0].dtype)
        return made.requires_grad_(options.get("requires_grad", False))


def _is_list_of_numbers(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and bool(data) and all(
        isinstance(one, FunctionalTensor) and not one.dim() and one.dtype == data[0].dtype for one in data
    )


# Replacements of methods of the step's modules.


@contextlib.contextmanager
def methods_of(modules: Iterable[torch.nn.Module], noted: list[torch.nn.Module]) -> Iterator[None]:
    """Replaces methods of single modules. Adds modules whose train() or eval() the step calls to `noted`."""
    with contextlib.ExitStack() as undo:
        for module in modules:
            own = vars(module)
            methods: list[tuple[str, Callable[..., Any]]] = [("train",
                                                              functools.partial(_noting_train, noted))]
            methods += [(name, ours) for kind, name, ours in _METHODS if isinstance(module, kind)]
            for name, method in methods:
                if name not in own:
                    undo.callback(own.pop, name, None)
                    own[name] = functools.partial(method, module)
        yield


def _noting_train(noted: list[torch.nn.Module], module: torch.nn.Module,
                  mode: bool = True) -> torch.nn.Module:
    noted.append(module)
    return type(module).train(module, mode)


@torch.no_grad()
def _update_parameters(averaged: AveragedModel, model: torch.nn.Module) -> None:
    """Replaces update_parameters(): the first update copies the weights, later updates average them."""
    whole = averaged.use_buffers
    own = [*(averaged.module if whole else averaged).parameters(),
           *(averaged.module.buffers() if whole else ())]
    given = [one.detach() for one in itertools.chain(model.parameters(), model.buffers() if whole else ())]
    count = averaged.n_averaged
    if averaged.multi_avg_fn is not None:
        means = [one.detach().clone() for one in own]
        for dtype in dict.fromkeys(one.dtype for one in means):
            places = [place for place, one in enumerate(means) if one.dtype == dtype]
            averaged.multi_avg_fn([means[i] for i in places], [given[i] for i in places], count)
    else:
        average: Any = averaged.avg_fn or get_swa_avg_fn()  # type: ignore[no-untyped-call]
        means = [average(one.detach(), new, count) for one, new in zip(own, given, strict=True)]
    for one, mean, new in zip(own, means, given, strict=True):
        one.copy_(torch.where(count == 0, new, mean.to(one.dtype)))
    if not whole:
        for buffer, new in zip(averaged.module.buffers(), model.buffers(), strict=True):
            buffer.copy_(new)
    averaged.n_averaged += 1


def _of_all_classes(module: torch.nn.AdaptiveLogSoftmaxWithLoss, x: torch.Tensor,
                    target: torch.Tensor) -> Any:
    """Replaces forward(): computes all clusters, not only those of the targets."""
    made = module.log_prob(x.reshape(-1, x.shape[-1])).gather(1, target.reshape(-1, 1)).reshape(target.shape)
    return _AdaptiveOutput(made, -made.mean())


_METHODS: list[tuple[type[torch.nn.Module], str, Callable[..., Any]]] = [
    (AveragedModel, "update_parameters", _update_parameters),
    (torch.nn.AdaptiveLogSoftmaxWithLoss, "forward", _of_all_classes),
]
