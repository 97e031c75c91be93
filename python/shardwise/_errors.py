"""Defines `Error` and, for each code, a subclass that also derives from the built-in exception of its kind.
Subclasses of OSError have the `errno` of the operating system, if a call of it failed.

All errors pickle, so torch.distributed can send them between processes.
"""

from __future__ import annotations

import errno
import functools
import re
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ._interpreter import own_frame

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class Error(RuntimeError):
    """The base of all errors. `code` names the kind of failure: "invalid_argument", "not_found",
    "no_such_name", "already_exists", "corrupt", "io", "unsupported", "resource_exhausted", "cancelled" or
    "group"."""

    code = "error"

    def __new__(cls, *args: Any) -> Error:
        # Python refuses the __new__ of another base for a subclass of OSError.
        base: Any = OSError if issubclass(cls, OSError) else RuntimeError
        error: Error = base.__new__(cls, *args)
        return error

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), str(self), getattr(self, "errno", None) or 0)

    def __str__(self) -> str:
        # KeyError would put the message in quotes, and OSError would add its number.
        return str(self.args[0]) if self.args else ""


class InvalidArgument(Error, ValueError):
    """A shape, axis, spec or option is wrong, or a target and a checkpoint do not fit each other."""

    code = "invalid_argument"


class WrongType(InvalidArgument, TypeError):
    """An argument has a type, or an option a name, that the call does not take."""


class NotFound(Error, FileNotFoundError):
    """A file or checkpoint that was asked for is not there."""

    code = "not_found"


class NameNotFound(NotFound, KeyError):
    """A tensor, object, step, field or mesh axis that was asked for is not there."""

    code = "no_such_name"


class AlreadyExists(Error, FileExistsError):
    """The call would replace something that exists, and was not told to."""

    code = "already_exists"


class Corrupt(Error):
    """Stored bytes differ from those that were written. The message names file, tensor, chunk and box."""

    code = "corrupt"


class IOFailed(Error, OSError):
    """The operating system refused: there is no space, there are no rights, or a device is broken."""

    code = "io"


class Unsupported(Error, NotImplementedError):
    """The request is well-formed, but this version cannot do it."""

    code = "unsupported"


class ResourceExhausted(Error, MemoryError):
    """There is not enough memory."""

    code = "resource_exhausted"


class Cancelled(Error):
    """The operation was asked to stop."""

    code = "cancelled"


class GroupError(Error):
    """Another process failed, or did not come before the deadline. The message names its rank and says
    why."""

    code = "group"


_CLASSES: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, NameNotFound, AlreadyExists, Corrupt, IOFailed, Unsupported,
                 ResourceExhausted, Cancelled, GroupError)
}


# The errno of errors that the operating system may not have caused.
_NUMBERS: dict[str, int] = {"not_found": errno.ENOENT, "no_such_name": errno.ENOENT,
                            "already_exists": errno.EEXIST}


def _remade(kind: type[Error], message: str, system_error: int) -> Error:
    error = kind(message)
    if isinstance(error, OSError):
        error.errno = system_error or _NUMBERS.get(error.code)
    return error


def made(code: str, message: str, system_error: int = 0) -> Error:
    """Returns the exception for an error of the C++ library or of another rank. system_error: its errno, or
    0."""
    message = re.sub(r"\bExisting::(\w+)", r'existing="\1"', message)  # options have other names in C++
    message = re.sub(r"\b(?:Manager|Keep|When|Write)Options::(\w+)", r"\1=", message)
    return _remade(_CLASSES.get(code, Error), message, system_error)


def stops_no_loop(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
    """Turns a StopIteration of the function into a RuntimeError: it would end a loop of the caller in silence
    (PEP 479)."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(f"{function.__name__}: "
                               "a function of the source raised StopIteration") from error

    return guarded


def warn(text: str) -> None:
    """Gives a warning at the line that called the package."""
    level, frame = 1, own_frame()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "shardwise":
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, stacklevel=level)
