"""Checkpoints of torch.distributed.checkpoint's own format, without a process group."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

from ._errors import Corrupt, InvalidArgument, NotFound, Unsupported
from ._objects import encode
from ._progress import Progress
from ._save import Plan, encode_objects, write
from ._sources import Path, Sources

# What `.metadata`, which is a pickle, may be made of. Nothing else is imported, and nothing is run.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix", "StorageMeta"},
    "torch": {"Size", "device", "strided"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "getattr"},
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _ALLOWED.get(module, ()) and (module, name) != ("builtins", "getattr"):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        raise Unsupported(f".metadata names {module}.{name}, which is not of DCP's own: it is not loaded")


def _member(kind: Any, name: str) -> Any:
    """Python 3.11 pickles the members of an enum so. Of enums alone."""
    import enum

    if isinstance(kind, type) and issubclass(kind, enum.Enum) and name in kind.__members__:
        return kind[name]
    raise Unsupported(f".metadata asks for {name!r} of {kind!r}: it is not loaded")


def read_metadata(source: str) -> Any:
    """Raises NotFound, Corrupt, Unsupported."""
    path = os.path.join(source, ".metadata")
    try:
        with open(path, "rb") as file:
            return _Unpickler(file).load()
    except FileNotFoundError:
        raise NotFound(f"import {source}: there is no .metadata, so it is no checkpoint of DCP's, or one that was not "
                       f"completed") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError) as error:
        raise Corrupt(f"import {path}: {type(error).__name__}: {error}") from None


class _Pieces:
    """The pieces of one tensor: where they begin, and their elements, loaded."""

    def __init__(self, source: str, storage: dict[Any, Any]) -> None:
        self._source, self._storage = source, storage

    def load(self, index: Any) -> Any:
        import torch

        info = self._storage[index]
        path = os.path.join(self._source, info.relative_path)
        if os.path.dirname(os.path.normpath(info.relative_path)) not in ("", "."):
            raise Corrupt(f"import {self._source}: a piece of {index.fqn!r} is said to be in {info.relative_path!r}")
        if getattr(info, "transform_descriptors", None):
            raise Unsupported(f"import {self._source}: {index.fqn!r} is transformed by {info.transform_descriptors}")
        with open(path, "rb") as file:
            file.seek(info.offset)
            data = file.read(info.length)
        if len(data) != info.length:
            raise Corrupt(f"import {path}: {index.fqn!r} is to have {info.length} bytes at {info.offset}, there are {len(data)}")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def import_dcp(source: Path, target: Path, *, existing: str = "fail", codec: str = "zstd", progress: Progress = None) -> str:
    """Writes a checkpoint of torch.distributed.checkpoint (FileSystemWriter's) anew. Needs torch, no process group.
    Objects are loaded with weights_only=True; tensors are held in host memory while they are written. Returns the path."""
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

    from .torch._tensors import Memory, dtype_name

    folder = os.fspath(source)
    metadata = read_metadata(folder)
    pieces = _Pieces(folder, metadata.storage_data)
    sources, objects, wrong = Sources(), {}, []
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            objects[name] = pieces.load(MetadataIndex(name))
            continue
        parts = []
        for chunk in entry.chunks:
            tensor = pieces.load(MetadataIndex(name, chunk.offsets)).contiguous()
            if tuple(tensor.shape) != tuple(chunk.sizes) or tensor.dtype != entry.properties.dtype:
                wrong.append(f"{name!r} at {list(chunk.offsets)} is {tensor.dtype} {list(tensor.shape)}")
            elif tensor.numel() or not tensor.ndim:
                parts.append((tuple(chunk.offsets), Memory(tensor)))
        sources.add(name, dtype_name(_Typed(entry.properties.dtype), name), list(entry.size), parts, listed=True)  # type: ignore[arg-type]
    if wrong:
        raise InvalidArgument(f"import {folder}: {'; '.join(wrong[:10])}, which its metadata does not say")
    extra = {}
    if metadata.planner_data:
        extra["paths"] = {name: encode(list(path)) for name, path in metadata.planner_data.items()}
    return write(target, Plan(sources, encode_objects(objects), extra=extra), existing=existing, codec=codec,
                 progress=progress).path


class _Typed:
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
