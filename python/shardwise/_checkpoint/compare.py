"""Differences between checkpoints, and statistics of their tensors. All stream: memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import _core
from .._errors import NotFound
from .._formats.readers import reader_of
from .._paths import Path, instead_of_checkpoint, local
from .._progress import Progress, function_of


class Kind(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass
class TensorDiff:
    """The difference between the tensors of one name. A field that was not compared is None: one side has no
    such tensor, or another shape."""

    name: str
    equal: bool  #: same dtype and shape, and no element differs
    first: Kind | None  #: None: it has no such tensor
    second: Kind | None
    elements: int | None = None  #: of the first
    differing: int | None = None  #: of them; if dtypes differ, their numbers are compared
    max_abs: float | None = None  #: largest |first - second|
    max_rel: float | None = None  #: largest |first - second| / max(|first|, |second|)
    #: most floats of the dtype between the two; None for integers and if dtypes differ
    max_ulp: int | None = None
    nan: tuple[int, int] | None = None  #: NaNs of the two among the elements that were read
    at: tuple[int, ...] | None = None  #: global index of the first that differs; None: none does
    values: tuple[str, str] | None = None  #: the elements of the two at that index


@dataclass
class DiffReport:
    """The result of diff()."""

    equal: bool
    compared_bytes: int  #: of the first, read and compared
    skipped_bytes: int  #: of the first; the hashes of chunks said that they are equal
    tensors: list[TensorDiff] = field(default_factory=list)  #: of all names, sorted


@dataclass
class Histogram:
    """Counts of bars of equal width from low to high; both ends are None if no number is finite."""

    low: float | None
    high: float | None
    counts: list[int]


@dataclass
class TensorStats:
    """Statistics of the elements of a tensor; a complex number counts by its modulus. min, max, mean and std
    cover the numbers that are neither NaN nor infinite, and are None without any. min and max of integers are
    exact."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    min: int | float | None
    max: int | float | None
    mean: float | None
    std: float | None
    nan: int
    infinities: int
    zeros: int
    histogram: Histogram | None = None


def _place(path: Path, what: str) -> tuple[str, bool, _core.Reader | None]:
    """Returns a path as text, whether its format is one that import_model() takes, and its reader if Python
    reads it. Raises NotFound that describes the content if it is no checkpoint."""
    text = local(path, what)
    if os.path.isfile(text) or _core.model_format(text):
        return text, True, None
    if os.path.exists(os.path.join(text, "manifest.json")):
        return text, False, None
    if reader := reader_of(text):
        return text, False, reader
    if instead := instead_of_checkpoint(text):
        raise NotFound(f"{what} {text}: {instead}")
    return text, False, None


def diff(first: Path, second: Path, *, atol: float = 0.0, rtol: float = 0.0, memory: int = 128 << 20,
         threads: int = 0, progress: Progress = None) -> DiffReport:
    """Compares the tensors of two checkpoints, or of other formats that open() takes: safetensors, HDF5, npz,
    DCP, Orbax.

    Elements are equal if |first - second| <= atol + rtol * |second|, or if both are NaN; with both 0, if
    their bits are equal. Chunks of two checkpoints are not read if their hashes are equal. Objects are not
    compared, and second names of tied tensors are skipped. memory: most host bytes. Raises NotFound, Corrupt,
    Unsupported, and InvalidArgument for negative tolerances.
    """
    equal, compared, skipped, tensors = _core.diff(_place(first, "diff"), _place(second, "diff"), atol, rtol,
                                                   memory, threads, function_of(progress, "diff"))
    found = []
    for name, same, one, other, *rest in tensors:
        found.append(TensorDiff(name, same, one and Kind(*one), other and Kind(*other), *rest))
    return DiffReport(equal, compared, skipped, found)


def stats(path: Path, names: str | Iterable[str] | None = None, *, histogram: int = 0, threads: int = 0,
          progress: Progress = None) -> dict[str, TensorStats]:
    """Returns range, mean, deviation, NaNs, infinities and zeros of tensors by name, of a checkpoint or
    another format that diff() takes. names: patterns, as "layers/*". histogram: number of bars; with any, all
    is read twice. Raises NotFound, NameNotFound for a pattern that matches nothing, Corrupt, Unsupported."""
    patterns = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not patterns:
        return {}
    rows = _core.stats(_place(path, "stats"), patterns, histogram, threads, function_of(progress, "stats"))
    found = {}
    for name, *fields, bars in rows:
        found[name] = TensorStats(name, *fields)
        found[name].histogram = Histogram(*bars) if bars else None
    return found
