"""shardwise.jax.CheckpointManager: the steps of a job of any number of processes."""

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
    """The checkpoints of a job: steps in a folder, which shardwise.CheckpointManager and open() read, too.

    All processes of the job make it, with the same options, and call its methods together, in the same order.
    Trees are those of shardwise.jax.save(). One save is under way at a time. Policies are
    shardwise.CheckpointManager's, of the same names: which steps stay, when should_save() says yes, what
    save_async() does if a save is under way (when process 0 says that one is). should_save(), with its
    signals, is answered alike on all processes, and is one round of messages over JAX's coordination service.
    It says yes as well, and so does reached_preemption(), at the step that jax.distributed's own preemption
    notice names: that comes without preemption_signals, and has no grace.

        with swj.CheckpointManager("run", keep_last=3, save_every=100,
                                   preemption_signals=[signal.SIGTERM]) as manager:
            found = manager.restore(state)
            if found is not None:
                state = found.value
            for step in range(found.step + 1 if found else 0, steps):
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
        """deadline: save()'s."""
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
            return False  # without the sync manager that jax.distributed.initialize() makes

    def save(self, step: int, tree: Any, *, user: Any = None, metrics: Mapping[str, float] | None = None,
             existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Returns when the step is committed. Errors are those of shardwise.jax.save(). metrics: process 0's
        count."""
        begun, step = time.monotonic(), step_number("save", step)
        self.wait()
        path, managed = self._prepare(step, metrics, begun)
        return prepare(path, tree, self._saves, copy=False, user=user, deadline=self._deadline,
                       managed=managed, **self._options(existing)).write(progress)

    def save_async(self, step: int, tree: Any, *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Returns when the values are held: JAX's arrays may be donated, numpy's changed. What becomes of it
        if a save is under way, when_busy says: SaveStats.skipped."""
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
            raise prepared.failed  # the other processes hear of it on the thread
        return pending

    def restore(self, target: Any = None, step: int | None = None, *, strict: bool = True,
                **rules: Unpack[Rules]) -> Restored | None:
        """A step, or the newest one that all processes can restore: if its bytes turn out to be damaged for
        one of them, all go back to the step before. None if there is no step. `value` of the result is its
        tree, as shardwise.jax.load() gives it; strict and rules (rename, cast, resize, ..) are its arguments.
        restore(3, target) is the same as restore(target, 3). Raises Corrupt if there are steps and none can
        be restored, Unsupported if there are only those of another library, and what load() raises, on all
        processes."""
        if is_step(target):
            target, step = step, target
        return self._restored(lambda path: load(path, target, strict=strict, threads=self._threads,
                                                memory=self._memory, **rules), step)

    def restore_latest(self, restore: Any = None) -> Restored | None:
        """As restore(); a function is called with the checkpoint, as by shardwise.CheckpointManager's."""
        if not (callable(restore) and jax.tree_util.all_leaves([restore])):
            return self.restore(restore)
        return self._restored_by(restore)
