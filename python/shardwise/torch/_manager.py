"""shardwise.torch.CheckpointManager: the steps of a job of any number of processes."""

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
    """The random states of torch (of its current CUDA device, too, if that is in use), numpy and Python, as a
    value of a state: {"model": model, "rng": swt.rng()}. Each rank saves and restores its own."""
    return _Rng()


class CheckpointManager(JobManager):
    """The checkpoints of a job: steps in a folder, which shardwise.CheckpointManager and open() read, too.

    All processes of the job make it, with the same options, and call its methods together, in the same order.
    States are those of shardwise.torch.save(): whole trees of modules, optimizers, DTensors, rng(), plain
    values. One save is under way at a time. Policies are shardwise.CheckpointManager's, of the same names:
    which steps stay, when should_save() says yes, what save_async() does if a save is under way (when rank 0
    says that one is). should_save(), with its signals, is answered alike on all ranks, and is one round of
    messages over torch's store.

        with swt.CheckpointManager("run", keep_last=3, save_every=100,
                                   preemption_signals=[signal.SIGTERM]) as manager:
            found = manager.restore(state)
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
                 increments: bool = True, write_stats: bool = True, parity_blocks: int = 0,
                 replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY,
                 deadline: float = DEADLINE, **unknown: NoReturn) -> None:
        """group: of the processes; None: torch.distributed's, if it is initialised. replicas, deadline:
        save()'s."""
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
        """Returns when the step is committed. Errors are those of shardwise.torch.save(). metrics: rank 0's
        count."""
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
        """Returns when the values are copied to host memory. What becomes of it if a save is under way,
        when_busy says: SaveStats.skipped."""
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
        """Fills the state, as shardwise.torch.load() does, from a step, or from the newest one that all ranks
        can restore: if its bytes turn out to be damaged on one of them, all go back to the step before. None
        if there is no step. `value` of the result is what load() returns, without a state what
        load_state_dict() does; strict and rules (rename, cast, resize, ..) are its arguments. restore(3,
        state) is the same as restore(state, 3). Raises Corrupt if there are steps and none can be restored,
        Unsupported if there are only those of another library."""
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
        """As restore(); a function is called with the checkpoint, as by shardwise.CheckpointManager's."""
        return self._restored_by(restore) if callable(restore) else self.restore(restore)
