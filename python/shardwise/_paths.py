"""Paths that callers give."""

from __future__ import annotations

import os
import re

from ._errors import Unsupported

Path = str | os.PathLike[str]

# pathlib makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local(path: Path, what: str) -> str:
    """A path of this machine's file systems, as text: `~` is the user's folder, as in a shell. Raises Unsupported for
    URLs, which would otherwise be folders of odd names. what: begins the message, as "save"."""
    text = os.fsdecode(os.fspath(path))
    if _SCHEME.match(text):
        raise Unsupported(f"{what}: found the URL {text!r}, needed a path of a file system that is mounted here")
    return os.path.expanduser(text)
