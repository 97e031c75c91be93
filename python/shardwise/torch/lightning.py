"""Saves checkpoints of Lightning's Trainer in Shardwise's format: hashed, compressed, without pickle.

    from shardwise.torch.lightning import CheckpointIO

    trainer = lightning.Trainer(plugins=[CheckpointIO()])
    trainer.fit(model, data, ckpt_path=...)     # None, or the path of a checkpoint
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO as _CheckpointIO

from .._argument_types import check_calls
from .._arrays.arrays import Codec, Path
from .._errors import InvalidArgument
from .._paths import local
from ..group import single
from ._load import load_state_dict
from ._save import save


class CheckpointIO(_CheckpointIO):
    """A plugin that makes each checkpoint a folder, which shardwise.open() reads, too. Lightning gives whole
    values to one process, which saves them. A value that cannot be stored without pickle, such as an object
    in hparams, raises a TypeError that names it."""

    def __init__(self, *, codec: Codec = "zstd") -> None:
        self._codec = codec

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path, storage_options: Any = None) -> None:
        """Saves a checkpoint, and replaces an existing one. Raises InvalidArgument for storage_options."""
        if storage_options is not None:
            raise InvalidArgument(f"save {path}: found storage_options {storage_options!r}, needed is None")
        save(path, checkpoint, codec=self._codec, existing="replace", group=single())

    def load_checkpoint(self, path: Path, map_location: Any = None,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """Returns a checkpoint. map_location: a device; None is the CPU. weights_only has no effect, as no
        code of a checkpoint ever runs."""
        if not isinstance(map_location, (str, torch.device, type(None))):
            raise InvalidArgument(f"load {path}: found the map_location {map_location!r}, needed is a device")
        return load_state_dict(path, device=map_location or "cpu")

    def remove_checkpoint(self, path: Path) -> None:
        """Removes the folder, link or file at a path, if it exists."""
        folder = local(path, "remove")
        if os.path.islink(folder) or os.path.isfile(folder):
            os.remove(folder)
        elif os.path.lexists(folder):
            shutil.rmtree(folder)

check_calls(__name__)
