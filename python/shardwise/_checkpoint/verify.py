"""Verifies and repairs checkpoints, and writes the parity that a repair uses."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _core
from .._core import ParityStats, RepairReport, VerifyReport
from .._paths import Path, local, local_or_bucket, content_in_error
from .._progress import Progress, function_of


def verify(path: Path, *, threads: int = 0, progress: Progress = None) -> VerifyReport:
    """Reads every chunk that a checkpoint uses, and compares it with its hash. Skips chunks of a linked file
    that only other steps use. Reports damage in the result, without an error. Raises NotFound, Unsupported,
    IOFailed."""
    text = local_or_bucket(path, "verify")
    with content_in_error(text):
        return _core.verify(text, threads, function_of(progress, "verify"))


def repair(path: Path, *, sources: Iterable[Path] = (), threads: int = 0,
           progress: Progress = None) -> RepairReport:
    """Verifies a checkpoint and restores damaged bytes exactly: from the other steps of its folder, from
    sources (copies of it, or folders of steps that have one), and from parity. Writes bytes only if they have
    all hashes of the original bytes. An interrupted repair leaves each chunk and each file either damaged or
    repaired. RepairReport.lost lists the elements that nothing can restore. Raises the errors of verify(),
    and InvalidArgument for a source that has no checkpoint."""
    text = local(path, "repair")
    with content_in_error(text):
        return _core.repair(text, [local(source, "repair") for source in sources], threads,
                            function_of(progress, "repair"))


def write_parity(path: Path, *, blocks: int = 2, threads: int = 0, progress: Progress = None) -> ParityStats:
    """Verifies a checkpoint, and writes a parity file for each of its shard files. repair() can then restore
    any `blocks` blocks (1 to 127) of 1 MiB of a shard file. Parity costs `blocks` / (255 - `blocks`) of the
    bytes, for small files more. Existing parity that fits stays. Raises Corrupt for a damaged checkpoint,
    NotFound, InvalidArgument, IOFailed."""
    text = local(path, "write parity")
    with content_in_error(text):
        return _core.write_parity(text, blocks, threads, function_of(progress, "parity"))


def remove_parity(path: Path) -> int:
    """Removes the parity of a checkpoint. Returns the number of shard files that had parity. Raises NotFound,
    IOFailed."""
    text = local(path, "remove parity")
    with content_in_error(text):
        return _core.remove_parity(text)
