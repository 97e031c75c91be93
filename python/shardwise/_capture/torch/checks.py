"""Finds the lines of a step that ask for values, and the checks among them that pass by assumption."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator
from types import FrameType

import torch

from ... import __file__ as _PACKAGE
from ..._errors import InvalidArgument
from ..._interpreter import own_frame

_TORCH, _OURS = (os.path.join(os.path.dirname(file), "") for file in (torch.__file__, _PACKAGE))
#: Files of torch between the line that asks for a value and the trace.
_BETWEEN = tuple(
    _TORCH + name
    for name in (
        "_ops.py",
        "_tensor.py",
        "_compile.py",
        "_prims",
        "_subclasses",
        "_functorch",
        "_dynamo",
        "fx",
        "utils/_",
    )
)


class Assumptions:
    """Checks that pass by assumption: "modeling_detr.py:1042", a file and a line, or
    "modeling_detr.py:isfinite(x).all()", a file and a part of the line's text."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = [(file, text.strip()) for file, _, text in (line.partition(":") for line in lines)]
        if not all(file and text for file, text in self._lines):
            raise InvalidArgument(
                f"capture: assume: found {list(lines)}, needed a file and a line, or a part of its text, "
                'as "model.py:12"'
            )
        self.used: dict[str, None] = {}  #: the lines of checks that were met, in order

    def passing_value(self) -> bool | None:
        """Returns the value of the boolean that the step asks for; None if no assumption names the line. An
        `if` gets False, and an `assert` or a checking function gets True; a condition that begins with `not`
        gets the opposite."""
        frames = list(_frames())
        for frame in frames:
            file, line = frame.f_code.co_filename, _text(frame)
            if any(
                file.endswith("/" + name)
                and text in (str(frame.f_lineno), line)
                or (file.endswith("/" + name) and not text.isdigit() and text in line)
                for name, text in self._lines
            ):
                self.used[f"{file}:{frame.f_lineno} ({line})"] = None
                first, _, rest = _text(frames[0]).partition(" ")
                return (first not in ("if", "elif")) != (
                    first in ("if", "elif", "assert") and rest.startswith("not ")
                )
        return None


def line_of_step() -> str:
    """Returns the line that is being traced, as "train.py:12"."""
    frame = next((frame for frame in _frames() if not frame.f_code.co_filename.startswith(_TORCH)), None)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "the step"


def _frames() -> Iterator[FrameType]:
    """Yields the frames of the step and of the functions of torch that it calls, the innermost first."""
    frame: FrameType | None = own_frame()
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_OURS, *_BETWEEN)):
            yield frame
        frame = frame.f_back


def _text(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
