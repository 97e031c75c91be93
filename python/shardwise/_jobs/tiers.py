"""Defines the common base of torch's and JAX's TieredManager, which saves often to a fast place of each host
and copies some of these saves to a place that all hosts share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .. import _core
from .._argument_types import step_number
from .._arrays.arrays import check_choice, check_codec
from .._checkpoint.save import Caller, Plan, SaveStats, merged_plan, said_of, shown_by_first
from .._checkpoint.tensor import Checkpoint
from .._errors import Error, InvalidArgument
from .._paths import Path, local
from .._progress import Progress
from .._trees import objects as _objects
from .._trees.containers import public_name
from ..group import Call, Group
from .links import Links
from .manager import ManagerContext, ManagerStats, is_step, tell_warnings
from .pending import ON_SAVE_ERROR, OnSaveError, SaveQueue

log = logging.getLogger("shardwise")

#: The number of a tensor, and the begin and shape of a box in it.
Boxes = Iterable[tuple[int, Sequence[int], Sequence[int]]]


@dataclass
class RestoredTier:
    """The result of TieredManager.restore(), with the transfers and repairs that it needed on this rank.
    str() describes all of them."""

    step: int
    path: str
    tier: str  #: "fast" or "durable"
    value: Any  #: the result of load()
    files_taken: int = 0  #: files from other processes, or left on this host by another process
    bytes_taken: int = 0
    passed_over: list[str] = field(default_factory=list)  #: newer steps that cannot be restored, and why
    damaged: list[str] = field(default_factory=list)  #: the damage in this step
    mended: list[str] = field(default_factory=list)  #: the replacements of bad chunks
    text: str = ""

    def __str__(self) -> str:
        return self.text


class Tiers(ManagerContext):
    """A TieredManager without save() and restore(), which the subclasses for torch and JAX add."""

    def __init__(self, fast: Path, durable: Path, group: Group, address: str, *, copies: int,
                 processes_per_host: int, keep_fast: int, drain_every: int, drain_bytes_per_second: int,
                 keep_durable: int, on_save_error: OnSaveError, most_failed_saves: int, codec: str,
                 fast_codec: str, threads: int, memory: int, deadline: float, devices: int) -> None:
        """devices: their number in the job, equally many on each rank; 0 takes those of the meshes."""
        check_codec(codec)
        check_codec(fast_codec)
        check_choice("on_save_error", on_save_error, ON_SAVE_ERROR)
        self.fast = os.path.abspath(local(fast, "open a fast root"))
        self.durable = os.path.abspath(local(durable, "open a durable root"))
        self._saves, self._calls = group.duplicate(), group.duplicate()
        self._codec, self._threads, self._memory, self._deadline = codec, threads, memory, deadline
        self._queue = SaveQueue("wait", is_shared=group.size > 1)
        self._links = Links(self._calls, deadline, address) if group.size > 1 else None
        try:
            self._tiers: _core.Tiers = _core.Tiers(
                None if self._links is None else self._links.link, self.fast, self.durable, deadline, copies,
                processes_per_host, keep_fast, drain_every, drain_bytes_per_second, keep_durable, fast_codec,
                threads, devices, on_save_error, most_failed_saves)
        except BaseException:
            self._close_links()
            raise

    def _where(self) -> str:
        return f"{self.fast!r}, {self.durable!r}, rank {self._saves.rank} of {self._saves.size}"

    def stats(self, tier: Literal["fast", "durable"] = "fast") -> ManagerStats:
        """Returns counts of the saves in a tier that have failed so far, on all ranks; see on_save_error."""
        check_choice("tier", tier, ("fast", "durable"))
        return ManagerStats(*self._tiers.stats(tier == "durable"))

    def wait(self) -> None:
        """Waits for the save under way, but not for its copy to the durable root. Raises its error if nobody
        has seen it; in a job of several processes every rank raises it, seen or not, so that all do the
        same."""
        self._queue.finish()

    def close(self) -> None:
        """Waits for the save under way and for its copy to the durable root. Raises their errors."""
        try:
            self.wait()
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._tiers.close()
        finally:
            tell_warnings(self._tiers)
            self._close_links()

    def _release(self) -> None:
        try:
            self._end()
        except Error as error:  # the error that ended the body is raised
            log.error("%s: %s", self.durable, error)

    def _close_links(self) -> None:
        links, self._links = self._links, None
        if links is not None:
            links.close()

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            if name in ("latest", "latest_step", "steps", "all_steps", "step", "open", "best", "pin",
                        "remove", "delete"):
                raise AttributeError(f"{public_name(type(self))} has no {name!r}: needed is restore(), "
                                     "which takes the newest whole step of both tiers, "
                                     f"or CheckpointManager(durable).{name}")
            return super().__getattr__(name)

    def _need_no_step(self, argument: Any) -> None:
        if is_step(argument):
            raise InvalidArgument(f"restore: found the step {argument}, needed is restore() of a state, "
                                  "from the newest whole step of both tiers, "
                                  f"or CheckpointManager({self.durable!r}).restore({argument}, state)")

    def _restored(self, boxes: Callable[[Checkpoint], Boxes], read: Callable[[Checkpoint], Any],
                  edits: Mapping[str, Any]) -> RestoredTier | None:
        """Restores the newest whole step of both tiers. boxes: returns the boxes of a checkpoint that read()
        will read on this rank; raises InvalidArgument if the target does not fit. edits: options of
        Checkpoint()."""
        self.wait()

        def needed(reader: _core.Reader) -> list[tuple[str, list[int], list[int]]]:
            with Checkpoint._of(reader, **edits) as checkpoint:
                return checkpoint._reader.source_boxes(list(boxes(checkpoint)))

        latest = self._tiers.latest(needed)
        tell_warnings(self._tiers)
        if latest is None:
            return None
        restored = RestoredTier(value=None, **latest)
        log.info("restore: %s", restored)

        def work() -> bytes:
            with Checkpoint(restored.path, threads=self._threads, memory=self._memory,
                            partial=restored.tier == "fast", **edits) as checkpoint:
                restored.value = read(checkpoint)
            return b""

        self._calls.agree(work, lambda said: b"", self._deadline,
                          f"restore step {restored.step} of the {restored.tier} tier")
        return restored

    @staticmethod
    def _name_of(step: int) -> str:
        return f"step {step_number('save', step)} in the fast tier"

    def _write(self, step: int) -> Callable[..., SaveStats]:
        """Returns a function that saves a step, with the arguments of write_together()."""

        def write(call: Call, path: str, plan: Plan, group: Group, starts: Sequence[int],
                  *, user: Any, codec: str,
                  existing: str, threads: int, memory: int, progress: Progress, caller: Caller) -> SaveStats:
            user_json = _objects.plain_json({} if user is None else user, "user")
            document = call.agree(lambda: said_of(plan, starts),
                                  lambda said: merged_plan(plan, said, starts).document().encode()).decode()
            stats = SaveStats(**self._tiers.save(step, plan.sources.list, codec, existing,
                                                 user_json, document, memory,
                                                 shown_by_first(progress, group.rank, path)))
            tell_warnings(self._tiers)
            return caller.add_to(stats)

        return write
