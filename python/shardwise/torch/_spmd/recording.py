"""The recording of operations on tensors of the emulated device before it runs: calls whose tensors are
numbers."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..._interpreter import own_frame
from .mesh import Mesh, Placement


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor in a recorded call."""

    number: int


@dataclass(slots=True)
class Call:
    """func(*leaves) as it was recorded. `made`: the numbers of its results, None of one that is a tensor
    changed in place."""

    func: Any
    leaves: list[Any]
    tree: pytree.TreeSpec
    made: list[int | None]
    scope: str
    backward: bool


@dataclass(frozen=True, slots=True)
class View:
    """A call that makes a view of the one tensor that it takes; the place of the view among its results."""

    func: Any
    leaves: list[Any]
    tree: pytree.TreeSpec
    place: int
    results: int

    def of(self, tensor: Any) -> list[Any]:
        """The leaves, with this tensor."""
        return [tensor if isinstance(leaf, Ref) else leaf for leaf in self.leaves]


class Root:
    """The part that a tensor and its views share: a value on the host (torch's own tensor), or a pending one;
    and its cut."""

    __slots__ = ("__weakref__", "failed", "is_parameter", "mark", "meta", "number", "placement", "region",
                 "value", "version")

    def __init__(self, meta: torch.Tensor, value: torch.Tensor | None = None) -> None:
        self.meta, self.value = meta, value
        self.mark: Placement | None = None  #: that the user asked for
        self.placement: Placement | None = None  #: of the value, since a run
        self.number = self.version = -1  #: of its tensor in the recording of that version
        self.region: Mesh | None = None  #: of a manual region: each device has its own
        self.is_parameter = False
        self.failed = ""  #: why it has no value


@dataclass
class Recording:
    """The calls since the last run. Tensors are numbers: inputs and results in the order that they come
    in."""

    version: int = 0
    calls: list[Call] = field(default_factory=list)
    #: with the value that it then had
    inputs: list[tuple[int, Root, torch.Tensor]] = field(default_factory=list)
    #: by number: those that have no value, or another
    changed: dict[int, weakref.ref[Root]] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)  #: tensors that calls take
    count: int = 0

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self.read.update(leaf.number for leaf in call.leaves if isinstance(leaf, Ref))

    def next_number(self) -> int:
        self.count += 1
        return self.count - 1


class Now:
    """The one recording of the process, and its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recording = Recording()
        self._scopes: dict[int, str] = {}  #: by autograd's number of an operation, its line

    def taken(self) -> Recording:
        """The recording so far; the next one begins."""
        before, self.recording = self.recording, Recording(self.recording.version + 1)
        self._scopes.clear()
        return before

    def place(self) -> tuple[str, bool]:
        """Returns the line of the program that makes the present call; for a gradient (True), that of the
        call that it derives."""
        derived = torch._C._current_autograd_node()
        if derived is not None:
            return self._scopes.get(derived._sequence_nr(), ""), True
        frame: Any = own_frame().f_back
        while frame is not None and ("/torch/" in frame.f_code.co_filename
                                     or frame.f_code.co_filename.startswith("<")):
            frame = frame.f_back
        scope = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame is not None else ""
        if torch.is_grad_enabled():
            self._scopes[torch.autograd._get_sequence_nr() - 1] = scope
        return scope, False


now = Now()
