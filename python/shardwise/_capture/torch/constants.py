"""Tracks tensors whose values are known during a trace: those that the step makes of constants, and those
that it makes of static arguments, which become part of the program if the step asks for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from ..._errors import InvalidArgument

MOST_ELEMENTS = 65536  #: the most elements of a tensor whose value is kept
_WITHOUT_VALUES = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
                   "aten::new_empty_strided")


class _Memory:
    """The memory that some tensors share, so a change in place changes the values of all of them."""

    def __init__(self, arguments: frozenset[str]) -> None:
        self.is_known = True
        self.arguments = arguments  #: the arguments that the values depend on


class Constants:
    """The values of small tensors that follow from no input of the step, as torch.tensor(3) or
    torch.ones(4).sum(), or from arguments alone. The step gets only values that follow from static arguments.
    The trace reports each operation of ATen by note()."""

    def __init__(self, static: Collection[str]) -> None:
        """static: names of arguments."""
        self._static = static
        self._known: Any = WeakTensorKeyDictionary()  #: the value and the memory of each tensor
        self._examples: dict[str, torch.Tensor] = {}
        #: arguments that are part of the program, each with the line that first asks for it
        self.asked: dict[str, tuple[torch.Tensor, str]] = {}

    def give(self, label: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Notes an argument of the step with the value of the example. Raises InvalidArgument for a static
        argument without values."""
        has_values = (
            value.device.type != "meta"
            and value.numel() <= MOST_ELEMENTS
            and not isinstance(value, FakeTensor)
        )
        if self._is_static(label) and not has_values:
            raise InvalidArgument(
                f"capture: static: found {label} of {value.numel()} elements on {value.device.type}, "
                f"needed one with values, of at most {MOST_ELEMENTS}"
            )
        if not has_values or (
            not self._is_static(label) and (value.is_floating_point() or value.is_complex())
        ):
            return
        with _disable_current_modes():
            self._examples[label] = value.detach().clone()
            # This copy changes as the tensor does.
            self._known[tensor] = value.detach().clone(), _Memory(frozenset([label]))

    def _is_static(self, label: str) -> bool:
        """Returns True for a static argument, or a part of one."""
        return any(label == name or label.startswith(f"{name}.") for name in self._static)

    def know(self, tensor: torch.Tensor, value: torch.Tensor, of: torch.Tensor) -> None:
        """Notes a tensor that was made of the known value of another tensor."""
        with _disable_current_modes():
            self._known[tensor] = value.clone(), _Memory(self.follows_from(of))

    def follows_from(self, tensor: torch.Tensor) -> frozenset[str]:
        """Returns the arguments that the known value of a tensor depends on."""
        return self._known[tensor][1].arguments if tensor in self._known else frozenset()

    def asked_value(self, tensor: torch.Tensor, line: str) -> torch.Tensor | None:
        """Returns value() for the step, and makes the arguments of the value part of the program. Returns
        None if one of them is not static."""
        value = self.value(tensor)
        if not all(map(self._is_static, self.follows_from(tensor))):
            return None
        for label in self.follows_from(tensor) if value is not None else ():
            self.asked.setdefault(label, (self._examples[label], line))
        return value

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a tensor; None if it depends on an input."""
        # A tensor that the step holds is a constant of the program.
        if not isinstance(tensor, (FunctionalTensor, FakeTensor)):
            with _disable_current_modes():
                return tensor.detach().clone() if tensor.numel() <= MOST_ELEMENTS else None
        value, memory = self._known.get(tensor, (None, None))
        return value if memory is not None and memory.is_known else None

    def asked_places(self, mask: torch.Tensor, line: str) -> tuple[torch.Tensor, ...] | None:
        """Returns the places that a mask selects, for each dim; None if they are unknown."""
        value = self.asked_value(mask, line)
        with _disable_current_modes():
            return None if value is None else value.nonzero(as_tuple=True)

    def asked_result(self, func: Any, args: Any, kwargs: Any, line: str) -> Any:
        """Returns the result of an operation whose operands are all known; None for other operations."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(
            self.value(one) is None or not all(map(self._is_static, self.follows_from(one)))
            for one in tensors
        ):
            return None
        values = [self.asked_value(leaf, line) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with _disable_current_modes():
            own_args, own_kwargs = pytree.tree_unflatten(values, tree)
            return func(*own_args, **own_kwargs)

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Notes the values of an operation's results if its operands are known."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        memories = [memory for _, memory in (self._known.get(tensor, (None, None)) for tensor in tensors)
                    if memory is not None]
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        changes = func._schema.is_mutable
        values = [self.value(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if (
            any(value is None and isinstance(leaf, torch.Tensor) for value, leaf in zip(values, leaves))
            or (changes and len(memories) < len(tensors))
            or torch.Tag.nondeterministic_seeded in func.tags
            or any(not isinstance(one.numel(), int) or one.numel() > MOST_ELEMENTS for one in made)
            or func._schema.name in _WITHOUT_VALUES
        ):
            for memory in memories if changes else ():
                memory.is_known = False
            return
        arguments = frozenset(label for memory in memories for label in memory.arguments)
        with _disable_current_modes():
            own_args, own_kwargs = pytree.tree_unflatten(values, tree)
            found = pytree.tree_leaves(func(*own_args, **own_kwargs))
        shared = memories[0] if memories and any(one.alias_info for one in func._schema.returns) else None
        if shared is not None:
            shared.arguments |= arguments
        for tensor, value in zip(made, (leaf for leaf in found if isinstance(leaf, torch.Tensor)),
                                 strict=True):
            self._known[tensor] = value, shared or _Memory(arguments)
