"""Records operations on tensors of the emulated device, as calls with numbers instead of tensors."""

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
    """A recorded func(*leaves). results: the numbers of its results, with None for a tensor that is changed
    in place."""

    func: Any
    leaves: list[Any]
    tree: pytree.TreeSpec
    results: list[int | None]
    scope: str
    backward: bool


@dataclass(frozen=True, slots=True)
class View:
    """A call that makes a view of its only tensor, and the place of the view among its results."""

    func: Any
    leaves: list[Any]
    tree: pytree.TreeSpec
    place: int
    results: int

    def of(self, tensor: Any) -> list[Any]:
        """Returns the leaves with this tensor."""
        return [tensor if isinstance(leaf, Ref) else leaf for leaf in self.leaves]


class Root:
    """The part that a tensor and its views share: a value on the host (a plain tensor of torch) or a pending
    value, and the cut."""

    __slots__ = ("__weakref__", "failed", "is_parameter", "mark", "meta", "number", "placement", "region",
                 "value", "version")

    def __init__(self, meta: torch.Tensor, value: torch.Tensor | None = None) -> None:
        self.meta, self.value = meta, value
        self.mark: Placement | None = None  #: the user's mark
        self.placement: Placement | None = None  #: the cut of the value after a run
        self.number = self.version = -1  #: the tensor's number in the recording of this version
        self.region: Mesh | None = None  #: the mesh of a manual region, where each device has its own value
        self.is_parameter = False
        self.failed = ""  #: why it has no value


@dataclass
class Recording:
    """The calls since the last run. Tensors are numbers, given to inputs and results in the order of their
    appearance."""

    version: int = 0
    calls: list[Call] = field(default_factory=list)
    #: inputs, each with its value at that time
    inputs: list[tuple[int, Root, torch.Tensor]] = field(default_factory=list)
    #: roots without a value, or with a new one, by number
    changed: dict[int, weakref.ref[Root]] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)  #: the tensors that calls take
    count: int = 0

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self.read.update(leaf.number for leaf in call.leaves if isinstance(leaf, Ref))

    def next_number(self) -> int:
        self.count += 1
        return self.count - 1


class Now:
    """The recording of the process, and its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.recording = Recording()
        self._scopes: dict[int, str] = {}  #: the line of an operation, by autograd's number

    def taken(self) -> Recording:
        """Returns the present recording, and begins the next one."""
        before, self.recording = self.recording, Recording(self.recording.version + 1)
        self._scopes.clear()
        return before

    def place(self) -> tuple[str, bool]:
        """Returns the line of the present call; for a gradient (True), that of the derived call."""
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
