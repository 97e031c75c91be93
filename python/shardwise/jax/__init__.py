"""Saves JAX's pytrees by all processes of a job, and restores them on any mesh.

    import shardwise.jax as swj

    swj.save("ckpt/final", {"params": params, "opt_state": opt_state, "step": 3})
    state = swj.load("ckpt/final", abstract_state)      # on the shardings of the target
    arrays = swj.load("ckpt/final")                     # numpy, also on a machine without accelerators

    with swj.CheckpointManager("run", keep_last=3, save_every=100) as manager:
        restored = manager.restore(state)   # the newest whole step; None if no step is there
        if manager.should_save(step):
            manager.save_async(step, state)

The name of a leaf in the checkpoint is its path: "params/layers/0/kernel". `shardwise.jax.ocp` has the names
of Orbax, so that a job only changes its imports. """

from __future__ import annotations

from typing import TYPE_CHECKING

from .._argument_types import check_calls as _check_calls
from .._capture.jax.capture import capture as capture
from .._foreign_names import names_of_others
from .._jobs.tiers import RestoredTier as RestoredTier
from ._load import ANY as ANY
from ._load import load as load
from ._loader import Batch as Batch
from ._loader import Loader as Loader
from ._manager import CheckpointManager as CheckpointManager
from ._pipeline import pipeline as pipeline
from ._save import save as save
from ._save import save_async as save_async
from ._tiers import TieredManager as TieredManager

_ocp = f"Orbax's names are those of {__name__}.ocp: from shardwise.jax import ocp"
_refuse = names_of_others(__name__, {
    **{name: f"ocp.{name}: {_ocp}"
       for name in ("CheckpointManagerOptions", "args", "StandardCheckpointer", "PyTreeCheckpointer")},
    **dict.fromkeys(("Checkpointer", "PyTreeCheckpointHandler"), f"ocp.PyTreeCheckpointer(): {_ocp}"),
    "StandardCheckpointHandler": f"ocp.StandardCheckpointer(): {_ocp}",
    "AsyncCheckpointer": "save_async(path, tree), or ocp.StandardCheckpointer(), whose saves go on in the "
                         f"background: {_ocp}", "PLACEHOLDER": "a target without that name, and strict=False",
    **dict.fromkeys(("RestoreArgs", "ArrayRestoreArgs"), "a target with the sharding wanted, leaf by leaf"),
    "from_stablehlo": "capture(step, *example), of the function that was lowered",
    "restore": "load(path, target)", "async_save": "save_async(path, tree)",
    "save_pytree": "save(path, tree)", "load_pytree": "load(path, target)",
    "save_pytree_async": "save_async(path, tree)", "restore_pytree": "load(path, target)",
    "load_pytree_async": "load(path, target)", "save_checkpoint": "save(path, tree)",
    "restore_checkpoint": "load(path, target)",
    "metadata": "shardwise.info(path)", "latest_step": "CheckpointManager(root).latest_step()"})

if not TYPE_CHECKING:  # a type checker shall report a missing name
    __getattr__ = _refuse

_check_calls(__name__)
