"""CheckpointManager, with the surface of Orbax's."""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _objects
from .._errors import Corrupt, Error, InvalidArgument, NameNotFound, NotFound
from .._manager import NO_LIMIT, ManagerContext, all_damaged, note_cleanup_error, step_of
from .._paths import Path, local
from .._pending import PendingSave, SaveQueue
from .._progress import Progress
from .._save import SaveStats, no_step
from .._tensor import Checkpoint
from ..group import from_jax
from . import _load, _tree, args as args_, policies
from ._options import CheckpointManagerOptions
from ._save import prepare
from ._steps import Info, Now, Steps

log = logging.getLogger("shardwise")


@dataclass(frozen=True)
class StepMetadata:
    """What is known of a step without reading its arrays."""

    step: int
    path: str
    item_metadata: Any  #: the tree, with jax.ShapeDtypeStruct for arrays; of several items a Composite
    metrics: Any
    custom_metadata: Any
    time: datetime.datetime


class CheckpointManager(ManagerContext):
    """The checkpoints of a training run: steps in a folder, which shardwise.CheckpointManager and open() read, too.

    All processes of a job make it, and call its methods, together. Saves run on a thread of their own, one at a time:
    the next one waits for it first, unless when_busy says otherwise; what went wrong is raised by the next call that
    waits, or, in a job of one process, by the next save(). A context manager, whose end waits. Differs from Orbax's in this: save(force=True) replaces a step
    that is there; the newest step is never removed; latest_step() looks whether the step is valid. Not for several
    threads at a time.
    """

    def __init__(self, directory: Path, options: CheckpointManagerOptions | None = None, *,
                 item_names: Iterable[str] | None = None) -> None:
        """item_names: which items a Composite may have; any, if it is not given. Raises NotFound, IOFailed."""
        self._options = options or CheckpointManagerOptions()
        self._root = os.path.abspath(local(directory, "open a folder of steps"))
        self._items = None if item_names is None else [item_names] if isinstance(item_names, str) else list(item_names)
        self._decision, self._preservation = self._options.decision(), self._options.preservation()
        # For saves, which begin on the thread that calls; for what follows them, on theirs; for all other calls.
        self._saves, self._cleanups, self._calls = (from_jax().duplicate() for _ in range(3))
        self._steps = Steps(self._root, create=self._options.create and not self._options.read_only,
                            collect_garbage=self._saves.rank == 0 and not self._options.read_only,
                            parity_blocks=self._options.parity_blocks)
        # The same on all processes at each call, which what is on the disk is not while a save is under way.
        self._known: dict[int, policies.StepInfo] | None = None
        self._queue = SaveQueue(self._options.when_busy, True, self._ended)
        self._retired: dict[int, list[int]] = {}  # by the step that was saved
        self._before: dict[PendingSave, policies.StepInfo | None] = {}  # what was known of its step

    @property
    def directory(self) -> pathlib.Path:
        return pathlib.Path(self._root)

    def all_steps(self, read: bool = False) -> list[int]:
        """Committed steps, ascending. Says nothing about their bytes."""
        return [info.step for info in self._steps.infos()]

    def latest_step(self) -> int | None:
        """The newest valid step; None if there is no step at all. Raises Corrupt if there are and none is valid:
        that is never taken for a fresh start."""
        found = self._steps.latest()
        return None if found is None else found[0]

    def best_step(self) -> int | None:
        """By best_fn; without one the latest."""
        best = self._options.best()
        if best is None:
            return self.latest_step()
        ranked = best.ranked(self._steps.infos())
        return ranked[-1].step if ranked else None

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is to be ended, and this is the step at which all processes save. Needs the sync manager that
        jax.distributed.initialize() makes; False without."""
        from jax.experimental import multihost_utils

        try:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        except RuntimeError:
            return False

    def should_save(self, step: int) -> bool:
        """Whether save() would save. Never a step before the last one, or that one."""
        if self._options.read_only:
            return False
        known = [info for _, info in sorted(self._known_steps().items())]
        if known and known[-1].step >= step:
            return False
        context = policies.DecisionContext(self.is_saving_in_progress(), self.reached_preemption(step))
        now = Now(step, datetime.datetime.now(tz=datetime.timezone.utc))

        def decide() -> bool:
            return bool(self._decision.should_save(now, known, context=context))

        if not getattr(self._decision, "needs_agreement", False):
            return decide()
        return bool(self._agreed(decide, f"whether to save step {step}"))

    def save(self, step: int, items: Any = None, *, args: args_.SaveArgs | None = None, metrics: Any = None,
             force: bool = False, custom_metadata: Any = None) -> bool:
        """Saves if should_save(step), or if forced; says whether it does. `items` is a tree, short for
        args=StandardSave(items). The arrays may be donated or changed when it returns. force: in any case; it takes the
        place of a step that is there, which else is False. metrics, custom_metadata: what JSON can hold.

        Raises what shardwise.jax.save() raises, and the error of an earlier save that nobody has been told.
        """
        begun = time.monotonic()
        tree, kinds = self._given(items, args)
        if self._saves.size == 1:
            self.check_for_errors()
        if self._options.read_only or not force and not self.should_save(step):
            return False
        turn = self._queue.next_turn(lambda word: self._agreed(word, f"when to save step {step}"))
        if turn == "skipped":
            return False
        known = self._known_steps()
        if step in known and not force:
            return False
        wait = self._queue.turn(turn)
        now = time.time()
        plain = _plain(metrics)
        prepared = prepare(
            self._steps.path(step), tree, self._saves, copy=self._options.enable_async_checkpointing,
            user=custom_metadata, name=f"{self._root}, step {step}", turn=wait, codec=self._options.codec,
            existing="replace" if step in known or step in self._steps.damaged else "fail",
            threads=self._options.threads, memory=self._options.memory, deadline=self._options.deadline,
            find_earlier=(lambda: self._steps.newest_but(step)) if self._options.increments else no_step,
            parity_blocks=self._options.parity_blocks, begun=begun,
            extra={"metrics": _numbers(plain), "jax": {"time": now, "items": kinds, "metrics": _objects.encode(plain)}})
        pending = prepared.start(step, lambda progress: self._write(step, prepared.write, progress))
        self._queue.add(pending, wait)
        self._before[pending] = known.get(step)
        if prepared.failed is not None:
            raise prepared.failed  # the other processes hear of it on the thread
        known[step] = Now(step, datetime.datetime.fromtimestamp(now, tz=datetime.timezone.utc), plain)
        if not self._options.enable_async_checkpointing:
            self.wait_until_finished()
        return True

    def _given(self, items: Any, args: args_.SaveArgs | None) -> tuple[Any, dict[str, str]]:
        """The tree to save, and of several items their kinds."""
        if (items is None) == (args is None):
            raise InvalidArgument("save: needed is one of items and args")
        given = args_.StandardSave(items) if args is None else args
        if isinstance(given, args_.Composite):
            for name, one in given.items():
                if not isinstance(one, (args_.StandardSave, args_.JsonSave)) or not name or "/" in name:
                    raise InvalidArgument(f"save: item {name!r} is a {type(one).__name__}, "
                                          f"needed is StandardSave or JsonSave")
                if self._items is not None and name not in self._items:
                    raise InvalidArgument(f"save: item {name!r} is none of item_names, {', '.join(self._items)}")
            return ({name: _tree_of(one) for name, one in given.items()},
                    {name: "json" if isinstance(one, args_.JsonSave) else "standard" for name, one in given.items()})
        if not isinstance(given, (args_.StandardSave, args_.JsonSave)):
            raise InvalidArgument(f"save: args is a {type(given).__name__}, needed is one of shardwise.jax.args")
        return _tree_of(given), {}

    def _write(self, step: int, write: Callable[[Progress], SaveStats], progress: Progress) -> SaveStats:
        """On the thread that saves."""
        stats = write(progress)
        if stats.skipped:
            return stats
        self._steps.damaged.discard(step)
        try:
            said = self._cleanups.agree(
                lambda: b"", lambda _: json.dumps(self._steps.retire(self._preservation, step)).encode(),
                self._options.deadline, f"remove what step {step} supersedes")
            self._retired[step], problem = json.loads(said)
        except Error as error:  # the step is saved all the same
            problem = str(error)
        if problem:
            note_cleanup_error(step, stats, problem)
        if self._options.write_stats and self._saves.rank == 0:
            self._steps.keep_stats(step, stats)
        return stats

    def restore(self, step: int | None, items: Any = None, *, args: args_.RestoreArgs | None = None,
                directory: Path | None = None) -> Any:
        """Waits for the save under way, and reads a step; None: the latest valid one, which process 0 chooses for all. If the
        bytes of that one turn out to be damaged for one of them, all go back to the step before, and the log says so; what
        is damaged is replaced when it is saved again. `items`: a target, short for args=StandardRestore(items). Without
        both: as saved, arrays by numpy. A step of several items gives a Composite: of all, or of those that args, a
        Composite, names. directory: another root.

        Raises NotFound if there is no step, Corrupt if there are and none can be restored, and what shardwise.jax.load()
        raises; what it raises on one process is raised on all.
        """
        if items is not None:
            if args is not None:
                raise InvalidArgument("restore: needed is one of items and args")
            args = args_.StandardRestore(items)
        self.wait_until_finished()
        steps = self._steps if directory is None else Steps(
            os.path.abspath(local(directory, "restore")), create=False, collect_garbage=False)
        if step is not None:
            value, damage = self._restore_on_all(steps, step, args)
            if damage:
                raise Corrupt(damage)
            return value
        rejected: list[tuple[str, str]] = []
        below = NO_LIMIT
        while (found := self._newest(steps, below, rejected)) is not None:
            below, path, passed_over = found
            rejected += [(one, reason) for one, reason in passed_over]
            steps.damaged.update(step_of(one) for one, _ in passed_over)
            value, damage = self._restore_on_all(steps, below, args)
            if not damage:
                return value
            rejected.append((path, damage))
        if rejected:
            raise all_damaged(steps.root, rejected)
        raise NotFound(f"restore: {steps.root} holds no step")

    def _newest(self, steps: Steps, below: int, rejected: list[tuple[str, str]]) -> Any:
        def find() -> Any:
            try:
                return steps.latest(below)
            except Corrupt as error:
                if not rejected:
                    raise
                raise Corrupt(f"{error}; newer: {all_damaged(steps.root, rejected)}") from None

        return self._agreed(find, "which step is the latest")

    def _restore_on_all(self, steps: Steps, step: int, args: args_.RestoreArgs | None) -> tuple[Any, str]:
        """The value on this process, and what is damaged for one of them."""
        value: Any = None

        def work() -> bytes:
            nonlocal value
            try:
                with Checkpoint(steps.find(step), threads=self._options.threads, memory=self._options.memory) as checkpoint:
                    value = _restore(checkpoint, args)
            except Corrupt as error:
                return str(error).encode(errors="backslashreplace")
            return b""

        def first(said: list[bytes]) -> bytes:
            return next((text if len(said) == 1 else f"process {number}: ".encode() + text
                         for number, text in enumerate(said) if text), b"")

        damage = self._calls.agree(work, first, self._options.deadline, f"{steps.root}: restore step {step}").decode()
        if damage:
            log.warning("step %d of %s is damaged: %s", step, steps.root, damage)
            steps.damaged.add(step)
            self._known = None
        return value, damage

    def metadata(self, step: int) -> StepMetadata:
        """Raises NotFound."""
        path = self._steps.find(step)
        info = Info(step, path)
        with Checkpoint(path, pin=False) as checkpoint:
            items = _kinds(checkpoint)
            tree = args_.Composite(**{name: _load.metadata(checkpoint, (name,)) for name in items}) if items else \
                _load.metadata(checkpoint)
            return StepMetadata(step, path, tree, info.metrics, checkpoint.user or None, info.time)

    def item_metadata(self, step: int) -> Any:
        """The tree, with jax.ShapeDtypeStruct for arrays; of several items a Composite. Raises NotFound."""
        return self.metadata(step).item_metadata

    def metrics(self, step: int) -> Any:
        """What save() was given; None if that was nothing. Raises NotFound."""
        return Info(step, self._steps.find(step)).metrics

    def delete(self, step: int) -> None:
        """Waits for the save under way; then process 0 removes the step. Raises NotFound, IOFailed."""
        self.wait_until_finished()

        def remove() -> None:
            self._steps.remove(step)

        self._agreed(remove, f"delete step {step}")
        if self._known is not None:
            self._known.pop(step, None)

    def pin(self, step: int, name: str) -> None:
        """Gives a step a name, by which it stays; a name that another step has moves. Waits for the save under way. Raises
        NotFound, InvalidArgument."""
        self.wait_until_finished()
        self._agreed(lambda: self._steps.pin(step, name), f"pin step {step}")

    def unpin(self, name: str) -> None:
        """Takes a name away. Raises NotFound."""
        self._agreed(lambda: self._steps.unpin(name), f"unpin {name!r}")

    def pinned(self) -> dict[str, int]:
        """Steps by name."""
        return self._steps.pinned()

    def reload(self) -> None:
        """Looks anew which steps there are, as others may have changed the directory."""
        self.wait_until_finished()
        self._known = None

    def is_saving_in_progress(self) -> bool:
        return self._queue.is_saving()

    def wait_until_finished(self) -> None:
        """Waits for the saves under way. Raises the error of one: on a process on which save() has raised it, too, as
        the others hear of it here, and all are to stay in step."""
        self._queue.finish()

    def _ended(self, pending: PendingSave) -> None:
        """Of a save that all processes have waited for."""
        before = self._before.pop(pending, None)
        step = pending.step
        assert step is not None
        retired = self._retired.pop(step, [])
        if self._known is None:
            return
        if pending.end() is not None:
            self._known = None
        elif not pending.is_skipped():
            for one in retired:
                self._known.pop(one, None)
        elif before is None:
            self._known.pop(step, None)
        else:
            self._known[step] = before

    def check_for_errors(self) -> None:
        """Raises the error of a save that has ended."""
        self._queue.finish(only_ended=True)

    def close(self) -> None:
        """wait_until_finished()"""
        self.wait_until_finished()

    def _known_steps(self) -> dict[int, policies.StepInfo]:
        if self._known is None:
            # Those that a restore has found damaged are saved again.
            steps = self._agreed(lambda: [step for step in self.all_steps() if step not in self._steps.damaged],
                                 "which steps there are")
            infos = {info.step: info for info in self._steps.infos()}
            self._known = {step: infos.get(step) or Info(step, self._steps.path(step)) for step in steps}
        return self._known

    def _agreed(self, work: Callable[[], Any], what: str) -> Any:
        """What rank 0 finds, on all."""
        if self._calls.size == 1:
            return work()
        return json.loads(self._calls.agree(lambda: b"", lambda _: json.dumps(work()).encode(), self._options.deadline,
                                            f"{self._root}: {what}"))


def _tree_of(given: args_.StandardSave | args_.JsonSave) -> Any:
    return _tree.Json(given.item) if isinstance(given, args_.JsonSave) else given.item


def _kinds(checkpoint: Checkpoint) -> dict[str, str]:
    """Of the items of a checkpoint; nothing if it is one item."""
    kinds: dict[str, str] = checkpoint.document.get("jax", {}).get("items", {})
    return kinds


def _restore(checkpoint: Checkpoint, args: args_.RestoreArgs | None) -> Any:
    kinds = _kinds(checkpoint)
    if not kinds:
        if isinstance(args, args_.Composite):
            raise InvalidArgument(f"restore {checkpoint.path}: it has no items: give StandardRestore or JsonRestore")
        return _restore_item(checkpoint, (), args)
    if args is None:
        args = args_.Composite(**dict.fromkeys(kinds))
    if not isinstance(args, args_.Composite):
        raise InvalidArgument(f"restore {checkpoint.path}: it has the items {', '.join(kinds)}: give a Composite of them")
    missing = [name for name in args if name not in kinds]
    if missing:
        raise NameNotFound(f"restore {checkpoint.path}: there is no item {', '.join(map(repr, missing))}, "
                           f"of {', '.join(kinds)}")
    return args_.Composite(**{name: _restore_item(checkpoint, (name,), one) for name, one in args.items()})


def _restore_item(checkpoint: Checkpoint, prefix: _tree.Parts, args: Any) -> Any:
    if args is not None and not isinstance(args, (args_.StandardRestore, args_.JsonRestore)):
        raise InvalidArgument(f"restore: args is a {type(args).__name__}, needed is one of shardwise.jax.args")
    if isinstance(args, args_.StandardRestore):
        return _load.restore(checkpoint, args.item, prefix, strict=args.strict)
    return _load.restore(checkpoint, None, prefix)


def _plain(metrics: Any) -> Any:
    """Metrics with Python's numbers for those of numpy and JAX."""
    if isinstance(metrics, Mapping):
        return {key: _plain(value) for key, value in metrics.items()}
    if isinstance(metrics, (list, tuple)):
        return [_plain(value) for value in metrics]
    return metrics.item() if hasattr(metrics, "item") and getattr(metrics, "ndim", None) == 0 else metrics


def _numbers(metrics: Any) -> dict[str, float]:
    """Those that shardwise.CheckpointManager can rank by."""
    return {str(name): float(value) for name, value in (metrics.items() if isinstance(metrics, dict) else ())
            if isinstance(value, (int, float)) and math.isfinite(value)}
