"""What torch's and JAX's CheckpointManager share: the steps of a job of any number of processes."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from . import _core, _objects
from ._edits import Cast, Join, Rename, Split, Transpose
from ._errors import Corrupt, Error, NotFound
from ._manager import (NO_LIMIT, ManagerContext, Restored, all_damaged, check_metrics, core_manager, keep_stats,
                       LatestStep, next_generation, note_cleanup_error, step_number, step_of, steps_of, tell_warnings)
from ._paths import Path, local
from ._pending import WHEN_BUSY, PendingSave, SaveQueue, WhenBusy
from ._progress import Progress, ProgressFunction, function_of
from ._resize import Resize
from ._save import SaveStats, no_step, write_together
from ._sources import Codec, check_choice, check_codec
from ._tensor import Checkpoint
from .group import Call, Group

log = logging.getLogger("shardwise")


@dataclass
class Managed:
    """What a manager does beside a save of its own, on every rank, on the thread that saves. What `before` and `progress`
    raise ends the save on all ranks."""

    metrics: dict[str, Any] = field(default_factory=dict)  #: encoded; rank 0's count
    before: Callable[[int], None] = lambda size: None  #: with the bytes of this rank's values
    progress: ProgressFunction = lambda done, total: None
    after: Callable[[Call, SaveStats], None] = lambda call, stats: None  #: when it is committed
    write: Callable[..., SaveStats] = write_together  #: what the ranks have agreed on
    begun: float = field(default_factory=time.monotonic)  #: when its caller called
    started: Callable[[PendingSave], None] = lambda pending: None  #: with a save on a thread, also if it is to fail there

    def telling(self, progress: Progress, path: str, rank: int) -> ProgressFunction:
        """What a save tells how far it is. A bar is shown by rank 0."""
        tell = function_of(None if progress is True and rank else progress, f"save {path}")

        def told(done: int, total: int) -> None:
            self.progress(done, total)
            if tell is not None:
                tell(done, total)

        return told


class Edits(TypedDict, total=False):
    """What is taken of a step, and how names, dtypes and shapes change as it is restored: arguments of open()."""

    names: str | Iterable[str] | None
    rename: Rename | None
    cast: Cast | None
    transpose: Transpose | None
    split: Split | None
    join: Join | None


class Rules(Edits, total=False):
    """Also what becomes of what the target has in another shape: arguments of load()."""

    skip_mismatched: bool
    resize: Resize | None


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


class JobManager(ManagerContext):
    """A CheckpointManager of a job but for what is saved and how it is restored."""

    def __init__(self, root: Path, group: Group, *, keep_last: int, keep_every: int, keep_interval: float,
                 best: tuple[str, str, int] | None, save_every: int, save_interval: float, preemption_signals: Iterable[int],
                 preemption_grace: float, when_busy: WhenBusy, codec: Codec, increments: bool, write_stats: bool,
                 parity_blocks: int, threads: int, memory: int, deadline: float) -> None:
        self.root = os.path.abspath(local(root, "open a folder of steps"))
        check_codec(codec)
        check_choice("when_busy", when_busy, WHEN_BUSY)
        # One for the thread that saves, one for the thread that calls.
        self._saves, self._calls = group.duplicate(), group.duplicate()
        self._best, self._deadline = best, deadline
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

    def _where(self) -> str:
        return f"{self.root!r}, rank {self._saves.rank} of {self._saves.size}"

    def should_save(self, step: int) -> bool:
        """Whether to save this step: the policies of one rank say so."""
        step = step_number("should_save", step)
        told = self._is_told_to_end(step)
        own = (self._manager.should_save(step) or told, self._manager.reached_preemption() or told)
        save, preempted = self._agreed(lambda said: [any(of) for of in zip(*said)], f"whether to save step {step}", own)
        self._preempted = self._preempted or preempted
        return bool(save)

    def _is_told_to_end(self, step: int) -> bool:
        """Whether something else than a signal says that the job is to save this step and end."""
        return False

    def request_save(self) -> None:
        """should_save() is true the next time, on all ranks."""
        self._manager.request_save()

    def reached_preemption(self) -> bool:
        """Whether a signal of preemption_signals had come to one of the ranks when should_save() was called last."""
        return self._preempted

    def time_left(self) -> float | None:
        """How many seconds this process still lives, by preemption_grace; None: no signal has told it that it ends."""
        return self._manager.time_left()

    def latest_step(self) -> int | None:
        """The newest valid step; None if there is no step. As latest()."""
        found = self.latest()
        return None if found is None else found.step

    def latest(self) -> LatestStep | None:
        """The newest valid step; None if there is no step at all. Raises Corrupt if there are and none is valid, and
        Unsupported if there are only those of another library: that is never taken for a fresh start."""
        found = self._latest(NO_LIMIT, [])
        return None if found is None else LatestStep(int(found[0]), str(found[1]), [(path, why) for path, why in found[2]])

    def step(self, step: int) -> str:
        """Its path. Raises NotFound."""
        number = step_number("find", step)
        return str(self._on_first(lambda: self._manager.step(number), f"where step {number} is"))

    def steps(self) -> list[int]:
        """Committed steps, ascending, as this rank's file system shows them. Says nothing about their bytes. While no save is
        under way it is the same on all ranks: a save ends on each of them when what it supersedes is gone, or its
        stats have a cleanup_error. Raises Unsupported if there are only those of another library."""
        return steps_of(self._manager)

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
        number = step_number("pin", step)
        self._on_first(lambda: self._manager.pin(number, name), f"pin step {number}")

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
        number = step_number("remove", step)
        self._on_first(lambda: self._manager.remove(number), f"remove step {number}")

    def is_saving(self) -> bool:
        return self._queue.is_saving()

    def wait(self) -> None:
        """Waits for the saves under way. Raises the error of one that nobody has seen; in a job of several processes, on
        every rank, seen or not, so that all stay in step."""
        self._queue.finish()

    def close(self) -> None:
        """wait(); then another manager may take the run up."""
        try:
            self.wait()
        finally:
            self._release()

    def _release(self) -> None:
        self._manager.close()

    def _restored(self, read: Callable[[str], Any], step: int | None) -> Restored | None:
        """What read() makes of a step's path on this rank: of one step, or of the newest one that all ranks can read. Else they
        all go back to the step before."""
        self.wait()
        if step is not None:
            step = step_number("restore", step)
            path = self.step(step)
            value, damage = self._read_on_all(read, path)
            if damage:
                self._damaged.add(step)
                raise Corrupt(f"restore {path}: {damage}")
            self._manager.note_restored(step)
            return Restored(step, path, [], value)
        rejected: list[tuple[str, str]] = []
        below = NO_LIMIT
        while True:
            found = self._latest(below, rejected)
            if found is None:
                if rejected:
                    raise all_damaged(self.root, rejected)
                return None
            below, path, passed_over, _ = found
            rejected += [(place, reason) for place, reason in passed_over]
            value, damage = self._read_on_all(read, path)
            if not damage:
                self._manager.note_restored(below)
                return Restored(below, path, rejected, value)
            log.warning("%s is damaged: %s", path, damage)
            rejected.append((path, damage))
            self._damaged.add(below)

    def _restored_by(self, function: Callable[[Checkpoint], Any]) -> Restored | None:
        def read(path: str) -> Any:
            with Checkpoint(path, threads=self._threads) as checkpoint:
                return function(checkpoint)

        return self._restored(read, None)

    def open(self, step: int | None = None) -> Checkpoint:
        """The checkpoint of a step, or of the latest valid one. Raises NotFound."""
        if step is not None:
            return Checkpoint(self.step(step))
        latest = self.latest()
        if latest is None:
            raise NotFound(f"{self.root} holds no step")
        return Checkpoint(latest.path)

    def _read_on_all(self, read: Callable[[str], Any], path: str) -> tuple[Any, str]:
        """What read() gives on this rank, and what is damaged for one of them. What else it raises on one rank is raised on
        all."""
        value: Any = None

        def work() -> bytes:
            nonlocal value
            try:
                value = read(path)
            except Corrupt as error:
                return str(error).encode(errors="backslashreplace")
            return b""

        def first(said: list[bytes]) -> bytes:
            return next((f"rank {rank}: ".encode() + text for rank, text in enumerate(said) if text), b"")

        damage = self._calls.agree(work, first, self._deadline, f"restore {path}").decode()
        return value, damage

    def _options(self, step: int, existing: str) -> dict[str, Any]:
        """Of a save."""

        def newest() -> str:  # but not what is replaced, perhaps as it is damaged
            unusable = self._damaged | {step, *self._manager.set_aside()}
            whole = [path for there, path in self._manager.steps() if there not in unusable]
            return str(whole[-1]) if whole else ""

        return {"codec": self._codec, "existing": existing, "threads": self._threads, "memory": self._memory,
                "find_earlier": newest if self._increments else no_step, "parity_blocks": self._parity_blocks}

    def _prepare(self, step: int, metrics: Mapping[str, float] | None, begun: float) -> tuple[str, Managed]:
        """The path of a step that is to be saved, as rank 0 sees it: another rank may see it later."""
        encoded: dict[str, Any] = {}

        def look() -> str:
            check_metrics(step, metrics, self._best)
            encoded.update({name: _objects.encode(float(value)) for name, value in (metrics or {}).items()})
            path = next((path for there, path in self._manager.steps() if there == step),
                        os.path.join(self.root, f"step-{step:08d}"))
            return next_generation(path) if step in self._damaged or step in self._manager.set_aside() else path

        path = str(self._on_first(look, f"where step {step} is"))
        watch = _Watch(self._manager, step)

        def after(call: Call, stats: SaveStats) -> None:
            if stats.skipped:
                return
            watch.end()
            self._damaged.discard(step)

            retired: list[int] = []

            def retire() -> bytes:
                retired.append(step)
                try:
                    self._manager.retire_superseded(step)
                except Error as error:  # the step is saved all the same
                    note_cleanup_error(step, stats, str(error))
                tell_warnings(self._manager)
                if self._write_stats:
                    keep_stats(self._manager, step, stats)
                return b""

            try:
                call.agree(bytes, lambda said: retire())  # on rank 0; all see the same steps after it
            except Error as error:  # a rank has ended since the commit
                note_cleanup_error(step, stats, f"it is committed; what it supersedes may still be seen: {error}")
                if self._saves.rank == 0 and not retired:
                    retire()

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
            self._damaged.update(map(step_of, found[3]))
        tell_warnings(self._manager)
        return found

    def _next_turn(self, step: int) -> str:
        """Of a save_async() that comes now: "now", "later" or "skipped", as rank 0 says."""
        return self._queue.next_turn(lambda word: self._on_first(word, f"when to save step {step}"))

    def _on_first(self, work: Callable[[], Any], what: str) -> Any:
        """What rank 0 finds, on all."""
        return self._agreed(lambda said: work(), what, None)

    def _agreed(self, merge: Callable[[list[Any]], Any], what: str, own: Any) -> Any:
        said = self._calls.agree(lambda: json.dumps(own).encode(),
                                 lambda values: json.dumps(merge([json.loads(value) for value in values])).encode(),
                                 self._deadline, f"{self.root}: {what}")
        return json.loads(said)
