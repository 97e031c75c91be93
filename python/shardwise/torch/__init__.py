"""PyTorch: state of training jobs, sharded or not, saved and restored on any number of processes.

    import shardwise.torch as swt

    # beside torch.distributed.checkpoint: its storage, and all else stays as it is
    dcp.save(state, storage_writer=swt.StorageWriter("ckpt/step-100"))
    dcp.load(state, storage_reader=swt.StorageReader("ckpt/step-100"))

    # or without it
    swt.save("ckpt/step-100", {"model": model, "optim": optimizer, "rng": swt.PerRank(torch.get_rng_state())})
    swt.load("ckpt/step-100", {"model": model, "optim": optimizer, "rng": swt.PerRank(None)})

    # a training step as a program, planned on a mesh and run on emulated devices
    program = swt.capture(step, tokens, labels)

shardwise.torch.spmd has the names of PyTorch/XLA SPMD.
"""

from ._capture import capture as capture
from ._dcp import StorageReader as StorageReader
from ._dcp import StorageWriter as StorageWriter
from ._load import Loaded as Loaded
from ._load import load as load
from ._load import load_state_dict as load_state_dict
from ._loader import Batch as Batch
from ._loader import Loader as Loader
from ._manager import CheckpointManager as CheckpointManager
from ._manager import rng as rng
from ._open import Checkpoint as Checkpoint
from ._open import Tensor as Tensor
from ._open import open as open
from ._save import prepare_async as prepare_async
from ._save import save as save
from ._save import save_async as save_async
from ._state import PerRank as PerRank
from .._tiers import RestoredTier as RestoredTier
from ._tiers import TieredManager as TieredManager

from typing import TYPE_CHECKING as _TYPE_CHECKING

if not _TYPE_CHECKING:  # for a type checker a name that is not there is an error
    def __getattr__(name: str) -> object:
        """Says how it is called here."""
        said = ": needed is Loader(source, batch_size=n)" if name in ("DataLoader", "StatefulDataLoader", "StreamingDataLoader") else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{said}")
