"""Verification and repair of checkpoints, and the parity that a repair uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import _core
from .._paths import Path, local, local_or_bucket, told_instead
from .._progress import Progress, function_of


@dataclass
class Damage:
    """One fault of a checkpoint."""

    file: str
    message: str
    tensor: str
    chunk: int


@dataclass
class VerifyReport:
    """The result of verify(). `unread`: parts that could not be read, so that nothing is known of them;
    delete nothing because of it."""

    damage: list[Damage]
    unread: list[Damage]
    chunks: int
    bytes: int
    parity_files: int = 0  #: shard files that have parity, which is right
    parity_blocks: int = 0  #: blocks of 1 MiB that each of these may lose, at least

    @property
    def ok(self) -> bool:
        return not self.damage and not self.unread

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class Repaired:
    """A fault that was repaired."""

    damage: Damage
    source: str  #: path of the data that repaired it


@dataclass
class Lost:
    """Elements that no source has whole any more: checkpoint[tensor][box]."""

    tensor: str
    box: tuple[slice, ...]


@dataclass
class RepairReport:
    """The result of repair(). `left`: the faults that verify() finds after it; each message says why one
    could not be repaired."""

    repaired: list[Repaired]
    left: VerifyReport
    lost: list[Lost]

    @property
    def ok(self) -> bool:
        return self.left.ok

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class ParityStats:
    """The result of write_parity()."""

    files: int  #: shard files that have parity now
    written: int  #: of these, files that had no parity before
    file_bytes: int  #: of all these files
    parity_bytes: int  #: of their parity, which is the cost
    encoded_bytes: int  #: that were read for it
    seconds: float  #: that this took


def _report(found: tuple[Any, ...]) -> VerifyReport:
    damage, unread, *numbers = found
    return VerifyReport([Damage(*one) for one in damage], [Damage(*one) for one in unread], *numbers)


def verify(path: Path, *, threads: int = 0, progress: Progress = None) -> VerifyReport:
    """Reads all that a checkpoint uses and compares it with its hashes. Chunks of a linked file that only
    other steps use are not read. Damage is reported, not raised. Raises NotFound, Unsupported, IOFailed."""
    text = local_or_bucket(path, "verify")
    with told_instead(text):
        return _report(_core.verify(text, threads, function_of(progress, "verify")))


def repair(path: Path, *, sources: Iterable[Path] = (), threads: int = 0,
           progress: Progress = None) -> RepairReport:
    """Verifies a checkpoint and restores damaged bytes exactly: from the other steps of its folder, from
    sources (copies of it, or folders of steps that have one), and from parity. Bytes are written only if they
    have all hashes of the original ones. A repair that is interrupted leaves each chunk and each file damaged
    or repaired. Elements that nothing has whole are reported, not raised: RepairReport.lost. Raises as
    verify(), and InvalidArgument for a source that has no checkpoint."""
    text = local(path, "repair")
    with told_instead(text):
        repaired, left, lost = _core.repair(text, [local(source, "repair") for source in sources], threads,
                                            function_of(progress, "repair"))
    return RepairReport([Repaired(Damage(*damage), source) for damage, source in repaired], _report(left),
                        [Lost(tensor, tuple(map(slice, begin, end))) for tensor, begin, end in lost])


def write_parity(path: Path, *, blocks: int = 2, threads: int = 0, progress: Progress = None) -> ParityStats:
    """Verifies a checkpoint, and writes a parity file for each of its shard files. repair() can then restore
    any `blocks` blocks of 1 MiB of a shard file, 1 to 127. It costs `blocks` / (255 - `blocks`) of the bytes,
    for small files more. Parity that is there and fits stays. Raises Corrupt for a checkpoint that is
    damaged, NotFound, InvalidArgument, IOFailed."""
    text = local(path, "write parity")
    with told_instead(text):
        return ParityStats(*_core.write_parity(text, blocks, threads, function_of(progress, "parity")))


def remove_parity(path: Path) -> int:
    """Removes the parity of a checkpoint. Returns the number of files that had some. Raises NotFound,
    IOFailed."""
    text = local(path, "remove parity")
    with told_instead(text):
        return _core.remove_parity(text)
