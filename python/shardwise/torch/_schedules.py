"""Schedules of learning rates in a step: each run calls them as the step does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from .._errors import InvalidArgument, Unsupported


class Schedules:
    """Those that a step calls. Their rates are inputs of the program: see StepState. Thread-hostile: the classes of schedulers have
    another `step` meanwhile."""

    def __init__(self) -> None:
        self._before: list[LRScheduler] = []  #: called before the step of their optimizer
        self._after: list[LRScheduler] = []

    def begin(self) -> None:
        """A run begins."""
        for scheduler in self._before:
            scheduler.step()

    def end(self) -> None:
        """A run has given its values."""
        for scheduler in self._after:
            scheduler.step()

    @contextlib.contextmanager
    def recorded(self, known: Sequence[LRScheduler]) -> Iterator[None]:
        """Of the step's schedulers, calls are kept for the runs. Raises InvalidArgument for those of others, and Unsupported for calls that
        take or give a value."""
        stepped: set[int] = set()
        self._before, self._after = [], []

        def optimizer_stepped(optimizer: Any, *_: Any) -> None:
            stepped.add(id(optimizer))
            if any(scheduler.optimizer is optimizer for scheduler in self._after):
                raise Unsupported(f"capture: found a step of {type(optimizer).__name__} after one of its scheduler's, needed schedulers that are called "
                                  f"once its last step of a run is done")

        def last_rates(scheduler: LRScheduler) -> None:
            raise Unsupported(f"capture: found {type(scheduler).__name__}.get_last_lr(), whose numbers would be those of the capture, needed one that is "
                              f"called between steps")

        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            name = type(scheduler).__name__
            if not any(scheduler is one for one in known):
                raise InvalidArgument(f"capture: found a {name} that the step's variables do not hold, needed uses=[.., scheduler]")
            if args or kwargs:
                raise Unsupported(f"capture: found {name}.step() of a value, needed one that is called between steps, and a rate that is a "
                                  f"tensor: lr=torch.tensor(1e-3)")
            (self._after if id(scheduler.optimizer) in stepped else self._before).append(scheduler)

        with contextlib.ExitStack() as undo:
            for optimizer in {id(one.optimizer): one.optimizer for one in known}.values():
                undo.callback(optimizer.register_step_post_hook(optimizer_stepped).remove)
            for schedule in _and_its_kinds(LRScheduler):
                for name, ours in (("step", step), ("get_last_lr", last_rates)):
                    if name in vars(schedule):
                        undo.callback(setattr, schedule, name, vars(schedule)[name])
                        setattr(schedule, name, ours)
            yield


def _and_its_kinds(schedule: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield schedule
    for kind in schedule.__subclasses__():
        yield from _and_its_kinds(kind)
