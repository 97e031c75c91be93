"""Defines shardwise.torch.CheckpointManager, for jobs of any number of processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Unpack

import numpy as np
import torch

from .._argument_types import step_number
from .._arrays.arrays import MEMORY, Codec, Existing, check_choice
from .._checkpoint.save import SaveStats
from .._jobs.job_manager import JobManager, Rules
from .._jobs.manager import Restored, is_step, refuse_others
from .._jobs.pending import OnSaveError, PendingSave, WhenBusy, skipped
from .._paths import Path
from .._progress import Progress
from ..group import DEADLINE, Group, auto
from ._load import load, load_state_dict
from ._save import save_async_managed, save_managed
from ._state import PerRank


class _Rng:
    """The random states of a process, as an object with state_dict() and load_state_dict()."""

    def state_dict(self) -> dict[str, Any]:
        state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(legacy=False),
                 "python": random.getstate()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            state["cuda"] = torch.cuda.get_rng_state()
        return {"rng": PerRank(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = state["rng"]
        own = own.value if isinstance(own, PerRank) else own
        torch.set_rng_state(own["torch"])
        np.random.set_state(own["numpy"])
        random.setstate(own["python"])
        if "cuda" in own and torch.cuda.is_available():
            torch.cuda.set_rng_state(own["cuda"])


def rng() -> _Rng:
    """Returns a value of a state that stands for the random states of torch (also of its current CUDA device,
    if that is in use), numpy and Python: {"model": model, "rng": swt.rng()}. Each rank saves and restores its
    own."""
    return _Rng()


class CheckpointManager(JobManager):
    """Manages the checkpoints of a job as steps in a folder, which shardwise.CheckpointManager and open()
    read, too.

    All processes of the job make one with the same options, and call its methods together, in the same order.
    It saves the states of shardwise.torch.save(): whole trees of modules, optimizers, DTensors, rng() and
    plain values. One save is under way at a time. Its policies have the names and the meaning of
    shardwise.CheckpointManager's; rank 0 decides whether a save is under way. should_save() returns the same
    on all ranks, also after signals, by one round of messages over torch's store.

        with swt.CheckpointManager("run", keep_last=3, save_every=100,
                                   preemption_signals=[signal.SIGTERM]) as manager:
            restored = manager.restore(state)
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
                 increments: bool = True, write_stats: bool = True, parity_blocks: int = 0,
                 replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY,
                 deadline: float = DEADLINE, **unknown: NoReturn) -> None:
        """group: the group of the processes; None: that of torch.distributed, if it is initialised. replicas,
        deadline: those of shardwise.torch.save()."""
        check_choice("replicas", replicas, ("check", "trust"))
        refuse_others(CheckpointManager, unknown)
        super().__init__(root, auto() if group is None else group, keep_last=keep_last, keep_every=keep_every,
                         keep_interval=keep_interval, best=best, save_every=save_every,
                         save_interval=save_interval, preemption_signals=preemption_signals,
                         preemption_grace=preemption_grace, when_busy=when_busy, on_save_error=on_save_error,
                         most_failed_saves=most_failed_saves, codec=codec,
                         increments=increments, write_stats=write_stats,
                         parity_blocks=parity_blocks, threads=threads, memory=memory, deadline=deadline)
        self._replicas = replicas

    def save(self, step: int, state: Mapping[str, Any], *, user: Any = None, metrics: Mapping[str, float]
             | None = None, existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Saves a step, and returns when it is committed. Raises the errors of shardwise.torch.save().
        metrics: those of rank 0 are stored."""
        begun, step = time.monotonic(), step_number("save", step)
        self.wait()
        path, managed = self._prepare(step, metrics, begun)
        return save_managed(
            path,
            state,
            user,
            self._options(existing),
            self._replicas,
            self._saves,
            self._deadline,
            progress,
            managed,
        )

    def save_async(self, step: int, state: Mapping[str, Any], *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Returns when the values are copied to host memory. If a save is under way, when_busy decides
        whether this one waits or ends as skipped (SaveStats.skipped)."""
        begun, step = time.monotonic(), step_number("save", step)
        ready = self._begin_async(step, metrics, begun)
        if ready is None:
            return PendingSave(step, lambda progress: skipped())
        path, managed, turn = ready
        managed.started = lambda pending: self._queue.add(pending, turn)
        return save_async_managed(path, state, user, self._options(existing), self._replicas, self._saves,
                                  self._deadline, True, managed, turn)

    def restore(self, state: Mapping[str, Any] | None = None, step: int | None = None, *, strict: bool = True,
                **rules: Unpack[Rules]) -> Restored | None:
        """Fills the state as shardwise.torch.load() does, from a step, or from the newest step that all ranks
        can restore: if one rank reads damaged bytes, all go back to the step before. Returns None if there is
        no step. `value` of the result is that of load(), or without a state that of load_state_dict(), whose
        arguments are strict and rules (rename, cast, resize, ..). restore(3, state) is the same as
        restore(state, 3). Raises Corrupt if no step can be restored, Unsupported if there are only steps of
        another library, and the errors of load()."""
        tree: Any = state
        number: Any = step
        if is_step(tree):
            tree, number = number, tree
        if tree is None:
            edits: dict[str, Any] = {name: rule for name, rule in rules.items() if name != "skip_mismatched"}
            return self._restored(lambda path: load_state_dict(path, threads=self._threads, **edits), number)
        return self._restored(lambda path: load(path, tree, strict=strict, group=self._calls,
                                                threads=self._threads, **rules), number)

    def restore_latest(self, restore: Any = None) -> Restored | None:
        """Restores as restore() does. A function is called with the checkpoint, as in
        shardwise.CheckpointManager."""
        return self._restored_by(restore) if callable(restore) else self.restore(restore)
