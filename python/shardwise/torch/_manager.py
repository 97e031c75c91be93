"""shardwise.torch.CheckpointManager: the steps of a job of any number of processes."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .. import _core, _objects
from .._errors import Corrupt, Error, InvalidArgument
from .._manager import (NO_LIMIT, ManagerContext, Restored, all_damaged, check_metrics, core_manager, keep_stats,
                        next_generation, note_cleanup_error, step_of)
from .._paths import Path, local
from .._pending import WHEN_BUSY, PendingSave, SaveQueue, WhenBusy, skipped
from .._progress import Progress
from .._save import SaveStats, no_step
from .._sources import MEMORY, Codec, Existing, check_choice, check_codec
from ..group import DEADLINE, Group, auto
from ._load import load
from ._save import Managed, save_async_managed, save_managed
from ._state import PerRank

log = logging.getLogger("shardwise")


class _Rng:
    """The random states of a process, as an object with state_dict() and load_state_dict()."""

    def state_dict(self) -> dict[str, Any]:
        state = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(legacy=False), "python": random.getstate()}
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
    """The random states of torch (of its current CUDA device, too, if that is in use), numpy and Python, as a value of a
    state: {"model": model, "rng": swt.rng()}. Each rank saves and restores its own."""
    return _Rng()


class _Watch:
    """Of one save on this rank: that it ends before the process does (preemption_grace). Begun on the thread that saves."""

    def __init__(self, manager: _core.Manager, step: int) -> None:
        self._manager, self._step = manager, step

    def begin(self, size: int) -> None:
        self._size, self._begun = size, time.monotonic()
        self.check = self._manager.begin_save(self._step, size)

    def progress(self, done: int, total: int) -> None:
        self.check(done, total)

    def end(self) -> None:
        self._manager.end_save(self._size, time.monotonic() - self._begun)


class CheckpointManager(ManagerContext):
    """The checkpoints of a job: steps in a folder, which shardwise.CheckpointManager and open() read, too.

    All processes of the job make it, with the same options, and call its methods together, in the same order. States are
    those of shardwise.torch.save(): whole trees of modules, optimizers, DTensors, rng(), plain values. One save is under
    way at a time. Policies are shardwise.CheckpointManager's, of the same names: which steps stay, when should_save()
    says yes, what save_async() does if a save is under way (when rank 0 says that one is). should_save(), with its
    signals, is answered alike on all ranks, and is one round of messages over torch's store.

        with swt.CheckpointManager("run", keep_last=3, save_every=100, preemption_signals=[signal.SIGTERM]) as manager:
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
                 preemption_signals: Iterable[int] = (), preemption_grace: float = 0, when_busy: WhenBusy = "wait",
                 codec: Codec = "zstd", increments: bool = True, write_stats: bool = True, parity_blocks: int = 0,
                 replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY, deadline: float = DEADLINE) -> None:
        """group: of the processes; None: torch.distributed's, if it is initialised. replicas, deadline: save()'s."""
        self.root = os.path.abspath(local(root, "open a folder of steps"))
        check_codec(codec)
        check_choice("when_busy", when_busy, WHEN_BUSY)
        check_choice("replicas", replicas, ("check", "trust"))
        group = auto() if group is None else group
        # One for the thread that saves, one for the thread that calls.
        self._saves, self._calls = group.duplicate(), group.duplicate()
        self._best, self._replicas, self._deadline = best, replicas, deadline
        self._codec, self._threads, self._memory, self._increments = codec, threads, memory, increments
        self._write_stats, self._parity_blocks = write_stats, parity_blocks
        self._manager = core_manager(
            self.root, keep_last=keep_last, keep_every=keep_every, keep_interval=keep_interval, best=best,
            save_every=save_every, save_interval=save_interval, preemption_signals=preemption_signals,
            preemption_grace=preemption_grace, threads=threads, increments=increments,
            parity_blocks=parity_blocks, collect_garbage=group.rank == 0)
        self._preempted = False
        self._damaged: set[int] = set()  # the job comes to them again
        self._queue = SaveQueue(when_busy, is_shared=group.size > 1)

    def should_save(self, step: int) -> bool:
        """Whether to save this step: the policies of one rank say so."""
        own = (self._manager.should_save(step), self._manager.reached_preemption())
        save, preempted = self._agreed(lambda said: [any(of) for of in zip(*said)], f"whether to save step {step}", own)
        self._preempted = self._preempted or preempted
        return bool(save)

    def request_save(self) -> None:
        """should_save() is true the next time, on all ranks."""
        self._manager.request_save()

    def reached_preemption(self) -> bool:
        """Whether a signal of preemption_signals had come to one of the ranks when should_save() was called last."""
        return self._preempted

    def save(self, step: int, state: Mapping[str, Any], *, user: Any = None, metrics: Mapping[str, float] | None = None,
             existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Returns when the step is committed. Errors are those of shardwise.torch.save(). metrics: rank 0's count."""
        begun = time.monotonic()
        self.wait()
        path, managed = self._prepare(step, metrics, begun)
        return save_managed(path, state, user, self._options(step, existing), self._replicas, self._saves, self._deadline,
                            progress, managed)

    def save_async(self, step: int, state: Mapping[str, Any], *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Returns when the values are copied to host memory. What becomes of it if a save is under way, when_busy says:
        SaveStats.skipped."""
        begun = time.monotonic()
        said = self._queue.next_turn(lambda word: self._on_first(word, f"when to save step {step}"))
        if said == "skipped":
            return PendingSave(step, lambda progress: skipped())
        path, managed = self._prepare(step, metrics, begun)
        turn = self._queue.turn(said)
        if turn is not None:
            self._manager.begin_save(step, 0)
        pending = save_async_managed(path, state, user, self._options(step, existing), self._replicas, self._saves,
                                     self._deadline, True, managed, turn)
        self._queue.add(pending, turn)
        return pending

    def restore(self, state: Mapping[str, Any], step: int | None = None, *, strict: bool = True) -> Restored | None:
        """Fills the state, as shardwise.torch.load() does, from a step, or from the newest one that all ranks can restore:
        if its bytes turn out to be damaged on one of them, all go back to the step before. None if there is no step.
        `value` of the result is what load() returns. Raises Corrupt if there are steps and none can be restored."""
        self.wait()
        if step is not None:
            path = str(self._on_first(lambda: self._manager.step(step), f"where step {step} is"))
            value, damage = self._load_on_all(path, state, strict)
            if damage:
                raise Corrupt(f"restore {path}: {damage}")
            return Restored(step, path, [], value)
        rejected: list[tuple[str, str]] = []
        below = NO_LIMIT
        while True:
            found = self._latest(below, rejected)
            if found is None:
                if rejected:
                    raise all_damaged(self.root, rejected)
                return None
            below, path, passed_over = found
            rejected += [(place, reason) for place, reason in passed_over]
            value, damage = self._load_on_all(path, state, strict)
            if not damage:
                return Restored(below, path, rejected, value)
            log.warning("%s is damaged: %s", path, damage)
            rejected.append((path, damage))
            self._damaged.add(below)

    def _load_on_all(self, path: str, state: Mapping[str, Any], strict: bool) -> tuple[Any, str]:
        """What load() gives on this rank, and what is damaged for one of them. What else load() raises on one rank is raised
        on all."""
        value: Any = None

        def work() -> bytes:
            nonlocal value
            try:
                value = load(path, state, strict=strict, group=self._calls, threads=self._threads)
            except Corrupt as error:
                return str(error).encode(errors="backslashreplace")
            return b""

        def first(said: list[bytes]) -> bytes:
            return next((f"rank {rank}: ".encode() + text for rank, text in enumerate(said) if text), b"")

        damage = self._calls.agree(work, first, self._deadline, f"restore {path}")
        return value, damage.decode()

    def latest_step(self) -> int | None:
        """The newest valid step; None if there is no step. Raises Corrupt if there are and none is valid."""
        found = self._latest(NO_LIMIT, [])
        return None if found is None else int(found[0])

    def steps(self) -> list[int]:
        """Committed steps, ascending. Says nothing about their bytes."""
        return [step for step, _ in self._manager.steps()]

    def best(self) -> int | None:
        """The best step by best=; None if none has its metric. Raises InvalidArgument without best=."""
        found = self._on_first(self._manager.best, "which step is the best")
        return None if found is None else int(found)

    @property
    def best_metric(self) -> str | None:
        """The metric that best= names."""
        return None if self._best is None else self._best[0]

    def pin(self, step: int, name: str) -> None:
        """Gives a step a name, by which it stays; a name that another step has moves. Raises NotFound, InvalidArgument."""
        self._on_first(lambda: self._manager.pin(step, name), f"pin step {step}")

    def unpin(self, name: str) -> None:
        """Takes a name away. Raises NotFound."""
        self._on_first(lambda: self._manager.unpin(name), f"unpin {name!r}")

    def pinned(self) -> dict[str, int]:
        """Steps by name."""
        return dict(self._manager.pinned())

    def remove(self, step: int) -> None:
        """Waits for the save under way; then rank 0 removes the step. Raises NotFound, IOFailed, InvalidArgument if it is
        pinned by name."""
        self.wait()
        self._on_first(lambda: self._manager.remove(step), f"remove step {step}")

    def is_saving(self) -> bool:
        return self._queue.is_saving()

    def wait(self) -> None:
        """Waits for the saves under way. Raises the error of one that nobody has seen; in a job of several processes, on
        every rank, seen or not, so that all stay in step."""
        self._queue.finish()

    def close(self) -> None:
        """wait()"""
        self.wait()

    def _options(self, step: int, existing: str) -> dict[str, Any]:
        def newest() -> str:  # but not what is replaced, perhaps as it is damaged
            whole = [path for there, path in self._manager.steps() if there not in self._damaged and there != step]
            return str(whole[-1]) if whole else ""

        return {"codec": self._codec, "existing": existing, "threads": self._threads, "memory": self._memory,
                "find_earlier": newest if self._increments else no_step, "parity_blocks": self._parity_blocks}

    def _prepare(self, step: int, metrics: Mapping[str, float] | None, begun: float) -> tuple[str, Managed]:
        """The path of a step that is to be saved, as rank 0 sees it: another rank may see it later."""
        encoded: dict[str, Any] = {}

        def look() -> str:
            if not isinstance(step, int) or step < 0:
                raise InvalidArgument(f"save step {step!r}: needed is an integer, 0 or more")
            check_metrics(step, metrics, self._best)
            encoded.update({name: _objects.encode(float(value)) for name, value in (metrics or {}).items()})
            path = next((path for there, path in self._manager.steps() if there == step),
                        os.path.join(self.root, f"step-{step:08d}"))
            return next_generation(path) if step in self._damaged else path

        path = str(self._on_first(look, f"where step {step} is"))
        watch = _Watch(self._manager, step)

        def after(stats: SaveStats) -> None:
            if stats.skipped:
                return
            watch.end()
            self._damaged.discard(step)
            if self._saves.rank != 0:
                return
            try:
                self._manager.retire_superseded()
            except Error as error:  # the step is saved all the same
                note_cleanup_error(step, stats, str(error))
            if self._write_stats:
                keep_stats(self._manager, step, stats)

        return path, Managed(encoded, watch.begin, watch.progress, after, begun=begun)

    def _latest(self, below: int, rejected: list[tuple[str, str]]) -> Any:
        def find() -> Any:
            try:
                return self._manager.latest(below)
            except Corrupt as error:
                if not rejected:
                    raise
                raise Corrupt(f"{error}; newer: {all_damaged(self.root, rejected)}") from None

        found = self._on_first(find, "which step is the latest")
        if found is not None:
            self._damaged.update(step_of(path) for path, _ in found[2])
        return found

    def _on_first(self, work: Callable[[], Any], what: str) -> Any:
        """What rank 0 finds, on all."""
        return self._agreed(lambda said: work(), what, None)

    def _agreed(self, merge: Callable[[list[Any]], Any], what: str, own: Any) -> Any:
        said = self._calls.agree(lambda: json.dumps(own).encode(),
                                 lambda values: json.dumps(merge([json.loads(value) for value in values])).encode(),
                                 self._deadline, f"{self.root}: {what}")
        return json.loads(said)
