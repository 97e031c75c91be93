"""Defines shardwise.torch.TieredManager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from .._arrays.arrays import MEMORY, Codec, Existing, check_choice
from .._checkpoint.resize import Resize
from .._checkpoint.save import SaveStats
from .._checkpoint.tensor import Checkpoint
from .._jobs.job_manager import Edits, Managed
from .._jobs.links import own_address
from .._jobs.pending import OnSaveError, PendingSave
from .._jobs.tiers import Boxes, RestoredTier, Tiers
from .._paths import Path
from .._progress import Progress
from ..group import DEADLINE, Group, auto
from ._load import Loaded, filled
from ._save import save_async_managed, save_managed
from ._target import Target


class TieredManager(Tiers):
    """Manages the checkpoints of a job in two tiers: saves go often to `fast`, a folder that each host has
    for itself (in /dev/shm, or on a local disk), and from time to time to `durable`, which all hosts share.

    A save writes the part of this process to fast/process-N and sends copies to other hosts; then it is
    committed. One save in drain_every is also copied to the durable root in the background, where it is an
    ordinary checkpoint. restore() takes the newest step whose chunks all exist somewhere: on any host, as an
    equal chunk of an older step, or in the durable root. It compares every byte with its hash, and reports
    bad chunks and steps that it passed over. A restarted job may have another number of processes, and other
    placements.

    All processes of the job make one with the same options, and call its methods together, in the same order.
    It saves the states of shardwise.torch.save(); one save is under way at a time.

        with swt.TieredManager("/dev/shm/job", "/shared/job", copies=1, processes_per_host=8) as manager:
            restored = manager.restore(state)
            for step in range(restored.step + 1 if restored else 0, steps):
                ...
                manager.save_async(step, state)
    """

    def __init__(self, fast: Path, durable: Path, *, copies: int = 1, processes_per_host: int | None = None,
                 keep_fast: int = 2, drain_every: int = 10, drain_bytes_per_second: int = 0,
                 keep_durable: int = 0, on_save_error: OnSaveError = "raise", most_failed_saves: int = 3,
                 codec: Codec = "zstd", fast_codec: Codec = "none", replicas: str = "check",
                 group: Group | None = None, threads: int = 0, memory: int = MEMORY,
                 deadline: float = DEADLINE, address: str | None = None) -> None:
        """copies: the number of other hosts that get a copy of a process's part; 0 makes no copies.
        processes_per_host: the number of neighbouring ranks that are lost together; None: torchrun's, else 1.
        keep_fast, keep_durable: the number of steps that stay; 0 keeps all. drain_bytes_per_second: the most
        bytes that each process writes to the durable root per second; 0: no limit. on_save_error,
        most_failed_saves: those of CheckpointManager, for both tiers; a step that failed in the fast tier is
        not copied. codec: that of the durable root. replicas, deadline: those of shardwise.torch.save().
        address: the address that other hosts reach this one at; None: that of the interface to torch's
        master."""
        check_choice("replicas", replicas, ("check", "trust"))
        self._replicas = replicas
        group = auto() if group is None else group
        if processes_per_host is None:
            processes_per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        super().__init__(fast, durable, group, own_address(os.environ.get("MASTER_ADDR")) if address is None
                         else address, copies=copies,
                         processes_per_host=processes_per_host, keep_fast=keep_fast, drain_every=drain_every,
                         drain_bytes_per_second=drain_bytes_per_second, keep_durable=keep_durable,
                         on_save_error=on_save_error, most_failed_saves=most_failed_saves, codec=codec,
                         fast_codec=fast_codec, threads=threads, memory=memory, deadline=deadline,
                         devices=group.size)

    def save(self, step: int, state: Mapping[str, Any], *, user: Any = None, existing: Existing = "fail",
             progress: Progress = None) -> SaveStats:
        """Saves a step, and returns when it is committed in the fast tier. A step that is also copied to the
        durable root waits for the copy before it. Raises the errors of shardwise.torch.save(), and those of
        the copy of an earlier step."""
        self.wait()
        return save_managed(self._name_of(step), state, user, self._options(existing), self._replicas,
                            self._saves, self._deadline, progress, Managed(write=self._write(step)))

    def save_async(self, step: int, state: Mapping[str, Any], *, user: Any = None,
                   existing: Existing = "fail") -> PendingSave:
        """Returns when the values are copied to host memory. First waits for a save under way, and raises its
        error if nobody has seen it."""
        self.wait()
        managed = Managed(write=self._write(step), started=lambda pending: self._queue.add(pending, None))
        return save_async_managed(self._name_of(step), state, user, self._options(existing), self._replicas,
                                  self._saves, self._deadline, True, managed)

    def restore(self, state: Mapping[str, Any], *, strict: bool = True, skip_mismatched: bool = False,
                resize: Resize | None = None, **edits: Unpack[Edits]) -> RestoredTier | None:
        """Fills the state from the newest whole step, as shardwise.torch.load() does, which has the same
        arguments (names, rename, cast, ..). Returns None if there is no step in either tier. Raises Corrupt
        if there are steps but none is whole."""
        self._need_no_step(state)
        unused = "error" if strict else "ignore"

        def target_of(checkpoint: Checkpoint) -> Target:
            return Target(checkpoint, state, self._calls.rank, self._calls.size, strict, skip_mismatched,
                          resize)

        def boxes(checkpoint: Checkpoint) -> Boxes:
            target = target_of(checkpoint)
            target.check(unused)
            return target.boxes()

        def read(checkpoint: Checkpoint) -> Loaded:
            return filled(checkpoint, target_of(checkpoint), unused)

        return self._restored(boxes, read, edits)

    restore_latest = restore

    def _options(self, existing: str) -> dict[str, Any]:
        return {"codec": self._codec, "existing": existing, "threads": self._threads, "memory": self._memory}
