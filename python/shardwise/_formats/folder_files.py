"""Opens files of a foreign folder, and refuses names and links that lead out of it."""

from __future__ import annotations

import os
import stat
from typing import IO

from .._errors import Corrupt


def open_inside(folder: str, name: str) -> IO[bytes]:
    """Opens a file of a folder without a wait. Raises FileNotFoundError, and Corrupt for a link that leads
    out of the folder, a FIFO, a device or a folder."""
    path = os.path.join(folder, name)
    refuse_outside(folder, path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise odd_file(path)
    return open(descriptor, "rb")


def refuse_outside(folder: str, path: str) -> None:
    """Raises Corrupt if a path, after its links, is not below the folder."""
    root, real = os.path.realpath(folder), os.path.realpath(path)
    if real != root and not real.startswith(os.path.join(root, "")):
        raise Corrupt(f"import {path}: found a link to {real}, needed a file in {folder}: "
                      "`cp -rL` makes a folder without links")


def refuse_odd_files(folder: str) -> None:
    """Raises Corrupt for a link below the folder that leads out of it, and for a FIFO, which would make a
    reader wait."""
    for below, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(below, name)
            if os.path.islink(path):
                refuse_outside(folder, path)
            if name in files and not stat.S_ISREG(os.stat(path).st_mode):
                raise odd_file(path)


def odd_file(path: str) -> Corrupt:
    return Corrupt(f"import {path}: found a FIFO, device or folder, needed a file")
