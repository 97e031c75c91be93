"""Checks paths of callers, and describes the content of a path that is no checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from . import _core
from ._errors import InvalidArgument, NotFound, Unsupported, WrongType
from ._trees.objects import is_text

Path = str | os.PathLike[str]

_ORDERS = {"save": ", as in save(path, state)", "open a checkpoint": ", as in load(path, state)"}

# pathlib makes one slash of two.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@contextlib.contextmanager
def content_in_error(path: str, takes_files: bool = False) -> Iterator[None]:
    """Adds to a NotFound a description of the content of a path that is no checkpoint. takes_files: the call
    takes other formats too, so their NotFound stays as it is."""
    try:
        yield
    except NotFound as error:
        is_taken = os.path.exists(os.path.join(path, "manifest.json")) or takes_files and bool(
            _core.model_format(path))
        content = "" if is_taken else content_of(path)
        if not content:
            raise
        # The path is no checkpoint, so an unfinished save is not the reason.
        message = re.sub(": (it was not committed: it has no manifest.json|found .*, "
                         "needed a checkpoint of Shardwise)$", "", str(error))
        raise NotFound(f"{message}: {content}") from None


def content_of(path: str) -> str:
    """Returns a description of the content of a path that is no checkpoint, and a way to load it; empty if
    the format is unknown."""
    kind, what, steps = _core.known_format(path)
    if kind == "shardwise":  # the error itself says so
        return ""
    if kind:
        return f"found {what}: {_import_advice(kind, os.path.join(path, steps[-1]) if steps else path)}"
    if os.path.isfile(path):
        return "found a file: needed a directory"
    try:
        return "" if os.listdir(path) else "found an empty directory"
    except OSError:
        return ""


def _import_advice(kind: str, path: str) -> str:
    """Returns a text with the call that makes a checkpoint of the content of a path."""
    if kind in ("torch", "zip", "pickle"):
        return 'swt.save("new", torch.load(file, weights_only=True)) makes a checkpoint of it'
    if kind == "npy":
        return 'sw.save("new", {"w": numpy.load(file)}) makes a checkpoint of it'
    if kind == "zarr":
        return 'sw.save("new", {"w": zarr.open(folder, mode="r")[...]}) makes a checkpoint of it'
    call = {"dcp": "import_dcp", "orbax": "import_orbax", "safetensors": "import_model",
            "hdf5": "import_model", "npz": "import_model"}.get(kind)
    return f"sw.{call}({path!r}, \"new\") makes a checkpoint of it" if call else "nothing here reads it"


def local_or_bucket(path: Path, what: str) -> str:
    """Returns a path as local() does; turns the URL of a bucket, "s3://bucket/prefix", into the core's
    path."""
    text = os.fsdecode(os.fspath(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return _core.path_of_url(text) if text.startswith("s3:/") and "\0" not in text else local(path, what)


def is_in_bucket(path: Path) -> bool:
    """Returns True for the URL of a bucket, and for the core's path of one."""
    return os.fsdecode(os.fspath(path)).startswith("s3:/")


def local_or_url(path: Path, what: str) -> str:
    """Returns a path as local_or_bucket() does; a URL of a web server stays as it is."""
    text = os.fsdecode(os.fspath(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    web = re.match("(https?):/+", text)
    return f"{web[1]}://{text[web.end():]}" if web and "\0" not in text else local_or_bucket(path, what)


def absolute_root(root: Path) -> str:
    """Returns the absolute path of a folder of steps, or the core's path of a root in a bucket."""
    text = local_or_bucket(root, "open a folder of steps")
    return text if is_in_bucket(text) else os.path.abspath(text)


def local(path: Path, what: str) -> str:
    """Returns a path of this machine's file systems as text, with `~` as the user's folder. Raises
    Unsupported for URLs, which would otherwise become folders of odd names. what: the operation, which begins
    a message."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise WrongType(f"{what}: the path is {type(path).__name__}, needed is a text or a pathlib.Path: "
                        "the path comes first" + _ORDERS.get(what, ""))
    text = os.fsdecode(os.fspath(path))
    if not text or "\0" in text or not is_text(text):
        raise InvalidArgument(f"{what}: the path is {text!r}, "
                              "needed is one that is not empty and has no NUL, all of it UTF-8")
    if _SCHEME.match(text):
        raise Unsupported(f"{what}: found the URL {text!r}, "
                          "needed a path of a file system that is mounted here")
    return os.path.expanduser(text)
