"""Defines shardwise.jax.TieredManager."""

from __future__ import annotations

from typing import Any, Unpack

import jax

from .._arrays.arrays import MEMORY, Codec, Existing
from .._checkpoint.edits import Resize as Extents
from .._checkpoint.resize import Resize, check_extents
from .._checkpoint.save import SaveStats
from .._checkpoint.tensor import Checkpoint
from .._jobs.job_manager import Edits, Managed
from .._jobs.links import own_address
from .._jobs.pending import OnSaveError, PendingSave
from .._jobs.tiers import Boxes, RestoredTier, Tiers
from .._paths import Path
from .._progress import Progress
from ..group import DEADLINE, from_jax
from . import _load
from ._devices import Numbering
from ._save import Prepared, prepare


class TieredManager(Tiers):
    """Manages the checkpoints of a job in two tiers: saves go often to `fast`, a folder that each host has
    for itself (in /dev/shm, or on a local disk), and from time to time to `durable`, which all hosts share.
    It is shardwise.torch.TieredManager for pytrees.

    A save writes the part of this process to fast/process-N and sends copies to other hosts; then it is
    committed. One save in drain_every is also copied to the durable root in the background, where it is an
    ordinary checkpoint. restore() takes the newest step whose chunks all exist somewhere: on any host, as an
    equal chunk of an older step, or in the durable root. It compares every byte with its hash, and reports
    bad chunks and steps that it passed over. A restarted job may have another number of processes, and other
    shardings.

    All processes of the job make one with the same options, and call its methods together, in the same order.
    It saves the trees of shardwise.jax.save(); one save is under way at a time. In checkpoints of jobs of
    several processes the devices are numbered by process.

        with swj.TieredManager("/dev/shm/job", "/shared/job", copies=1) as manager:
            restored = manager.restore(target)
            if restored is not None:
                state = restored.value
            for step in range(restored.step + 1 if restored else 0, steps):
                ...
                manager.save_async(step, state)
    """

    def __init__(self, fast: Path, durable: Path, *, copies: int = 1, processes_per_host: int = 1,
                 keep_fast: int = 2, drain_every: int = 10, drain_bytes_per_second: int = 0,
                 keep_durable: int = 0, on_save_error: OnSaveError = "raise", most_failed_saves: int = 3,
                 codec: Codec = "zstd", fast_codec: Codec = "none", threads: int = 0, memory: int = MEMORY,
                 deadline: float = DEADLINE, address: str | None = None) -> None:
        """copies: the number of other hosts that get a copy of a process's part; 0 makes no copies.
        processes_per_host: the number of neighbouring processes that are lost together. keep_fast,
        keep_durable: the number of steps that stay; 0 keeps all. drain_bytes_per_second: the most bytes that
        each process writes to the durable root per second; 0: no limit. on_save_error, most_failed_saves:
        those of CheckpointManager, for both tiers; a step that failed in the fast tier is not copied. codec:
        that of the durable root. deadline: that of shardwise.jax.save(). address: the address that other
        hosts reach this one at; None: that of the interface to JAX's coordinator."""
        group = from_jax()
        super().__init__(
            fast, durable, group, own_address(_coordinator()) if address is None else address, copies=copies,
            processes_per_host=processes_per_host, keep_fast=keep_fast, drain_every=drain_every,
            drain_bytes_per_second=drain_bytes_per_second, keep_durable=keep_durable,
            on_save_error=on_save_error, most_failed_saves=most_failed_saves, codec=codec,
            fast_codec=fast_codec, threads=threads, memory=memory, deadline=deadline,
            devices=Numbering.of_job().even().starts[-1] if group.size > 1 else 0)

    def save(self, step: int, tree: Any, *, user: Any = None, existing: Existing = "fail",
             progress: Progress = None) -> SaveStats:
        """Saves a step, and returns when it is committed in the fast tier. A step that is also copied to the
        durable root waits for the copy before it. Raises the errors of shardwise.jax.save(), and those of the
        copy of an earlier step."""
        self.wait()
        return self._prepared(step, tree, user, existing, copy=False).write(progress)

    def save_async(self, step: int, tree: Any, *, user: Any = None,
                   existing: Existing = "fail") -> PendingSave:
        """Returns when the save holds the values: JAX's arrays may then be donated, and numpy's changed.
        First waits for a save under way, and raises its error if nobody has seen it."""
        self.wait()
        prepared = self._prepared(step, tree, user, existing, copy=True)
        pending = prepared.start(step, prepared.write)
        self._queue.add(pending, None)
        if prepared.failed is not None:
            raise prepared.failed  # the thread tells the other processes
        return pending

    def restore(self, target: Any = None, *, strict: bool = True, skip_mismatched: bool = False,
                resize: Resize | Extents | None = None, **edits: Unpack[Edits]) -> RestoredTier | None:
        """Restores the newest whole step; `value` of the result is the tree of shardwise.jax.load(), which
        has the same arguments (names, rename, cast, ..). Returns None if there is no step in either tier.
        Raises Corrupt if there are steps but none is whole."""
        self._need_no_step(target)
        if target is None:
            check_extents(f"restore from {self._where()}", skip_mismatched, resize)
        shapes: Any = None if target is None else resize

        def boxes(checkpoint: Checkpoint) -> Boxes:
            return _load.planned(checkpoint, target, strict=strict, skip_mismatched=skip_mismatched,
                                 resize=shapes).boxes()

        def read(checkpoint: Checkpoint) -> Any:
            return _load.restore(checkpoint, target, strict=strict, skip_mismatched=skip_mismatched,
                                 resize=shapes)

        return self._restored(boxes, read, {**edits, "resize": resize} if target is None else edits)

    restore_latest = restore

    def _prepared(self, step: int, tree: Any, user: Any, existing: Existing, *, copy: bool) -> Prepared:
        return prepare(self._name_of(step), tree, self._saves, copy=copy, user=user, existing=existing,
                       deadline=self._deadline, managed=Managed(write=self._write(step)), is_even=True,
                       codec=self._codec, threads=self._threads, memory=self._memory)


def _coordinator() -> str | None:
    """Returns the host of JAX's coordinator; None for a job without one."""
    if jax.process_count() == 1:
        return None
    from jax._src import distributed

    address = getattr(distributed.global_state, "coordinator_address", None)
    return None if address is None else address.rpartition(":")[0].strip("[]")
