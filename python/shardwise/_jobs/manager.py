"""Keeps the checkpoints of a training run as a folder of steps."""

from __future__ import annotations

import inspect
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from .. import _core
from .._argument_types import NO_LIMIT, step_number
from .._arrays.arrays import MEMORY, Codec, Existing, check_choice, check_codec, copied, refuse_unknown
from .._checkpoint.save import Caller, Plan, SaveStats, plan_of
from .._checkpoint.tensor import Checkpoint
from .._errors import InvalidArgument, NotFound, WrongType
from .._paths import Path, absolute_root
from .._progress import Progress, function_of
from .._trees import objects as _objects
from .._trees.containers import public_name
from ..group import Call
from .pending import (ON_SAVE_ERROR, WHEN_BUSY, OnSaveError, OwnLock, PendingSave, SaveQueue, WhenBusy,
                       skipped)

log = logging.getLogger("shardwise")



@dataclass
class LatestStep:
    """The newest valid step, and the newer steps that were passed over, each as (path, reason)."""

    step: int
    path: str
    rejected: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class ManagerStats:
    """Counts of a manager's failed saves, with on_save_error="warn"; equal on all ranks."""

    failed_saves: int = 0  #: number of all failed saves
    failed_in_a_row: int = 0  #: number of failed saves since the last commit
    failed_step: int | None = None  #: the step whose save failed last
    error: str = ""  #: why it failed, with the rank


#: Options of Orbax, Hugging Face's Trainer, accelerate and Lightning.
_OTHER_NAMES = {
    "max_to_keep": "keep_last=", "keep": "keep_last=", "max_keep": "keep_last=", "keep_n": "keep_last=",
    "keep_checkpoint_max": "keep_last=", "save_total_limit": "keep_last=", "total_limit": "keep_last=",
    "save_top_k": 'best=("loss", "min", n)', "best_fn": 'best=("loss", "min", n)',
    "best_mode": 'best=("loss", "min", n)',
    "save_interval_steps": "save_every=", "save_steps": "save_every=", "every_n_train_steps": "save_every=",
    "keep_period": "keep_every=", "keep_time_interval": "keep_interval= seconds",
    "options": "the options themselves, as keep_last= and save_every= (shardwise.jax.ocp has Orbax's)",
    "enable_async_checkpointing": "save() or save_async()", "async_save": "save() or save_async()",
    "should_save_fn": "an if before save()", "save_on_steps": "an if before save()",
    "save_decision_policy": "save_every=, save_interval= or preemption_signals=",
    "preservation_policy": "keep_last=, keep_every=, keep_interval= or best="}


#: Methods of managers in other libraries.
_OTHER_METHODS = {
    "async_save": "save_async(step, ...)", "all_steps": "steps()", "best_step": "best()",
    "delete": "remove(step)", "wait_until_finished": "wait()", "is_saving_in_progress": "is_saving()",
    "load": "restore()", "load_latest": "restore()",
    "restore_or_initialize": "restore(), which gives None for a fresh start",
    "latest_checkpoint": "latest().path",
    "checkpoints": "steps()", "save_checkpoint": "save(step, ...)", "restore_checkpoint": "restore()",
    "should_keep": "keep_last=, keep_every=, keep_interval= or best=", "metrics": "open(step).metrics"}


def is_step(value: Any) -> bool:
    """Returns True if the first argument of restore() is a step, as in restore(3, state). Raises
    InvalidArgument for a text."""
    if isinstance(value, str):
        step_number("restore", value)
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def refuse_others(kind: type, unknown: Iterable[str]) -> None:
    """Raises WrongType for options that a manager of this class lacks."""
    known = [name for name in inspect.signature(kind).parameters if name not in ("root", "unknown")]
    refuse_unknown("checkpoint manager", unknown, known, _OTHER_NAMES)


@dataclass
class Restored:
    """The step that a restart continues from, and the newer steps that it passed over, each as (path,
    reason)."""

    step: int
    path: str
    rejected: list[tuple[str, str]]
    value: Any = None  #: the result of the function that restores


def _whole_seconds(option: str, seconds: float) -> int:
    if not 0 <= seconds < NO_LIMIT:
        raise InvalidArgument(f"checkpoint manager: {option} is {seconds}, needed is a number of seconds, "
                              "0 or more")
    return math.ceil(seconds)


def _signals(signals: Iterable[int]) -> list[int]:
    try:
        return [operator.index(number) for number in signals]
    except TypeError:
        raise WrongType(f"checkpoint manager: preemption_signals is {signals!r}, needed are numbers, "
                        "as [signal.SIGTERM]") from None


def tell_warnings(manager: _core.Manager | _core.Tiers) -> None:
    """Logs the manager's warnings: the run goes back, another manager saves in the root, or newer steps are
    passed over."""
    for warning in manager.take_warnings():
        log.warning("%s", warning)


class ManagerContext:
    """A base that makes a manager a context manager, whose end waits for the saves under way."""

    _queue: SaveQueue

    def is_saving(self) -> bool:
        """Returns True if a save is under way."""
        return self._queue.is_saving()

    def close(self) -> None:
        """Waits for the saves under way. Raises the first error of a save that nobody has seen."""
        raise NotImplementedError

    def _where(self) -> str:
        """Returns the folders, and the rank and number of processes."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{public_name(type(self))} {self._where()}{', saving' if self._queue.is_saving() else ''}>"

    if not TYPE_CHECKING:  # a type checker shall report a missing name
        def __getattr__(self, name: str) -> Any:
            advice = f": needed is {_OTHER_METHODS[name]}" if name in _OTHER_METHODS else ""
            raise AttributeError(f"{public_name(type(self))} has no {name!r}{advice}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._queue.settle()  # the error that ended the body is raised, not that of a save
            self._release()

    def _release(self) -> None:
        """Lets another manager continue the run."""


class FolderManager(ManagerContext):
    """A manager of a folder of steps. Subclasses add the tensors of a save and the way to restore them."""

    def __init__(self, root: Path, *, keep_interval: float, best: tuple[str, str, int] | None,
                 save_interval: float, preemption_signals: Iterable[int], when_busy: WhenBusy,
                 on_save_error: OnSaveError, most_failed_saves: int, codec: Codec, write_stats: bool,
                 threads: int, memory: int, is_shared: bool = False, **policies: Any) -> None:
        """policies: options of the C++ manager."""
        self.root = absolute_root(root)
        check_codec(codec)
        check_choice("when_busy", when_busy, WHEN_BUSY)
        check_choice("on_save_error", on_save_error, ON_SAVE_ERROR)
        if best is not None:
            check_choice("best[1]", best[1], ("min", "max"))
        self._best, self._codec, self._threads, self._memory = best, codec, threads, memory
        self._save_errors: dict[str, Any] = {"on_save_error": on_save_error,
                                             "most_failed_saves": most_failed_saves}
        self._manager = _core.Manager(
            self.root, best=None if best is None else (best[0], best[1] == "max", best[2]), threads=threads,
            keep_interval=_whole_seconds("keep_interval", keep_interval),
            save_interval=_whole_seconds("save_interval", save_interval),
            preemption_signals=_signals(preemption_signals), write_stats=write_stats, **self._save_errors,
            **policies)
        self._queue = SaveQueue(when_busy, is_shared)

    def _on_first(self, work: Callable[[], Any], what: str, same: Mapping[str, Any] | None = None) -> Any:
        """Returns rank 0's result of work() on all ranks. same: values that must be equal on all ranks."""
        return work()

    def _call(self, what: str) -> Call:
        """Begins a call of all ranks."""
        return Call()

    def _encoded(self, step: int, metrics: Mapping[str, float] | None) -> dict[str, Any]:
        """Returns metrics in the form that a step stores. Raises InvalidArgument if the metric that best=
        names is missing."""
        if self._best is not None and metrics and self._best[0] not in metrics:
            raise InvalidArgument(f"save step {step}: found the metrics {', '.join(map(repr, metrics))}, "
                                  f"needed also {self._best[0]!r}, as best= keeps steps by it")
        return {name: _objects.encode(float(value)) for name, value in (metrics or {}).items()}

    def _tell(self, step: int, stats: SaveStats) -> None:
        """Logs the warnings and the cleanup error of a save."""
        tell_warnings(self._manager)
        if stats.cleanup_error:
            log.warning("after the save of step %d: %s", step, stats.cleanup_error)

    def should_save(self, step: int) -> bool:
        """Returns True if the policies say to save this step; in a job, if those of any rank say so."""
        step = step_number("should_save", step)
        with self._call(f"whether to save step {step}") as call:
            return self._manager.should_save(call, step, self._is_told_to_end(step))

    def _is_told_to_end(self, step: int) -> bool:
        """Returns True if something other than a signal tells the job to save this step and end."""
        return False

    def reached_preemption(self) -> bool:
        """Returns True if a signal of preemption_signals had reached this process, or any rank of a job, at
        the last call of should_save(): then save, and end."""
        return self._manager.reached_preemption()

    def request_save(self) -> None:
        """Lets the next should_save() return True, on all ranks."""
        self._manager.request_save()

    def stats(self) -> ManagerStats:
        """Returns counts of the saves that have failed so far, on all ranks; see on_save_error."""
        return ManagerStats(*self._manager.stats())

    def time_left(self) -> float | None:
        """Returns the seconds that this process still lives by preemption_grace; None before a signal."""
        return self._manager.time_left()

    def latest_step(self) -> int | None:
        """Returns the number of the newest valid step; None if there is no step. Raises as latest()."""
        latest = self.latest()
        return None if latest is None else latest.step

    def latest(self) -> LatestStep | None:
        """Returns the newest valid step; None if there is no step at all. Raises Corrupt if no step is valid,
        and Unsupported if there are only steps of another library, so that a job does not start afresh over
        them."""
        try:
            with self._call("which step is the latest") as call:
                latest = self._manager.latest(call)
        finally:
            tell_warnings(self._manager)
        return None if latest is None else LatestStep(*latest)

    def _restored(self, read: Callable[[str], Any], step: int | None = None) -> Restored | None:
        """Returns the value of read() for the path of a step, or of the newest step that all ranks can read.
        If one rank cannot read a step, all go back to the step before."""
        value: Any = None

        def fill(path: str) -> None:
            nonlocal value
            value = read(path)

        number = None if step is None else step_number("restore", step)
        try:
            what = "restore the latest step" if number is None else f"restore step {number}"
            with self._call(what) as call:
                restored = self._manager.restore(call, fill, number)
        finally:
            tell_warnings(self._manager)
        return None if restored is None else Restored(*restored, value)

    def _restored_by(self, function: Callable[[Checkpoint], Any]) -> Restored | None:
        def read(path: str) -> Any:
            with Checkpoint(path, threads=self._threads) as checkpoint:
                return function(checkpoint)

        return self._restored(read)

    def step(self, step: int) -> str:
        """Returns the path of a step. Raises NotFound."""
        number = step_number("find", step)
        return str(self._on_first(lambda: self._manager.step(number), f"where step {number} is"))

    def steps(self) -> list[int]:
        """Returns the committed steps, ascending, that this process's file system shows, without a check of
        their bytes. While no save is under way all ranks get the same list: a save ends on each rank when the
        steps that it supersedes are gone, or its stats have a cleanup_error. Raises Unsupported if there are
        only steps of another library."""
        steps = [step for step, *_ in self._manager.steps()]
        if not steps:
            self._manager.latest(Call())  # raises if all steps are of another library
        return steps

    def open(self, step: int | None = None) -> Checkpoint:
        """Opens the checkpoint of a step, or of the latest valid step. Raises NotFound."""
        if step is not None:
            return Checkpoint(self.step(step))
        latest = self.latest()
        if latest is None:
            raise NotFound(f"{self.root} holds no step")
        return Checkpoint(latest.path)

    def best(self) -> int | None:
        """Returns the best step by best=; None if no step has its metric. Raises InvalidArgument without
        best=."""
        step = self._on_first(self._manager.best, "which step is the best")
        return None if step is None else int(step)

    def pin(self, step: int, name: str) -> None:
        """Gives a step a name, which keeps the step. A name that another step has moves to this one. Raises
        NotFound, InvalidArgument."""
        number = step_number("pin", step)
        self._on_first(lambda: self._manager.pin(number, name), f"pin step {number}")

    def unpin(self, name: str) -> None:
        """Removes a name from its step. Raises NotFound."""
        self._on_first(lambda: self._manager.unpin(name), f"unpin {name!r}")

    def pinned(self) -> dict[str, int]:
        """Returns the pinned steps by name."""
        return dict(self._manager.pinned())

    def remove(self, step: int) -> None:
        """Removes a step. Raises NotFound, IOFailed, InvalidArgument if it is pinned by name."""
        number = step_number("remove", step)
        self._on_first(lambda: self._manager.remove(number), f"remove step {number}")

    def wait(self) -> None:
        """Waits for the saves under way. Raises the first error that nobody has seen. In a job of several
        processes every rank raises it, seen or not, so that all do the same."""
        self._queue.finish()

    def close(self) -> None:
        """Waits as wait() does; then another manager may continue the run."""
        try:
            self.wait()
        finally:
            self._release()

    def _release(self) -> None:
        self._manager.close()


class CheckpointManager(FolderManager):
    """Manages the steps in a folder, which it makes if it is missing. One save is under way at a time. It is
    a context manager, whose end waits, and thread-safe. A job of several processes uses the manager of
    shardwise.torch or shardwise.jax.

    After a commit these steps stay: the newest step, steps that a reader has open, pinned steps, and those
    that any of four rules keeps. keep_last: this number of newest valid steps. keep_every: the steps that it
    divides. keep_interval: the oldest step, and each step committed this number of seconds after the last one
    that the rule keeps. best=("loss", "min", n): the n best steps by a metric of save(metrics=...); while no
    step has the metric, all stay. Without a rule all stay. A step that restore_latest() has found damaged is
    replaced when it is saved again.

    should_save() returns True for the steps that save_every divides (0: for none), save_interval seconds
    after the last save began, after request_save(), and after one of preemption_signals, as [signal.SIGTERM].
    Python's own handlers do not get these signals. preemption_grace: the seconds that the process lives after
    the signal; a save that would take longer raises Cancelled.

    when_busy: the behaviour of save_async() while a save is under way. "wait" waits for that save, and raises
    its error if nobody has seen it. "skip" skips the new save. "replace" copies the arrays, returns, and
    saves them next; a save that still waits when another one comes ends as skipped, so there are at most two
    copies of the state. A signal handler may call the methods; a save in it waits for the save that it
    interrupts.

    on_save_error: the behaviour if the disk fails a save: no room, a broken device, a missing file. "raise"
    raises. "warn" lets the job go on: SaveStats.error and stats() give the reason, the log gives it once, and
    the next should_save() returns True. These still raise: more than most_failed_saves failures in a row,
    wrong arguments, a step that exists, Ctrl-C, and the loss of a process of the job.

    If the first save is below steps that others have written, the run has gone back: the manager sets those
    steps aside, and logs it. latest(), best() and retention ignore them; they stay until remove(), or until
    that step is saved again, whatever existing= says. While another manager has saved in the folder and is
    not closed, nothing is set aside, and retention removes only steps that this manager has written.

    increments: chunks of about 1 MiB that have not changed since the newest step are linked, not written
    again (SaveStats.unchanged_bytes); each step stays whole if others are removed. write_stats: the SaveStats
    of each save are kept next to its step, as stats-step-00000100.json. parity_blocks: each step gets parity
    of so many blocks, as by write_parity(), before its save ends; if the parity cannot be written,
    SaveStats.cleanup_error gives the reason. 0 writes no parity.

    The root may be in a bucket, "s3://bucket/runs": every save then writes all chunks, an open reader does
    not keep a step from being removed, and there is no parity (docs/object_stores.md).
    """

    def __init__(self, root: Path, *, keep_last: int = 0, keep_every: int = 0, keep_interval: float = 0,
                 best: tuple[str, str, int] | None = None, save_every: int = 1, save_interval: float = 0,
                 preemption_signals: Iterable[int] = (), preemption_grace: float = 0,
                 when_busy: WhenBusy = "wait",
                 on_save_error: OnSaveError = "raise", most_failed_saves: int = 3, codec: Codec = "zstd",
                 increments: bool = True, write_stats: bool = True, parity_blocks: int = 0,
                 threads: int = 0, memory: int = MEMORY, **unknown: NoReturn) -> None:
        refuse_others(CheckpointManager, unknown)
        super().__init__(
            root, keep_last=keep_last, keep_every=keep_every, keep_interval=keep_interval, best=best,
            save_every=save_every, save_interval=save_interval, preemption_signals=preemption_signals,
            preemption_grace=preemption_grace,
            when_busy=when_busy, on_save_error=on_save_error, most_failed_saves=most_failed_saves,
            codec=codec, increments=increments, write_stats=write_stats, parity_blocks=parity_blocks,
            threads=threads, memory=memory)
        self._replaces = when_busy == "replace"
        self._pools: list[dict[str, Any]] = []  # memory of copies that no save reads
        # The lock is reentrant: a signal's handler may save while this thread saves.
        self._lock = OwnLock("a CheckpointManager")

    def _where(self) -> str:
        return repr(self.root)

    def save(self, step: int, tensors: Mapping[str, Any], *, user: Any = None, metrics: Mapping[str, float]
             | None = None, existing: Existing = "fail", progress: Progress = None) -> SaveStats:
        """Saves a step, and returns when it is committed. The arguments and errors are those of
        shardwise.save(). Raises InvalidArgument if metrics= lacks the metric that best= names."""
        caller = Caller()
        step = step_number("save", step)
        encoded = self._encoded(step, metrics)
        plan = plan_of(tensors, encoded)
        with self._lock:
            self._queue.finish()
            return self._write(step, plan, user, existing, progress, caller)

    def save_async(self, step: int, tensors: Mapping[str, Any], *, user: Any = None,
                   metrics: Mapping[str, float] | None = None, existing: Existing = "fail") -> PendingSave:
        """Copies the arrays, into memory that the next call reuses, and returns while the save goes on. The
        arguments are those of save()."""
        caller = Caller()
        step = step_number("save", step)
        encoded = self._encoded(step, metrics)

        def refuse_existing() -> None:
            if existing == "fail":
                self._manager.refuse_existing(step)

        with self._lock:
            if self._replaces:
                refuse_existing()  # first: a refused save replaces nothing
            if self._queue.next_turn(Call()) == "skipped":
                return PendingSave(step, lambda progress: skipped())
            # A pool that is taken out cannot be used by a save in a signal's handler.
            pool = self._pools.pop() if self._pools else {}
            try:
                plan = plan_of(copied(tensors, pool), encoded)
                user = _objects.plain_copy(user, "user")
                refuse_existing()
                decision = self._queue.next_turn(Call())  # after saves that a signal's handler began
                turn = self._queue.turn(decision)
                if turn is not None:
                    self._manager.begin_later(step)
            except BaseException:
                self._pools.append(pool)
                raise
            caller.waited = time.monotonic() - caller.begun
            caller.copied_bytes = sum(copy.nbytes for copy in pool.values())
            pending = PendingSave(step, lambda progress: self._save_copies(
                step, plan, pool, user, existing, progress, caller, turn, decision == "skipped"))
            if decision != "skipped":
                self._queue.add(pending, turn)
            return pending

    def _save_copies(self, step: int, plan: Plan, pool: dict[str, Any], user: Any, existing: str,
                     progress: Progress, caller: Caller, turn: _core.Turn | None, skips: bool) -> SaveStats:
        try:
            if skips or turn is not None and not turn.begins(Call()):
                return skipped()
            return self._write(step, plan, user, existing, progress, caller)
        finally:
            self._pools.append(pool)

    def _write(self, step: int, plan: Plan, user: Any, existing: str, progress: Progress,
               caller: Caller) -> SaveStats:
        user_json = _objects.plain_json({} if user is None else user, "user")
        stats = SaveStats(**self._manager.save(
            step, plan.sources.list, self._codec, existing, user_json, plan.document(), self._memory,
            caller.part(), function_of(progress, f"save step {step}")))
        self._tell(step, stats)
        if stats.skipped:
            log.info("step %d is already there: nothing was written", step)
        elif not stats.error:
            log.info("saved step %d: %.1f MiB in %.2f s", step, stats.file_bytes / 2**20, stats.seconds)
        return stats

    def restore(self, target: Mapping[str, Any] | None = None, step: int | None = None, *,
                strict: bool = True, **rules: Any) -> Restored | None:
        """Loads a step, or the newest valid step as restore_latest() finds it. `value` of the result is that
        of shardwise.load(path, target=target); strict and rules (rename, cast, resize, ..) are arguments of
        load(). restore(3, target) is the same as restore(target, 3). Returns None if there is no step. Raises
        the errors of load() and restore_latest()."""
        from .._checkpoint.load import load

        tree: Any = target
        number: Any = step
        if is_step(tree):
            tree, number = number, tree

        def read(path: str) -> Any:
            return load(path, target=tree, strict=strict, **rules)

        return self._restored(read, number)

    def restore_latest(self, restore: Callable[[Checkpoint], Any] | None = None) -> Restored | None:
        """Calls restore(checkpoint) with the newest valid step; returns None if there is no step. If
        `restore` raises Corrupt, as data is damaged, it is called again for the step before, and must fill
        again all parts that it has filled. Raises Corrupt if no step can be restored, Unsupported if there
        are only steps of another library, and any other error of `restore`. If `restore` is no function, it
        is the target of restore()."""
        return self._restored_by(restore) if callable(restore) else self.restore(restore)

    def collect_garbage(self, dead_hosts: Iterable[str] = ()) -> tuple[list[str], list[str]]:
        """Removes the leftovers of dead processes. Returns the names that were removed, and the names that
        stay because their owners may live.

        This process cannot know whether processes on other machines live. They count as alive, unless
        `dead_hosts` names their host.
        """
        removed, kept = self._manager.collect_garbage(list(dead_hosts))
        return list(removed), list(kept)

    def wait(self) -> None:
        """Waits for the saves under way. Raises the first error that nobody has seen."""
        with self._lock:
            self._queue.finish()

