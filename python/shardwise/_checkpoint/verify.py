"""Verification and repair of checkpoints, and the parity that a repair uses."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _core
from .._core import ParityStats, RepairReport, VerifyReport
from .._paths import Path, local, local_or_bucket, told_instead
from .._progress import Progress, function_of


def verify(path: Path, *, threads: int = 0, progress: Progress = None) -> VerifyReport:
    """Reads all that a checkpoint uses and compares it with its hashes. Chunks of a linked file that only
    other steps use are not read. Damage is reported, not raised. Raises NotFound, Unsupported, IOFailed."""
    text = local_or_bucket(path, "verify")
    with told_instead(text):
        return _core.verify(text, threads, function_of(progress, "verify"))


def repair(path: Path, *, sources: Iterable[Path] = (), threads: int = 0,
           progress: Progress = None) -> RepairReport:
    """Verifies a checkpoint and restores damaged bytes exactly: from the other steps of its folder, from
    sources (copies of it, or folders of steps that have one), and from parity. Bytes are written only if they
    have all hashes of the original ones. A repair that is interrupted leaves each chunk and each file damaged
    or repaired. Elements that nothing has whole are reported, not raised: RepairReport.lost. Raises as
    verify(), and InvalidArgument for a source that has no checkpoint."""
    text = local(path, "repair")
    with told_instead(text):
        return _core.repair(text, [local(source, "repair") for source in sources], threads,
                            function_of(progress, "repair"))


def write_parity(path: Path, *, blocks: int = 2, threads: int = 0, progress: Progress = None) -> ParityStats:
    """Verifies a checkpoint, and writes a parity file for each of its shard files. repair() can then restore
    any `blocks` blocks of 1 MiB of a shard file, 1 to 127. It costs `blocks` / (255 - `blocks`) of the bytes,
    for small files more. Parity that is there and fits stays. Raises Corrupt for a checkpoint that is
    damaged, NotFound, InvalidArgument, IOFailed."""
    text = local(path, "write parity")
    with told_instead(text):
        return _core.write_parity(text, blocks, threads, function_of(progress, "parity"))


def remove_parity(path: Path) -> int:
    """Removes the parity of a checkpoint. Returns the number of files that had some. Raises NotFound,
    IOFailed."""
    text = local(path, "remove parity")
    with told_instead(text):
        return _core.remove_parity(text)
