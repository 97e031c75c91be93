"""Copies steps between folders and buckets."""

from __future__ import annotations

from .. import _core
from .._paths import Path, local_or_bucket
from .._progress import Progress, function_of


def copy_step(source: Path, root: Path, *, replace: bool = False, requests: int = 16,
              progress: Progress = None) -> str:
    """Copies the step in a directory to a root, and returns the directory of the copy. Either may be in a
    bucket, "s3://bucket/prefix". The copy is read back and compared with the step's hashes before it gets its
    name. The next copy continues one into a bucket that was killed. replace: a step that exists with other
    bytes gets a new generation. requests: the number of requests that are sent at a time, each of 16 MiB.

    Raises NotFound, AlreadyExists, InvalidArgument for a checkpoint without a step's number, Corrupt if the
    source is damaged, Unsupported for a store that ignores conditions of puts, and IOFailed."""
    path: str = _core.copy_step(local_or_bucket(source, "copy"), local_or_bucket(root, "copy"), replace,
                                requests, function_of(progress, "copy"))
    return path
