"""CheckpointManagerOptions"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from .._errors import InvalidArgument
from .._pending import WHEN_BUSY, WhenBusy
from .._sources import MEMORY, Codec, check_choice
from ..group import DEADLINE
from . import policies


@dataclass
class CheckpointManagerOptions:
    """By the names that Orbax has; the last eight are ours.

    Saved are multiples of save_interval_steps, save_on_steps, the first step that is offered, and one when the job is
    about to be ended; or what should_save_fn(step, last step or None) says; or save_decision_policy, which goes before
    both. Kept are the newest max_to_keep, or the best by best_fn(metrics), and multiples of keep_period, and one for each
    keep_time_interval; or what preservation_policy says, which goes before all of these. The newest step always stays.
    """

    save_interval_steps: int = 1
    max_to_keep: int | None = None
    keep_time_interval: datetime.timedelta | None = None
    keep_period: int | None = None
    best_fn: Callable[[Any], float] | None = None
    best_mode: str = "max"
    keep_checkpoints_without_metrics: bool = True
    save_on_steps: Container[int] | None = None
    should_save_fn: Callable[[int, int | None], bool] | None = None
    save_decision_policy: policies.SaveDecisionPolicy | None = None
    preservation_policy: policies.PreservationPolicy | None = None
    enable_async_checkpointing: bool = True
    create: bool = True
    """False: raises NotFound if the directory is not there."""
    read_only: bool = False
    codec: Codec = "zstd"
    threads: int = 0
    memory: int = MEMORY
    deadline: float = DEADLINE
    """Seconds that a process waits for the others."""
    increments: bool = True
    """Chunks that have not changed since the newest step are linked and not written again."""
    write_stats: bool = True
    """Process 0 keeps what each save did (shardwise.SaveStats) beside its step, as stats-step-00000100.json."""
    parity_blocks: int = 0
    """Each step gets parity, as by write_parity(), before its save ends: each process writes that of its shard files. 0:
    none."""
    when_busy: WhenBusy = "wait"
    """What save() does if a save is under way: "wait" for it; "skip" this one, and return False; or "replace": hold the
    values and save them next, unless another save comes before that and takes its place."""

    def __post_init__(self) -> None:
        check_choice("best_mode", self.best_mode, ("min", "max"))
        check_choice("when_busy", self.when_busy, WHEN_BUSY)
        for name in ("save_interval_steps", "keep_period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} is {value}, needed is 1 or more")
        if self.max_to_keep is not None and self.max_to_keep < 0:
            raise InvalidArgument(f"max_to_keep is {self.max_to_keep}, needed is None, or 0 or more")

    def decision(self) -> policies.SaveDecisionPolicy:
        """When to save."""
        if self.save_decision_policy is not None:
            return self.save_decision_policy
        if self.should_save_fn is not None:
            return policies.AnySavePolicy([_Function(self.should_save_fn), policies.PreemptionCheckpointingPolicy()])
        return policies.AnySavePolicy([
            policies.FixedIntervalPolicy(self.save_interval_steps),
            policies.SpecificStepsPolicy(self.save_on_steps or ()),
            policies.PreemptionCheckpointingPolicy(), policies.InitialSavePolicy()])

    def preservation(self) -> policies.PreservationPolicy:
        """What to keep."""
        if self.preservation_policy is not None:
            return self.preservation_policy
        kept: list[policies.PreservationPolicy] = [self.best() or policies.LatestN(self.max_to_keep)]
        if self.keep_period is not None:
            kept.append(policies.EveryNSteps(self.keep_period))
        if self.keep_time_interval is not None:
            kept.append(policies.EveryNSeconds(self.keep_time_interval.total_seconds()))
        return policies.AnyPreservationPolicy(kept)

    def best(self) -> policies.BestN | None:
        """By best_fn, if there is one."""
        if self.best_fn is None:
            return None
        return policies.BestN(get_metric_fn=self.best_fn, reverse=self.best_mode == "min", n=self.max_to_keep,
                              keep_checkpoints_without_metrics=self.keep_checkpoints_without_metrics)


@dataclass
class _Function:
    """should_save_fn"""

    function: Callable[[int, int | None], bool]

    def should_save(self, step: policies.StepInfo, previous_steps: Any, *, context: policies.DecisionContext) -> bool:
        return bool(self.function(step.step, previous_steps[-1].step if previous_steps else None))
