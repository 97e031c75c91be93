"""Patches to torch that are active during a trace. Where torch branches on values, a patch computes both, and
chooses. Each is thread-hostile: it replaces functions and methods of torch."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends, sdpa_kernel
from torch.nn.modules.adaptive import _ASMoutput as _AdaptiveOutput
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.utils.checkpoint import checkpoint

from ..._errors import Unsupported


@contextlib.contextmanager
def chosen_by_values() -> Iterator[None]:
    """Patches functions that branch on values. Thread-hostile: it replaces methods of classes."""
    places = [(AveragedModel, "update_parameters", _update_parameters),
              (torch.nn.AdaptiveLogSoftmaxWithLoss, "forward", _of_all_classes),
              (torch.nn.functional, "gaussian_nll_loss", _gaussian_loss), (torch.nn.CrossMapLRN2d, "forward", _across_maps),
              (torch.inference_mode, "__enter__", _without_gradients), (torch.inference_mode, "__exit__", _with_gradients)]
    before = [(kind, name, vars(kind)[name]) for kind, name, _ in places]
    for kind, name, ours in places:
        setattr(kind, name, ours)
    try:
        yield
    finally:
        for kind, name, theirs in before:
            setattr(kind, name, theirs)


@torch.no_grad()
def _update_parameters(averaged: AveragedModel, model: torch.nn.Module) -> None:
    """The first is a copy."""
    whole = averaged.use_buffers
    own = [*(averaged.module if whole else averaged).parameters(), *(averaged.module.buffers() if whole else ())]
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


def _of_all_classes(module: torch.nn.AdaptiveLogSoftmaxWithLoss, x: torch.Tensor, target: torch.Tensor) -> Any:
    """Computes all clusters, not only those that the targets are in."""
    made = module.log_prob(x.reshape(-1, x.shape[-1])).gather(1, target.reshape(-1, 1)).reshape(target.shape)
    return _AdaptiveOutput(made, -made.mean())


def _gaussian_loss(x: torch.Tensor, target: torch.Tensor, var: torch.Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """Computes the loss without an error for a negative variance."""
    var = var * torch.ones_like(x) if isinstance(var, float) else var
    if var.shape != x.shape and x.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    made = 0.5 * (var.log() + (x - target).square() / var) + (0.5 * math.log(2 * math.pi) if full else 0)
    return made.mean() if reduction == "mean" else made.sum() if reduction == "sum" else made


def _across_maps(module: torch.nn.CrossMapLRN2d, x: torch.Tensor) -> torch.Tensor:
    """Whose sums go on from one map to the next in memory of its own, and keep the first map in all."""
    raise Unsupported("capture: found CrossMapLRN2d, which works in memory of its own, needed LocalResponseNorm")


def _without_gradients(self: Any) -> None:
    """Replaces inference mode by no_grad(): a trace needs the notes that inference mode leaves out."""
    self._without = torch.no_grad() if self.mode else contextlib.nullcontext()
    self._without.__enter__()


def _with_gradients(self: Any, *error: Any) -> None:
    self._without.__exit__(*error)


def least_squares(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> tuple[torch.Tensor, ...]:
    """As aten::linalg_lstsq, of a matrix of full rank. The shapes of its results depend on the rank."""
    rows, columns = a.shape[-2:]
    b = b.unsqueeze(-1) if (is_vector := b.dim() == a.dim() - 1) else b
    q, r = torch.linalg.qr(a if rows >= columns else a.mT)
    if rows >= columns:
        made = torch.linalg.solve_triangular(r, q.mT @ b, upper=True)
    else:
        made = q @ torch.linalg.solve_triangular(r.mT, b, upper=False)
    residuals = (a @ made - b).square().sum(-2) if rows > columns and driver not in (None, "gelsy") else made.new_empty(0)
    values = torch.linalg.svdvals(a) if driver in ("gelsd", "gelss") else made.new_empty(0)
    rank = torch.full(a.shape[:-2], min(rows, columns)) if driver != "gels" else torch.empty(0, dtype=torch.int64)
    return made.squeeze(-1) if is_vector else made, residuals, rank, values


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """torch.compiler.is_compiling() holds: libraries then skip checks of values."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def tensors_of_tensors() -> Iterator[None]:
    """torch.tensor([x.max(), x.min()]) computes: torch's own asks for the values."""
    known = torch.tensor

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)) and data and all(isinstance(one, FunctionalTensor) and not one.dim() and one.dtype == data[0].dtype for one in data):
            made = torch.stack([one.detach() for one in data]).to(options.pop("dtype", None) or data[0].dtype)
            return made.requires_grad_(options.get("requires_grad", False))
        return known(data, **options)

    setattr(torch, "tensor", tensor)
    try:
        yield
    finally:
        setattr(torch, "tensor", known)


class FusedAttention:
    """Tells if a fused kernel of torch computes the attention that is traced now on a GPU."""

    TRACED = (SDPBackend.MATH, SDPBackend.OVERRIDEABLE)  #: no step asks for these two, so a step that asks is seen

    def __init__(self) -> None:
        self.calls = 0
        self.is_open = False
        self._before = set(_cur_sdpa_kernel_backends())

    def allowed(self) -> set[SDPBackend]:
        """The backends that the step has asked for, or that hold around the capture."""
        now = set(_cur_sdpa_kernel_backends())
        return self._before if now == set(self.TRACED) else now

    def called(self, known: Callable[..., Any], is_fused: bool, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.is_open = is_fused
        try:
            with sdpa_kernel(list(self.TRACED)):
                return known(*args, **kwargs)
        finally:
            self.is_open = False


def _is_fused(allowed: set[SDPBackend], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
              *_: Any, **options: Any) -> bool:
    """As torch chooses on a GPU: flash attention takes no mask, rows of 256 numbers at most and 16 bits; memory-efficient attention
    takes masks and f32, as many heads of each, and rows that its loads divide (16 bytes). Else the scores are written out, as in f64,
    unless the step refuses that."""
    if SDPBackend.MATH not in allowed:
        return True
    width, is_short = query.shape[-1], query.dtype in (torch.float16, torch.bfloat16)
    if any(one.dim() != 4 or one.dtype != query.dtype for one in (query, key, value)) or key.shape[-1] != width:
        return False
    is_flash = is_short and attn_mask is None and value.shape[-1] == width <= 256
    step = 8 if is_short else 4
    is_efficient = ((is_short or query.dtype == torch.float32) and query.shape[1] == key.shape[1]
                    and width % step == value.shape[-1] % step == 0)
    return is_flash and SDPBackend.FLASH_ATTENTION in allowed or is_efficient and SDPBackend.EFFICIENT_ATTENTION in allowed


@contextlib.contextmanager
def scores_again(step: Callable[..., Any], fused: FusedAttention) -> Iterator[None]:
    """The gradient of fused attention computes the scores again, as torch's kernels do: nothing of the size of the sequence squared is
    kept for it. Dropout draws the same again. Attention that no kernel computes keeps its scores, as torch does.

    A function in place of torch's, by each name that a module has for it, and no mode for torch functions:
    autograd calls no mode when a checkpoint around the attention computes again, so the second time would
    differ from the first."""
    known = torch.nn.functional.scaled_dot_product_attention

    def attention(*args: Any, **kwargs: Any) -> Any:
        is_fused = _is_fused(fused.allowed(), *args, **kwargs)
        kernel = functools.partial(fused.called, known, is_fused)
        if not (is_fused and torch.is_grad_enabled()):
            return kernel(*args, **kwargs)
        return checkpoint(kernel, *args, use_reentrant=False, determinism_check="none", **kwargs)

    own = {id(names): names for names in [*(getattr(module, "__dict__", {}) for module in list(sys.modules.values())),
                                          getattr(step, "__globals__", {})] if names is not vars(torch._C._nn)}
    places = [(names, name) for names in own.values() for name, value in list(names.items()) if value is known]
    for names, name in places:
        names[name] = attention
    try:
        yield
    finally:
        for names, name in places:
            names[name] = known


@contextlib.contextmanager
def counting_in_f64() -> Iterator[None]:
    """Optimizers compute with the number of the step as a double, as they do with one of Python's: 1 - 0.999 has half of its bits in f32.
    The larger of two numbers is one that a run computes."""
    names = {"_get_value": lambda x: x.double() if isinstance(x, torch.Tensor) else x,
             "max": functools.partial(_extreme, max, torch.sym_max), "min": functools.partial(_extreme, min, torch.sym_min)}
    with contextlib.ExitStack() as undo:
        for module in [vars(module) for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
            for name in names if "_get_value" in module or "Optimizer" in module else ():
                undo.callback(*((module.__setitem__, name, module[name]) if name in module else (module.pop, name)))
                module[name] = names[name]
        yield


def _extreme(of_known: Callable[..., Any], of_computed: Callable[..., Any], *numbers: Any, **options: Any) -> Any:
    is_computed = any(isinstance(number, (torch.SymFloat, torch.Tensor)) for number in numbers)
    numbers = tuple(number.item() if is_computed and isinstance(number, torch.Tensor) else number for number in numbers)
    return functools.reduce(of_computed, numbers) if is_computed else of_known(*numbers, **options)


@contextlib.contextmanager
def noted_modes(noted: list[torch.nn.Module]) -> Iterator[None]:
    """Adds to `noted` the modules whose train() or eval() the step calls."""
    known = torch.nn.Module.train

    def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
        noted.append(module)
        return known(module, mode)

    setattr(torch.nn.Module, "train", train)
    try:
        yield
    finally:
        setattr(torch.nn.Module, "train", known)


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """Its recurrent networks are one operation each."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
