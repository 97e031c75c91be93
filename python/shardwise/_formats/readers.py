"""Opens DCP and Orbax in place, formats that only packages of Python read."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from .. import _core
from .._arrays.arrays import MEMORY
from .._errors import Error, NotFound, Unsupported

PACKAGES = {"dcp": "torch", "orbax": "orbax-checkpoint"}
"""The name for pip of the package that reads and writes each format."""


def reader_of(path: str, memory: int = MEMORY) -> _core.Reader | None:
    """Returns a reader of a path; None if the format needs no package of Python. Raises NotFound for a folder
    of several checkpoints, Unsupported without the package, and the errors of the readers."""
    if os.path.exists(os.path.join(path, "manifest.json")) or not os.path.isdir(path):
        return None
    format, what, steps = _core.known_format(path)
    if format not in PACKAGES:
        return None
    if steps:
        raise NotFound(f"open {path}: found {what}: needed is one of them, "
                       f"the newest is {os.path.join(path, steps[-1])!r}")
    with _errors(format, path):
        tensors: Any
        if format == "dcp":
            from .dcp import DcpTensors

            tensors = DcpTensors(path)
        else:
            from .orbax import OrbaxTensors

            tensors = OrbaxTensors(path)

    def read(boxes: list[tuple[int, list[int], list[int], int]]) -> None:
        with _errors(format, path):
            tensors.read(boxes)

    return _core.Reader.of(path, tensors.tensors, read, tensors.user, tensors.objects, tensors.left_out,
                           memory)


@contextlib.contextmanager
def _errors(format: str, path: str) -> Iterator[None]:
    """Turns errors of an import into errors of a read."""
    try:
        yield
    except ImportError as error:
        raise Unsupported(f"open {path}: found no {error.name} in {sys.executable}, which this format needs: "
                          f"`{sys.executable} -m pip install {PACKAGES[format]}`") from error
    except Error as error:
        text = str(error)
        raise type(error)(f"open {text.removeprefix('import ')}" if text.startswith("import ")
                          else text) from error
