"""Defines shardwise.jax.CheckpointManager, for jobs of any number of processes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Unpack

import jax

from .._argument_types import step_number
from .._arrays.arrays import MEMORY, Codec, Existing
from .._checkpoint.save import SaveStats
from .._jobs.job_manager import JobManager, Rules
from .._jobs.manager import Restored, is_step, refuse_others
from .._jobs.pending import OnSaveError, PendingSave, WhenBusy, skipped
from .._paths import Path
from .._progress import Progress
from ..group import DEADLINE, from_jax
from ._load import load
from ._save import prepare


class CheckpointManager(JobManager):
    """Manages the checkpoints of a job as steps in a folder, which shardwise.CheckpointManager and open()
    read, too.

    All processes of the job make one with the same options, and call its methods together, in the same order.
    It saves the trees of shardwise.jax.save(); one save is under way at a time. Its policies have the names
    and the meaning of shardwise.CheckpointManager's; process 0 decides whether a save is under way.
    should_save() returns the same on all processes, also after signals, by one round of messages over JAX's
    coordination service. should_save() and reached_preemption() also return True at the step that the
    preemption notice of jax.distributed names; that needs no preemption_signals, and has no grace.

        with swj.CheckpointManager("run", keep_last=3, save_every=100,
                                   preemption_signals=[signal.SIGTERM]) as manager:
            restored = manager.restore(state)
            if restored is not None:
                state = restored.value
            for step in range(restored.step + 1 if restored else 0, steps):
                ...
                if manager.should_save(step):
                    manager.save_async(step, state, metrics={"loss": loss})
                if manager.reached_preemption():
                    break
    """

    def __init__(self, root: Path, *, keep_last: int = 0, keep_every: int = 0, keep_interval: float = 0,
                 best: tuple[str, str, int] | None = None, save_every: int = 1, save_interval: float = 0,
                 preemption_signals: Iterable[int] = (), preemption_grace: float = 0,
                 when_busy: WhenBusy = "wait",
                 on_save_error: OnSaveError = "raise", most_failed_saves: int = 3, codec: Codec = "zstd",
                 increments: bool = True, write_stats: bool = True, parity_blocks: int = 0, threads: int = 0,
                 memory: int = MEMORY, deadline: float = DEADLINE, **unknown: NoReturn) -> None:
        """deadline: that of shardwise.jax.save()."""
        refuse_others(CheckpointManager, unknown)
        super().__init__(root, from_jax(), keep_last=keep_last, keep_every=keep_every,
                         keep_interval=keep_interval, best=best, save_every=save_every,
                         save_interval=save_interval, preemption_signals=preemption_signals,
                         preemption_grace=preemption_grace, when_busy=when_busy, on_save_error=on_save_error,
                         most_failed_saves=most_failed_saves, codec=codec,
                         increments=increments, write_stats=write_stats,
                         parity_blocks=parity_blocks, threads=threads, memory=memory, deadline=deadline)

    def _is_told_to_end(self, step: int) -> bool:
        from jax.experimental import multihost_utils

        try:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        except RuntimeError:
            return False  # there is no sync manager, which jax.distributed.initialize() makes

    def save(self, step: int, tree: Any, *, user: Any = None, metrics: Mapping[str, float] | None = None,
             existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Saves a step, and returns when it is committed. Raises the errors of shardwise.jax.save(). metrics:
        those of process 0 are stored."""
        begun, step = time.monotonic(), step_number("save", step)
        self.wait()
        path, managed = self._prepare(step, metrics, begun)
        return prepare(path, tree, self._saves, copy=False, user=user, deadline=self._deadline,
                       managed=managed, **self._options(existing)).write(progress)

    def save_async(self, step: int, tree: Any, *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Returns when the save holds the values: JAX's arrays may then be donated, and numpy's changed. If a
        save is under way, when_busy decides whether this one waits or ends as skipped
        (SaveStats.skipped)."""
        begun, step = time.monotonic(), step_number("save", step)
        ready = self._begin_async(step, metrics, begun)
        if ready is None:
            return PendingSave(step, lambda progress: skipped())
        path, managed, turn = ready
        prepared = prepare(path, tree, self._saves, copy=True, user=user, deadline=self._deadline, turn=turn,
                           managed=managed, **self._options(existing))
        pending = prepared.start(step, prepared.write)
        self._queue.add(pending, turn)
        if prepared.failed is not None:
            raise prepared.failed  # the thread tells the other processes
        return pending

    def restore(self, target: Any = None, step: int | None = None, *, strict: bool = True,
                **rules: Unpack[Rules]) -> Restored | None:
        """Restores a step, or the newest step that all processes can restore: if one process reads damaged
        bytes, all go back to the step before. Returns None if there is no step. `value` of the result is the
        tree of shardwise.jax.load(), whose arguments are strict and rules (rename, cast, resize, ..).
        restore(3, target) is the same as restore(target, 3). Raises on all processes: Corrupt if no step can
        be restored, Unsupported if there are only steps of another library, and the errors of load()."""
        if is_step(target):
            target, step = step, target
        return self._restored(lambda path: load(path, target, strict=strict, threads=self._threads,
                                                memory=self._memory, **rules), step)

    def restore_latest(self, restore: Any = None) -> Restored | None:
        """Restores as restore() does. A function is called with the checkpoint, as in
        shardwise.CheckpointManager."""
        if not (callable(restore) and jax.tree_util.all_leaves([restore])):
            return self.restore(restore)
        return self._restored_by(restore)
