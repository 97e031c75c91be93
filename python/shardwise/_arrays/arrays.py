"""Gives arrays to `_core` as addresses of memory, with the objects that keep the memory alive."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Literal, Mapping, Sequence

import numpy as np

from .. import _core
from .._dtypes import is_masked, name_of
from .._errors import Corrupt, Error, InvalidArgument, ResourceExhausted, WrongType
from .._paths import Path as Path
from .._trees.nested import Flat, build, flatten, names_of
from .._trees.objects import is_text

Codec = Literal["zstd", "none", "auto"]
Existing = Literal["fail", "replace", "skip"]

MEMORY = 256 << 20
"""The most host bytes that a save or read holds in addition to the arrays, by default."""


class Sources:
    """The tensors of a save. Keeps their memory alive."""

    def __init__(self) -> None:
        self.list: list[_core.Source] = []
        self._kept: list[Any] = []

    def add(self, name: str, dtype: str, shape: Sequence[int], parts: Iterable[tuple[Sequence[int], Any]],
            **how: Any) -> None:
        """Adds a tensor by its parts in this process, each as its begin and an array whose items have the
        size of the dtype. how: mesh, spec, policy, or listed=True to write exactly these parts."""
        if not is_text(name):
            raise InvalidArgument(f"tensor {name!r} has a name with a lone surrogate: "
                                  "needed is one that UTF-8 can hold")
        arguments = []
        for begin, array in parts:
            self._kept.append(array)
            arguments.append((list(begin), list(array.shape), array.__array_interface__["data"][0],
                              list(array.strides)))
        self.list.append(_core.Source(name, dtype, list(shape), arguments, **how))

    def add_array(self, name: str, array: Any, **how: Any) -> None:
        """Adds a whole array of any strides and byte order."""
        array = as_array(name, array)
        self.add(name, name_of(array.dtype, name), array.shape, [((0,) * array.ndim, array)], **how)


def as_array(name: str, value: Any) -> np.ndarray:
    """Returns a numpy array in this machine's byte order. Raises WrongType if the value cannot be stored as
    one."""
    if not isinstance(name, str):
        raise WrongType(f"tensor names are str, not {type(name).__name__}")
    if is_masked(value):
        raise WrongType(f"tensor {name!r} is a masked array, whose mask would be lost: "
                        "needed are its data and its mask, each by a name of its own, or .filled(value)")
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError) as error:  # torch's bfloat16, tensors on a GPU or with a gradient
        raise WrongType(f"tensor {name!r} is {type(value).__module__}.{type(value).__qualname__}, "
                        f"which numpy does not take: {error}; "
                        "shardwise.torch.save() takes torch's tensors") from None
    if array.dtype.kind in "OUSMmV" and array.dtype.type.__module__ == "numpy":
        raise WrongType(f"tensor {name!r} is {type(value).__name__} of dtype {array.dtype}: "
                        f"needed is an array of numbers: {_conversion_advice(array.dtype)}")
    name_of(array.dtype, name)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _conversion_advice(dtype: np.dtype) -> str:
    """Returns advice on a conversion for an array without numbers."""
    if dtype.names:
        return "write {field: array[field] for field in array.dtype.names}"
    if dtype.kind in "Mm":
        return f'write array.view("i8"), and back with .view("{dtype.str}")'
    if dtype.kind == "V":
        return 'write array.view("u1")'
    return "write array.tolist(), a list, which is stored as an object" + (
        ", or array.astype(float), if it holds numbers" if dtype.kind == "O" else "")


class Faults:
    """Collects the errors of values that cannot be stored, to raise one error that names all."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    def trying(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the function's result; None if it raises an error, which check() then raises."""
        try:
            return function(*arguments)
        except (TypeError, Error) as error:
            self._errors.append(error)
            return None

    def check(self) -> None:
        """Raises one error for all collected errors, if any, of the class that they share, else a
        WrongType."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            kinds = {type(error) for error in self._errors}
            few = "; ".join(map(str, self._errors[:20])) + (", ..." if len(self._errors) > 20 else "")
            raise (kinds.pop() if len(kinds) == 1 else WrongType)(
                f"{len(self._errors)} values cannot be stored: {few}")


def is_array(value: Any) -> bool:
    """Returns True if a value is stored as a tensor, as arrays and scalars of numpy are."""
    if isinstance(value, (np.character, np.datetime64, np.timedelta64, type)):
        return False
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype"))


def flattened(tensors: Mapping[str, Any]) -> Flat:
    """Returns the arrays and plain objects of a mapping by path, and takes apart dicts, lists and tuples that
    hold arrays. Raises WrongType for names that are not str."""
    if not isinstance(tensors, Mapping):
        raise WrongType(f"found {type(tensors).__module__}.{type(tensors).__qualname__}, "
                        "needed is a dict of arrays and objects by name")
    flat = Flat()
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise WrongType(f"tensor names are str, not {type(name).__name__}: {name!r}")
        flatten(value, is_array, (name,), into=flat)
    return flat


def copied(tensors: Mapping[str, Any], pool: dict[str, np.ndarray]) -> Any:
    """Returns the mapping with copies of its arrays. `pool` keeps their memory, which the next call reuses if
    it fits."""
    flat = flattened(tensors)
    names = names_of(flat.leaves, "/")
    copies = snapshot({names[path]: leaf for path, leaf in flat.leaves.items()
                       if is_array(leaf) and not isinstance(leaf, np.generic)}, pool)
    return build({path: copies.get(names[path], leaf) for path, leaf in flat.leaves.items()}, flat.kinds)


def snapshot(arrays: Mapping[str, Any], pool: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies of the arrays. `pool` keeps their memory, which the next call reuses if it fits."""
    copies: dict[str, np.ndarray] = {}
    faults = Faults()
    checked = {name: faults.trying(as_array, name, value) for name, value in arrays.items()}
    faults.check()
    for name, array in checked.items():
        copy = pool.get(name)
        if copy is None or copy.shape != array.shape or copy.dtype != array.dtype:
            copy = np.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        copies[name] = copy
    pool.clear()
    pool.update(copies)
    return copies


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{what} is {value!r}, needed is {' or '.join(map(repr, choices))}")


#: Options of other libraries and of the command, by the text to write for our option.
_ALIKE = {
    'cast="bf16"': ("dtype", "torch_dtype"),
    "names": ("select", "exclude", "keys", "only", "include", "patterns", "filter", "tensors"),
    'existing="replace"': ("overwrite", "force", "replace", "exist_ok"),
    'existing="skip"': ("skip_existing",), 'rename={"PREFIX*": "*"}': ("strip_prefix", "prefix"),
    "rename": ("rename_keys", "key_mapping", "mapping"),
    "max_shard": ("max_shard_size", "shard_size"), "codec": ("compression", "compress", "compressor"),
    "threads": ("num_threads", "workers", "num_workers", "jobs", "concurrency", "thread_count"),
    "memory": ("memory_budget", "max_memory", "memory_limit"), "resize": ("pad",), "rules": ("spec", "specs"),
    "target": ("dest", "output", "out", "destination", "like"),
    "root": ("dest", "output", "out", "destination"), "user": ("extra", "custom_metadata"),
    "strict": ("partial",), "progress": ("progress_bar", "callback", "verbose"),
}


def unknown_option(what: str, name: str, known: Sequence[str], others: Mapping[str, str]) -> WrongType:
    """Returns the error for an unknown option, with the option to write. others: our options by the names in
    other libraries."""
    import difflib

    nearest = difflib.get_close_matches(name, known, 1)
    alike = [ours for ours, theirs in _ALIKE.items() if name in theirs and ours.partition("=")[0] in known]
    if name not in others and alike:
        others = {name: alike[0] if "=" in alike[0] else f"{alike[0]}="}
    hint = (f"needed {others[name]}" if name in others else
            f"did you mean {nearest[0]}=?" if nearest else f"needed one of {', '.join(known)}")
    return WrongType(f"{what}: found the unknown option {name!r}, {hint}")


def refuse_unknown(what: str, unknown: Iterable[str], known: Sequence[str],
                   others: Mapping[str, str]) -> None:
    """Raises the error of unknown_option() for the first unknown option."""
    for name in unknown:
        raise unknown_option(what, name, known, others)


#: Parts of a foreign array that are not stored are zeros, so a small file may claim any number of bytes. A
#: codec makes at most the first number of bytes from one; any file may claim the second number of zeros.
_MOST_BYTES_OF_ONE, _MOST_ZEROS = 40_000, 64 << 30


def check_claim(what: str, claimed: int, stored: int) -> None:
    """Raises Corrupt if files of `stored` bytes cannot hold `claimed` bytes, ResourceExhausted if memory
    cannot."""
    if claimed > max(_MOST_ZEROS, _MOST_BYTES_OF_ONE * stored):
        raise Corrupt(f"{what}: {claimed} bytes, found {stored} bytes in all files, which cannot hold them")
    check_fits_memory(what, claimed)


def check_fits_memory(what: str, claimed: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if claimed > memory:
        raise ResourceExhausted(f"{what}: {claimed} bytes, which are read at once, "
                                f"found {memory} bytes of memory")


def check_codec(codec: str) -> None:
    """Raises InvalidArgument for a codec that a save does not take."""
    check_choice("codec", codec, ("zstd", "none", "auto"))
