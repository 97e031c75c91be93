"""Guards the contents of a step's variables, except the state of modules and optimizers. A step may read
them, but must not change them."""

from __future__ import annotations

import contextlib
import numbers
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from ..._errors import Unsupported

SEQUENCES = (list, deque)  #: containers with numbers as keys
NEEDED = ("needed a parameter or buffer of a module (register_buffer, AveragedModel), or an argument "
          "that the step returns")
_ABSENT = object()
_HOLDING = {torch.Tensor, torch.nn.Parameter, list, tuple, dict}
_VALUES = (numbers.Number, str, torch.SymInt, torch.SymFloat)  #: numbers.Number includes those of numpy


class Variables:
    """The lists, dicts and variables of a step, by name, in their state before the trace."""

    def __init__(self, containers: Sequence[tuple[str, Any, str]]) -> None:
        """containers: names, containers and kinds. The kind is "module" for a module's attributes and their
        contents, "items" for a list or dict, else "names"."""
        self._before = [
            (name, container, dict(items_of(container)), kind) for name, container, kind in containers
        ]
        self._labels: dict[int, str] = {}  #: labels of tensors, by memory
        self._leaves: list[torch.Tensor] = []
        for name, _, items, _ in self._before:
            for key, value in items.items():
                for label, tensor in (
                    _plain_tensors(value, label_of(name, key)) if type(value) in _HOLDING else ()
                ):
                    self._labels.setdefault(memory_of(tensor), label)
                    if tensor.requires_grad and tensor.is_leaf:
                        self._leaves.append(tensor)

    def label(self, tensor: torch.Tensor) -> str | None:
        """Returns the label of a tensor in the variables; None for other tensors."""
        return self._labels.get(memory_of(tensor)) if is_plain(tensor) else None

    @contextlib.contextmanager
    def kept(self, step: str, seen: set[int]) -> Iterator[None]:
        """Restores the variables after the step. Raises Unsupported, with the name `step`, if the step has
        changed them. It may add items to a list or dict, such as a log, change flags of a module, and replace
        derived tensors of a module: None, or a tensor whose memory is not in `seen`."""
        gradients = [(tensor, tensor.grad) for tensor in self._leaves]
        try:
            yield
            self._need_same(step, seen)
        finally:
            for tensor, gradient in gradients:
                tensor.grad = gradient
            for _, container, before, _ in self._before:
                _restore(container, before)

    def _need_same(self, step: str, seen: set[int]) -> None:
        for name, container, before, kind in self._before:
            is_module = kind == "module"
            for key, new in items_of(container):
                old = before.get(key, _ABSENT)
                # StepState.modes checks the mode of modules.
                is_mode = key == "training" and not isinstance(container, SEQUENCES)
                if old is new or is_mode:
                    continue
                if old is _ABSENT and kind == "items":
                    continue
                if _is_traced(new):
                    if not is_module or any(memory_of(tensor) in seen for _, tensor in _plain_tensors(old)):
                        raise Unsupported(
                            f"capture: {step}: found that the step puts a tensor into "
                            f"{label_of(name, key)!r}, {NEEDED}"
                        )
                elif (
                    _is_value(new)
                    and (not _is_value(old) or _differ(old, new))
                    and not (is_module and isinstance(new, (bool, str, type(None))))
                ):
                    raise Unsupported(
                        f"capture: {step}: found that the step changes {label_of(name, key)!r}, "
                        f"which is part of the program, {NEEDED}, or a change between runs"
                    )


def _restore(container: Any, before: dict[Any, Any]) -> None:
    """Puts the old items back, in their order. Objects that the step has made stay, as do items that other
    threads add (to the deque of a queue, for example)."""
    if isinstance(container, SEQUENCES):
        is_shorter = isinstance(container, list) and len(container) < len(before)
        if is_shorter or any(
            new is not before.get(key, _ABSENT) and (_is_value(new) or _is_traced(new))
            for key, new in items_of(container)
        ):
            container.clear()
            container.extend(before.values())
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
        for key in before:  # removed items return to their places, not to the end
            container[key] = container.pop(key)


def memory_of(tensor: torch.Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def items_of(container: Any) -> list[tuple[Any, Any]]:
    return list(enumerate(container) if isinstance(container, SEQUENCES) else container.items())


def label_of(name: str, key: Any) -> str:
    return ".".join(filter(None, (name, str(key))))


def is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided


def _plain_tensors(value: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields, with names, the tensors in a value that the search of the step leaves out: a tensor, or a list,
    dict or tuple of tensors."""
    if is_plain(value):
        yield label, value
    elif type(value) in (list, tuple, dict):
        parts: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((label_of(label, key), one) for key, one in parts if is_plain(one))


def _is_traced(value: Any) -> bool:
    return any(isinstance(leaf, (FunctionalTensor, FakeTensor)) for leaf in pytree.tree_leaves(value))


def _is_value(value: Any) -> bool:
    return value is None or isinstance(value, _VALUES)


def _differ(old: Any, new: Any) -> bool:
    """Returns True if two values differ, or if the new value is computed."""
    return isinstance(new, (torch.SymInt, torch.SymFloat)) or type(old) is not type(new) or bool(old != new)
