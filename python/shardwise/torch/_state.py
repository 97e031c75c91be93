"""Takes the state of a job apart into names and leaves. Modules, optimizers, Stateful objects, DTensors,
tensors, arrays and plain objects may stand at any depth of dicts, lists and tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .._errors import InvalidArgument
from .._trees.nested import Flat, Path, flatten, named
from . import _modules, _optimizers


class PerRank:
    """A value, or a tree of values, that differs from rank to rank, such as the state of a random generator.
    In a target, PerRank(None) gets the value that this rank has saved. If the number of ranks has changed, a
    rank without a saved value keeps its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"

    @staticmethod
    def name(name: str, rank: int) -> str:
        return f"{name}@rank{rank}"


def is_stateful(value: Any) -> bool:
    return (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
            and not isinstance(value, (torch.Tensor, Mapping, type)))


def is_array(value: Any) -> bool:
    """Returns True if the value is stored as a tensor."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def _is_value(value: Any) -> bool:
    return is_array(value) or isinstance(value, PerRank) or is_stateful(value)


def flat_values(tree: Any, path: Path) -> Flat:
    """Returns the leaves of the tree of a Stateful object or a PerRank."""
    return flatten(tree, lambda value: is_array(value) or isinstance(value, PerRank), path, every_dict=True)


class State:
    """A state whose containers are taken apart: `flat` has modules, optimizers and other Stateful objects
    whole. Raises InvalidArgument for anything but a dict by names."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise InvalidArgument(f"the state is {type(state).__module__}.{type(state).__qualname__}, needed "
                                  "is a dict by names, as " f'{{"model": model}}, or model.state_dict()')
        self.flat = Flat()
        for name, value in state.items():
            if not isinstance(name, str):
                raise InvalidArgument(f"the state's names are str, not {type(name).__name__}: {name!r}")
            flatten(value, _is_value, (name,), every_dict=True, into=self.flat)
        self.stateful = {path: value for path, value in self.flat.leaves.items() if is_stateful(value)}
        self.names = _optimizers.ParameterNames(
            (path, value) for path, value in self.stateful.items() if isinstance(value, torch.nn.Module))

    def tree_of(self, value: Any) -> Any:
        """Returns the state of a Stateful object: that of a module by names without wrappers, that of an
        optimizer by the names of its parameters."""
        if isinstance(value, torch.optim.Optimizer):
            return _optimizers.state_of(value, self.names)
        if isinstance(value, torch.nn.Module):
            return _modules.state_of(value)
        return value.state_dict()

    def versions(self) -> dict[str, dict[str, int]]:
        """Returns the versions of each module, by its name."""
        return {named(path): _modules.versions(value) for path, value in self.stateful.items()
                if isinstance(value, torch.nn.Module)}

    def expanded(self) -> Flat:
        """Returns the whole state, with Stateful objects replaced by their states."""
        flat = Flat(kinds=dict(self.flat.kinds))
        for path, leaf in self.flat.leaves.items():
            if path in self.stateful:
                inner = flat_values(self.tree_of(leaf), path)
                # A state_dict() may be an OrderedDict or a dict, so this kind has no meaning.
                if inner.kinds.get(path) == "OrderedDict":
                    inner.kinds.pop(path)
                flat.leaves.update(inner.leaves)
                flat.kinds.update(inner.kinds)
            else:
                flat.leaves[path] = leaf
        return flat
