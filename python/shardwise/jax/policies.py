"""When a step is saved, and which steps are kept, by the names that Orbax has.

A policy of your own is an object with should_save(step, previous_steps, *, context) or should_preserve(checkpoints, *,
context). Steps are `StepInfo`s, ascending.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .._errors import InvalidArgument


class StepInfo(Protocol):
    """A step as policies see it."""

    @property
    def step(self) -> int: ...

    @property
    def time(self) -> datetime.datetime:
        """When it was saved, with its time zone."""
        ...

    @property
    def metrics(self) -> Any:
        """What save() was given, or None."""
        ...


@dataclass(frozen=True)
class DecisionContext:
    """What else a decision to save may depend on."""

    is_saving_in_progress: bool = False
    reached_preemption: bool = False


@dataclass(frozen=True)
class PreservationContext:
    """Nothing yet."""


class SaveDecisionPolicy(Protocol):
    """Whether a step is saved. Processes must come to the same answer, each for itself; or `needs_agreement` is True, and
    process 0 decides for all."""

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool: ...


class PreservationPolicy(Protocol):
    """For each step whether it is kept. The newest is kept whatever it says. Process 0 decides."""

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]: ...


@dataclass
class FixedIntervalPolicy:
    """Each multiple of `interval`."""

    interval: int

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        return self.interval > 0 and step.step % self.interval == 0


@dataclass
class SpecificStepsPolicy:
    """These steps."""

    steps: Container[int]

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        return step.step in self.steps


@dataclass(kw_only=True)
class ContinuousCheckpointingPolicy:
    """As often as the disk can: when no save is under way, and not before a number of seconds after the last one."""

    minimum_interval_secs: int | None = None
    needs_agreement = True

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        return (step.time - previous_steps[-1].time).total_seconds() >= self.minimum_interval_secs


@dataclass
class PreemptionCheckpointingPolicy:
    """When the job is about to be ended."""

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        return context.reached_preemption


@dataclass
class InitialSavePolicy:
    """When there is no step yet."""

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        return not previous_steps


@dataclass
class AnySavePolicy:
    """When one of these says so."""

    policies: Sequence[SaveDecisionPolicy]

    @property
    def needs_agreement(self) -> bool:
        return any(getattr(policy, "needs_agreement", False) for policy in self.policies)

    def should_save(self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext) -> bool:
        return any(policy.should_save(step, previous_steps, context=context) for policy in self.policies)


@dataclass
class PreserveAll:
    """All of them."""

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        return [True] * len(checkpoints)


@dataclass
class LatestN:
    """The newest n; None: all."""

    n: int | None = None

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        first = 0 if self.n is None else len(checkpoints) - self.n
        return [place >= first for place in range(len(checkpoints))]


@dataclass
class LatestDuration:
    """Those that are no older than so long."""

    duration: datetime.timedelta

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        return [now - checkpoint.time <= self.duration for checkpoint in checkpoints]


@dataclass
class EveryNSeconds:
    """The first, and then each that is a number of seconds later than the last one that is kept."""

    interval_secs: float

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        return _spaced([checkpoint.time.timestamp() for checkpoint in checkpoints], self.interval_secs)


@dataclass
class EveryNSteps:
    """The multiples of a number; or, with exact_interval=False, the first, and then each that is that many steps later
    than the last one that is kept. Of these the newest max_to_keep."""

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def __post_init__(self) -> None:
        if self.interval_steps <= 0:
            raise InvalidArgument(f"EveryNSteps: interval_steps is {self.interval_steps}, needed is 1 or more")

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = [step % self.interval_steps == 0 for step in steps] if self.exact_interval else _spaced(
            steps, self.interval_steps)
        if self.max_to_keep is not None:
            for place in [place for place, keep in enumerate(kept) if keep][: -self.max_to_keep or None]:
                kept[place] = False
        return kept


@dataclass
class CustomSteps:
    """These steps."""

    steps: Container[int]

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        return [checkpoint.step in self.steps for checkpoint in checkpoints]


@dataclass(kw_only=True)
class BestN:
    """The n best by a number made of the metrics: the greatest, or with reverse=True the smallest. NaN is the worst.
    None: all."""

    get_metric_fn: Callable[[Any], float]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        ranked = self.ranked(checkpoints)
        best = ranked if self.n is None else ranked[len(ranked) - min(self.n, len(ranked)) :]
        kept = {checkpoint.step for checkpoint in best}
        return [checkpoint.step in kept if checkpoint.metrics is not None else
                self.keep_checkpoints_without_metrics or self.n is None for checkpoint in checkpoints]

    def ranked(self, checkpoints: Sequence[StepInfo]) -> list[StepInfo]:
        """Those with metrics, the best last, and of equals the newest."""

        def key(checkpoint: StepInfo) -> tuple[bool, float]:
            value = float(self.get_metric_fn(checkpoint.metrics))
            return (False, 0.0) if value != value else (True, -value if self.reverse else value)

        return sorted((c for c in checkpoints if c.metrics is not None), key=key)


@dataclass
class AnyPreservationPolicy:
    """What one of these keeps."""

    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Sequence[StepInfo], *, context: PreservationContext) -> Sequence[bool]:
        said = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(keeps[place] for keeps in said) for place in range(len(checkpoints))]


def _spaced(places: Sequence[float], interval: float) -> list[bool]:
    kept: list[bool] = []
    last: float | None = None
    for place in places:
        kept.append(last is None or place - last >= interval)
        last = place if kept[-1] else last
    return kept
