"""Reads the state of the Python interpreter: its imported modules, and the frames of calls."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


def imported(name: str) -> Any:
    """Returns a module that is imported already; None if it is not."""
    return sys.modules.get(name)


def own_frame() -> FrameType:
    """Returns the frame of the function that calls this one."""
    return sys._getframe(1)
