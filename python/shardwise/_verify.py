"""Whether every value of a checkpoint is right, and what makes it right again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _core
from ._paths import Path, local, told_instead
from ._progress import Progress, function_of


@dataclass
class Damage:
    """One thing that is wrong."""

    file: str
    message: str
    tensor: str
    chunk: int


@dataclass
class VerifyReport:
    """What verify() found. `unread`: what could not be read, of which nothing is known; delete nothing because of it."""

    damage: list[Damage]
    unread: list[Damage]
    chunks: int
    bytes: int
    parity_files: int = 0  #: shard files that have parity, which is right
    parity_blocks: int = 0  #: how many blocks of 1 MiB of each of these may be lost, at least

    @property
    def ok(self) -> bool:
        return not self.damage and not self.unread

    def __bool__(self) -> bool:
        return self.ok


@dataclass
class Repaired:
    """What was wrong and has been made right."""

    damage: Damage
    source: str  #: path of what it was made from


@dataclass
class Lost:
    """Elements that nothing has whole any more: checkpoint[tensor][box]."""

    tensor: str
    box: tuple[slice, ...]


@dataclass
class RepairReport:
    """What repair() did. `left`: what verify() finds after it; each message says why that could not be repaired."""

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
    """What write_parity() did."""

    files: int  #: shard files that have parity now
    written: int  #: of these, whose parity was not there
    file_bytes: int  #: of all these files
    parity_bytes: int  #: of their parity: what it costs
    encoded_bytes: int  #: that were read for it
    seconds: float  #: that this took


def _report(found: tuple[Any, ...]) -> VerifyReport:
    damage, unread, *numbers = found
    return VerifyReport([Damage(*one) for one in damage], [Damage(*one) for one in unread], *numbers)


def verify(path: Path, *, threads: int = 0, progress: Progress = None) -> VerifyReport:
    """Reads all that a checkpoint uses and compares it with its hashes. Not read are the chunks of a linked file that only other
    steps use. Damage is reported, not raised. Raises NotFound,
    Unsupported, IOFailed."""
    text = local(path, "verify")
    with told_instead(text):
        return _report(_core.verify(text, threads, function_of(progress, "verify")))


def repair(path: Path, *, sources: Iterable[Path] = (), threads: int = 0, progress: Progress = None) -> RepairReport:
    """Verifies a checkpoint and makes what is damaged exactly what it was: from the other steps of its folder, from sources
    (copies of it, or folders of steps that have one), and from parity. Bytes are written only if they have all hashes of
    what was there. A repair that is interrupted leaves each chunk and each file damaged or repaired. What nothing
    has whole is reported, not raised: RepairReport.lost. Raises as verify(), and InvalidArgument for a source that has
    no checkpoint."""
    text = local(path, "repair")
    with told_instead(text):
        repaired, left, lost = _core.repair(text, [local(source, "repair") for source in sources], threads,
                                            function_of(progress, "repair"))
    return RepairReport([Repaired(Damage(*damage), source) for damage, source in repaired], _report(left),
                        [Lost(tensor, tuple(map(slice, begin, end))) for tensor, begin, end in lost])


def write_parity(path: Path, *, blocks: int = 2, threads: int = 0, progress: Progress = None) -> ParityStats:
    """Verifies a checkpoint, and writes parity beside each of its shard files, from which repair() makes any `blocks` blocks
    of 1 MiB of it again, 1 to 127. It costs `blocks` / (255 - `blocks`) of the bytes, of small files more. Parity that is
    there and fits stays. Raises Corrupt for a checkpoint that is damaged, NotFound, InvalidArgument, IOFailed."""
    text = local(path, "write parity")
    with told_instead(text):
        return ParityStats(*_core.write_parity(text, blocks, threads, function_of(progress, "parity")))


def remove_parity(path: Path) -> int:
    """Removes the parity of a checkpoint. Returns of how many files. Raises NotFound, IOFailed."""
    text = local(path, "remove parity")
    with told_instead(text):
        return _core.remove_parity(text)
