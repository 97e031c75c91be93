"""The step directories of a root: which there are, what their manifests say, and their removal."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from .. import _core, _objects
from .._errors import Error, NotFound
from .._manager import NO_LIMIT, keep_stats
from .._save import SaveStats
from .._tensor import Checkpoint
from . import policies

log = logging.getLogger("shardwise")


@dataclass(frozen=True)
class Info:
    """A StepInfo whose manifest is read when it is asked for."""

    step: int
    path: str

    @functools.cached_property
    def _said(self) -> tuple[float, Any]:
        """When it was saved, and its metrics, encoded."""
        try:
            with Checkpoint(self.path, pin=False) as checkpoint:
                ours = checkpoint.document.get("jax", {})
                return ours.get("time", os.stat(self.path).st_mtime), ours.get("metrics")
        except (Error, OSError):
            return time.time(), None  # whether it is valid is not for this to say

    @property
    def time(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._said[0], tz=datetime.timezone.utc)

    @property
    def metrics(self) -> Any:
        return _objects.decode(self._said[1])


@dataclass(frozen=True)
class Now:
    """A StepInfo of a step that is yet to be saved, or has just been."""

    step: int
    time: datetime.datetime
    metrics: Any = None


class Steps:
    """The steps of a root. Thread-safe."""

    def __init__(self, root: str, *, create: bool, collect_garbage: bool, parity_blocks: int = 0) -> None:
        if not create and not os.path.isdir(root):
            raise NotFound(f"{root} is not there")
        self.root = root
        self._manager = _core.Manager(root, collect_garbage=collect_garbage, parity_blocks=parity_blocks)
        self._infos: dict[tuple[str, int, int], Info] = {}
        self.damaged: set[int] = set()

    def infos(self) -> list[Info]:
        """Committed steps, ascending."""
        found: dict[tuple[str, int, int], Info] = {}
        for step, path in self._manager.steps():
            try:
                status = os.stat(path)
            except OSError:
                continue  # it has just been removed
            key = (path, status.st_ino, status.st_mtime_ns)
            found[key] = self._infos.get(key) or Info(step, path)
        self._infos = found
        return list(found.values())

    def path(self, step: int) -> str:
        """Of a step that is there, or is to be."""
        return next((path for there, path in self._manager.steps() if there == step),
                    os.path.join(self.root, f"step-{step:08d}"))

    def find(self, step: int) -> str:
        """Of a step that is there. Raises NotFound."""
        path: str = self._manager.step(step)
        return path

    def latest(self, below: int = NO_LIMIT) -> tuple[int, str, list[tuple[str, str]]] | None:
        """The newest valid one of those before `below`, its path, and the newer ones that were passed over, with the reason;
        None if there is no step. Raises Corrupt if there are and none is valid."""
        found = self._manager.latest(below)
        for path, reason in found[2] if found is not None else ():
            log.warning("passed over %s: %s", path, reason)
        return found

    def keep_stats(self, step: int, stats: SaveStats) -> None:
        keep_stats(self._manager, step, stats)

    def newest_but(self, step: int) -> str:
        """The directory of the newest step of which no restore has found damage, and that is not this one, which is to be
        saved; empty if there is none."""
        whole = [path for there, path in self._manager.steps() if there != step and there not in self.damaged]
        return str(whole[-1]) if whole else ""

    def remove(self, step: int) -> None:
        self._manager.remove(step)

    def pin(self, step: int, name: str) -> None:
        self._manager.pin(step, name)

    def unpin(self, name: str) -> None:
        self._manager.unpin(name)

    def pinned(self) -> dict[str, int]:
        return dict(self._manager.pinned())

    def retire(self, policy: policies.PreservationPolicy, saved: int) -> tuple[list[int], str]:
        """Removes what a policy does not keep, but for the newest step, the one just saved, and what readers have pinned.
        The steps that are gone, and what went wrong."""
        removed: list[int] = []
        try:
            infos = self.infos()
            kept = policy.should_preserve(infos, context=policies.PreservationContext())
            for info, keep in zip(infos[:-1], kept):
                if not keep and info.step != saved and self._manager.retire(info.step):
                    removed.append(info.step)
        except Exception as error:  # the step is saved all the same
            log.warning("after the save of step %d: %s", saved, error)
            return removed, str(error)
        return removed, ""
