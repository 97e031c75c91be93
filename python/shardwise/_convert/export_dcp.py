"""Writes a checkpoint part by part in the format of torch.distributed.checkpoint's FileSystemWriter."""

from __future__ import annotations

import io
import os
import pickle
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .._arrays.torch_tensors import TORCH, TensorReads
from .._errors import Unsupported
from .export import Export, named_leaves, parts_of, tree_of


class _Out:
    """A file for torch that keeps the system's error, as torch drops it."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "xb")
        self.failed: OSError | None = None
        self.tell, self.flush, self.close = self._file.tell, self._file.flush, self._file.close

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.failed = error
            raise


class _Files:
    """The files of one process. A new file begins when the last one is full."""

    def __init__(self, folder: str, most: int) -> None:
        self._folder, self._most = folder, most
        self._number, self._size = 0, 0
        self._file: _Out | None = None

    def add(self, value: Any, size: int) -> Any:
        """Writes a value with torch.save(), and returns its place. size: the bytes of its elements."""
        if self._file is not None and self._most and self._size + size > self._most:
            self.close()
        if self._file is None:
            self._name = f"__0_{self._number}.distcp"
            self._file = _Out(os.path.join(self._folder, self._name))
            self._number, self._size = self._number + 1, 0
        begin = self._file.tell()
        try:
            torch.save(value, cast(IO[bytes], self._file))
        except RuntimeError as error:
            raise self._file.failed or error from None
        self._size += size
        return filesystem._StorageInfo(self._name, begin, self._file.tell() - begin)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def write_dcp(work: Export, folder: str) -> None:
    """Fills the folder, with one part of a tensor in memory at a time."""
    checkpoint = work.checkpoint
    leaves = named_leaves(work, tree_of(work), "DCP")
    _refuse_what_dcp_lacks(work, [name for _, name in leaves.values()])
    described: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    files = _Files(folder, work.max_shard)
    try:
        for fqn, (_, name) in leaves.items():
            if name in checkpoint.objects:
                described[fqn] = BytesStorageMetadata()
                places[MetadataIndex(fqn)] = files.add(checkpoint.objects[name], 0)
                continue
            tensor = checkpoint[name]
            chunks = []
            dtype = TORCH[tensor.dtype_name]
            for begin, shape in parts_of(tensor.shape, dtype.itemsize, work.part_bytes()):
                part = torch.empty(shape, dtype=dtype)
                reads = TensorReads(tensor.reader)
                reads.add(tensor.number, begin, part, dtype)
                reads.run()
                places[MetadataIndex(fqn, begin)] = files.add(part, part.nbytes)
                chunks.append(ChunkStorageMetadata(torch.Size(begin), torch.Size(shape)))
                work.count(part.nbytes)
            described[fqn] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(tensor.shape), chunks)
    finally:
        files.close()
    metadata = Metadata(described, {fqn: path for fqn, (path, _) in leaves.items()}, places)
    if hasattr(metadata, "version") and hasattr(filesystem, "CURRENT_DCP_VERSION"):
        metadata.version = filesystem.CURRENT_DCP_VERSION
    with open(os.path.join(folder, ".metadata"), "xb") as file:
        pickle.dump(metadata, file)


def _refuse_what_dcp_lacks(work: Export, names: list[str]) -> None:
    wrong = []
    for name in names:
        if name not in work.checkpoint.objects:
            dtype = work.checkpoint[name].dtype_name
            if dtype not in TORCH:
                wrong.append(f"torch {torch.__version__} has no dtype {dtype} of {name!r}")
            continue
        try:
            data = io.BytesIO()
            torch.save(work.checkpoint.objects[name], data)
            data.seek(0)
            torch.load(data, weights_only=True)
        except Exception:  # loaders of torch would refuse the object, too
            kind = type(work.checkpoint.objects[name])
            wrong.append(f"{name!r} is or holds what torch.load(weights_only=True) does not read: "
                         f"{kind.__module__}.{kind.__qualname__}")
    if wrong:
        raise work.refuse(Unsupported, "; ".join(wrong[:20]) + "; --exclude, or names=, leaves them out")
