"""What a step's variables hold beside modules and optimizers: tensors and numbers that it may change."""

from __future__ import annotations

import contextlib
import numbers
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from .._errors import Unsupported

_ABSENT = object()
SEQUENCES = (list, deque)  #: which are asked by number
_HOLDING = {torch.Tensor, torch.nn.Parameter, list, tuple, dict}
_VALUES = (numbers.Number, str, torch.SymInt, torch.SymFloat)  #: numpy's numbers are there, too


def memory_of(tensor: torch.Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


class StateFound(Exception):
    """Tensors that the step changes in place, by their memory, and those that it puts others in place of, by their ids: it is to be traced
    again, with these as its state. The second have been given an object of their own in their places."""

    def __init__(self, tensors: Iterable[int], replaced: Sequence[Change] = ()) -> None:
        super().__init__("found state of the step")
        self.tensors = set(tensors)
        self.replaced = replaced


@dataclass
class Change:
    """Of what a container has at a key, by a step that is traced: a value of Python's, or what no step before has made."""

    label: str
    container: Any
    key: Any
    before: Any
    after: Any

    @property
    def is_value(self) -> bool:
        return _is_value(self.after)


class Place:
    """A container's value by a key, as of a dict."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def get(self, key: Any) -> Any:
        try:
            return self._container[key]
        except (KeyError, IndexError):
            return None

    def __setitem__(self, key: Any, value: Any) -> None:
        self._container[key] = value


class Surroundings:
    """Lists, dicts and variables, by name, as they are before the step is traced."""

    def __init__(self, containers: Sequence[tuple[str, Any]]) -> None:
        self._before = [(name, container, dict(items_of(container))) for name, container in containers]
        self._tensors: dict[int, str] = {}  #: labels, by memory
        self._leaves: list[torch.Tensor] = []
        for name, _, items in self._before:
            for key, value in items.items():
                for tensor in _plain_tensors(value) if type(value) in _HOLDING else ():
                    self._tensors.setdefault(memory_of(tensor), label_of(name, key))
                    if tensor.requires_grad and tensor.is_leaf:
                        self._leaves.append(tensor)

    def label(self, tensor: torch.Tensor) -> str | None:
        """Of one that is held."""
        return self._tensors.get(memory_of(tensor)) if is_plain(tensor) else None

    @contextlib.contextmanager
    def put_back(self, changes: list[Change], seen: set[int]) -> Iterator[None]:
        """After the step all is there again that was there before. `changes` gets what has changed, but for tensors in place of others: of these it
        raises StateFound, or Unsupported, if the step has `seen` the memory of one that it puts no like tensor in place of."""
        gradients = [(tensor, tensor.grad) for tensor in self._leaves]
        replaced: list[Change] = []
        try:
            yield
            changes[:] = self._changes()
            replaced = self._replaced(changes, seen)
        finally:
            for tensor, gradient in gradients:
                tensor.grad = gradient
            for _, container, before in self._before:
                _restore(container, before)
        if replaced:
            for change in replaced:  # by an object of its own: others may hold the same
                change.container[change.key] = pytree.tree_map_only(torch.Tensor, own_like, change.before)
            raise StateFound([id(tensor) for change in replaced for tensor in _plain_tensors(change.container[change.key])], replaced)

    def _changes(self) -> list[Change]:
        found = []
        for name, container, before in self._before:
            for key, new in items_of(container):
                old = before.get(key, _ABSENT)
                if old is new or (key == "training" and not isinstance(container, SEQUENCES)):  # see StepState.modes
                    continue
                if _is_traced(new) or (_is_value(new) and (not _is_value(old) or _differ(old, new))):
                    found.append(Change(label_of(name, key), container, key, old, new))
        return found

    def _replaced(self, changes: list[Change], seen: set[int]) -> list[Change]:
        """Those of tensors that were there, which are taken out of the changes. Raises Unsupported."""
        found = []
        for change in list(changes):
            olds = list(_plain_tensors(change.before))
            if not olds:
                continue
            changes[:] = [other for other in changes if other is not change]
            news = [leaf for leaf in pytree.tree_leaves(change.after) if isinstance(leaf, torch.Tensor)]
            if isinstance(change.before, (torch.Tensor, tuple)) and [(o.shape, o.dtype) for o in olds] == [(n.shape, n.dtype) for n in news]:
                found.append(change)
            elif any(memory_of(old) in seen for old in olds):
                raise Unsupported(f"capture: found {change.label!r}, which the step takes and puts another {type(change.before).__name__} in place of, needed tensors of the "
                                  f"same shapes and dtypes, in the same place")
        return found


@contextlib.contextmanager
def changed(changes: Sequence[Change]) -> Iterator[set[int]]:
    """As if the step had been made: numbers are those of after it, tensors are zeros, whose memory this gives."""
    fresh: set[int] = set()
    lists = [(change.container, list(change.container)) for change in changes if isinstance(change.container, SEQUENCES)]

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, (torch.SymFloat, torch.SymInt)):
            return 1.25 if isinstance(leaf, torch.SymFloat) else 3
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = torch.zeros(leaf.shape, dtype=leaf.dtype)
        fresh.add(memory_of(made))
        return made

    try:
        for change in changes:
            value = pytree.tree_map(stand_in, change.after)
            if isinstance(change.container, SEQUENCES) and change.key >= len(change.container):
                change.container.append(value)
            else:
                change.container[change.key] = value
        yield fresh
    finally:
        _undo(changes, lists)


def _undo(changes: Iterable[Change], lists: Iterable[tuple[Any, Iterable[Any]]]) -> None:
    """Lists have what is given with them, and may have been made longer."""
    for change in changes:
        if change.before is not _ABSENT:
            change.container[change.key] = change.before
        elif not isinstance(change.container, SEQUENCES):
            del change.container[change.key]
    for own, items in lists:
        _refill(own, items)


def _refill(own: Any, items: Iterable[Any]) -> None:
    own.clear()
    own.extend(items)


def _restore(container: Any, before: dict[Any, Any]) -> None:
    """It holds what it held, in that order. Objects that the step has made stay in its places, and what other threads put there (in a deque, as
    that of a queue)."""
    if isinstance(container, SEQUENCES):
        is_shorter = isinstance(container, list) and len(container) < len(before)
        if is_shorter or any(new is not before.get(key, _ABSENT) and (_is_value(new) or _is_traced(new)) for key, new in items_of(container)):
            _refill(container, before.values())
        return
    now = dict(items_of(container))
    for key, new in now.items():
        if key != "training" and new is not before.get(key, _ABSENT) and (_is_value(new) or _is_traced(new)):
            if key in before:
                container[key] = before[key]
            else:
                del container[key]
    for key in before:
        if key not in now:
            container[key] = before[key]
    if isinstance(container, dict) and any(key not in now for key in before):
        for key in before:  # what was gone is at its place again, and not at the end
            container[key] = container.pop(key)


def own_like(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory by an object of its own, which learns if the tensor does."""
    made = tensor.detach()
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    elif tensor.is_leaf:
        made.requires_grad_(tensor.requires_grad)
    made.grad = tensor.grad if tensor.is_leaf else None
    return made


def items_of(container: Any) -> list[tuple[Any, Any]]:
    return list(enumerate(container) if isinstance(container, SEQUENCES) else container.items())


def label_of(name: str, key: Any) -> str:
    return ".".join(filter(None, (name, str(key))))


def is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided


def _plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """In a tree that holds nothing of the step's search by itself: a tensor, or a list, dict or tuple of such."""
    if is_plain(value):
        yield value
    elif type(value) in (list, tuple, dict):
        for one in value.values() if isinstance(value, dict) else value:
            if is_plain(one):
                yield one


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, (FunctionalTensor, FakeTensor)) for leaf in pytree.tree_leaves(value))


def _is_value(value: Any) -> bool:
    return value is None or isinstance(value, _VALUES)


def _differ(old: Any, new: Any) -> bool:
    """Of values, of which one may be computed."""
    return isinstance(new, (torch.SymInt, torch.SymFloat)) or type(old) is not type(new) or bool(old != new)
