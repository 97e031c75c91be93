"""Checkpoints of JAX's pytrees: saved by all processes of a job, restored on any mesh.

    import shardwise.jax as swj

    swj.save("ckpt/final", {"params": params, "opt_state": opt_state, "step": 3})
    state = swj.load("ckpt/final", abstract_state)      # on the shardings of the target
    arrays = swj.load("ckpt/final")                     # numpy, on a machine without accelerators too

    with swj.CheckpointManager("ckpt", options=swj.CheckpointManagerOptions(max_to_keep=3)) as manager:
        manager.save(step, args=swj.args.StandardSave(state))
        state = manager.restore(None, args=swj.args.StandardRestore(abstract_state))

`CheckpointManager` has the surface of Orbax's, so that a job changes its imports alone. A leaf's name in the checkpoint
is its path: "params/layers/0/kernel".
"""

from __future__ import annotations

from .._tiers import RestoredTier as RestoredTier
from . import args as args
from . import policies as policies
from ._capture import capture as capture
from ._load import ANY as ANY
from ._load import load as load
from ._loader import Batch as Batch
from ._loader import Loader as Loader
from ._manager import CheckpointManager as CheckpointManager
from ._manager import StepMetadata as StepMetadata
from ._options import CheckpointManagerOptions as CheckpointManagerOptions
from ._save import save as save
from ._save import save_async as save_async
from ._tiers import TieredManager as TieredManager
