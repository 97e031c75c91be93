"""Arrays as what `_core` saves: addresses of memory, and who keeps it alive."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Literal, Mapping, Sequence

import numpy as np

from . import _core
from ._dtypes import is_masked, name_of
from ._errors import Corrupt, Error, InvalidArgument, ResourceExhausted, WrongType
from ._nested import Flat, build, flatten, names_of
from ._objects import is_text
from ._paths import Path as Path

Codec = Literal["zstd", "none", "auto"]
Existing = Literal["fail", "replace", "skip"]

MEMORY = 256 << 20
"""Host bytes a save or read holds at most beyond the arrays, unless it is told otherwise."""


class Sources:
    """Tensors to be saved. Keeps their memory."""

    def __init__(self) -> None:
        self.list: list[_core.Source] = []
        self._kept: list[Any] = []

    def add(self, name: str, dtype: str, shape: Sequence[int], parts: Iterable[tuple[Sequence[int], Any]],
            **how: Any) -> None:
        """A tensor of which this process has parts: where each begins, and its elements, an array whose items have the
        size of the dtype's. `how`: mesh, spec, policy, or listed=True if the parts are what is to be written."""
        if not is_text(name):
            raise InvalidArgument(f"tensor {name!r} has a name with a lone surrogate: needed is one that UTF-8 can hold")
        arguments = []
        for begin, array in parts:
            self._kept.append(array)
            arguments.append((list(begin), list(array.shape), array.__array_interface__["data"][0], list(array.strides)))
        self.list.append(_core.Source(name, dtype, list(shape), arguments, **how))

    def add_array(self, name: str, array: Any, **how: Any) -> None:
        """A whole array, of any strides and byte order."""
        array = as_array(name, array)
        self.add(name, name_of(array.dtype, name), array.shape, [((0,) * array.ndim, array)], **how)


def as_array(name: str, value: Any) -> np.ndarray:
    """A numpy array in this machine's byte order. Raises WrongType if the value cannot be stored as one."""
    if not isinstance(name, str):
        raise WrongType(f"tensor names are str, not {type(name).__name__}")
    if is_masked(value):
        raise WrongType(f"tensor {name!r} is a masked array, whose mask would be lost: needed are its data and its mask, each "
                        f"by a name of its own, or .filled(value)")
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError) as error:  # torch's bfloat16, tensors on a GPU or with a gradient
        raise WrongType(f"tensor {name!r} is {type(value).__module__}.{type(value).__qualname__}, which numpy does not take: "
                        f"{error}; shardwise.torch.save() takes torch's tensors") from None
    if array.dtype.kind in "OUSMmV" and array.dtype.type.__module__ == "numpy":
        raise WrongType(f"tensor {name!r} is {type(value).__name__} of dtype {array.dtype}: needed is an array of numbers: "
                        f"{_instead(array.dtype)}")
    name_of(array.dtype, name)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _instead(dtype: np.dtype) -> str:
    """Advice to save something else in place of an array without numbers."""
    if dtype.names:
        return "write {field: array[field] for field in array.dtype.names}"
    if dtype.kind in "Mm":
        return f'write array.view("i8"), and back with .view("{dtype.str}")'
    if dtype.kind == "V":
        return 'write array.view("u1")'
    return "write array.tolist(), a list, which is stored as an object" + (
        ", or array.astype(float), if it holds numbers" if dtype.kind == "O" else "")


class Faults:
    """Collects the errors of values that cannot be stored, for one error that names all."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    def trying(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the function's result, or None if it raises: check() then tells."""
        try:
            return function(*arguments)
        except (TypeError, Error) as error:
            self._errors.append(error)
            return None

    def check(self) -> None:
        """Raises one error: of the class that all have, else a WrongType."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            kinds = {type(error) for error in self._errors}
            few = "; ".join(map(str, self._errors[:20])) + (", ..." if len(self._errors) > 20 else "")
            raise (kinds.pop() if len(kinds) == 1 else WrongType)(f"{len(self._errors)} values cannot be stored: {few}")


def is_array(value: Any) -> bool:
    """Whether it is stored as a tensor: arrays and numpy's scalars."""
    if isinstance(value, (np.character, np.datetime64, np.timedelta64, type)):
        return False  # a str or bytes, and what is no number
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype"))


def flattened(tensors: Mapping[str, Any]) -> Flat:
    """The arrays and plain objects of a mapping of names, in which dicts, lists and tuples that hold arrays are taken
    apart. Raises WrongType for names that are no str."""
    if not isinstance(tensors, Mapping):
        raise WrongType(f"found {type(tensors).__module__}.{type(tensors).__qualname__}, needed is a dict of arrays and objects "
                        f"by name")
    flat = Flat()
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise WrongType(f"tensor names are str, not {type(name).__name__}: {name!r}")
        flatten(value, is_array, (name,), into=flat)
    return flat


def copied(tensors: Mapping[str, Any], pool: dict[str, np.ndarray]) -> Any:
    """The mapping with copies of its arrays, in memory that the last call had if it fits. `pool` keeps it."""
    flat = flattened(tensors)
    names = names_of(flat.leaves, "/")
    copies = snapshot({names[path]: leaf for path, leaf in flat.leaves.items()
                       if is_array(leaf) and not isinstance(leaf, np.generic)}, pool)
    return build({path: copies.get(names[path], leaf) for path, leaf in flat.leaves.items()}, flat.kinds)


def snapshot(arrays: Mapping[str, Any], pool: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies, in memory that the last snapshot had, if it fits. `pool` is what they are kept in."""
    copies: dict[str, np.ndarray] = {}
    faults = Faults()
    checked = {name: faults.trying(as_array, name, value) for name, value in arrays.items()}
    faults.check()
    for name, array in checked.items():
        old = pool.get(name)
        if old is None or old.shape != array.shape or old.dtype != array.dtype:
            old = np.empty(array.shape, array.dtype)
        np.copyto(old, array)
        copies[name] = old
    pool.clear()
    pool.update(copies)
    return copies


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{what} is {value!r}, needed is {' or '.join(map(repr, choices))}")


#: Options of other libraries and of the command by ours, and how ours are written.
_ALIKE = {
    'cast="bf16"': ("dtype", "torch_dtype"), "names": ("select", "exclude", "keys", "only", "include", "patterns", "filter", "tensors"),
    'existing="replace"': ("overwrite", "force", "replace", "exist_ok"), 'existing="skip"': ("skip_existing",),
    'rename={"PREFIX*": "*"}': ("strip_prefix", "prefix"), "rename": ("rename_keys", "key_mapping", "mapping"),
    "max_shard": ("max_shard_size", "shard_size"), "codec": ("compression", "compress", "compressor"),
    "threads": ("num_threads", "workers", "num_workers", "jobs", "concurrency", "thread_count"),
    "memory": ("memory_budget", "max_memory", "memory_limit"), "resize": ("pad",), "rules": ("spec", "specs"),
    "target": ("dest", "output", "out", "destination", "like"), "root": ("dest", "output", "out", "destination"),
    "user": ("extra", "custom_metadata"), "strict": ("partial",), "progress": ("progress_bar", "callback", "verbose"),
}


def unknown_option(what: str, name: str, known: Sequence[str], others: Mapping[str, str]) -> WrongType:
    """The error for an option of another name, which says what ours is called. others: what other libraries call them."""
    import difflib

    nearest = difflib.get_close_matches(name, known, 1)
    alike = [ours for ours, theirs in _ALIKE.items() if name in theirs and ours.partition("=")[0] in known]
    if name not in others and alike:
        others = {name: alike[0] if "=" in alike[0] else f"{alike[0]}="}
    hint = (f"needed {others[name]}" if name in others else
            f"did you mean {nearest[0]}=?" if nearest else f"needed one of {', '.join(known)}")
    return WrongType(f"{what}: found the unknown option {name!r}, {hint}")


def refuse_unknown(what: str, unknown: Iterable[str], known: Sequence[str], others: Mapping[str, str]) -> None:
    """Raises WrongType for the first unknown option, as unknown_option() makes it."""
    for name in unknown:
        raise unknown_option(what, name, known, others)


#: What a foreign array has nowhere may be zeros, of which a small file may name any number. No codec makes more of a byte, and
#: this many bytes of zeros may be there all the same.
_MOST_BYTES_OF_ONE, _MOST_ZEROS = 40_000, 64 << 30


def check_claim(what: str, claimed: int, stored: int) -> None:
    """Raises Corrupt for more bytes than files of so few can hold, ResourceExhausted for more than there is memory."""
    if claimed > max(_MOST_ZEROS, _MOST_BYTES_OF_ONE * stored):
        raise Corrupt(f"{what}: {claimed} bytes, found {stored} bytes in all files, which cannot hold them")
    check_fits_memory(what, claimed)


def check_fits_memory(what: str, claimed: int) -> None:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if claimed > there:
        raise ResourceExhausted(f"{what}: {claimed} bytes, which are read at once, found {there} bytes of memory")


def check_codec(codec: str) -> None:
    """Raises InvalidArgument for none of those that a save takes."""
    check_choice("codec", codec, ("zstd", "none", "auto"))
