"""Tensors that a step makes of numbers of its own: their values are known while it is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

MOST_ELEMENTS = 65536  #: of a tensor whose value is kept
_WITHOUT_VALUES = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided")


class _Memory:
    """Of tensors that share it, as their values do: a change in place is one of all."""

    is_known = True


class Constants:
    """Values of small tensors that follow from no input of the step: torch.tensor(3), torch.ones(4).sum(). It is told of each
    operation of ATen."""

    def __init__(self) -> None:
        self._known: Any = WeakTensorKeyDictionary()  #: the value of each, and its memory

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """None if it depends on an input."""
        if not isinstance(tensor, (FunctionalTensor, FakeTensor)):  # of the step's surroundings, and as it is in the program
            with _disable_current_modes():
                return tensor.detach().clone() if tensor.numel() <= MOST_ELEMENTS else None
        value, memory = self._known.get(tensor, (None, None))
        return value if memory is not None and memory.is_known else None

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What has been computed, if it is known."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        memories = [memory for _, memory in (self._known.get(tensor, (None, None)) for tensor in tensors) if memory is not None]
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        changes = func._schema.is_mutable
        values = [self.value(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if (any(value is None and isinstance(leaf, torch.Tensor) for value, leaf in zip(values, leaves))
                or (changes and len(memories) < len(tensors)) or torch.Tag.nondeterministic_seeded in func.tags
                or any(one.numel() > MOST_ELEMENTS for one in made) or func._schema.name in _WITHOUT_VALUES):
            for memory in memories if changes else ():
                memory.is_known = False
            return
        with _disable_current_modes():
            own_args, own_kwargs = pytree.tree_unflatten(values, tree)
            found = pytree.tree_leaves(func(*own_args, **own_kwargs))
        shared = memories[0] if memories and any(one.alias_info for one in func._schema.returns) else None
        for tensor, value in zip(made, (leaf for leaf in found if isinstance(leaf, torch.Tensor)), strict=True):
            self._known[tensor] = value, shared or _Memory()
