"""Gives shardwise.jax the names of Orbax, so that a job changes one import:

    import shardwise.jax.ocp as ocp                    # in place of orbax.checkpoint

    options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=2)
    with ocp.CheckpointManager("run", options=options) as manager:
        manager.save(step, args=ocp.args.StandardSave(state))
        state = manager.restore(None, args=ocp.args.StandardRestore(abstract_state))

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save("final", state)
        state = checkpointer.restore("final", abstract_state)

These classes only translate names: shardwise.jax.CheckpointManager, save_async() and load() do the work.
"""

from __future__ import annotations

import datetime
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .._argument_types import check_calls, step_number
from .._arrays.arrays import check_choice
from .._checkpoint.tensor import Checkpoint
from .._errors import InvalidArgument, NameNotFound, NotFound
from .._jobs.manager import ManagerContext
from .._jobs.pending import PendingSave
from .._paths import Path, local
from .._trees import pytree as _tree
from .._trees.containers import class_name
from . import _load
from . import args as args_
from ._manager import CheckpointManager as _Manager
from ._save import save_async

args = args_
log = logging.getLogger("shardwise")

_BEST = "best_fn"  # the metric that stores the result of best_fn
_ALL = 2**31 - 1

_IN_THE_LOOP = "if wanted(step): manager.save(step, ..., force=True)"
_OTHER_OPTIONS = {
    "save_on_steps": _IN_THE_LOOP, "should_save_fn": _IN_THE_LOOP,
    "save_decision_policy": "save_interval_steps=, and save_interval= and preemption_signals= of the manager",
    "preservation_policy": "max_to_keep=, keep_period=, keep_time_interval= and best_fn=",
    "keep_checkpoints_without_metrics": "manager.pin(step, name)",
    "enable_async_checkpointing": "manager.wait_until_finished()",
}

# Names of Orbax, and the code to write in their place.
_FOREIGN = {
    "Checkpointer": "PyTreeCheckpointer(), of trees",
    "AsyncCheckpointer": "StandardCheckpointer(), whose saves go on in the background",
    "StandardCheckpointHandler": "StandardCheckpointer()",
    "PyTreeCheckpointHandler": "PyTreeCheckpointer()",
    "RestoreArgs": "a target with the sharding wanted, leaf by leaf",
    "ArrayRestoreArgs": "a target with the sharding wanted, leaf by leaf",
    "SaveArgs": "cast= of shardwise.jax.load()",
    "PLACEHOLDER": "a target without that name, and strict=False",
    **dict.fromkeys(
        ("restore", "load", "load_pytree"),
        "StandardCheckpointer().restore(path, target), or shardwise.jax.load(path, target)",
    ),
    **dict.fromkeys(
        ("save", "save_pytree"), "StandardCheckpointer().save(path, tree), or shardwise.jax.save(path, tree)"
    ),
    "checkpoint_utils": "jax.eval_shape(), or arrays to be like, as a target",
    "type_handlers": "leaves of the kinds of docs/tasks/jax.md",
}

if not TYPE_CHECKING:  # a type checker shall report a missing name
    def __getattr__(name: str) -> Any:
        raise AttributeError(
            f"shardwise.jax.ocp has no {name!r}: needed is "
            f"{_FOREIGN.get(name, 'a CheckpointManager with args, or shardwise.jax.save() and load()')}")


class CheckpointManagerOptions:
    """Orbax's names of the policies of shardwise.jax.CheckpointManager. save_interval_steps is save_every,
    keep_period is keep_every, and keep_time_interval is keep_interval. max_to_keep is keep_last; with
    best_fn, a function that makes a number of the metrics, it is the n of best=. A step without metrics is
    not one of the best. The newest step always stays. create=False: a missing directory raises NotFound.
    read_only: save() saves nothing."""

    def __init__(self, save_interval_steps: int = 1, max_to_keep: int | None = None,
                 keep_time_interval: datetime.timedelta | None = None, keep_period: int | None = None,
                 best_fn: Callable[[Any], float] | None = None, best_mode: str = "max", *,
                 create: bool = True, read_only: bool = False, **others: Any) -> None:
        for name in others:
            raise InvalidArgument(f"CheckpointManagerOptions: there is no {name!r}" + (
                f", needed is {_OTHER_OPTIONS[name]}" if name in _OTHER_OPTIONS else ""))
        check_choice("best_mode", best_mode, ("min", "max"))
        for name, value in (("save_interval_steps", save_interval_steps), ("keep_period", keep_period),
                            ("max_to_keep", max_to_keep)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InvalidArgument(f"CheckpointManagerOptions: {name} is {value}, needed is an integer, "
                                      "1 or more")
        self.best_fn, self.create, self.read_only = best_fn, create, read_only
        self.policies: dict[str, Any] = {"save_every": save_interval_steps}
        if best_fn is not None:
            self.policies["best"] = (_BEST, best_mode, _ALL if max_to_keep is None else max_to_keep)
        if max_to_keep is not None:
            self.policies |= {"keep_every": keep_period or 0, "keep_interval": 0 if keep_time_interval is None
                              else keep_time_interval.total_seconds()}
            if best_fn is None:
                self.policies["keep_last"] = max_to_keep


@dataclass(frozen=True)
class StepMetadata:
    """A description of a step, without its arrays."""

    step: int
    path: str
    item_metadata: Any  #: the tree with jax.ShapeDtypeStruct for arrays; for several items, a Composite
    metrics: dict[str, float]
    custom_metadata: Any


class CheckpointManager(ManagerContext):
    """A shardwise.jax.CheckpointManager, its attribute `manager`, with the names of Orbax's methods. It
    differs from Orbax's: save(force=True) replaces a step that exists; latest_step() checks whether the step
    is valid; restore(None) goes back past damaged bytes, and logs it; metrics are numbers by names. A run
    that begins below existing steps saves none of them, as with Orbax, and the log says so once."""

    def __init__(self, directory: Path, options: CheckpointManagerOptions | None = None, *more: NoReturn,
                 item_names: Iterable[str] | None = None, **policies: Any) -> None:
        """item_names: the items that a Composite may have; None allows any. policies: those of
        shardwise.jax.CheckpointManager that Orbax lacks, as preemption_signals."""
        if more or not isinstance(options, CheckpointManagerOptions | None):
            raise InvalidArgument(f"CheckpointManager {directory}: found {type(options).__name__} as "
                                  "options, needed are CheckpointManagerOptions; save(step, args=...) takes "
                                  "the items")
        self._items = None if item_names is None else [item_names] if isinstance(item_names, str) else list(
            item_names)
        self._options = CheckpointManagerOptions() if options is None else options
        root = os.path.abspath(local(directory, "open a folder of steps"))
        if not (self._options.create and not self._options.read_only) and not os.path.isdir(root):
            raise NotFound(f"{root} is not there")
        self.manager = _Manager(root, **{**self._options.policies, **policies})
        self._queue = self.manager._queue
        self._newest = -1  # the newest step whose save has begun here
        self._goes_on = False  # True after a save, a restore, or the warning about steps that are not saved

    def _where(self) -> str:
        return self.manager._where()

    @property
    def directory(self) -> pathlib.Path:
        return pathlib.Path(self.manager.root)

    def all_steps(self, read: bool = False) -> list[int]:
        return self.manager.steps()

    def latest_step(self) -> int | None:
        return self.manager.latest_step()

    def best_step(self) -> int | None:
        """Returns the best step by best_fn; without a best_fn the latest."""
        return self.latest_step() if self._options.best_fn is None else self.manager.best()

    def reached_preemption(self, step: int) -> bool:
        """Returns True if the last should_save() found that the job is to end."""
        return self.manager.reached_preemption()

    def should_save(self, step: int) -> bool:
        """Returns True if save() would save: the policies say so, or there is no step yet. Always returns
        False for the last step and those before it."""
        step = step_number("should_save", step)
        if self._options.read_only:
            return False
        last = self._last()
        return step > last and (self.manager.should_save(step) or last < 0)

    def _last(self) -> int:
        last = self.manager._on_first(
            lambda: max(
                (step for step, _, is_replaced in self.manager._manager.steps() if not is_replaced),
                default=-1
            ),
            "which step is the last",
        )
        # Later steps belong to another job, or are set aside when this run commits its first save.
        return last if self._newest < 0 else self._newest

    def save(self, step: int, items: Any = None, *, args: args_.SaveArgs | None = None,
             metrics: Mapping[str, Any] | None = None,
             force: bool = False, custom_metadata: Any = None) -> bool:
        """Saves with save_async() if should_save(step) or `force` is true. Returns True if it saves. items: a
        tree, short for args=StandardSave(items). force: replaces a step that exists."""
        step = step_number("save", step)
        tree = _tree_of(items, args, self._items)
        if self._options.read_only or not force and not self.should_save(step):
            self._tell_passed_over(step)
            return False
        numbers = None if metrics is None else {name: _number(name, value) for name, value in metrics.items()}
        if numbers is not None and self._options.best_fn is not None:
            numbers[_BEST] = float(self._options.best_fn(metrics))
        try:
            pending = self.manager.save_async(step, tree, user=custom_metadata, metrics=numbers,
                                              existing="replace" if force else "fail")
        except BaseException:
            self._newest = -1
            raise
        if not self._queue.has(pending):
            return False
        self._newest, self._goes_on = max(self._newest, step), True
        return True

    def _tell_passed_over(self, step: int) -> None:
        """Warns once if a run has gone back without a restore: by Orbax's rule it would silently save
        nothing."""
        if self._options.read_only or self._goes_on:
            return
        self._goes_on, last = True, self._last()
        if step < last:
            log.warning("%s: step %d is not saved, as step %d is there: needed is save(%d, ..., force=True), "
                        "which sets the later steps aside, or another folder", self.manager.root, step, last,
                        step)

    def restore(self, step: int | None = None, items: Any = None, *,
                args: args_.RestoreArgs | None = None) -> Any:
        """Restores a step; None stands for the newest step that can be restored. items: a target, short for
        args=StandardRestore(items). Without a target, returns the saved tree with numpy arrays. A step of
        several items gives a Composite of all of them, or of those that `args`, a Composite, names. Raises
        NotFound if there is no step, and the errors of shardwise.jax.CheckpointManager.restore()."""
        if items is not None:
            if args is not None:
                raise InvalidArgument("restore: needed is one of items and args")
            args = args_.StandardRestore(items)
        threads, memory = self.manager._threads, self.manager._memory

        def read(path: str) -> Any:
            with Checkpoint(path, threads=threads, memory=memory) as checkpoint:
                return _restored(checkpoint, args)

        try:
            restored = self.manager._restored(read, step)
        finally:
            self._newest, self._goes_on = -1, True  # damaged steps may be saved again
        if restored is None:
            raise NotFound(f"restore: {self.manager.root} holds no step")
        return restored.value

    def metadata(self, step: int) -> StepMetadata:
        """Returns a description of a step. Raises NotFound."""
        return _metadata(self.manager.step(step), step)

    def item_metadata(self, step: int) -> Any:
        """Returns the tree with jax.ShapeDtypeStruct for arrays; a Composite for several items. Raises
        NotFound."""
        return self.metadata(step).item_metadata

    def metrics(self, step: int) -> dict[str, float]:
        """Returns the metrics that save() got. Raises NotFound."""
        return self.metadata(step).metrics

    def delete(self, step: int) -> None:
        """Waits for the save under way; then process 0 removes the step. Raises NotFound, IOFailed."""
        self.manager.remove(step)
        self._newest = -1

    def reload(self) -> None:
        """Waits for the saves under way. There is nothing to reload: each call reads the folder."""
        self.wait_until_finished()

    def is_saving_in_progress(self) -> bool:
        return self.manager.is_saving()

    def wait_until_finished(self) -> None:
        """Waits for the saves under way. Raises the first error of a save."""
        try:
            self.manager.wait()
        except BaseException:
            self._newest = -1
            raise

    def close(self) -> None:
        """Waits as wait_until_finished() does; then another manager may continue the run."""
        try:
            self.wait_until_finished()
        finally:
            self._release()

    def _release(self) -> None:
        self.manager._release()


class StandardCheckpointer:
    """Saves and restores one checkpoint at a path, with the names of Orbax's methods: save() is
    shardwise.jax.save_async(), and restore() is load(). One save is under way at a time, and the next call
    waits for it. It is a context manager, whose end waits."""

    def __init__(self) -> None:
        self._pending: PendingSave | None = None

    def save(self, directory: Path, state: Any = None, *, args: args_.SaveArgs | None = None,
             force: bool = False, custom_metadata: Any = None, save_args: None = None) -> None:
        """Returns when the save holds the values. state: a tree, short for args=StandardSave(state). force:
        replaces a checkpoint that exists, which otherwise raises AlreadyExists."""
        if save_args is not None:
            raise InvalidArgument(f"save {directory}: found save_args, needed is {_FOREIGN['SaveArgs']}")
        tree = _tree_of(state, args, None)
        self.wait_until_finished()
        self._pending = save_async(directory, tree, user=custom_metadata,
                                   existing="replace" if force else "fail")

    def restore(self, directory: Path, target: Any = None, *, args: args_.RestoreArgs | None = None,
                strict: bool = True, restore_args: None = None) -> Any:
        """Returns the saved tree, as shardwise.jax.load() does. target: short for
        args=StandardRestore(target)."""
        if restore_args is not None:
            raise InvalidArgument(f"restore {directory}: found restore_args, "
                                  f"needed is {_FOREIGN['RestoreArgs']}")
        if target is not None and args is not None:
            raise InvalidArgument(f"restore {directory}: needed is one of target and args")
        if not strict and target is None:
            raise InvalidArgument(f"restore {directory}: found strict=False without a target: "
                                  "args have a strict of their own")
        self.wait_until_finished()
        with Checkpoint(directory) as checkpoint:
            return _restored(checkpoint, args if target is None else args_.StandardRestore(target, strict))

    def metadata(self, directory: Path) -> StepMetadata:
        """Returns the metadata of a checkpoint, whose step is -1 if the path has no number of a step."""
        self.wait_until_finished()
        return _metadata(directory)

    def wait_until_finished(self) -> None:
        """Waits for the save under way, and raises its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits as wait_until_finished() does."""
        self.wait_until_finished()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:  # else the error that ended the body is raised
                raise


class PyTreeCheckpointer(StandardCheckpointer):
    """A StandardCheckpointer whose save() returns when the checkpoint is committed, and whose argument for a
    tree is `item`."""

    def save(self, directory: Path, item: Any = None, **how: Any) -> None:  # type: ignore[override]
        """Saves as StandardCheckpointer does, and waits for the commit."""
        super().save(directory, item, **how)
        self.wait_until_finished()

    def restore(self, directory: Path, item: Any = None, **how: Any) -> Any:  # type: ignore[override]
        """Restores as StandardCheckpointer does."""
        return super().restore(directory, item, **how)


def _metadata(path: Path, step: int | None = None) -> StepMetadata:
    with Checkpoint(path, pin=False) as checkpoint:
        tree = _load.metadata(checkpoint)
        if step is None:
            step = -1 if checkpoint.step is None else checkpoint.step
        return StepMetadata(step, checkpoint.path, args_.Composite(**tree) if _items(checkpoint) else tree,
                            checkpoint.metrics, checkpoint.user or None)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"save: the metric {name!r} is {value!r}, needed is a number; "
                              "custom_metadata takes other values") from None


def _tree_of(items: Any, args: args_.SaveArgs | None, known: list[str] | None) -> Any:
    if (items is None) == (args is None):
        raise InvalidArgument("save: needed is one of items and args")
    if args is None:
        return items
    if isinstance(args, args_.Composite):
        for name in args:
            if not name or "/" in name:
                raise InvalidArgument(f"save: found an item {name!r}, needed is a name without '/'")
            if known is not None and name not in known:
                raise InvalidArgument(f"save: found the item {name!r}, needed is one of item_names, "
                                      f"{', '.join(known)}")
        return args_.Composite(**{name: _item_of(f"item {name!r}", item) for name, item in args.items()})
    return _item_of("args", args)


def _item_of(what: str, args: Any) -> Any:
    if isinstance(args, args_.JsonSave):
        return _tree.Json(args.item)
    if isinstance(args, args_.StandardSave):
        return args.item
    raise InvalidArgument(f"save: found {what} of type {type(args).__name__}, needed is one of ocp.args: "
                          "StandardSave, JsonSave or Composite")


def _items(checkpoint: Checkpoint) -> list[str]:
    """Returns the items of a step that was saved as a Composite; an empty list for a step of one item."""
    root = _load.root_of(checkpoint)
    is_composite = isinstance(root, dict) and root.get("node") == class_name(args_.Composite)
    return [name for name, _ in root["items"]] if is_composite else []


def _restored(checkpoint: Checkpoint, args: args_.RestoreArgs | None) -> Any:
    items = _items(checkpoint)
    if not items:
        if isinstance(args, args_.Composite):
            raise InvalidArgument(f"restore {checkpoint.path}: it has no items: "
                                  "give StandardRestore or JsonRestore")
        return _restored_item(checkpoint, (), args)
    if args is None:
        args = args_.Composite(**dict.fromkeys(items))
    if not isinstance(args, args_.Composite):
        raise InvalidArgument(f"restore {checkpoint.path}: it has the items {', '.join(items)}: "
                              "give a Composite of them")
    missing = [name for name in args if name not in items]
    if missing:
        raise NameNotFound(f"restore {checkpoint.path}: there is no item {', '.join(map(repr, missing))}, "
                           f"of {', '.join(items)}")
    return args_.Composite(**{name: _restored_item(checkpoint, (name,), item) for name, item in args.items()})


def _restored_item(checkpoint: Checkpoint, prefix: _tree.Parts, args: Any) -> Any:
    if args is not None and not isinstance(args, (args_.StandardRestore, args_.JsonRestore)):
        raise InvalidArgument(f"restore: found args of type {type(args).__name__}, "
                              "needed is one of ocp.args: StandardRestore, JsonRestore or Composite")
    if isinstance(args, args_.StandardRestore):
        return _load.restore(checkpoint, args.item, prefix, strict=args.strict)
    return _load.restore(checkpoint, None, prefix)

check_calls(__name__)
