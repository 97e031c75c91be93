"""Methods of torch's that decide by values, and others in their places while a step is traced: these compute both, and choose."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn
from torch.utils._python_dispatch import _disable_current_modes

from .._errors import Unsupported


def made_ready(held: Iterable[Any]) -> None:
    """Scalers have the scale that their first step would make."""
    with _disable_current_modes():
        for scaler in held:
            if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled() and scaler._scale is None:
                scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))


@contextlib.contextmanager
def chosen_by_values() -> Iterator[None]:
    """Thread-hostile: the classes have other methods meanwhile."""
    before = AveragedModel.update_parameters, torch.amp.GradScaler._maybe_opt_step
    setattr(AveragedModel, "update_parameters", _update_parameters)
    setattr(torch.amp.GradScaler, "_maybe_opt_step", _step_if_finite)
    try:
        yield
    finally:
        setattr(AveragedModel, "update_parameters", before[0])
        setattr(torch.amp.GradScaler, "_maybe_opt_step", before[1])


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


def _step_if_finite(scaler: Any, optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """All that the step has changed is as it was, if a gradient was infinite."""
    tensors = [*_tensors_of(optimizer)]
    before = [one.detach().clone() for one in tensors]
    made = optimizer.step(*args, **kwargs)
    if any(one is not other for one, other in itertools.zip_longest(tensors, _tensors_of(optimizer))):
        raise Unsupported(f"capture: found a GradScaler's step of {type(optimizer).__name__}, which puts tensors in place of others, needed one that changes its own")
    is_finite = sum(state["found_inf_per_device"].values()) == 0
    with torch.no_grad():
        for one, old in zip(tensors, before, strict=True):
            one.copy_(torch.where(is_finite, one, old))
    return made


def _tensors_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            yield from (value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor))
