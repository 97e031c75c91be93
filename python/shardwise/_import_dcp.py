"""Checkpoints of torch.distributed.checkpoint's own format, without a process group."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

from ._dcp_metadata import Piece, open_regular, read_metadata
from ._errors import Corrupt, InvalidArgument, Unsupported
from ._objects import encode
from ._paths import Path, local
from ._progress import Progress
from ._save import Plan, encode_objects, write
from ._sources import Codec, Existing, Sources


def _load(folder: str, name: str, piece: Piece) -> Any:
    """A tensor or object. Raises Corrupt, Unsupported."""
    import torch

    path = os.path.join(folder, piece.file)
    try:
        with open_regular(path) as file:
            there = os.fstat(file.fileno()).st_size
            if piece.offset + piece.length > there:
                raise Corrupt(f"import {path}: found {there} bytes, needed {piece.length} bytes at {piece.offset} for {name!r}")
            file.seek(piece.offset)
            data = file.read(piece.length)
    except FileNotFoundError:
        raise Corrupt(f"import {path}: found no such file, needed it for {name!r}") from None
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - bytes of anybody's may raise anything
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
            # torch's own text advises to load it all the same.
            raise Unsupported(f"import {path}: found objects in {name!r} that only a pickle can make, needed tensors and plain "
                              f"values: nothing is run") from error
        raise Corrupt(f"import {path}: found {type(error).__name__} in {name!r}: {error}") from None


def described(folder: str) -> list[tuple[str, str, list[int]]]:
    """Name, dtype and shape of each tensor, by the metadata alone. Raises as import_dcp()."""
    import torch

    from .torch._tensors import dtype_name

    return [(name, dtype_name(torch.empty(0, dtype=stored.dtype), name), list(stored.shape))
            for name, stored in read_metadata(folder).tensors.items()]


def import_dcp(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd", progress: Progress = None) -> str:
    """Writes a checkpoint of torch.distributed.checkpoint (FileSystemWriter's) anew. Needs torch, no process group.
    Objects are loaded with weights_only=True; tensors are held in host memory while they are written. Returns the path.
    Raises NotFound, Corrupt, Unsupported, AlreadyExists, IOFailed, and InvalidArgument if tensors are not what the
    metadata say."""
    import torch

    from .torch._tensors import Memory, dtype_name

    folder = local(source, "import")
    metadata = read_metadata(folder)
    sources, wrong = Sources(), []
    for name, stored in metadata.tensors.items():
        parts = []
        for offsets, sizes, piece in stored.pieces:
            tensor = _load(folder, name, piece)
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
                raise Corrupt(f"import {folder}: found {type(tensor).__name__} at {list(offsets)} of {name!r}, needed a tensor")
            if tuple(tensor.shape) != sizes or tensor.dtype != stored.dtype:
                wrong.append(f"{name!r} at {list(offsets)} is {tensor.dtype} {list(tensor.shape)}")
            elif tensor.numel() or not tensor.ndim:
                parts.append((offsets, Memory(tensor.contiguous())))
        sources.add(name, dtype_name(torch.empty(0, dtype=stored.dtype), name), list(stored.shape), parts, listed=True)
    if wrong:
        raise InvalidArgument(f"import {folder}: {'; '.join(wrong[:10])}, which its metadata does not say")
    objects = {name: _load(folder, name, piece) for name, piece in metadata.objects.items()}
    extra = {"paths": {name: encode(path) for name, path in metadata.paths.items()}} if metadata.paths else {}
    return write(target, Plan(sources, encode_objects(objects), extra=extra), existing=existing, codec=codec,
                 progress=progress).path
