"""Names the state of optimizers by the names of parameters, or by numbers, and maps it back.

The stored state is {"state": {parameter: {...}}, "param_groups": [{..., "params": [parameter, ...]}, ...]}. A
parameter is its name in the module that has all parameters. If no single module has them all, it is its name
in the state, which begins with that of its module. If no module of the state has one of them, all are
numbers, as in the optimizer's own state_dict(). """

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._trees.nested import Path, named
from . import _modules

# Keys of state that has the shape of its parameter, in the optimizers of torch.optim.
_LIKE_PARAMETERS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
                    "grad_avg", "acc_delta")


class ParameterNames:
    """The names of parameters in all modules of a state."""

    def __init__(self, modules: Iterable[tuple[Path, torch.nn.Module]]) -> None:
        self.modules = list(modules)
        self._by_module = []
        for path, module in self.modules:
            names: dict[int, list[str]] = {}
            for name, parameter in _modules.parameters(module):
                names.setdefault(id(parameter), []).append(name)
            self._by_module.append((named(path), names))

    def owner(self, optimizer: torch.optim.Optimizer) -> int | None:
        """Returns the number of the first module that has all parameters of an optimizer, if any."""
        own = [id(p) for p in parameters_of(optimizer)]
        return next((i for i, (_, names) in enumerate(self._by_module) if all(p in names for p in own)), None)

    def of(self, optimizer: torch.optim.Optimizer) -> list[str | int]:
        """Returns the names of an optimizer's parameters, in their order."""
        own = parameters_of(optimizer)
        owner = self.owner(optimizer)
        if owner is not None:
            return [self._by_module[owner][1][id(p)][0] for p in own]
        full = [self._full(p) for p in own]
        return [names[0] for names in full] if all(full) else list(range(len(own)))

    def _full(self, parameter: torch.Tensor) -> list[str]:
        return [f"{path}.{name}" for path, names in self._by_module for name in names.get(id(parameter), ())]

    def all_of(self, optimizer: torch.optim.Optimizer) -> dict[str | int, int]:
        """Returns the numbers of parameters by every name under which they may be stored, without names that
        several parameters share."""
        numbers: dict[str | int, int] = {}
        twice: set[str | int] = set()
        for number, parameter in enumerate(parameters_of(optimizer)):
            short = [name for _, names in self._by_module for name in names.get(id(parameter), ())]
            for name in {*short, *self._full(parameter)}:
                if numbers.setdefault(name, number) != number:
                    twice.add(name)
        # The names of a single owner go first: two modules may each have a "weight".
        for number, own in enumerate(self.of(optimizer)):
            numbers[own] = number
            twice.discard(own)
        return {name: number for name, number in numbers.items() if name not in twice}


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns all parameters of an optimizer, in the order of their numbers in its state_dict()."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Returns True if the parameters of a module are flattened, so that only torch knows their names."""
    return any(type(inner).__name__ == "FullyShardedDataParallel" for inner in module.modules())


def state_of(optimizer: torch.optim.Optimizer, names: ParameterNames) -> Any:
    """Returns the state of an optimizer in its stored form."""
    owner = names.owner(optimizer)
    if owner is not None and is_fsdp1(names.modules[owner][1]):
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        return get_optimizer_state_dict(names.modules[owner][1], optimizer)
    state = optimizer.state_dict()
    if not has_numbers(state):
        return state
    name_of = names.of(optimizer)
    return {**state, "state": {name_of[key] if type(key) is int else key: value
                               for key, value in state["state"].items()},
            "param_groups": [{**group, "params": [name_of[i] for i in group["params"]]}
                             for group in state["param_groups"]]}


def has_numbers(state: Any) -> bool:
    """Returns True for a state_dict() like torch.optim's, where parameters are numbers."""
    return (isinstance(state, Mapping) and isinstance(state.get("state"), Mapping)
            and isinstance(state.get("param_groups"), (list, tuple))
            and all(isinstance(group, Mapping) and all(type(i) is int for i in group.get("params", ()))
                    for group in state["param_groups"]))


@dataclass
class Matched:
    """A match of stored parameters with those of an optimizer."""

    numbers: dict[Any, int]  #: numbers of the optimizer's parameters, by stored key
    groups: list[dict[str, Any]]  #: groups of the optimizer, with the stored options
    faults: list[str]


def matched(optimizer: torch.optim.Optimizer, names: ParameterNames, stored_groups: Any, keys: Iterable[Any],
            strict: bool) -> Matched:
    """Matches stored groups and keys of the stored state with an optimizer. stored_groups: tensors in them
    may have any values."""
    stored = ([group for group in stored_groups if isinstance(group, Mapping)]
              if isinstance(stored_groups, (list, tuple)) else [])
    lists: list[Sequence[Any]] = [group.get("params", ()) for group in stored]
    numbers = _numbers(optimizer, names, lists, keys)
    group_of = {numbers[key]: at for at, of_group in enumerate(lists) for key in of_group if key in numbers}
    name_of = names.of(optimizer)
    groups, faults = [], []
    without_members = [at for at, of_group in enumerate(lists) if not of_group]
    first = 0
    for at, own in enumerate(optimizer.param_groups):
        members = list(range(first, first + len(own["params"])))
        first += len(members)
        options = {key: value for key, value in own.items() if key != "params"}
        unknown = [name_of[i] for i in members if i not in group_of]
        from_groups = {group_of[i] for i in members if i in group_of}
        if not members and without_members:  # groups without parameters match by their order
            from_groups = {without_members.pop(0)}
        elif not members and strict:
            faults.append(f"has no group without parameters for the optimizer's group {at}")
        if unknown and strict:
            faults.append(
                "has no parameter "
                f"{', '.join(repr(name) for name in unknown[:5])}{', ...' if len(unknown) > 5 else ''} of "
                f"the optimizer's group {at}")
        elif len(from_groups) > 1:
            faults.append(f"has the parameters of the optimizer's group {at} in its groups "
                          f"{sorted(from_groups)}, needed is one")
        elif from_groups:
            there = {key: value for key, value in stored[from_groups.pop()].items() if key != "params"}
            absent, odd = (sorted(set(options) - set(there)),
                           sorted(set(there) - set(options) - {"initial_lr"}))
            if absent and odd and strict:  # a version of torch adds options; another optimizer has others
                faults.append(f"is of another optimizer: group {at} has no {', '.join(map(repr, absent))} "
                              f"there, and no {', '.join(map(repr, odd))} here")
            options = there
        groups.append({**options, "params": members})
    return Matched(numbers, groups, faults)


def _numbers(optimizer: torch.optim.Optimizer, names: ParameterNames, lists: list[Sequence[Any]],
             keys: Iterable[Any]) -> dict[Any, int]:
    known = names.all_of(optimizer)
    count = len(parameters_of(optimizer))
    stored = [*(key for of_group in lists for key in of_group), *keys]
    numbers = {key: known[key] for key in stored if type(key) is not int and key in known}
    if lists and [len(of_group) for of_group in lists] != [len(group["params"])
                                                           for group in optimizer.param_groups]:
        return numbers  # the groups differ, so a position has no meaning
    if not numbers and not names.modules:
        # The keys are names, and the state has no modules: they match in the order of groups, as in torch.
        numbers = {key: number for number, key in enumerate(key for of_group in lists for key in of_group)}
    for key in stored:  # DCP turns numbers into texts
        if (key not in numbers and (type(key) is int or isinstance(key, str) and key.isdecimal())
            and int(key) < count):
            numbers[key] = int(key)
    return numbers


def existing(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, keys: Path) -> Any:
    """Returns the value in an optimizer's state for a parameter at these keys; None if there is no value."""
    value: Any = optimizer.state.get(parameter)
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def keep(optimizer: Any, own: Iterable[tuple[torch.Tensor, Path, torch.Tensor]]) -> None:
    """Puts state of another dtype than its parameter back into an optimizer, as load_state_dict() has cast
    it. own: parameter, keys and tensor."""
    for parameter, keys, tensor in own:
        inner = existing(optimizer, parameter, keys[:-1])
        value = inner.get(keys[-1]) if isinstance(inner, dict) else None
        if isinstance(value, torch.Tensor) and value.dtype != tensor.dtype:
            inner[keys[-1]] = tensor


def must_be_like_parameter(key: Any, shape: Sequence[int]) -> bool:
    """Returns True if the state with this key must have the shape of its parameter. That of Adafactor, for
    example, has fewer dims."""
    return key in _LIKE_PARAMETERS and len(shape) > 0
