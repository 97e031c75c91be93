"""Writes Shardwise's files under Orbax's own CheckpointManager, for jobs that keep that manager.

    import orbax.checkpoint as ocp
    import shardwise.orbax

    with ocp.CheckpointManager(root) as manager:
        manager.save(step, args=shardwise.orbax.Save(state))
        state = manager.restore(step, args=shardwise.orbax.Restore(abstract_state))

A step of several items has one as an item: ocp.args.Composite(state=shardwise.orbax.Save(state),
loader=ocp.args.JsonSave(d)). Each item is a folder "tree.sw" that shardwise.open() reads, too. Its bytes are
hashed and on the disk before Orbax renames the step into place. shardwise.jax.CheckpointManager needs no
Orbax.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp

from ._argument_types import check_calls
from ._arrays.arrays import MEMORY, Codec
from ._checkpoint.tensor import Checkpoint
from .group import DEADLINE, from_jax
from .jax import _load
from .jax._save import prepare

_FOLDER = "tree.sw"


class Handler(ocp.AsyncCheckpointHandler):
    """Orbax's CheckpointHandler for Save and Restore."""

    async def async_save(self, directory: Any, args: Save) -> list[Any]:
        """Copies the values, and returns a future that writes them. `directory` need not exist before the
        future runs."""
        failed: list[Exception] = []
        try:
            prepared = prepare(_inside(directory), args.item, from_jax(), copy=True, codec=args.codec,
                               memory=args.memory, threads=args.threads, deadline=args.deadline)
        except Exception as error:
            # If this raised here, Orbax's own threads would wait for each other until long after the end of
            # the process.
            failed.append(error)

        async def commit() -> None:
            if failed:
                raise failed[0]
            prepared.write(None)

        return [ocp.future.CommitFutureAwaitingContractedSignals(commit(), name="shardwise")]

    def save(self, directory: Any, args: Save) -> None:
        """Returns when all is on the disk."""
        prepare(_inside(directory), args.item, from_jax(), copy=False, codec=args.codec, memory=args.memory,
                threads=args.threads, deadline=args.deadline).write(None)

    def restore(self, directory: Any, args: Restore | None = None) -> Any:
        """Runs shardwise.jax.load()."""
        args = args or Restore()
        return _load.load(_inside(directory), args.item, strict=args.strict)

    def metadata(self, directory: Any) -> Any:
        """Returns the tree with a jax.ShapeDtypeStruct for each array."""
        with Checkpoint(_inside(directory), pin=False) as checkpoint:
            return _load.metadata(checkpoint)

    def finalize(self, directory: Any) -> None:
        """Does nothing: nothing is left to do."""

    def close(self) -> None:
        """Does nothing: nothing is kept."""


def _inside(directory: Any) -> str:
    return os.path.join(os.fspath(directory), _FOLDER)


@ocp.args.register_with_handler(Handler, for_save=True)
@dataclass
class Save(ocp.args.CheckpointArgs):
    """A pytree, as shardwise.jax.save() takes it."""

    item: Any
    codec: Codec = "zstd"
    threads: int = 0
    memory: int = MEMORY
    deadline: float = DEADLINE


@ocp.args.register_with_handler(Handler, for_restore=True)
@dataclass
class Restore(ocp.args.CheckpointArgs):
    """`item` is the target of shardwise.jax.load(); None loads numpy arrays in the saved tree."""

    item: Any = None
    strict: bool = True

check_calls(__name__)
