"""What torch's and JAX's CheckpointManager share: the steps of a job of any number of processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from . import _core
from ._edits import Cast, Join, Rename, Split, Transpose
from ._errors import Corrupt, Error, GroupError
from ._manager import (FolderManager, ManagerStats, Restored, keep_stats, next_generation, note_cleanup_error,
                       step_number, tell_warnings)
from ._paths import Path
from ._pending import PendingSave
from ._progress import Progress, ProgressFunction, function_of
from ._resize import Resize
from ._save import SaveStats, no_step, write_together
from .group import Call, Group


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


class JobManager(FolderManager):
    """A CheckpointManager of a job but for what is saved and how it is restored."""

    def __init__(self, root: Path, group: Group, *, increments: bool, parity_blocks: int, deadline: float,
                 **policies: Any) -> None:
        # Two for the thread that saves, one for the thread that calls.
        self._saves, self._ends, self._calls = group.duplicate(), group.duplicate(), group.duplicate()
        super().__init__(root, collect_garbage=group.rank == 0, is_shared=group.size > 1, increments=increments,
                         parity_blocks=parity_blocks, **policies)
        self._deadline, self._increments, self._parity_blocks = deadline, increments, parity_blocks
        self._preempted = False
        self._stats = ManagerStats()

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

    def reached_preemption(self) -> bool:
        """True if a signal of preemption_signals had come to a rank when should_save() was called last."""
        return self._preempted

    def stats(self) -> ManagerStats:
        """How the saves so far have ended, on all ranks: on_save_error."""
        return replace(self._stats)

    @property
    def best_metric(self) -> str | None:
        """The metric that best= names."""
        return None if self._best is None else self._best[0]

    def remove(self, step: int) -> None:
        """Waits for the save under way; then rank 0 removes the step. Raises NotFound, IOFailed, InvalidArgument if it is
        pinned by name."""
        self.wait()
        super().remove(step)

    def _restored(self, read: Callable[[str], Any], step: int | None) -> Restored | None:
        """The value of read() for a step's path on this rank; None: as _restored_newest()."""
        if step is None:
            return self._restored_newest(read)
        self.wait()
        step = step_number("restore", step)
        path = self.step(step)
        value, damage = self._read(read, path)
        if damage:
            self._damaged.add(step)
            raise Corrupt(f"restore {path}: {damage}")
        self._manager.note_restored(step)
        return Restored(step, path, [], value)

    def _restored_newest(self, read: Callable[[str], Any]) -> Restored | None:
        self.wait()
        return super()._restored_newest(read)

    def _read(self, read: Callable[[str], Any], path: str) -> tuple[Any, str]:
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
            encoded.update(self._encoded(step, metrics))
            steps, aside = self._listed()
            path = next((path for there, path in steps if there == step),
                        os.path.join(self.root, f"step-{step:08d}"))
            return next_generation(path) if step in self._damaged or step in aside else path

        path = str(self._on_first(look, f"where step {step} is", self._save_errors))
        watch = _Watch(self._manager, step)

        def after(call: Call, stats: SaveStats) -> None:
            if stats.skipped or stats.error:
                return
            stats.failed_saves, self._stats.failed_in_a_row = self._stats.failed_in_a_row, 0
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

        def write(*arguments: Any, **options: Any) -> SaveStats:
            try:
                return write_together(*arguments, **options)
            except GroupError:
                raise
            except Error as error:
                if self._raises():
                    raise
                return self._failed(step, error)

        return path, Managed(encoded, watch.begin, watch.progress, after, write, begun)

    def _failed(self, step: int, error: Error) -> SaveStats:
        """A save has failed on all ranks, by this error here. Raises it if the job is not to go on."""

        def judge(said: list[bytes]) -> bytes:
            told = [json.loads(text) for text in said]
            # A rank that was told of it names the rank that failed.
            code, text = max(told, key=lambda one: len(one[1]))
            goes_on = all(one[0] == code for one in told) and self._manager.note_failed(step, code, text)
            return json.dumps([goes_on, *self._manager.stats()]).encode()

        what = f"{self.root}: how the save of step {step} has ended"
        own = json.dumps([error.code, str(error)]).encode()
        goes_on, *stats = json.loads(self._ends.agree(lambda: own, judge, self._deadline, what))
        self._stats = ManagerStats(*stats)
        tell_warnings(self._manager)
        if not goes_on:
            raise error
        return SaveStats("", 0, 0, 0, 0, 0.0, error=self._stats.error,
                         failed_saves=self._stats.failed_in_a_row)

    def _next_turn(self, step: int) -> str:
        """Of a save_async() that comes now: "now", "later" or "skipped", as rank 0 says."""
        return self._queue.next_turn(lambda word: self._on_first(word, f"when to save step {step}"))

    def _on_first(self, work: Callable[[], Any], what: str, same: Mapping[str, Any] | None = None) -> Any:
        """What rank 0 finds, on all."""
        return self._agreed(lambda said: work(), what, None, same)

    def _agreed(self, merge: Callable[[list[Any]], Any], what: str, own: Any,
                same: Mapping[str, Any] | None = None) -> Any:
        said = self._calls.agree(lambda: json.dumps(own).encode(),
                                 lambda values: json.dumps(merge([json.loads(value) for value in values])).encode(),
                                 self._deadline, f"{self.root}: {what}", same)
        return json.loads(said)
