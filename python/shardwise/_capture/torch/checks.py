"""Lines of a step that ask for values, and the checks among them that `assume` takes to pass."""

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
#: What carries a question of torch's own code, or the step's, to the trace.
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
    """Checks that pass: "modeling_detr.py:1042", a file and a line, or "modeling_detr.py:isfinite(x).all()",
    a file and a part of the line's text."""

    def __init__(self, said: Iterable[str]) -> None:
        self._said = [(file, text.strip()) for file, colon, text in (one.partition(":") for one in said)]
        if not all(file and text for file, text in self._said):
            raise InvalidArgument(
                f"capture: assume: found {list(said)}, needed a file and a line, or a part of its text, "
                'as "model.py:12"'
            )
        self.used: dict[str, None] = {}  #: lines, in order

    def passing_value(self) -> bool | None:
        """Returns the value for the boolean that the step asks for now; None if no assumption names a line
        that asks. An `if` gets False, an `assert` or a function that checks gets True; the opposite if its
        condition begins with `not`."""
        frames = list(_frames())
        for frame in frames:
            file, line = frame.f_code.co_filename, _text(frame)
            if any(
                file.endswith("/" + name)
                and text in (str(frame.f_lineno), line)
                or (file.endswith("/" + name) and not text.isdigit() and text in line)
                for name, text in self._said
            ):
                self.used[f"{file}:{frame.f_lineno} ({line})"] = None
                first, _, rest = _text(frames[0]).partition(" ")
                return (first not in ("if", "elif")) != (
                    first in ("if", "elif", "assert") and rest.startswith("not ")
                )
        return None


def line_of_step() -> str:
    """Returns the line that is traced now: "train.py:12"."""
    frame = next((frame for frame in _frames() if not frame.f_code.co_filename.startswith(_TORCH)), None)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "the step"


def _frames() -> Iterator[FrameType]:
    """Yields the frames of the step, and of the functions of torch that it calls, from the innermost."""
    frame: FrameType | None = own_frame()
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_OURS, *_BETWEEN)):
            yield frame
        frame = frame.f_back


def _text(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
