"""Copies of steps between folders and buckets."""

from __future__ import annotations

from .. import _core
from .._paths import Path, local_or_bucket
from .._progress import Progress, function_of


def copy_step(source: Path, root: Path, *, replace: bool = False, requests: int = 16,
              progress: Progress = None) -> str:
    """Copies the step in a directory to a root, and returns the copy's directory. Either may be in a bucket,
    "s3://bucket/prefix". The copy is read back and compared with the step's hashes before it has its name; a
    copy into a bucket that was killed is gone on with by the next one. replace: puts a new generation in the
    place of a step that is there with other bytes. requests: how many are sent at a time, each of 16 MiB.

    Raises NotFound, AlreadyExists, InvalidArgument for a checkpoint without a step's number, Corrupt if the
    source is damaged, Unsupported for a store that ignores conditions of puts, and IOFailed."""
    path: str = _core.copy_step(local_or_bucket(source, "copy"), local_or_bucket(root, "copy"), replace,
                                requests, function_of(progress, "copy"))
    return path
