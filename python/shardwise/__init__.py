"""Saves, loads and batches sharded tensors over meshes of devices.

    import shardwise as sw

    sw.save("model.sw", {"w": w, "layers/0/b": b}, user={"lr": 1e-3})
    with sw.open("model.sw") as c:
        rows = c["w"][10:20, ::2]        # reads only the chunks that it needs
    tensors = sw.load("model.sw", names="layers/*")

    loader = sw.Loader("idx:train-images.gz?field=image", batch_size=256, epochs=5)
    for batch in loader: batch["image"]  # read ahead, resumable by loader.state_dict()

The submodules are `shardwise.torch` (torch.distributed.checkpoint's storage, FSDP2, DTensor),
`shardwise.jax`, `shardwise.orbax`, `shardwise.group` and `shardwise.programs` (training steps planned on a
mesh). Importing shardwise imports numpy alone; the first tensor of bf16 or f8 imports ml_dtypes.
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
from typing import TYPE_CHECKING, Any

from . import _core as _core  # first: in a subinterpreter, numpy's error would hide ours
from . import _foreign_names
from . import group as group
from . import sources as sources
from ._argument_types import check_calls as _check_calls
from ._checkpoint.compare import Kind as Kind
from ._checkpoint.compare import diff as diff
from ._checkpoint.compare import stats as stats
from ._checkpoint.load import CheckpointInfo as CheckpointInfo
from ._checkpoint.load import TensorInfo as TensorInfo
from ._checkpoint.load import info as info
from ._checkpoint.load import load as load
from ._checkpoint.load import open as open
from ._checkpoint.save import SaveStats as SaveStats
from ._checkpoint.save import save as save
from ._checkpoint.tensor import Checkpoint as Checkpoint
from ._checkpoint.tensor import Tensor as Tensor
from ._checkpoint.verify import remove_parity as remove_parity
from ._checkpoint.verify import repair as repair
from ._checkpoint.verify import verify as verify
from ._checkpoint.verify import write_parity as write_parity
from ._convert.convert import explain as explain
from ._convert.copy import copy_step as copy_step
from ._convert.convert import export_model as export_model
from ._convert.convert import import_dcp as import_dcp
from ._convert.convert import import_model as import_model
from ._convert.convert import import_orbax as import_orbax
from ._convert.convert import reshard as reshard
from ._core import Damage as Damage
from ._core import DiffReport as DiffReport
from ._core import Histogram as Histogram
from ._core import Lost as Lost
from ._core import ParityStats as ParityStats
from ._core import RepairReport as RepairReport
from ._core import Repaired as Repaired
from ._core import TensorDiff as TensorDiff
from ._core import TensorStats as TensorStats
from ._core import VerifyReport as VerifyReport
from ._errors import AlreadyExists as AlreadyExists
from ._errors import Cancelled as Cancelled
from ._errors import Corrupt as Corrupt
from ._errors import Error as Error
from ._errors import GroupError as GroupError
from ._errors import IOFailed as IOFailed
from ._errors import InvalidArgument as InvalidArgument
from ._errors import NameNotFound as NameNotFound
from ._errors import NotFound as NotFound
from ._errors import ResourceExhausted as ResourceExhausted
from ._errors import Unsupported as Unsupported
from ._errors import WrongType as WrongType
from ._jobs.manager import CheckpointManager as CheckpointManager
from ._jobs.manager import LatestStep as LatestStep
from ._jobs.manager import ManagerStats as ManagerStats
from ._jobs.manager import Restored as Restored
from ._jobs.pending import PendingSave as PendingSave
from ._loader import Batch as Batch
from ._loader import Loader as Loader
from ._loader import Shard as Shard
from ._paths import Path as Path
from ._progress import Progress as Progress
from ._sharding import Device as Device
from ._sharding import HybridMesh as HybridMesh
from ._sharding import Mesh as Mesh
from ._sharding import Minibatch as Minibatch
from ._sharding import PartitionSpec as PartitionSpec
from ._sharding import Sharding as Sharding
from ._sharding import TransferPlan as TransferPlan
from ._sharding import device_mesh as device_mesh
from ._sharding import explain_reshard as explain_reshard

if TYPE_CHECKING:
    from . import programs as programs

# It is registered last and so runs first at exit: no daemon thread enters C++ or returns from it afterwards.
_atexit.register(_core.end)

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists", "Batch", "Cancelled", "Checkpoint", "CheckpointInfo", "CheckpointManager", "Corrupt",
    "Damage", "DiffReport", "Error", "GroupError", "Histogram", "IOFailed", "InvalidArgument", "Kind",
    "LatestStep", "Loader", "Lost", "ManagerStats", "Mesh", "NameNotFound", "NotFound",
    "ParityStats", "PartitionSpec", "Path", "PendingSave", "Progress", "RepairReport", "Repaired",
    "ResourceExhausted", "SaveStats", "Shard", "Sharding", "Tensor", "TensorDiff", "TensorInfo",
    "TensorStats", "TransferPlan", "Unsupported", "VerifyReport", "copy_step", "diff", "explain",
    "explain_reshard", "export_model", "group", "import_dcp", "import_model", "import_orbax", "info",
    "load", "open", "programs", "remove_parity", "repair", "reshard", "save", "sources", "stats", "verify",
    "write_parity",
]


_refuse = _foreign_names.names_of_others(__name__, {
    **{name: f"shardwise.sources.{name}"
       for name in vars(sources) if not name.startswith("_") and name not in __all__},
    **{name: f"shardwise.torch.{name}" for name in ("accelerate", "lightning", "transformers")},
    **dict.fromkeys(("save_async", "async_save"), "CheckpointManager(root).save_async(step, tensors)"),
    **dict.fromkeys(("save_file", "save_model", "save_checkpoint", "dump", "savez"), "save(path, tensors)"),
    **dict.fromkeys(("load_file", "load_model", "load_checkpoint", "load_state_dict", "restore"),
                    "load(path)"),
    **dict.fromkeys(("safe_open", "File"), "open(path)"), "DataLoader": "Loader(source, batch_size=n)",
    "pack": "sources.of(source).pack(field, window)", "Dataset": "sources.of(object)",
    "shuffle": "Loader(source, shuffle=True)",
    "filter": "sources.of(source).filter(..)", "map": "sources.of(source).map(..)",
    **dict.fromkeys(("import_safetensors", "import_hdf5", "import_npz", "from_pretrained"),
                    "import_model(source, path)"),
    **dict.fromkeys(("export", "save_pretrained", "export_safetensors", "convert"),
                    "export_model(path, target)"),
    **dict.fromkeys(("inspect", "show", "metadata", "exists"), "info(path)"),
    **dict.fromkeys(("ls", "list", "steps"), "CheckpointManager(root).steps()"),
    **dict.fromkeys(("latest", "latest_step"), "CheckpointManager(root).latest()"), "fsck": "verify(path)",
    "check": "verify(path)", "TrainerCallback": "shardwise.torch.transformers.CheckpointCallback(manager)"})


def __getattr__(name: str) -> Any:
    """Imports a submodule on its first use."""
    if name in ("programs", "torch", "jax", "orbax"):
        return _importlib.import_module(f".{name}", __name__)
    return _refuse(name)


def __dir__() -> list[str]:
    return [*__all__, "torch", "jax", "orbax", "__version__", "__doc__"]


_check_calls(__name__)
