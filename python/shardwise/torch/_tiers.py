"""shardwise.torch.TieredManager: often to a fast place that each host has alone, now and then to one that all share."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _core, _objects
from .._errors import InvalidArgument
from .._links import Links
from .._manager import ManagerContext
from .._paths import Path, local
from .._pending import PendingSave, SaveQueue
from .._progress import Progress, function_of
from .._save import Plan, SaveStats, merged_plan
from .._sources import MEMORY, Codec, Existing, check_choice, check_codec
from .._tensor import Checkpoint
from ..group import DEADLINE, Call, Group, auto
from ._load import Loaded, filled
from ._save import Managed, save_async_managed, save_managed
from ._target import Target

log = logging.getLogger("shardwise")


@dataclass
class RestoredTier:
    """What TieredManager.restore() has restored, and what it took to have it on this rank. Its text says all of it."""

    step: int
    path: str
    tier: str  #: "fast" or "durable"
    value: Loaded  #: as load() gives it
    files_taken: int = 0  #: from other processes, or from what another one left on this host
    bytes_taken: int = 0
    passed_over: list[str] = field(default_factory=list)  #: newer steps that cannot be had, and why
    damaged: list[str] = field(default_factory=list)  #: what was found bad
    mended: list[str] = field(default_factory=list)  #: what bad chunks were replaced by
    text: str = ""

    def __str__(self) -> str:
        return self.text


class TieredManager(ManagerContext):
    """The checkpoints of a job in two tiers: often in `fast`, a folder that each host has for itself (in /dev/shm, or on a
    local disk), and from time to time in `durable`, one that all hosts share.

    A save writes this process's part to fast/process-N and gives copies to other hosts; that is when it is committed. One
    save of drain_every goes on to the durable root in the background, where it is an ordinary checkpoint. restore() takes
    the newest step of which every chunk is somewhere: on any host, in an older step's equal chunk, in the durable root. Every
    byte is compared with its hash, and what was bad or passed over is told. The job may have another number of processes
    then, and other placements.

    All processes of the job make it, with the same options, and call its methods together, in the same order. States are
    those of shardwise.torch.save(). One save is under way at a time.

        with swt.TieredManager("/dev/shm/job", "/shared/job", copies=1, processes_per_host=8) as manager:
            found = manager.restore(state)
            for step in range(found.step + 1 if found else 0, steps):
                ...
                manager.save_async(step, state)
    """

    def __init__(self, fast: Path, durable: Path, *, copies: int = 1, processes_per_host: int | None = None,
                 keep_fast: int = 2, drain_every: int = 10, drain_bytes_per_second: int = 0, keep_durable: int = 0,
                 codec: Codec = "zstd", fast_codec: Codec = "none", replicas: str = "check", group: Group | None = None,
                 threads: int = 0, memory: int = MEMORY, deadline: float = DEADLINE, address: str | None = None) -> None:
        """copies: how many other hosts get what a process has written; 0: none. processes_per_host: neighbouring ranks,
        which are lost together; None: as torchrun says, else 1. keep_fast, keep_durable: steps that stay; 0: all.
        drain_bytes_per_second: that each process writes to the durable root at most; 0: no limit. codec: of the durable root.
        replicas, deadline: save()'s. address: by which other hosts reach this one; None: that of the interface to torch's
        master."""
        check_codec(codec)
        check_codec(fast_codec)
        check_choice("replicas", replicas, ("check", "trust"))
        self.fast = os.path.abspath(local(fast, "open a fast root"))
        self.durable = os.path.abspath(local(durable, "open a durable root"))
        group = auto() if group is None else group
        if processes_per_host is None:
            processes_per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._saves, self._calls = group.duplicate(), group.duplicate()
        self._codec, self._replicas, self._threads, self._memory, self._deadline = codec, replicas, threads, memory, deadline
        self._queue = SaveQueue("wait", is_shared=group.size > 1)
        self._links = Links(self._calls, deadline, address) if group.size > 1 else None
        try:
            self._tiers: _core.Tiers = _core.Tiers(
                None if self._links is None else self._links.link, self.fast, self.durable, deadline, copies,
                processes_per_host, keep_fast, drain_every, drain_bytes_per_second, keep_durable, fast_codec, threads,
                group.size)
        except BaseException:
            self._close_links()
            raise

    def save(self, step: int, state: Mapping[str, Any], *, user: Any = None, existing: Existing = "fail",
             progress: Progress = None) -> SaveStats:
        """Returns when the step is committed in the fast tier; if it is one that goes on to the durable root, waits for the
        one before to be there. Errors are those of shardwise.torch.save(), also of the way of an earlier step."""
        self.wait()
        return save_managed(self._name_of(step), state, user, self._options(existing), self._replicas, self._saves,
                            self._deadline, progress, self._managed(step))

    def save_async(self, step: int, state: Mapping[str, Any], *, user: Any = None,
                   existing: Existing = "fail") -> PendingSave:
        """Returns when the values are copied to host memory. A save before that is under way is waited for, and its error
        raised if nobody has seen it."""
        self.wait()
        pending = save_async_managed(self._name_of(step), state, user, self._options(existing), self._replicas, self._saves,
                                     self._deadline, True, self._managed(step))
        self._queue.add(pending, None)
        return pending

    def restore(self, state: Mapping[str, Any], *, strict: bool = True) -> RestoredTier | None:
        """Fills the state, as shardwise.torch.load() does, from the newest step that is whole. None if there is no step in
        either tier. Raises Corrupt if there are and none is whole."""
        self.wait()
        found = self._tiers.latest(lambda manifest: self._needed(manifest, state, strict))
        if found is None:
            return None
        told = RestoredTier(value=Loaded(), **found)
        log.info("restore: %s", told)

        def work() -> bytes:
            with Checkpoint(told.path, threads=self._threads, partial=told.tier == "fast") as checkpoint:
                target = Target(checkpoint, state, self._calls.rank, strict)
                told.value = filled(checkpoint, target, "error" if strict else "ignore")
            return b""

        self._calls.agree(work, lambda said: b"", self._deadline, f"restore step {told.step} of the {told.tier} tier")
        return told

    def is_saving(self) -> bool:
        return self._queue.is_saving()

    def wait(self) -> None:
        """Waits for the save under way, not for its way to the durable root. Raises its error if nobody has seen it; in a
        job of several processes, on every rank, seen or not, so that all stay in step."""
        self._queue.finish()

    def close(self) -> None:
        """Waits for the save under way and for its way to the durable root. Raises their errors."""
        try:
            self.wait()
        finally:
            try:
                self._tiers.close()
            finally:
                self._close_links()

    def _close_links(self) -> None:
        links, self._links = self._links, None
        if links is not None:
            links.close()

    def _needed(self, manifest: bytes, state: Mapping[str, Any], strict: bool) -> list[tuple[str, list[int], list[int]]]:
        """The boxes that a restore of a step with this manifest reads on this rank."""
        with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
            with open(os.path.join(folder, "manifest.json"), "wb") as file:
                file.write(manifest)
            with Checkpoint(folder, pin=False, threads=1, partial=True) as checkpoint:
                target = Target(checkpoint, state, self._calls.rank, strict)
                try:
                    target.check("error" if strict else "ignore")
                except InvalidArgument as error:
                    step = json.loads(manifest).get("step")
                    raise InvalidArgument(str(error).replace(f"checkpoint {folder}", f"step {step} of the fast tier")) from None
                names = [row[0] for row in checkpoint._rows]
                return [(names[number], list(begin), list(shape)) for number, begin, shape in target.boxes()]

    def _name_of(self, step: int) -> str:
        if not isinstance(step, int) or step < 0:
            raise InvalidArgument(f"save step {step!r}: needed is an integer, 0 or more")
        return f"step {step} in the fast tier"

    def _options(self, existing: str) -> dict[str, Any]:
        return {"codec": self._codec, "existing": existing, "threads": self._threads, "memory": self._memory}

    def _managed(self, step: int) -> Managed:
        def write(call: Call, path: str, plan: Plan, group: Group, starts: list[int], *, user: Any, codec: str,
                  existing: str, threads: int, memory: int, progress: Progress) -> SaveStats:
            user_json = _objects.plain_json({} if user is None else user, "user")

            def describe() -> bytes:
                return json.dumps([plan.objects, plan.aliases, plan.extra, starts]).encode()

            document = call.agree(describe, lambda said: merged_plan(plan, said, starts).document().encode()).decode()
            return SaveStats(**self._tiers.save(step, plan.sources.list, codec, existing, user_json, document, memory,
                                                function_of(progress, f"save {path}")))

        return Managed(write=write)
