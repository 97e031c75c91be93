"""shardwise.jax.TieredManager"""

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
    """The checkpoints of a job in two tiers: often in `fast`, a folder that each host has for itself (in
    /dev/shm, or on a local disk), and from time to time in `durable`, one that all hosts share. As
    shardwise.torch.TieredManager, for pytrees.

    A save writes this process's part to fast/process-N and gives copies to other hosts; that is when it is
    committed. One save of drain_every goes on to the durable root in the background, where it is an ordinary
    checkpoint. restore() takes the newest step whose chunks all exist somewhere: on any host, in an older
    step's equal chunk, in the durable root. Every byte is compared with its hash, and bad chunks and
    passed-over steps are reported. The job may have another number of processes then, and other shardings.

    All processes of the job make it, with the same options, and call its methods together, in the same order.
    Trees are those of shardwise.jax.save(). One save is under way at a time. In checkpoints of jobs of
    several processes the devices are numbered by process.

        with swj.TieredManager("/dev/shm/job", "/shared/job", copies=1) as manager:
            found = manager.restore(target)
            if found is not None:
                state = found.value
            for step in range(found.step + 1 if found else 0, steps):
                ...
                manager.save_async(step, state)
    """

    def __init__(self, fast: Path, durable: Path, *, copies: int = 1, processes_per_host: int = 1,
                 keep_fast: int = 2, drain_every: int = 10, drain_bytes_per_second: int = 0,
                 keep_durable: int = 0, on_save_error: OnSaveError = "raise", most_failed_saves: int = 3,
                 codec: Codec = "zstd", fast_codec: Codec = "none", threads: int = 0, memory: int = MEMORY,
                 deadline: float = DEADLINE, address: str | None = None) -> None:
        """copies: the number of other hosts that get a copy of a process's part; 0: none. processes_per_host:
        neighbouring processes, which are lost together. keep_fast, keep_durable: steps that stay; 0: all.
        drain_bytes_per_second: that each process writes to the durable root at most; 0: no limit.
        on_save_error, most_failed_saves: CheckpointManager's, for both tiers; a step that failed in the fast
        one does not go on. codec: of the durable root. deadline: save()'s. address: other hosts reach this
        one by it; None: that of the interface to JAX's coordinator."""
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
        """Returns when the step is committed in the fast tier; if it is one that goes on to the durable root,
        waits for the one before to be there. Errors are those of shardwise.jax.save(), also of the way of an
        earlier step."""
        self.wait()
        return self._prepared(step, tree, user, existing, copy=False).write(progress)

    def save_async(self, step: int, tree: Any, *, user: Any = None,
                   existing: Existing = "fail") -> PendingSave:
        """Returns when the values are held: JAX's arrays may be donated, numpy's changed. A save before that
        is under way is waited for, and its error raised if nobody has seen it."""
        self.wait()
        prepared = self._prepared(step, tree, user, existing, copy=True)
        pending = prepared.start(step, prepared.write)
        self._queue.add(pending, None)
        if prepared.failed is not None:
            raise prepared.failed  # the other processes hear of it on the thread
        return pending

    def restore(self, target: Any = None, *, strict: bool = True, skip_mismatched: bool = False,
                resize: Resize | Extents | None = None, **edits: Unpack[Edits]) -> RestoredTier | None:
        """The newest step that is whole; `value` is its tree, as shardwise.jax.load() gives it, whose
        arguments these are (names, rename, cast, ..). None if there is no step in either tier. Raises Corrupt
        if there are and none is whole."""
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
    """Its host, if the job has one."""
    if jax.process_count() == 1:
        return None
    from jax._src import distributed

    address = getattr(distributed.global_state, "coordinator_address", None)
    return None if address is None else address.rpartition(":")[0].strip("[]")
