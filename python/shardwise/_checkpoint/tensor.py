"""Shows an open checkpoint as a mapping of lazy tensors."""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .. import _core
from .._arrays.arrays import MEMORY
from .._arrays.boxes import Boxes, aligned_empty, many_empty, read_boxes
from .._arrays.overlap import Region, several_places
from .._dtypes import NUMPY, is_known
from .._errors import InvalidArgument, NameNotFound, Unsupported, WrongType, warn
from .._foreign_names import no_attribute
from .._formats.readers import reader_of
from .._paths import Path, local_or_bucket, content_in_error
from .._trees import nested as _nested, objects as _objects
from .edits import Cast, EditedName, Edits, Join, Rename, Resize, Split, Transpose, edited_document, edits_of


# An index with a step is read row by row up to this many boxes; beyond, all rows between are read too.
_MOST_BOXES = 1 << 16


class Selection:
    """A basic index as the box that it touches and the indexing of that box after the read."""

    def __init__(self, tensor: Tensor, index: Any) -> None:
        index = index if isinstance(index, tuple) else (index,)
        ellipses = sum(i is Ellipsis for i in index)
        if ellipses > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        if len(index) - ellipses > tensor.ndim:
            raise IndexError(f"too many indices: {tensor.name} has {tensor.ndim} dims, "
                             f"{len(index) - ellipses} were given")
        if ellipses:
            at = next(k for k, i in enumerate(index) if i is Ellipsis)
            index = (*index[:at], *[slice(None)] * (tensor.ndim - len(index) + 1), *index[at + 1 :])
        index = (*index, *[slice(None)] * (tensor.ndim - len(index)))
        self.ranges: list[range] = []
        self.dropped: list[bool] = []
        for dim, (i, extent) in enumerate(zip(index, tensor.shape)):
            if isinstance(i, slice):
                self.ranges.append(range(*i.indices(extent)))
                self.dropped.append(False)
            elif hasattr(i, "__index__") and not isinstance(i, (bool, np.bool_)) and np.ndim(i) == 0:
                number = i.__index__()
                if not -extent <= number < extent:
                    raise IndexError(f"index {number} is out of bounds for dim {dim} of {tensor.name}, "
                                     f"whose extent is {extent}")
                self.ranges.append(range(number % extent, number % extent + 1))
                self.dropped.append(True)
            else:
                raise WrongType(f"{tensor.name} is indexed by integers, slices and '...', "
                                f"not {type(i).__name__}: read it (np.asarray) and index the array")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(r) for r, dropped in zip(self.ranges, self.dropped) if not dropped)

    @property
    def is_box(self) -> bool:
        return all(r.step == 1 or len(r) <= 1 for r in self.ranges)

    def read(self, tensor: Tensor) -> np.ndarray:
        boxes: Boxes = []
        finish = self.add(tensor, boxes)
        read_boxes(tensor.reader, boxes)
        return finish()

    def add(self, tensor: Tensor, boxes: Boxes) -> Callable[[], np.ndarray]:
        """Adds the boxes to read. Returns a function that makes the result once they are read."""
        full = [len(r) for r in self.ranges]
        if 0 in full:
            return lambda: np.empty(self.shape, NUMPY[tensor.dtype_name])
        split = self._split()
        # Dims before `split` are read index by index, the others as one box that covers all their indices.
        covers = [range(min(r[0], r[-1]), max(r[0], r[-1]) + 1) for r in self.ranges[split:]]
        out = aligned_empty([*full[:split], *[len(r) for r in covers]], NUMPY[tensor.dtype_name])
        begins = [r.start for r in covers]
        for at in np.ndindex(*full[:split]):
            begin = [r[i] for r, i in zip(self.ranges, at)] + begins
            part = out[at] if at else out
            boxes.append((tensor.number, begin, part.reshape((1,) * split + out.shape[split:])))
        return lambda: out[tuple(self._after(split, covers))]

    def _split(self) -> int:
        stepped = [d for d, r in enumerate(self.ranges[:-1]) if abs(r.step) > 1 and len(r) > 1]
        split = stepped[-1] + 1 if stepped else 0
        return split if math.prod(len(r) for r in self.ranges[:split]) <= _MOST_BOXES else 0

    def _after(self, split: int, covers: list[range]) -> Iterator[Any]:
        for dim, dropped in enumerate(self.dropped):
            if dropped:
                yield 0
            elif dim < split:
                yield slice(None)
            else:
                yield slice(None, None, self.ranges[dim].step)


class Tensor:
    """A tensor of an open checkpoint. Array-like: `np.asarray(t)` and `t[10:20, ::2]` read only the
    chunks that they need. Indices are integers, slices and "..."."""

    __slots__ = ("reader", "number", "name", "dtype_name", "shape", "mesh", "spec", "policy", "stored_bytes",
                 "chunks")

    def __init__(self, reader: _core.Reader, number: int, row: tuple[Any, ...]) -> None:
        self.reader, self.number = reader, number
        self.name: str = row[0]
        self.dtype_name: str = row[1]
        """Shardwise's own name of the dtype: "bf16"."""
        self.shape: tuple[int, ...] = row[2]
        self.mesh: str = row[3]
        """The mesh over which the writer cut the tensor, as text for Mesh(); empty if it is unknown."""
        self.spec: str = row[4]
        self.policy: str = row[5]
        self.stored_bytes: int = row[7]
        self.chunks: int = row[6]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of numpy. Raises Unsupported if it needs the package ml_dtypes and that is missing."""
        return NUMPY[self.dtype_name]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise WrongType("len() of a tensor without dims")
        return self.shape[0]

    def __repr__(self) -> str:
        cut = f" over {self.mesh} as {self.spec}" if self.mesh and set(self.spec) - {"-", ","} else ""
        return f"<shardwise.Tensor {self.name!r} {self.dtype} {list(self.shape)}{cut}>"

    def __getitem__(self, index: Any) -> Any:
        """Reads the indexed elements. Returns a new array, or a scalar of numpy's if every dim has an
        integer."""
        return self._result(Selection(self, index).read(self))

    def _result(self, array: np.ndarray) -> Any:
        """Returns an array that was read as indexing gives it: a scalar if every dim had an integer."""
        return array[()] if array.ndim == 0 and self.ndim > 0 else array

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"tensor {self.name!r} is on the disk: it cannot be had without a copy")
        array: np.ndarray = np.asarray(Selection(self, ...).read(self))
        return array if dtype is None else array.astype(dtype, copy=False)

    def view(self, dtype: Any) -> np.ndarray:
        """Reads the whole tensor, and returns its bytes as another dtype."""
        try:
            kind = np.dtype(dtype)
            return np.asarray(self).view(kind)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"view {self.name!r}: found {dtype!r} for {self.dtype} {list(self.shape)}, "
                                  "needed is a dtype whose size divides the last dim's bytes: "
                                  f"{error}") from None

    def read_into(self, out: np.ndarray, box: Any = ...) -> None:
        """Fills a writable array with the elements of `box`, an index. The array has the tensor's dtype, the
        shape of the box, and any strides. Raises InvalidArgument if it does not."""
        selection = Selection(self, box)
        if not isinstance(out, np.ndarray):
            raise InvalidArgument(f"read_into: for {self.name!r} found "
                                  f"{type(out).__module__}.{type(out).__qualname__}, needed is a numpy array")
        if out.dtype != self.dtype or out.shape != selection.shape:
            raise InvalidArgument(f"read_into: {self.name!r} is {self.dtype} {list(selection.shape)} there, "
                                  f"the array {out.dtype} {list(out.shape)}")
        if not out.flags.writeable:
            raise InvalidArgument(f"read_into: the array for {self.name!r} is read-only")
        if Region.of_array(out, self.dtype_name).overlaps_itself():
            raise InvalidArgument(f"read_into: {several_places(self.name)}")
        if selection.is_box and out.flags.c_contiguous:
            begin = [r.start for r in selection.ranges]
            read_boxes(self.reader, [(self.number, begin, out.reshape([len(r) for r in selection.ranges]))])
        else:
            out[...] = selection.read(self)


#: Names in safetensors, Orbax, DCP and h5py, with ours.
_OTHER_NAMES = {
    "get_tensor": "checkpoint[name][...]", "get_slice": "checkpoint[name], which reads the indexed part",
    "metadata": "user, metrics or tree", "item_metadata": "tree", "attrs": "user", "state_dict": "load()",
    "restore": "load(), or shardwise.load(path, target=)", "read": "load()", "names": "keys()",
    "tensors": "items()", "offset_keys": "keys()", "visit": "keys()", "visititems": "items()"}


class Checkpoint(Mapping[str, Tensor]):
    """An open checkpoint: a mapping from names to lazy tensors. It takes a committed checkpoint, a file of
    safetensors, HDF5 or npz, or a checkpoint of DCP or Orbax. Opening reads no data and needs no mesh.
    Retention does not remove an open checkpoint. It is a context manager, and thread-safe."""

    def __init__(self, path: Path, *, pin: bool = True, threads: int = 0, memory: int = MEMORY,
                 names: str | Iterable[str] | None = None, rename: Rename | None = None,
                 cast: Cast | None = None, transpose: Transpose | None = None, split: Split | None = None,
                 join: Join | None = None, resize: Resize | None = None, partial: bool = False) -> None:
        """names: patterns; other names are left out, as if they were not stored. rename: new names by
        patterns, {"model.*": "*"}; each "*" takes the text that the same "*" of the pattern matched. cast: a
        dtype for all floats, or dtypes by patterns, {"head.*": "f32"}. transpose: orders of dims by patterns,
        {"*.kernel": (1, 0)}. split: parts along a dim, {"*.qkv": "*.q,*.k,*.v@0"}, of equal lengths or of
        those in "@0:8,4,4". join: one tensor of several, {"*.q,*.k,*.v": "*.qkv@0"}. resize:
        {"*embed*": "pad:50304,-"} adds zeros at the end, "slice:50257,-" keeps the beginning, and "-" keeps
        an extent. All rules see the stored names, and the first rule that matches counts. partial: shard
        files may be missing, as in a step of a fast tier; only a read that needs a missing file raises.
        threads: the number of threads that decode a checkpoint; 0: one per core. pin: keeps retention from
        removing the step. The calling thread reads other formats, where pin has no meaning; a read takes
        whole pieces of DCP and whole arrays of Orbax.

        Raises NotFound, Corrupt, Unsupported (also for URLs of other schemes than s3), NameNotFound for
        names that are not there, and one InvalidArgument for all rules that do not fit."""
        text = local_or_bucket(path, "open a checkpoint")
        reader = reader_of(text, memory)
        with content_in_error(text, takes_files=True):
            self._reader = reader or _core.Reader(text, pin, threads, memory, partial)
        self._describe()
        if self._reader.left_out:
            warn(f"open {text}: left out {', '.join(self._reader.left_out)}")
        self._edit_if_asked(names, edits_of(None, rename, cast, transpose, split, join, resize))

    @classmethod
    def _of(cls, reader: _core.Reader, names: str | Iterable[str] | None = None, **edits: Any) -> Checkpoint:
        """Returns a checkpoint over a reader. edits: the options of the constructor."""
        checkpoint = cls.__new__(cls)
        checkpoint._reader = reader
        checkpoint._describe()
        checkpoint._edit_if_asked(names, edits_of(None, **edits))
        return checkpoint

    def _edit_if_asked(self, names: str | Iterable[str] | None, edits: Edits) -> None:
        if names is not None or any(edits):
            self._edit(names, edits)

    def _describe(self) -> None:
        self._rows = self._reader.tensors()  # a Tensor is made at its first use: there may be very many
        self._numbers = {row[0]: number for number, row in enumerate(self._rows)}
        if self._reader.left_out:
            self._numbers = {name: number
                             for name, number in self._numbers.items() if is_known(self._rows[number][1])}
        text = self._reader.objects
        document = json.loads(text) if text else {}
        self._document: dict[str, Any] = document if isinstance(document, dict) else {}
        aliases = self._document.get("aliases", {})
        for alias, name in aliases.items():
            self._numbers[alias] = self._numbers[name]
        self.user: Any = json.loads(self._reader.user)
        """The JSON that save() got."""
        self._is_whole = True
        self.objects: dict[str, Any] = {n: _objects.decode_named(n, v, f"checkpoint {self.path}")
                                        for n, v in self._document.get("objects", {}).items()}
        """Saved values that are not arrays, by name."""

    def _edit(self, names: str | Iterable[str] | None, edits: Edits) -> None:
        wanted = self.select(names)
        numbers = [self._numbers.get(name, -1) for name in wanted]
        edited = self._reader.edit(list(zip(wanted, numbers)), edits)
        select, exclude, renames, _, _, splits, joins, _ = edits
        self._is_whole = names is None and not (select or exclude or renames or splits or joins)
        order = sorted(range(len(edited)), key=lambda number: edited[number][1])  # the order before the edits
        new_names = [EditedName(edited[number][0][0], [wanted[place] for place in edited[number][1]],
                                edited[number][2]) for number in order]
        for name in new_names:
            if not name.is_whole and not self.objects.keys().isdisjoint(name.parts):
                value = next(part for part in name.parts if part in self.objects)
                raise InvalidArgument(f"open {self.path}: join into {name.name!r}: {value!r} is a value of "
                                      f"type {type(self.objects[value]).__name__}, needed are tensors")
        objects = {name.parts[0]: name.name for name in new_names if name.parts[0] in self.objects}
        self._rows = [row for row, *_ in edited]
        # Aliases of one tensor get one number.
        self._numbers = {name.name: edited[number][3]
                         for number, name in zip(order, new_names) if name.parts[0] not in objects}
        self._document = edited_document(self._document, new_names)
        self.objects = {objects[name]: value for name, value in self.objects.items() if name in objects}

    if not TYPE_CHECKING:  # a type checker shall report a missing name
        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _OTHER_NAMES)

    @property
    def path(self) -> str:
        return self._reader.path

    @property
    def step(self) -> int | None:
        """The saved step's number, or else the number in the directory's name; None without either."""
        return None if self._reader.step < 0 else self._reader.step

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that CheckpointManager.save() got."""
        return {name: _objects.decode_named(name, value, f"checkpoint {self.path}")
                for name, value in self._document.get("metrics", {}).items()}

    @property
    def tree(self) -> Any:
        """The structure of a tree that shardwise.jax or shardwise.torch saved; None for other checkpoints."""
        return self._document.get("tree")

    @property
    def paths(self) -> dict[str, tuple[Any, ...]]:
        """The path of each name in the saved tree, in the order of the tree: keys of dicts and indices of
        lists. A name without a stored path is itself the only key."""
        encoded = self._document.get("paths", {})
        there = {name: None for name in (*encoded, *self._numbers, *self.objects) if name in self._numbers
                 or name in self.objects}
        with _objects.refusing(f"checkpoint {self.path}: a path of its tree"):
            return {name: _nested.decoded_path(encoded[name]) if name in encoded else (name,)
                    for name in there}

    @property
    def document(self) -> dict[str, Any]:
        """All stored data except tensors and `user`, not decoded."""
        return self._document

    def __getitem__(self, name: str) -> Tensor:
        return Tensor(self._reader, *self._row(name))

    def _row(self, name: str) -> tuple[int, tuple[Any, ...]]:
        number = self._numbers.get(name)
        if number is None:
            self._refuse(name)
        return number, self._rows[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __repr__(self) -> str:
        size = sum(t.nbytes for t in self.values())
        return f"<shardwise.Checkpoint {self.path!r}: {len(self)} tensors, {size / 2**20:.1f} MiB>"

    def _repr_html_(self) -> str:
        """Returns a table of at most a hundred tensors for notebooks."""
        import html

        rows = [(name, tensor.dtype_name, list(tensor.shape), tensor.spec, f"{tensor.nbytes:,}")
                for name, tensor in itertools.islice(self.items(), 100)]
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
                        for row in rows)
        more = f"<p>and {len(self) - 100:,} more</p>" if len(self) > 100 else ""
        return (f"<p>{html.escape(repr(self))}</p><table><tr><th>name</th><th>dtype</th><th>shape</th>"
                f"<th>spec</th><th>bytes</th></tr>{cells}</table>{more}")

    def _missing(self, name: object) -> str:
        import difflib

        by_small = {n.lower(): n for n in self._numbers}
        below = [n for n in self._numbers if n.startswith((f"{name}/", f"{name}."))]
        near = below[:3] or [by_small[n]
                             for n in difflib.get_close_matches(str(name).lower(), list(by_small), 3)]
        nearest = f", nearest: {', '.join(map(repr, near))}" if near else ""
        return f"checkpoint {self.path}: there is no tensor {name!r}{nearest}"

    def _left_out(self, name: object) -> str:
        """Returns the reason why the reader left out a name; empty if it did not."""
        begins = (f"{json.dumps(str(name), ensure_ascii=False)}: ", f"tensor {name!r} ")
        return next((text for text in self._reader.left_out if text.startswith(begins)), "")

    def _refuse(self, name: object) -> NoReturn:
        if reason := self._left_out(name):
            raise Unsupported(f"checkpoint {self.path}: {reason}")
        raise NameNotFound(self._missing(name))

    def select(self, names: str | Iterable[str] | None) -> list[str]:
        """Returns the names of tensors and objects that match patterns. Raises NameNotFound for a pattern
        without a match."""
        there = [*self._numbers, *self.objects]
        if names is None:
            return there
        if isinstance(names, Mapping):
            raise InvalidArgument(
                f"open {self.path}: names is a {type(names).__name__}, needed are patterns, as 'layers/*'; "
                f"a tree to fill goes to target=, or to shardwise.torch.load() or shardwise.jax.load()")
        chosen: dict[str, None] = {}
        for pattern in [names] if isinstance(names, str) else names:
            found = [pattern] if pattern in self._numbers or pattern in self.objects else [
                n for n in there if fnmatch.fnmatchcase(n, pattern)]
            if not found:
                self._refuse(pattern)
            chosen.update(dict.fromkeys(found))
        return list(chosen)

    def load(self, names: str | Iterable[str] | None = None) -> dict[str, Any]:
        """Returns arrays and objects by name, and reads all tensors in one pass. names: patterns, as
        "layers/*". Without patterns, the result has the dicts, lists and tuples of arrays that
        shardwise.save() got."""
        chosen = self.select(names)
        # A tensor with aliases is read once.
        numbers = list(dict.fromkeys(self._numbers[name] for name in chosen if name in self._numbers))
        arrays, addresses = many_empty([(self._rows[n][2], NUMPY[self._rows[n][1]]) for n in numbers])
        self._reader.read_whole(numbers, addresses)
        read = dict(zip(numbers, arrays))
        found = {name: self.objects[name] if (number := self._numbers.get(name)) is None else read[number]
                 for name in chosen}
        found.update({name: found[name][()] for name, kind in self._document.get("numpy", {}).items()
                      if kind == "scalar" and name in found})
        if names is not None or not self._is_whole or self.tree != {"kind": "nested"}:
            return found
        whole: dict[str, Any] = _nested.build({path: found[name] for name, path in self.paths.items()},
                                              _nested.decoded_kinds(self._document))
        return whole

    def read(self, boxes: Iterable[str | tuple[str, Any]]) -> list[Any]:
        """Reads several boxes at once, and returns an array for each: ["b", ("w", np.s_[10:20, ::2])] names a
        whole tensor, and a tensor with an index. Reads each stored chunk once, even if several boxes need it;
        a tensor that is cast, transposed or joined is read once for each box."""
        targets: Boxes = []
        finish = []
        for box in boxes:
            name, index = (box, ...) if isinstance(box, str) else box
            finish.append((self[name], Selection(self[name], index).add(self[name], targets)))
        read_boxes(self._reader, targets)
        return [tensor._result(result()) for tensor, result in finish]

    def stats(self) -> tuple[int, int, int]:
        """Returns the numbers of chunks read, bytes read from files and bytes decoded by this object so
        far."""
        return self._reader.stats

    def close(self) -> None:
        """Ends the pin. A later read raises."""
        self._reader.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
