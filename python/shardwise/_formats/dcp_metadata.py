"""Reads the `.metadata` of torch.distributed.checkpoint's own format, which is a pickle, as data.

It imports only torch's dtypes, and a few types that cannot be changed; every other name in the pickle gets a
stand-in, which is dropped after the read. So the pickle cannot run anything, and attributes that it sets on a
class are set on a stand-in that nobody else has.
"""

from __future__ import annotations

import collections
import math
import os
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import IO, Any

from .._errors import Corrupt, Error, NotFound, Unsupported
from .folder_files import open_inside

_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata",
                                   "ChunkStorageMetadata", "MetadataIndex", "StorageMeta")
} | {("torch.distributed.checkpoint.filesystem", name)
     for name in ("_StorageInfo", "_StoragePrefix", "StorageMeta")}


@dataclass(frozen=True)
class Piece:
    """The file and range of the bytes of a tensor's box, or of an object."""

    file: str  # a name in the checkpoint's folder
    offset: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and its pieces: (offsets, sizes, piece)."""

    dtype: Any  # a dtype of torch
    shape: tuple[int, ...]
    pieces: list[tuple[tuple[int, ...], tuple[int, ...], Piece]]


@dataclass
class DcpMetadata:
    """The content of a checkpoint of DCP, in the order of its metadata."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    objects: dict[str, Piece] = field(default_factory=dict)
    paths: dict[str, list[Any]] = field(default_factory=dict)  #: the path of each name in the tree


def read_metadata(folder: str) -> DcpMetadata:
    """Reads the metadata of a folder. Raises NotFound if there is no metadata, Corrupt, Unsupported."""
    path = os.path.join(folder, ".metadata")
    try:
        with open_inside(folder, ".metadata") as file:
            return _parsed(_unpickler(file).load())
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"import {folder}: there is no .metadata, so it is no checkpoint of DCP's, "
                       "or one that was not completed") from None
    except Error as error:
        raise type(error)(f"import {path}: {error}" if path not in str(error) else str(error)) from None
    except OSError:
        raise
    except Exception as error:  # a pickle may raise anything
        raise Corrupt(f"import {path}: found {type(error).__name__}: {error}, "
                      "needed DCP's metadata") from None


def _unpickler(file: IO[bytes]) -> Any:
    import torch

    class Record:
        """A stand-in for an object of DCP, with the attributes that the pickle sets."""

        def __init__(self, *values: Any) -> None:
            pass

    class Properties(Record):
        """A stand-in for TensorProperties, whose state begins with the dtype."""

        def __setstate__(self, state: Any) -> None:
            self.dtype = state[0] if isinstance(state, tuple) else state["dtype"]

    class MemoryFormat:
        """A stand-in for an enum whose values are not needed."""

        def __init__(self, *values: Any) -> None:
            pass

    def layout(name: Any) -> Any:
        return name

    def path(*parts: Any) -> str:
        return "/".join(map(_text, parts))

    def member(kind: Any, name: Any) -> Any:  # Python 3.11 pickles the members of an enum so
        if kind is not MemoryFormat:
            raise Unsupported(f"found getattr of {type(kind).__name__}, needed a member of DCP's enum: "
                              "it is not loaded")
        return name

    stands: dict[tuple[str, str], Any] = {name: type(name[1], (Record,), {}) for name in _RECORDS}
    stands |= {(_METADATA, "TensorProperties"): Properties, (_METADATA, "_MEM_FORMAT_ENCODING"): MemoryFormat,
               ("torch.serialization", "_get_layout"): layout,
               ("builtins", "getattr"): member, ("torch", "strided"): "strided"}
    stands |= {("pathlib", name): path
               for name in ("PosixPath", "PurePosixPath", "Path", "WindowsPath", "PureWindowsPath")}
    def checked(keys: Iterable[Any]) -> None:
        """Refuses tuples as keys. A tuple of a few bytes that holds a tuple twice, which holds a tuple twice,
        and so on, takes for ever to hash."""
        for key in keys:
            if not isinstance(key, (str, int, Record)):
                raise Corrupt(f"found a key that is {type(key).__name__}, needed a text, "
                              "a number or an index")

    def made_set(items: Any = ()) -> set[Any]:
        kept = list(items)
        checked(kept)
        return set(kept)

    def ordered(items: Any = ()) -> Any:
        kept = list(items)
        checked(key for key, _ in kept)
        return collections.OrderedDict(kept)

    stands |= {("builtins", "set"): made_set, ("builtins", "frozenset"): made_set,
               ("collections", "OrderedDict"): ordered}
    # The attributes of these C types cannot be set.
    kinds = {("torch", "Size"): torch.Size, ("torch", "device"): torch.device}

    # Python's unpickler, as that in C allocates memory for any number of objects that four bytes claim.
    class Unpickler(pickle._Unpickler):
        dispatch = dict(pickle._Unpickler.dispatch)

        def find_class(self, module: str, name: str) -> Any:
            kind = stands.get((module, name), kinds.get((module, name)))
            if kind is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                kind = getattr(torch, name)
            if kind is None:
                raise Unsupported(f"found the name {module}.{name}, needed one of DCP's own: "
                                  "it is not loaded")
            return kind

    def first_checked(code: bytes, keys: Callable[[list[Any]], list[Any]]) -> None:
        load = Unpickler.dispatch[code[0]]

        def run(self: Any) -> None:
            checked(keys(self.stack))
            load(self)

        Unpickler.dispatch[code[0]] = run

    first_checked(pickle.SETITEM, lambda stack: stack[-2:-1])
    for code in (pickle.SETITEMS, pickle.DICT):
        first_checked(code, lambda stack: stack[::2])
    for code in (pickle.ADDITEMS, pickle.FROZENSET):
        first_checked(code, lambda stack: stack)
    return Unpickler(file)


def _parsed(metadata: Any) -> DcpMetadata:
    pieces: dict[tuple[str, tuple[int, ...] | None], Piece] = {}
    for index, info in metadata.storage_data.items():
        offset = getattr(index, "offset", None)
        pieces[_text(index.fqn), None if offset is None else _ints(offset, "offset")] = _piece(info)
    parsed = DcpMetadata()
    for name, entry in metadata.state_dict_metadata.items():
        if type(entry).__name__ != "TensorStorageMetadata":
            parsed.objects[_text(name)] = _found(pieces, name, None)
            continue
        stored = StoredTensor(_dtype(entry.properties), _ints(entry.size, "size"),
                              [(_ints(c.offsets, "offsets"), _ints(c.sizes, "sizes"),
                                _found(pieces, name, tuple(c.offsets))) for c in entry.chunks])
        _check_sizes(name, stored)
        parsed.tensors[_text(name)] = stored
    for name, path in (getattr(metadata, "planner_data", None) or {}).items():
        if not all(isinstance(part, (str, int)) for part in path):
            raise Corrupt(f"found the path {short(path)} of {name!r}, needed names and numbers")
        parsed.paths[_text(name)] = list(path)
    return parsed


def _check_sizes(name: str, stored: StoredTensor) -> None:
    for offsets, sizes, piece in stored.pieces:
        needed = math.prod(sizes) * stored.dtype.itemsize
        if needed > piece.length:
            raise Corrupt(f"found {piece.length} bytes of {name!r} at {list(offsets)}, "
                          f"needed {needed} for {list(sizes)}")
    found, needed = sum(math.prod(sizes) for _, sizes, _ in stored.pieces), math.prod(stored.shape)
    if found != needed:
        raise Corrupt(f"found pieces of {found} elements for {name!r}, "
                      f"needed {needed} for {list(stored.shape)}")


def _found(pieces: dict[tuple[str, tuple[int, ...] | None], Piece], name: str,
           offsets: tuple[int, ...] | None) -> Piece:
    piece = pieces.get((name, offsets))
    if piece is None:
        where = "" if offsets is None else f" at {list(offsets)}"
        raise Corrupt(f"found no place of {name!r}{where}, needed a file for each piece")
    return piece


def _dtype(properties: Any) -> Any:
    import torch

    dtype = properties.dtype
    if not isinstance(dtype, torch.dtype):
        raise Corrupt(f"found the dtype {short(dtype)}, needed one of torch's")
    return dtype


def _piece(info: Any) -> Piece:
    file = _text(info.relative_path)
    if os.path.basename(file) != file or file in ("", ".", ".."):
        raise Corrupt(f"found a piece in {file!r}, needed a file in the folder itself")
    if getattr(info, "transform_descriptors", None):
        raise Unsupported(f"found the transformations {short(info.transform_descriptors)} of {file!r}, "
                          "needed none")
    offset, length = _ints((info.offset, info.length), "place")
    return Piece(file, offset, length)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Corrupt(f"found {short(value)}, needed a text")
    return value


def _ints(values: Any, what: str) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
        raise Corrupt(f"found the {what} {short(numbers)}, needed numbers that are not negative")
    return numbers
