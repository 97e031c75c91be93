"""Defines the common base of torch's and JAX's CheckpointManager, for jobs of any number of processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .. import _core
from .._checkpoint.edits import Cast, Join, Rename, Split, Transpose
from .._checkpoint.resize import Resize
from .._checkpoint.save import (Caller, Plan, SaveStats, core_arguments, log_saved, shown_by_first,
                                write_together)
from .._errors import Corrupt
from .._paths import Path
from .._progress import Progress
from ..group import Call, Group
from .manager import FolderManager, Restored, tell_warnings
from .pending import OneStep, PendingSave


@dataclass
class Managed:
    """The part of a manager in a save, on every rank."""

    metrics: dict[str, Any] = field(default_factory=dict)  #: encoded; those of rank 0 are stored
    write: Callable[..., SaveStats] = write_together  #: writes the save that the ranks agreed on
    begun: float = field(default_factory=time.monotonic)  #: the time of the caller's call
    #: called with a save that runs on a thread, even if it is to fail there
    started: Callable[[PendingSave], None] = lambda pending: None
    same: dict[str, Any] = field(default_factory=dict)  #: values that must be equal on all ranks


class Edits(TypedDict, total=False):
    """The arguments of open() that select a step's tensors and change names, dtypes and shapes."""

    names: str | Iterable[str] | None
    rename: Rename | None
    cast: Cast | None
    transpose: Transpose | None
    split: Split | None
    join: Join | None


class Rules(Edits, total=False):
    """The arguments of load(): Edits, and rules for targets with another shape."""

    skip_mismatched: bool
    resize: Resize | None


class JobManager(FolderManager):
    """The CheckpointManager of a job. Subclasses add the content of a save and the way to restore it."""

    def __init__(self, root: Path, group: Group, *, increments: bool, parity_blocks: int, deadline: float,
                 **policies: Any) -> None:
        # Two groups are for the thread that saves, one for the thread that calls.
        self._saves, self._ends, self._calls = group.duplicate(), group.duplicate(), group.duplicate()
        super().__init__(root, collect_garbage=group.rank == 0, is_shared=group.size > 1,
                         increments=increments, parity_blocks=parity_blocks, **policies)
        self._deadline, self._parity_blocks = deadline, parity_blocks

    def _where(self) -> str:
        return f"{self.root!r}, rank {self._saves.rank} of {self._saves.size}"

    @property
    def best_metric(self) -> str | None:
        """The metric that best= names."""
        return None if self._best is None else self._best[0]

    def remove(self, step: int) -> None:
        """Waits for the save under way; then rank 0 removes the step. Raises NotFound, IOFailed, and
        InvalidArgument if the step is pinned by name."""
        self.wait()
        super().remove(step)

    def _call(self, what: str) -> Call:
        return self._calls.call(f"{self.root}: {what}", self._deadline)

    def _restored(self, read: Callable[[str], Any], step: int | None = None) -> Restored | None:
        def read_alone(path: str) -> Any:
            try:
                return read(path)
            except Corrupt as error:
                raise Corrupt(f"rank 0: {error}") from None

        self.wait()
        return super()._restored(read_alone if self._calls.size == 1 else read, step)

    def _options(self, existing: str) -> dict[str, Any]:
        """Returns the arguments of a save."""
        return {"codec": self._codec, "existing": existing, "threads": self._threads, "memory": self._memory}

    def _prepare(self, step: int, metrics: Mapping[str, float] | None, begun: float) -> tuple[str, Managed]:
        """Returns the path of a step to save, for messages, and the manager's part in the save."""
        encoded = self._on_first(lambda: self._encoded(step, metrics), f"save step {step}", self._save_errors)
        ends = OneStep(self._ends, f"{self.root}: how the save of step {step} has ended", self._deadline)

        def write(call: Call, path: str, plan: Plan, group: Group, starts: Sequence[int], *, user: Any,
                  codec: str, existing: str, threads: int, memory: int, progress: Progress,
                  caller: Caller) -> SaveStats:
            arguments = core_arguments(plan, group, starts, user, codec, existing)
            try:
                stats = SaveStats(**self._manager.save_together(
                    call, ends, step, **arguments, memory=memory, caller=caller.part(),
                    progress=shown_by_first(progress, group.rank, path)))
            finally:
                tell_warnings(self._manager)
            if not stats.error:
                log_saved(stats, group)
            self._tell(step, stats)
            return stats

        return (os.path.join(self.root, f"step-{step:08d}"),
                Managed(encoded, write, begun, same={"parity_blocks": self._parity_blocks}))

    def _begin_async(self, step: int, metrics: Mapping[str, float] | None,
                     begun: float) -> tuple[str, Managed, _core.Turn | None] | None:
        """Begins a save_async() before it copies. Returns the result of _prepare() and the turn that the save
        waits for, as rank 0 decides; None if the save is skipped."""
        what = f"{self.root}: when to save step {step}"
        decision = self._queue.next_turn(OneStep(self._calls, what, self._deadline))
        if decision == "skipped":
            return None
        path, managed = self._prepare(step, metrics, begun)
        turn = self._queue.turn(decision)
        if turn is not None:
            self._manager.begin_later(step)
        return path, managed, turn

    def _on_first(self, work: Callable[[], Any], what: str, same: Mapping[str, Any] | None = None) -> Any:
        """Returns rank 0's result of work() on all ranks."""
        return json.loads(self._calls.agree(lambda: b"", lambda _: json.dumps(work()).encode(),
                                            self._deadline, f"{self.root}: {what}", same))
