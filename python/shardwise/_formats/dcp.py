"""Reads checkpoints of torch.distributed.checkpoint's own format, without a process group."""

from __future__ import annotations

import ctypes
import io
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from .. import _core
from .._arrays.arrays import Codec, Existing, Sources, check_choice, check_codec, check_fits_memory
from .._checkpoint.edits import chosen
from .._checkpoint.save import Plan, encode_objects, write_groups
from .._errors import Corrupt, InvalidArgument, Unsupported
from .._paths import Path, local, local_or_bucket, content_in_error
from .._progress import Progress, function_of
from .._trees.objects import encode
from .dcp_metadata import DcpMetadata, Piece, StoredTensor, read_metadata
from .dcp_safetensors import tensor_at
from .folder_files import open_inside

_GROUP_BYTES = 256 << 20
"""The bytes of pieces that are in memory at a time and written as one shard file; more if one piece is
larger."""


def _load(folder: str, name: str, piece: Piece, offsets: Sequence[int] | None = None) -> Any:
    """Loads an object, or the tensor that begins at `offsets`. Raises Corrupt, Unsupported."""
    import torch

    path = os.path.join(folder, piece.file)
    try:
        with open_inside(folder, piece.file) as file:
            there = os.fstat(file.fileno()).st_size
            if piece.offset + piece.length > there:
                raise Corrupt(f"import {path}: found {there} bytes, "
                              f"needed {piece.length} bytes at {piece.offset} for {name!r}")
            check_fits_memory(f"import {path}: {name!r}", piece.length)
            if offsets is not None and (tensor := _plain_tensor(file, path, name, piece,
                                                                offsets)) is not None:
                return tensor
            file.seek(piece.offset)
            data = file.read(piece.length)
    except FileNotFoundError:
        raise Corrupt(f"import {path}: found no such file, needed it for {name!r}") from None
    try:
        _refuse_bomb(data)
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # untrusted bytes may raise anything
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
            # The error of torch advises to load it unsafely.
            raise Unsupported(f"import {path}: found objects in {name!r} that only a pickle can make, "
                              "needed tensors and plain values: nothing is run") from error
        raise Corrupt(f"import {path}: found {type(error).__name__} in {name!r}: "
                      f"{str(error)[:500]}") from None
    if isinstance(loaded, torch.Tensor) and loaded.layout == torch.strided:
        there = loaded.untyped_storage().nbytes() if loaded.device.type == "cpu" else 0
        if (type(loaded) not in (torch.Tensor, torch.nn.Parameter)
            or loaded.numel() * loaded.element_size() > there):
            raise Corrupt(f"import {path}: found {there} bytes for {name!r}, "
                          f"needed those of {loaded.dtype} {list(loaded.shape)}")
    return loaded


def _plain_tensor(file: IO[bytes], path: str, name: str, piece: Piece, offsets: Sequence[int]) -> Any:
    try:
        return tensor_at(file, piece.offset, name, offsets)
    except OSError:
        raise
    except Exception as error:  # an untrusted header may raise anything
        raise Corrupt(f"import {path}: found {type(error).__name__} in {name!r}: "
                      f"{str(error)[:500]}") from None


def _objects_of(folder: str, metadata: DcpMetadata) -> tuple[dict[str, Any], list[str]]:
    """Returns the objects that can be imported, encoded, and the problems of the others."""
    loaded: dict[str, Any] = {}
    refused: list[str] = []
    for name, piece in metadata.objects.items():
        try:
            loaded |= encode_objects({name: _load(folder, name, piece)})
        except Unsupported as error:
            refused.append(str(error).removeprefix("import "))
        except (TypeError, InvalidArgument) as error:
            refused.append(str(error).removeprefix("1 of 1 objects: "))
    return loaded, refused


def _all_objects_of(folder: str, metadata: DcpMetadata) -> dict[str, Any]:
    """Returns all objects, encoded. Raises one Unsupported for those that cannot be imported."""
    loaded, refused = _objects_of(folder, metadata)
    _refuse(folder, refused)
    return loaded


def _refuse(folder: str, wrong: list[str]) -> None:
    if wrong:
        rest = f", and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise Unsupported(f"import {folder}: {'; '.join(wrong[:10])}{rest}: "
                          "names= or --exclude takes tensors without them")


def _refuse_bomb(data: bytes) -> None:
    """Raises ValueError for compressed members, which torch never writes but would inflate to any size."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        inflated = sum(member.file_size for member in archive.infolist())
    if inflated > len(data):
        raise ValueError(f"{inflated} bytes in an archive of {len(data)}")


def _known(metadata: DcpMetadata) -> tuple[dict[str, str], list[str]]:
    """Returns our name of the dtype of each tensor, by name, and the problem of each dtype that we lack."""
    from .._arrays.torch_tensors import name_of_dtype

    known: dict[str, str] = {}
    wrong: list[str] = []
    for name, stored in metadata.tensors.items():
        try:
            known[name] = name_of_dtype(_plain(stored.dtype), name)
        except Unsupported as error:
            wrong.append(str(error))
    return known, wrong


def _plain(dtype: Any) -> Any:
    """Returns uint8 for two floats of 4 bits that share a byte, as with safetensors; else the dtype."""
    import torch

    return torch.uint8 if str(dtype) == "torch.float4_e2m1fn_x2" else dtype


def _chosen(metadata: DcpMetadata, operation: str, names: str | Iterable[str] | None,
            exclude: Sequence[str]) -> DcpMetadata:
    """Returns the metadata of the selected tensors only; all of it without names."""
    if names is None and not exclude:
        return metadata
    kept = set(chosen(operation, [*metadata.tensors, *metadata.objects], names, exclude))
    return DcpMetadata({name: stored for name, stored in metadata.tensors.items() if name in kept})


def described(folder: str) -> list[tuple[str, str, list[int]]]:
    """Returns the name, dtype and shape of each tensor from the metadata alone; a dtype that we lack has
    torch's name. Raises the errors of import_dcp()."""
    metadata = read_metadata(folder)
    known, _ = _known(metadata)
    return [(name, known.get(name, str(stored.dtype)), list(stored.shape))
            for name, stored in metadata.tensors.items()]


def import_dcp(source: Path, target: Path, *, existing: Existing = "fail", codec: Codec = "zstd",
               progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Imports a checkpoint of torch.distributed.checkpoint (of its FileSystemWriter) as a checkpoint. Returns
    its path. Needs torch, but no process group. Objects are loaded with weights_only=True. Pieces pass
    through host memory, 256 MiB or one piece at a time, and each time become a shard file. names: patterns,
    as in open(), which select tensors; with patterns, objects are left out. Raises NotFound, Corrupt,
    Unsupported, AlreadyExists, IOFailed, and InvalidArgument if tensors contradict the metadata."""
    return imported(source, target, existing, codec, progress, names, ())


def imported(source: Path, target: Path, existing: Existing, codec: Codec, progress: Progress,
             names: str | Iterable[str] | None, exclude: Sequence[str]) -> str:
    """Runs import_dcp() without the names that match a pattern of `exclude`."""
    check_choice("existing", existing, ("fail", "replace", "skip"))
    check_codec(codec)
    path = local_or_bucket(target, "import")
    if existing == "skip" and _core.is_saved(path):
        return path
    folder = local(source, "import")
    with content_in_error(folder):
        whole = read_metadata(folder)
    metadata = _chosen(whole, f"import {folder}", names, exclude)
    dtypes, wrong_dtypes = _known(metadata)
    _refuse(folder, wrong_dtypes)
    plan = _plan_of(metadata, _all_objects_of(folder, metadata))
    groups = list(_groups_of(metadata))
    tell = function_of(progress, f"import {os.path.basename(folder)}")
    total, done = sum(group.bytes for group in groups), 0
    wrong: list[str] = []

    def sources_of(number: int) -> Sources:
        nonlocal done
        sources = _read(folder, metadata, dtypes, groups[number], wrong)
        for later in groups[number + 1:] if wrong else ():
            _read(folder, metadata, dtypes, later, wrong)
        if wrong:
            raise InvalidArgument(f"import {folder}: {'; '.join(wrong[:10])}, "
                                  "which its metadata does not say")
        done += groups[number].bytes
        if tell is not None and total:
            tell(done, total)
        return sources

    return write_groups(path, len(groups), sources_of, plan.document, existing=existing, codec=codec)


def _plan_of(metadata: DcpMetadata, objects: dict[str, Any]) -> Plan:
    """Returns the plan of the objects."""
    extra = {"paths": {name: encode(path) for name, path in metadata.paths.items()}} if metadata.paths else {}
    return Plan(Sources(), objects, extra=extra)


_Box = tuple[tuple[int, ...], tuple[int, ...], Piece]


@dataclass
class _Group:
    """The pieces that are in memory together, by tensor. A tensor without elements has no pieces."""

    pieces: dict[str, list[_Box]] = field(default_factory=dict)
    bytes: int = 0


def _groups_of(metadata: DcpMetadata) -> Iterator[_Group]:
    group = _Group()
    for name, stored in metadata.tensors.items():
        group.pieces[name] = []
        for offsets, sizes, piece in stored.pieces:
            size = math.prod(sizes) * stored.dtype.itemsize
            if group.bytes and group.bytes + size > _GROUP_BYTES:
                yield group
                group = _Group({name: []})
            group.pieces[name].append((offsets, sizes, piece))
            group.bytes += size
    yield group


def _read(folder: str, metadata: DcpMetadata, dtypes: dict[str, str], group: _Group,
          wrong: list[str]) -> Sources:
    """Returns the pieces of a group, and adds those that contradict the metadata to `wrong`."""
    from .._arrays.torch_tensors import Memory

    sources = Sources()
    for name, pieces in group.pieces.items():
        stored, parts = metadata.tensors[name], []
        for box in pieces:
            try:
                tensor = _tensor_of(folder, name, stored, box)
            except InvalidArgument as error:
                wrong.append(str(error))
                continue
            if tensor.numel() or not tensor.ndim:
                parts.append((box[0], Memory(tensor.contiguous())))
        sources.add(name, dtypes[name], list(stored.shape), parts, listed=True)
    return sources


def _tensor_of(folder: str, name: str, stored: StoredTensor, box: _Box) -> Any:
    """Returns a piece. Raises InvalidArgument if it contradicts the metadata, and the errors of _load()."""
    import torch

    offsets, sizes, piece = box
    tensor = _load(folder, name, piece, offsets)
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise Corrupt(f"import {folder}: found {type(tensor).__name__} at {list(offsets)} of {name!r}, "
                      "needed a tensor")
    if tuple(tensor.shape) != sizes or tensor.dtype != stored.dtype:
        raise InvalidArgument(f"{name!r} at {list(offsets)} is {tensor.dtype} {list(tensor.shape)}")
    return tensor if _plain(tensor.dtype) is tensor.dtype else tensor.view(torch.uint8)


class DcpTensors:
    """Reads a checkpoint of DCP in place for reader_of(): a box reads only the pieces that it needs. Keeps
    the last piece in memory."""

    def __init__(self, folder: str) -> None:
        """Raises the errors of import_dcp(), but puts objects and dtypes that it cannot import into
        `left_out`."""
        self._folder, self._metadata = folder, read_metadata(folder)
        objects, self.left_out = _objects_of(folder, self._metadata)
        known, wrong = _known(self._metadata)
        self.left_out += wrong
        self.tensors = [(name, dtype, list(self._metadata.tensors[name].shape))
                        for name, dtype in sorted(known.items())]
        self.user, self.objects = "{}", _plan_of(self._metadata, objects).document()
        self._last: tuple[Any, Any] = (None, None)

    def read(self, boxes: Iterable[tuple[int, list[int], list[int], int]]) -> None:
        """Fills memory with boxes, each the number of a tensor, the begin and shape of the box, and an
        address."""
        import torch

        for number, begin, shape, address in sorted(boxes):
            name = self.tensors[number][0]
            stored = self._metadata.tensors[name]
            dtype = _plain(stored.dtype)
            size = math.prod(shape) * dtype.itemsize
            memory: Any = (ctypes.c_char * size).from_address(address)
            out = torch.frombuffer(memory, dtype=dtype).reshape(shape)
            needed = [(box, common) for box in stored.pieces
                      if (common := _common(begin, shape, box)) is not None]
            is_filled = torch.zeros(shape, dtype=torch.bool) if len(needed) > 1 else None
            count = 0
            for box, (to, of) in needed:
                if is_filled is not None:
                    if is_filled[to].any():
                        raise Corrupt(f"import {self._folder}: "
                                      f"found pieces of {name!r} that overlap at {list(box[0])}")
                    is_filled[to] = True
                count += out[to].copy_(self._piece(name, stored, box)[of]).numel()
            if count != out.numel():
                raise Corrupt(f"import {self._folder}: found pieces of {count} elements of {name!r}, "
                              f"needed {out.numel()} at {begin}")

    def _piece(self, name: str, stored: StoredTensor, box: _Box) -> Any:
        key, tensor = self._last
        if key != (name, box[0]):
            self._last = (None, None)
            try:
                tensor = _tensor_of(self._folder, name, stored, box)
            except InvalidArgument as error:
                raise Corrupt(f"import {self._folder}: {error}, which its metadata does not say") from None
            self._last = ((name, box[0]), tensor)
        return tensor


def _common(begin: Sequence[int], shape: Sequence[int], box: _Box) -> tuple[Any, Any] | None:
    """Returns the slices of the common elements in the box and in the piece; None if there are no common
    elements."""
    to, of = [], []
    for first, extent, offset, size in zip(begin, shape, box[0], box[1]):
        low, high = max(first, offset), min(first + extent, offset + size)
        if low >= high:
            return None
        to.append(slice(low - first, high - first))
        of.append(slice(low - offset, high - offset))
    return (*to, ...), (*of, ...)
