"""Differences between checkpoints, and statistics of their tensors. All stream: memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from .. import _core
from .._core import DiffReport, TensorStats
from .._errors import NotFound
from .._formats.readers import reader_of
from .._paths import Path, instead_of_checkpoint, local
from .._progress import Progress, function_of


class Kind(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


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
    return _core.diff(_place(first, "diff"), _place(second, "diff"), atol, rtol, memory, threads,
                      function_of(progress, "diff"))


def stats(path: Path, names: str | Iterable[str] | None = None, *, histogram: int = 0, threads: int = 0,
          progress: Progress = None) -> dict[str, TensorStats]:
    """Returns range, mean, deviation, NaNs, infinities and zeros of tensors by name, of a checkpoint or
    another format that diff() takes. names: patterns, as "layers/*". histogram: number of bars; with any, all
    is read twice. Raises NotFound, NameNotFound for a pattern that matches nothing, Corrupt, Unsupported."""
    patterns = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not patterns:
        return {}
    found = _core.stats(_place(path, "stats"), patterns, histogram, threads, function_of(progress, "stats"))
    return {one.name: one for one in found}
