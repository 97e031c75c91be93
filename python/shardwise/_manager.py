"""The checkpoints of a training run: a folder of steps."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from . import _core, _objects
from ._errors import Corrupt, InvalidArgument
from ._paths import Path, local
from ._progress import Progress, function_of
from ._save import Plan, SaveStats, plan_of
from ._sources import MEMORY, Codec, Existing, check_choice, check_codec, copied
from ._tensor import Checkpoint

log = logging.getLogger("shardwise")

NO_LIMIT = 2**63 - 1


@dataclass
class LatestStep:
    """The newest valid step, and the newer ones that had to be passed over: (path, reason)."""

    step: int
    path: str
    rejected: list[tuple[str, str]] = field(default_factory=list)


class PendingSave:
    """A save under way. Its methods are those of concurrent.futures.Future."""

    def __init__(self, step: int | None, run: Callable[[Progress], SaveStats | None], what: str = "") -> None:
        self.step = step
        self._what = what or f"save of step {step}"
        self._run = run
        self._done = threading.Event()
        self._cancel = False
        self._result: SaveStats | None = None
        self._error: BaseException | None = None
        self._seen = False
        self._callbacks: list[Callable[[PendingSave], None]] = []
        self._has_callbacks = False
        self._lock = threading.RLock()
        self._begin = threading.Event()
        self._is_dropped = False
        self._thread = threading.Thread(target=self._work, name=f"shardwise {self._what}")
        try:
            self._thread.start()
        except BaseException:
            self._is_dropped = True  # then nothing is run
            raise
        finally:
            self._begin.set()

    def _work(self) -> None:
        # start() returns as soon as this waits. Else it would wait for the interpreter, which this thread has for 5 ms.
        self._begin.wait()
        if self._is_dropped:
            return
        run = self._run
        del self._run  # and what it holds, with its end
        try:
            self._result = run(self._progress)
        except BaseException as error:  # noqa: BLE001 - told by result(), or by the manager's next call
            self._error = error
            log.error("%s failed: %s", self._what, error)
        del run
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _progress(self, done: int, total: int) -> None:
        if self._cancel:
            from ._errors import Cancelled

            raise Cancelled(f"{self._what}: it was cancelled")

    def _call(self, callback: Callable[[PendingSave], None]) -> None:
        try:
            callback(self)
        except Exception:
            log.exception("a callback of %s failed", self._what)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.is_set()

    def cancel(self) -> bool:
        """Ends it; nothing is committed unless it is already. Says whether it was still under way."""
        self._cancel = True
        return not self.done()

    def result(self, timeout: float | None = None) -> SaveStats | None:
        """Waits until it is committed. Raises what the save raised, and TimeoutError."""
        self._wait(timeout)
        self._seen = True
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits until it has ended."""
        self._wait(timeout)
        self._seen = True
        return self._error

    def add_done_callback(self, callback: Callable[[PendingSave], None]) -> None:
        """Calls it with this object at the end, on the thread that saves; at once if it has ended."""
        with self._lock:
            if not self._done.is_set():
                self._has_callbacks = True
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _wait(self, timeout: float | None, callbacks: bool = True) -> None:
        if self._done.is_set() and threading.current_thread() is self._thread:
            return  # from a callback
        # In steps, so that Ctrl-C is seen.
        end = None if timeout is None else threading.TIMEOUT_MAX if timeout < 0 else timeout
        waited = 0.0
        while not self._done.wait(0.1 if end is None else max(0.0, min(0.1, end - waited))):
            waited += 0.1
            if end is not None and waited >= end:
                raise TimeoutError(f"{self._what} is not done after {timeout:g} s")
        if callbacks or not self._has_callbacks:
            self._thread.join()

    def rethrow_unseen(self) -> None:
        """Waits; raises its error if nobody has been told. Callbacks may still run: they may call the manager, whose lock
        the caller has."""
        self._wait(None, callbacks=False)
        if self._error is not None and not self._seen:
            self._seen = True
            raise self._error


def _with_metrics(plan: Plan, metrics: Mapping[str, float] | None) -> Plan:
    if metrics:
        plan.extra["metrics"] = {name: _objects.encode(float(value)) for name, value in metrics.items()}
    return plan


WhenBusy = Literal["wait", "skip"]


@dataclass
class Restored:
    """What a restart went on from, and the newer steps that had to be passed over: (path, reason)."""

    step: int
    path: str
    rejected: list[tuple[str, str]]
    value: Any = None  #: what the function that restores has returned


def core_manager(root: str, *, keep_last: int, keep_every: int, keep_interval: float, best: tuple[str, str, int] | None,
                 save_every: int, save_interval: float, preemption_signals: Iterable[int], preemption_grace: float,
                 threads: int, increments: bool, write_stats: bool = False, parity_blocks: int = 0,
                 collect_garbage: bool = True) -> _core.Manager:
    """The manager of C++, with the policies of a Python one. Raises InvalidArgument."""
    if best is not None:
        check_choice("best[1]", best[1], ("min", "max"))
    return _core.Manager(
        root, keep_last=keep_last, keep_every=keep_every, keep_interval=math.ceil(keep_interval),
        best=None if best is None else (best[0], best[1] == "max", best[2]), save_every=save_every,
        save_interval=math.ceil(save_interval), preemption_signals=[int(number) for number in preemption_signals],
        preemption_grace=preemption_grace, threads=threads, collect_garbage=collect_garbage,
        increments=increments, write_stats=write_stats, parity_blocks=parity_blocks)


def check_metrics(step: int, metrics: Mapping[str, float] | None, best: tuple[str, str, int] | None) -> None:
    if best is not None and metrics and best[0] not in metrics:
        raise InvalidArgument(f"save step {step}: found the metrics {', '.join(map(repr, metrics))}, needed also "
                              f"{best[0]!r}, by which best= keeps steps")


def all_damaged(root: str, rejected: Sequence[tuple[str, str]]) -> Corrupt:
    reasons = "; ".join(f"{os.path.basename(path)}: {reason}" for path, reason in rejected)
    return Corrupt(f"restore the latest checkpoint of {root}: none of {len(rejected)} is whole; {reasons}")


def step_of(path: str) -> int:
    """The number of a step by the name of its directory."""
    return int(os.path.basename(path).removeprefix("step-").partition(".")[0])


def next_generation(path: str) -> str:
    """What takes the place of a step: step-00000100.g2 that of step-00000100."""
    name, _, generation = os.path.basename(path).partition(".g")
    return os.path.join(os.path.dirname(path), f"{name}.g{int(generation or 1) + 1}")


class ManagerContext:
    """A manager as a context, whose end waits for the save under way."""

    _current: PendingSave | None

    def close(self) -> None:
        """Waits for the save under way. Raises its error if nobody has seen it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._current is not None:
            self._current.exception()  # the error under way is what is raised


class CheckpointManager(ManagerContext):
    """The steps in a folder, made if it is not there. One save is under way at a time. A context manager, whose end
    waits. Safe on several threads. A job of several processes uses shardwise.torch's or shardwise.jax's manager.

    Which steps stay after a commit: those that any of four rules keeps, the newest, what a reader has open, and what is
    pinned. A step that restore_latest() has found damaged is replaced when it is saved again. keep_last: the newest valid ones, this number. keep_every: those that it divides. keep_interval: the oldest,
    and each that was committed this number of seconds after the last one that the rule keeps. best=("loss", "min", n): the n
    best by a metric of save(metrics=...); as long as no step has it, all stay. Without a rule all stay.

    When should_save() says yes: save_every: the steps that it divides (0: none); save_interval: this number of seconds
    after the last save began; after request_save(); and when one of preemption_signals has come, as [signal.SIGTERM], of which
    Python's own handlers then hear nothing. preemption_grace: how many seconds after the signal the process lives: a save
    that would take longer raises Cancelled.

    when_busy: what save_async() does if a save is under way: "wait" for it, and raise its error if nobody has seen it, or
    "skip" this one. A signal's handler may call the methods: a save in it waits for the one that it interrupts.

    increments: chunks of about 1 MiB that have not changed since the newest step are linked and not written again
    (SaveStats.unchanged_bytes); each step is whole all the same, whatever becomes of the others. write_stats: what each
    save did is kept beside its step, as step-00000100.json. parity_blocks: each step gets parity, as by write_parity(), before
    its save ends; if it cannot be written, SaveStats.cleanup_error says why. 0: none.
    """

    def __init__(self, root: Path, *, keep_last: int = 0, keep_every: int = 0, keep_interval: float = 0,
                 best: tuple[str, str, int] | None = None, save_every: int = 1, save_interval: float = 0,
                 preemption_signals: Iterable[int] = (), preemption_grace: float = 0, when_busy: WhenBusy = "wait",
                 codec: Codec = "zstd", increments: bool = True, write_stats: bool = False, parity_blocks: int = 0,
                 threads: int = 0, memory: int = MEMORY) -> None:
        self.root = os.path.abspath(local(root, "open a folder of steps"))
        check_codec(codec)
        check_choice("when_busy", when_busy, ("wait", "skip"))
        self._best, self._skips = best, when_busy == "skip"
        self._codec, self._memory = codec, memory
        self._manager = core_manager(
            self.root, keep_last=keep_last, keep_every=keep_every, keep_interval=keep_interval, best=best,
            save_every=save_every, save_interval=save_interval, preemption_signals=preemption_signals,
            preemption_grace=preemption_grace, threads=threads, increments=increments,
            write_stats=write_stats, parity_blocks=parity_blocks)
        self._damaged: set[int] = set()  # the job comes to them again
        self._pool: dict[str, Any] = {}
        self._current: PendingSave | None = None
        self._lock = threading.RLock()  # reentrant: a signal's handler may save while this thread saves

    def should_save(self, step: int) -> bool:
        """Whether to save this step; the policies say so."""
        return self._manager.should_save(step)

    def request_save(self) -> None:
        """should_save() is true the next time."""
        self._manager.request_save()

    def reached_preemption(self) -> bool:
        """Whether a signal of preemption_signals had come when should_save() was called last: save, and end."""
        return self._manager.reached_preemption()

    def time_left(self) -> float | None:
        """How many seconds the process still lives, by preemption_grace; None: nothing has said that it ends."""
        return self._manager.time_left()

    def save(self, step: int, tensors: Mapping[str, Any], *, user: Any = None, metrics: Mapping[str, float] | None = None,
             existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Returns when the step is committed. Arguments and errors as those of shardwise.save(). Raises InvalidArgument if
        there are metrics, but not the one that best= names."""
        check_metrics(step, metrics, self._best)
        existing = self._existing(step, existing)
        plan = _with_metrics(plan_of(tensors), metrics)
        with self._lock:
            self._finish()
            return self._write(step, plan, user, existing, progress)

    def save_async(self, step: int, tensors: Mapping[str, Any], *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Copies the arrays, in memory that it keeps for the next one, and returns while the save goes on."""
        check_metrics(step, metrics, self._best)
        existing = self._existing(step, existing)
        with self._lock:
            if self._skips and self._current is not None and not self._current.done():
                return PendingSave(step, lambda progress: SaveStats("", 0, 0, 0, 0, 0.0, skipped=True))
            pool, self._pool = self._pool, {}  # so that a save in a signal's handler does not use that memory
            try:
                self._finish()  # what may still read that memory
                plan = _with_metrics(plan_of(copied(tensors, pool)), metrics)
            finally:
                self._pool = pool
            user = _objects.plain_copy(user, "user")
            if existing == "fail":
                self._refuse_existing(step)
            self._finish()  # what a signal's handler has begun meanwhile
            self._current = PendingSave(
                step, lambda progress: self._write(step, plan, user, existing, progress))
            return self._current

    def _find_latest(self, below: int) -> tuple[int, str, list[tuple[str, str]]] | None:
        found = self._manager.latest(below)
        if found is not None:
            self._damaged.update(step_of(path) for path, _ in found[2])
        return found

    def _existing(self, step: int, existing: Existing) -> Existing:
        return "replace" if step in self._damaged else existing

    def _refuse_existing(self, step: int) -> None:
        from ._errors import AlreadyExists

        for there, path in self._manager.steps():
            if there == step:
                raise AlreadyExists(f'save step {step}: {path} is already there; existing="replace" writes a new generation '
                                    f'of it, existing="skip" writes nothing')

    def _write(self, step: int, plan: Plan, user: Any, existing: str, progress: Progress) -> SaveStats:
        user_json = _objects.plain_json({} if user is None else user, "user")
        stats = SaveStats(**self._manager.save(step, plan.sources.list, self._codec, existing, user_json, plan.document(),
                                               self._memory, function_of(progress, f"save step {step}")))
        if stats.skipped:
            log.info("step %d is already there: nothing was written", step)
            return stats
        self._damaged.discard(step)
        log.info("saved step %d: %.1f MiB in %.2f s", step, stats.file_bytes / 2**20, stats.seconds)
        if stats.cleanup_error:
            log.warning("after the save of step %d: %s", step, stats.cleanup_error)
        return stats

    def _finish(self) -> None:
        """Waits for the save under way, also for one that a signal's handler begins meanwhile."""
        while (current := self._current) is not None:
            try:
                current.rethrow_unseen()
            finally:
                if current.done() and self._current is current:  # else Ctrl-C has ended the wait, not the save
                    self._current = None

    def restore_latest(self, restore: Callable[[Checkpoint], Any]) -> Restored | None:
        """Calls restore(checkpoint) with the newest valid step; None if there is no step. If what it reads turns out to
        be damaged (it raises Corrupt), it is called again for the step before: what it has filled by then is to be filled
        anew. Raises Corrupt if there are steps and none can be restored, and what else `restore` raises."""
        rejected: list[tuple[str, str]] = []
        below = NO_LIMIT
        while True:
            try:
                found = self._find_latest(below)
            except Corrupt as error:
                if not rejected:
                    raise
                raise Corrupt(f"{error}; newer: {all_damaged(self.root, rejected)}") from None
            if found is None:
                if rejected:
                    raise all_damaged(self.root, rejected)
                return None
            step, path, passed_over = found
            rejected += passed_over
            try:
                with Checkpoint(path) as checkpoint:
                    value = restore(checkpoint)
            except Corrupt as error:
                log.warning("%s is damaged: %s", path, error)
                rejected.append((path, str(error)))
                self._damaged.add(step)
                self._manager.note_damaged(step)
                below = step
            else:
                return Restored(step, path, rejected, value)

    def latest(self) -> LatestStep | None:
        """The newest valid step; None if there is no step at all. Raises Corrupt if there are and none is valid:
        that is never taken for a fresh start."""
        found = self._find_latest(NO_LIMIT)
        return None if found is None else LatestStep(found[0], found[1], list(found[2]))

    def steps(self) -> list[int]:
        """Committed steps, ascending. Says nothing about their bytes."""
        return [step for step, _ in self._manager.steps()]

    def step(self, step: int) -> str:
        """Its path. Raises NotFound."""
        path: str = self._manager.step(step)
        return path

    def open(self, step: int | None = None) -> Checkpoint:
        """The checkpoint of a step, or of the latest valid one. Raises NotFound."""
        if step is not None:
            return Checkpoint(self.step(step))
        latest = self.latest()
        if latest is None:
            from ._errors import NotFound

            raise NotFound(f"{self.root} holds no step")
        return Checkpoint(latest.path)

    def best(self) -> int | None:
        """The best step by best=; None if none has its metric. Raises InvalidArgument without best=."""
        return self._manager.best()

    def pin(self, step: int, name: str) -> None:
        """Gives a step a name, by which it stays; a name that another step has moves. Raises NotFound, InvalidArgument."""
        self._manager.pin(step, name)

    def unpin(self, name: str) -> None:
        """Takes a name away. Raises NotFound."""
        self._manager.unpin(name)

    def pinned(self) -> dict[str, int]:
        """Steps by name."""
        return dict(self._manager.pinned())

    def remove(self, step: int) -> None:
        """Raises NotFound, IOFailed, InvalidArgument if it is pinned by name."""
        self._manager.remove(step)

    def collect_garbage(self, dead_hosts: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Removes what dead processes left: names removed, and names kept as their owners may live.

        Nothing is known here of processes on other machines. They count as alive, unless their host
        is named in `dead_hosts`.
        """
        removed, kept = self._manager.collect_garbage(list(dead_hosts))
        return list(removed), list(kept)

    def wait(self) -> None:
        """Waits for the save under way. Raises its error if nobody has seen it."""
        with self._lock:
            self._finish()

    def close(self) -> None:
        """wait()"""
        self.wait()
