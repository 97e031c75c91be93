"""Exports to DCP and Orbax by their own packages."""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import _core
from .._checkpoint.edits import Edits
from .._errors import Error, IOFailed, Unsupported
from .._formats.readers import PACKAGES
from .._progress import Progress, function_of
from .export import Export, opened


def export(source: Any, target: str, format: str, *, max_shard: int, existing: str, memory: int,
           progress: Progress, edits: Edits) -> list[str]:
    """Runs export_model() for DCP and Orbax, and returns the files."""
    with opened(source, memory, edits) as checkpoint:
        tell = function_of(progress, f"export {os.path.basename(target)}")
        work = Export(checkpoint, target, max_shard, memory, tell)
        files: list[str] = _core.export_folder(target, format, existing,
                                               lambda folder: write(work, format, folder))
        return files


def write(work: Export, format: str, folder: str) -> None:
    """Fills an empty folder. Raises Unsupported if the package that writes this format is missing."""
    try:
        if format == "dcp":
            from .export_dcp import write_dcp

            return write_dcp(work, folder)
        from .export_orbax import write_orbax

        return write_orbax(work, folder)
    except ImportError as error:
        raise work.refuse(Unsupported,
                          f"found no {error.name} in {sys.executable}, which the format {format} needs: "
                          f"`{sys.executable} -m pip install {PACKAGES[format]}`") from error
    except Error:
        raise
    except OSError as error:
        failed = work.refuse(IOFailed, os.strerror(error.errno) if error.errno else str(error))
        failed.errno = error.errno  # type: ignore[attr-defined]
        raise failed from error
