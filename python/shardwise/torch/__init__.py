"""Saves the state of PyTorch jobs, sharded or not, and restores it on any number of processes.

    import shardwise.torch as swt

    # with torch.distributed.checkpoint: only its storage changes
    dcp.save(state, storage_writer=swt.StorageWriter("ckpt/step-100"))
    dcp.load(state, storage_reader=swt.StorageReader("ckpt/step-100"))

    # or without it
    swt.save("ckpt/step-100", {"model": model, "optim": optimizer, "rng": swt.PerRank(torch.get_rng_state())})
    swt.load("ckpt/step-100", {"model": model, "optim": optimizer, "rng": swt.PerRank(None)})

    # a training step as a program, planned on a mesh and run on emulated devices
    program = swt.capture(step, tokens, labels)

shardwise.torch.spmd has the names of PyTorch/XLA SPMD.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from .._argument_types import check_calls as _check_calls
from .._capture.torch.capture import capture as capture
from .._foreign_names import names_of_others
from .._jobs.tiers import RestoredTier as RestoredTier
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
from ._pipeline import pipeline as pipeline
from ._save import prepare_async as prepare_async
from ._save import save as save
from ._save import save_async as save_async
from ._state import PerRank as PerRank
from ._tiers import TieredManager as TieredManager

_whole = 'save(path, {"model": model, "optim": optimizer}), which takes modules and optimizers themselves'
_refuse = names_of_others(__name__, {
    **dict.fromkeys(("save_file", "save_checkpoint", "save_state_dict", "dump"), "save(path, state)"),
    **dict.fromkeys(("async_save", "save_checkpoint_async"), "save_async(path, state)"),
    "save_model": 'save(path, {"model": model})', "load_model": 'load(path, {"model": model})',
    **dict.fromkeys(("load_file", "load_safetensors"), "load(path)"),
    **dict.fromkeys(("restore", "restore_latest", "load_checkpoint"),
                    "load(path, state), or CheckpointManager(root).restore(state)"),
    "safe_open": "open(path)", "DataLoader": "Loader(source, batch_size=n)",
    **dict.fromkeys(("StatefulDataLoader", "DistributedSampler", "Dataset", "IterableDataset",
                     "StreamingDataLoader"), "Loader(source, batch_size=n)"),
    "FileSystemWriter": "StorageWriter(path)", "FileSystemReader": "StorageReader(path)",
    **dict.fromkeys(("HuggingFaceStorageWriter", "export_model", "save_pretrained"),
                    "shardwise.export_model(path, target)"),
    **dict.fromkeys(("HuggingFaceStorageReader", "import_model", "from_pretrained"),
                    "shardwise.import_model(source, path)"),
    **dict.fromkeys(("state_dict_saver", "get_state_dict", "get_model_state_dict",
                     "get_optimizer_state_dict"), _whole),
    **dict.fromkeys(("state_dict_loader", "set_state_dict", "set_model_state_dict",
                     "set_optimizer_state_dict"), _whole.replace("save", "load")),
    "get_rng_state": "rng(), as a value of the state",
    **dict.fromkeys(("TrainerCallback", "CheckpointCallback"),
                    "shardwise.torch.transformers.CheckpointCallback(manager)"),
    **dict.fromkeys(("CheckpointIO", "ModelCheckpoint"), "shardwise.torch.lightning.CheckpointIO()"),
    **dict.fromkeys(("Checkpointer", "CheckpointManagerOptions", "AsyncCheckpointer"),
                    "CheckpointManager(root)")})

if not TYPE_CHECKING:  # a type checker shall report a missing name
    def __getattr__(name: str) -> Any:
        """Imports a submodule at its first use, as it may need other packages."""
        if name in ("accelerate", "lightning", "spmd", "transformers"):
            return _importlib.import_module(f".{name}", __name__)
        return _refuse(name)

_check_calls(__name__)
