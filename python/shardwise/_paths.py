"""Paths that callers give."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator

from . import _core
from ._errors import InvalidArgument, NotFound, Unsupported

Path = str | os.PathLike[str]

# pathlib makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@contextlib.contextmanager
def told_instead(path: str, takes_files: bool = False) -> Iterator[None]:
    """Adds to NotFound what is at a path that is no checkpoint. takes_files: of other formats, of which a part is not there."""
    try:
        yield
    except NotFound as error:
        is_taken = os.path.exists(os.path.join(path, "manifest.json")) or takes_files and bool(_core.model_format(path))
        instead = "" if is_taken else instead_of_checkpoint(path)
        if not instead:
            raise
        raise NotFound(f"{error}: {instead}") from None


def instead_of_checkpoint(path: str) -> str:
    """What is at a path that is no checkpoint, and how that is loaded; empty if nothing is known of it."""
    if kind := _core.model_format(path):
        return f"found {kind}: sw.import_model() makes a checkpoint of it"
    if os.path.isfile(path):
        if _is_of_torch_save(path):
            return "found a file of torch.save(): swt.save(\"new\", torch.load(file, weights_only=True)) makes a checkpoint of it"
        return "found a file: needed a directory"
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return ""
    if not names:
        return "found an empty directory"
    steps = [(int(found[1]), name) for name in names if (found := re.fullmatch(r"step-(\d+)", name))]
    if steps:
        numbers = ", ".join(str(step) for step, _ in sorted(steps)[-5:])
        count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        return f"found a folder of {count} ({numbers}), needed one of them: the newest is {max(steps)[1]}"
    if ".metadata" in names:
        return "found a checkpoint of torch.distributed.checkpoint's own: sw.import_dcp() takes it"
    if {"_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"} & set(names):
        return "found a checkpoint of Orbax's: sw.import_orbax() takes it"
    return ""


def _is_of_torch_save(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("/data.pkl") for name in file.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def local(path: Path, what: str) -> str:
    """A path of this machine's file systems, as text: `~` is the user's folder, as in a shell. Raises Unsupported for
    URLs, which would otherwise be folders of odd names. what: begins the message, as "save"."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{what}: the path is {type(path).__name__}, needed is a text or a pathlib.Path: the path comes first")
    text = os.fsdecode(os.fspath(path))
    if not text or "\0" in text:
        raise InvalidArgument(f"{what}: the path is {text!r}, needed is one that is not empty and has no NUL character")
    if _SCHEME.match(text):
        raise Unsupported(f"{what}: found the URL {text!r}, needed a path of a file system that is mounted here")
    return os.path.expanduser(text)
