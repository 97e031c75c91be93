"""Compares checkpoints, and computes statistics of their tensors, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from .. import _core
from .._core import DiffReport, TensorStats
from .._errors import NotFound
from .._formats.readers import reader_of
from .._paths import Path, content_of, local
from .._progress import Progress, function_of


class Kind(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


def _place(path: Path, what: str) -> tuple[str, bool, _core.Reader | None]:
    """Returns a path as text, whether import_model() takes its format, and its reader if Python reads it.
    Raises NotFound with a description of the content if the path is no checkpoint."""
    text = local(path, what)
    if os.path.isfile(text) or _core.model_format(text):
        return text, True, None
    if os.path.exists(os.path.join(text, "manifest.json")):
        return text, False, None
    if reader := reader_of(text):
        return text, False, reader
    if content := content_of(text):
        raise NotFound(f"{what} {text}: {content}")
    return text, False, None


def diff(first: Path, second: Path, *, atol: float = 0.0, rtol: float = 0.0, memory: int = 128 << 20,
         threads: int = 0, progress: Progress = None) -> DiffReport:
    """Compares the tensors of two checkpoints, or of other formats that open() takes: safetensors, HDF5, npz,
    DCP, Orbax.

    Elements are equal if |first - second| <= atol + rtol * |second|, or if both are NaN. If both tolerances
    are 0, elements are equal if their bits are. Chunks with equal hashes are not read. Objects are not
    compared, and second names of tied tensors are skipped. memory: the most host bytes. Raises NotFound,
    Corrupt, Unsupported, and InvalidArgument for negative tolerances.
    """
    return _core.diff(_place(first, "diff"), _place(second, "diff"), atol, rtol, memory, threads,
                      function_of(progress, "diff"))


def stats(path: Path, names: str | Iterable[str] | None = None, *, histogram: int = 0, threads: int = 0,
          progress: Progress = None) -> dict[str, TensorStats]:
    """Returns range, mean, deviation, and counts of NaNs, infinities and zeros of tensors by name, for a
    checkpoint or another format that diff() takes. names: patterns, as "layers/*". histogram: the number of
    bars; if it is not 0, all data is read twice. Raises NotFound, NameNotFound for a pattern that matches
    nothing, Corrupt, Unsupported."""
    patterns = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not patterns:
        return {}
    tensors = _core.stats(_place(path, "stats"), patterns, histogram, threads, function_of(progress, "stats"))
    return {tensor.name: tensor for tensor in tensors}
