"""Finds the state of a training step: its modules and optimizers, and their tensors by name. Replaces these
tensors during a trace."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from ..._errors import InvalidArgument, Unsupported
from .checks import line_of_step
from .variables import SEQUENCES, is_plain, items_of, memory_of

# The most functions, objects, containers and attributes that the search of a step visits.
MOST_HOLDERS = 10_000

# Optimizers whose step from zero state equals a step without state.
_BEGIN_WITH_ZEROS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta,
                     torch.optim.RMSprop, torch.optim.RAdam, torch.optim.SGD)


@dataclass
class Slot:
    """A tensor that a step takes: its name and kind, and for state the dict that holds it with its key. A
    fresh slot is state that the first step makes; it counts as zero until then."""

    label: str
    kind: str
    tensor: torch.Tensor
    home: Callable[[], Any] = dict
    key: Any = None
    is_fresh: bool = False
    first: Callable[[], dict[Any, Any]] | None = None  #: makes fresh state that does not begin with zeros
    places: list[tuple[Any, Any]] = field(default_factory=list)  #: holders of a module's tensor, with keys

    def value(self) -> torch.Tensor:
        """Returns the present value. Raises InvalidArgument if it is on the meta device."""
        found = self.home().get(self.key)
        if isinstance(found, (int, float)):  # a learning rate
            found = torch.tensor(found, dtype=torch.float64)
        if found is None and self.first is not None:
            self.home().update(self.first())
            found = self.home().get(self.key)
        if not isinstance(found, torch.Tensor):
            found = torch.zeros(self.tensor.shape, dtype=self.tensor.dtype)
        if found.device.type == "meta":
            raise InvalidArgument(f"run: {self.label}: found a tensor on the meta device, "
                                  "needed one with values")
        return found

    def give(self, value: torch.Tensor) -> None:
        found = self.home().get(self.key)
        if isinstance(found, torch.Tensor):
            with torch.no_grad():
                found.copy_(value)
        else:
            self.home()[self.key] = value.clone()


class StepState:
    """The state of a step, and of the modules and optimizers in uses=. Not thread-safe: it replaces tensors
    of modules."""

    def __init__(self, step: Callable[..., Any], uses: Iterable[Any]) -> None:
        containers: list[tuple[str, Any, str]] = []  #: lists, dicts and variables for Variables
        held = dict(_held_by(step, uses, containers))
        self.containers = containers
        self._modules = _roots({name: m for name, m in held.items() if isinstance(m, torch.nn.Module)})
        self._optimizers = {name: o for name, o in held.items() if isinstance(o, Optimizer)}
        self._rates = {id(optimizer): _rates_of(optimizer) for optimizer in self._optimizers.values()}
        self.scopes = {id(inner): "/".join(filter(None, (name, path.replace(".", "/"))))
                       for name, module in self._modules.items() for path, inner in module.named_modules()}
        self._slots: dict[int, Slot] = {}
        self._fresh: dict[int, dict[torch.Tensor, dict[str, Any]]] = {}
        for name, module in self._modules.items():
            self._add_module(f"{name}." if name else "", module)
        for _, container, _ in containers:
            self._add_places(container)
        self._keys = [
            (container, key)
            for _, container, _ in containers
            if isinstance(container, dict)
            for key in container
            if isinstance(key, torch.Tensor) and id(key) in self._slots
        ]

    @property
    def modules(self) -> list[torch.nn.Module]:
        return [inner for module in self._modules.values() for inner in module.modules()]

    @property
    def optimizers(self) -> Iterable[Optimizer]:
        return self._optimizers.values()

    def slots(self, fake: Callable[[torch.Tensor], torch.Tensor]) -> list[Slot]:
        """Returns parameters and buffers, then the state of optimizers. A step without values finds the state
        that an optimizer makes at its first step. fake: returns a tensor of the same type without memory."""
        slots = list(self._slots.values())
        for name, optimizer in self._optimizers.items():
            slots += self._optimizer_slots("" if len(self._optimizers) == 1 else f"{name}.", optimizer, fake)
        return slots

    def _add_module(self, prefix: str, module: torch.nn.Module) -> None:
        for path, inner in module.named_modules():
            for held in (inner._parameters, inner._buffers):
                for name, tensor in held.items():
                    if tensor is None:
                        continue
                    label = prefix + ".".join(filter(None, (path, name)))
                    slot = self._slots.setdefault(id(tensor), Slot(label, "parameter", tensor,
                                                                   functools.partial(_itself, held), name))
                    slot.places.append((held, name))

    def _add_places(self, container: Any) -> None:
        """Notes the places of parameters and buffers in a container, such as a list of parameters whose
        gradients are clipped."""
        for key, value in items_of(container):
            slot = self._slots.get(id(value)) if isinstance(value, torch.Tensor) else None
            if slot is not None:
                slot.places.append((container, key))
            elif isinstance(value, tuple):
                self._add_places(_Tuple(container, key))

    def _optimizer_slots(self, prefix: str, optimizer: Optimizer,
                         fake: Callable[[torch.Tensor], torch.Tensor]) -> list[Slot]:
        slots = []
        labels = {id(slot.tensor): slot.label for slot in self._slots.values()}
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    slots.append(
                        Slot(
                            _group_label(prefix, key, number),
                            "optimizer",
                            value,
                            functools.partial(_group_of, optimizer, number),
                            key,
                        )
                    )
        fresh = _state_to_be_made(optimizer, fake)
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) not in labels:
                raise InvalidArgument(f"capture: found a parameter of shape {list(parameter.shape)} of "
                                      f"{type(optimizer).__name__} that is in no module of the step, "
                                      "needed one that is")
            state = optimizer.state.get(parameter) or fresh.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    own = labels[id(parameter)]
                    # Names are so ordered that all tensors of "*.weight" have one rank.
                    label = f"{key}.{own}" if value.shape == parameter.shape else f"{own}.{key}"
                    slots.append(Slot(prefix + label, "optimizer", value,
                                      functools.partial(_state_of, optimizer, parameter), key,
                                      is_fresh=not optimizer.state.get(parameter),
                                      first=None if _begins_with_zeros(optimizer)
                                      else functools.partial(_first_state, optimizer, parameter)))
        self._fresh[id(optimizer)] = fresh
        slots += [
            Slot(
                _group_label(prefix, "lr", number),
                "optimizer",
                rate,
                functools.partial(_group_of, optimizer, number),
                "lr",
                is_fresh=True,
            )
            for number, rate in self._rates[id(optimizer)].items()
        ]
        return slots

    def modes(self) -> Callable[[], None]:
        """Returns a check for each run. It raises InvalidArgument if a module has left its present mode,
        train() or eval(), which is part of the program."""
        known = [(".".join(filter(None, (name, path))) or type(inner).__name__, inner, inner.training)
                 for name, module in self._modules.items() for path, inner in module.named_modules()]

        def need_same() -> None:
            for label, module, training in known:
                if module.training != training:
                    found, needed = ("train()", "eval()") if module.training else ("eval()", "train()")
                    raise InvalidArgument(f"run: found {label} in the mode {found}, needed {needed}, "
                                          "as at the capture: capture a program of each mode")

        return need_same

    def numbers(self) -> Callable[[], None]:
        """Returns a check for each run. It raises InvalidArgument if numbers of optimizers, such as betas,
        have changed, as they are part of the program."""
        known = [(optimizer, _constants_of(optimizer)) for optimizer in self.optimizers]

        def need_same() -> None:
            for optimizer, before in known:
                now = _constants_of(optimizer)
                for place, value in before.items():
                    if now.get(place) != value:
                        raise InvalidArgument(
                            f"run: found {place[1]}={now.get(place)!r} of {type(optimizer).__name__}, "
                            f"needed {value!r}, which is part of the program: only the rate, lr, may change"
                        )

        return need_same

    @contextlib.contextmanager
    def guarded(self) -> Iterator[dict[int, str]]:
        """Yields labels of the modules' tensors by memory. In a module another tensor replaces each of them,
        so a step that computes with one has it from elsewhere. During the block they have gradients, which
        are labelled, too."""
        labels: dict[int, str] = {}
        with contextlib.ExitStack() as undo:
            for slot in self._slots.values():
                tensor = slot.tensor
                if not is_plain(tensor):
                    continue
                labels[memory_of(tensor)] = slot.label
                if tensor.requires_grad and tensor.is_leaf:
                    undo.callback(setattr, tensor, "grad", tensor.grad)
                    with _disable_current_modes():
                        tensor.grad = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(
                            tensor.shape)
                    labels[memory_of(tensor.grad)] = slot.label
            yield labels

    @contextlib.contextmanager
    def replaced(self, slots: Sequence[Slot],
                 tensors: Sequence[torch.Tensor]) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Gives other tensors to modules and optimizers, and restores their own at the end. Yields a function
        that returns the present tensors in these places."""
        new = {id(slot.tensor): tensor for slot, tensor in zip(slots, tensors, strict=True)}
        now: list[Callable[[], torch.Tensor]] = []
        with contextlib.ExitStack() as undo:
            for slot, tensor in zip(slots, tensors, strict=True):
                for held, name in slot.places:
                    undo.callback(held.__setitem__, name, held[name])
                    held[name] = tensor
                if slot.places:
                    now.append(functools.partial(_one_of, slot))
            for held, key in self._keys:  # for example, of a dict with an optimizer for each parameter
                held[new[id(key)]] = held[key]
                undo.callback(held.pop, new[id(key)], None)
            for optimizer in self.optimizers:
                rates = {number: new[id(rate)] for number, rate in self._rates[id(optimizer)].items()}
                undo.enter_context(_optimizer_with(optimizer, rates, self._fresh[id(optimizer)], new))
                now += [
                    *_places_of(optimizer),
                    *(functools.partial(_itself, rate) for rate in rates.values()),
                ]
            yield lambda: [get() for get in now]


def _one_of(slot: Slot) -> torch.Tensor:
    """Returns the tensor in the places of a slot. Raises Unsupported if the places differ."""
    found: list[torch.Tensor] = [held[key] for held, key in slot.places]
    if any(one is not found[0] for one in found):
        raise Unsupported(f"capture: found another tensor in place of {slot.label} in one of the places that "
                          "hold it, needed one that is held there alone: its clone()")
    return found[0]


class _Variables:
    """The outer variables of a function, with the methods of a dict."""

    def __init__(self, function: types.FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        self._globals, self._names = function.__globals__, function.__code__.co_names

    def items(self) -> list[tuple[str, Any]]:
        cells = [(name, cell.cell_contents) for name, cell in self._cells.items() if _is_filled(cell)]
        return cells + [(name, self._globals[name])
                        for name in self._names if name in self._globals and name not in self._cells]

    def __getitem__(self, name: str) -> Any:
        return self._cells[name].cell_contents if name in self._cells else self._globals[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._globals[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._cells:
            del self._cells[name].cell_contents
        else:
            del self._globals[name]


class _Tuple:
    """A tuple at a key of a container, with the methods of a dict. Setting an item puts a new tuple at that
    key."""

    def __init__(self, container: Any, key: Any) -> None:
        self._container, self._key = container, key

    def items(self) -> list[tuple[int, Any]]:
        return list(enumerate(self._container[self._key]))

    def __getitem__(self, place: int) -> Any:
        return self._container[self._key][place]

    def __setitem__(self, place: int, value: Any) -> None:
        old = self._container[self._key]
        items = [*old[:place], value, *old[place + 1:]]
        self._container[self._key] = old._make(items) if hasattr(old, "_make") else tuple(items)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _itself(held: Any) -> Any:
    return held


def _group_label(prefix: str, key: str, number: int) -> str:
    return f"{prefix}{key}" + (f".{number}" if number else "")


def _group_of(optimizer: Optimizer, number: int) -> dict[str, Any]:
    group: dict[str, Any] = optimizer.param_groups[number]
    return group


def _state_of(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    state: dict[str, Any] = optimizer.state[parameter]
    return state


def _places_of(optimizer: Optimizer) -> list[Callable[[], torch.Tensor]]:
    """Returns readers of the places of an optimizer's tensors, in the order of its slots."""
    holders = [*optimizer.param_groups,
               *(optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"])]
    return [functools.partial(holder.__getitem__, key) for holder in holders for key, value in holder.items()
            if isinstance(value, torch.Tensor)]


@contextlib.contextmanager
def _optimizer_with(
    optimizer: Optimizer,
    rates: Mapping[int, torch.Tensor],
    fresh: dict[torch.Tensor, dict[str, Any]],
    new: dict[int, torch.Tensor],
) -> Iterator[None]:
    """Lets an optimizer work on other tensors, with rates that only a run knows."""
    groups, state = optimizer.param_groups, optimizer.state

    def mapped(value: Any) -> Any:
        return new.get(id(value), value) if isinstance(value, torch.Tensor) else value

    optimizer.param_groups = [
        _Group(
            {
                **_plain_group(optimizer, {key: mapped(value) for key, value in group.items()}),
                **({"lr": rates[number].item()} if number in rates else {}),
                "params": [mapped(p) for p in group["params"]],
            }
        )
        for number, group in enumerate(groups)
    ]
    optimizer.state = type(state)(dict)
    for parameter in (p for group in groups for p in group["params"]):
        own = state.get(parameter) or fresh.get(parameter)
        if own:
            optimizer.state[mapped(parameter)] = {key: mapped(value) for key, value in own.items()}
    numbers = _numbers_of(optimizer)
    try:
        yield
        changed = next((key for key, value in _numbers_of(optimizer).items()
                        if numbers.get(key, value) != value), None)
        if changed is not None:
            raise Unsupported(f"capture: found that the step changes the number {changed[-1]!r} of "
                              f"{type(optimizer).__name__}, which is part of the program, needed a tensor")
    finally:
        optimizer.param_groups, optimizer.state = groups, state


class _Group(dict[str, Any]):
    """A parameter group of an optimizer. Each run reads its rate, so the step must not set the rate."""

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            raise Unsupported(
                f"capture: {line_of_step()}: found a learning rate that the step sets, "
                "needed one that is set between runs, as by scheduler.step(): each run reads it"
            )
        super().__setitem__(key, value)


def _constants_of(optimizer: Optimizer) -> dict[tuple[int, str], Any]:
    return {
        (number, key): value
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key not in ("lr", "initial_lr")
        and (
            isinstance(value, (int, float))
            or (isinstance(value, tuple) and all(isinstance(one, (int, float)) for one in value))
        )
    }


def _numbers_of(optimizer: Optimizer) -> dict[tuple[Any, ...], int | float]:
    """Returns the numbers of an optimizer, of its groups and of its state, by place."""
    holders = [vars(optimizer), *optimizer.param_groups,
               *(optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"])]
    return {(place, key): value for place, holder in enumerate(holders) for key, value in holder.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            and not str(key).startswith("_")}


def _plain_group(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """Returns a group whose options make the optimizer ask for no value on the host. An optimizer that need
    not keep the number of the step as a tensor counts in double."""
    keeps = isinstance(optimizer, (torch.optim.RAdam,
                                   torch.optim.ASGD)) or isinstance(group["lr"], torch.Tensor)
    wanted: dict[str, Any] = {"foreach": False, "fused": False, "capturable": keeps}
    if isinstance(optimizer, torch.optim.SGD) and isinstance(group["lr"], torch.Tensor):
        wanted["lr"] = group["lr"].detach().requires_grad_()
    return {**group, **{key: value for key, value in wanted.items() if key in group}}


def _rates_of(optimizer: Optimizer) -> dict[int, torch.Tensor]:
    """Returns the learning rates that are numbers as tensors, by the number of the group."""
    return {
        number: torch.tensor(float(group["lr"]), dtype=torch.float64)
        for number, group in enumerate(optimizer.param_groups)
        if isinstance(group.get("lr"), (int, float))
    }


def _state_to_be_made(
    optimizer: Optimizer, fake: Callable[[torch.Tensor], torch.Tensor]
) -> dict[torch.Tensor, dict[str, Any]]:
    """Returns the state that the first step will make for parameters without state."""
    missing = [p for group in optimizer.param_groups
               for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
    if not missing:
        return {}
    stand_ins = {id(p): fake(p).requires_grad_() for p in missing}
    with _on_stand_ins(optimizer, stand_ins):
        for stand_in in stand_ins.values():
            stand_in.grad = torch.zeros_like(stand_in)
        try:
            optimizer.step()
        except TypeError as error:
            raise Unsupported(f"capture: found {type(optimizer).__name__}, whose step needs more than "
                              f"gradients ({error}), needed an optimizer that steps by them alone") from None
        made = {p: dict(optimizer.state.get(stand_ins[id(p)], {})) for p in missing}
    has_tensors = any(isinstance(value, torch.Tensor) for of_one in made.values()
                      for value in of_one.values())
    if not has_tensors or _begins_with_zeros(optimizer):
        return made
    first = {}
    if hasattr(optimizer, "_init_group"):
        with _on_stand_ins(optimizer, stand_ins):
            _initialise(optimizer)
            first = {p: dict(optimizer.state.get(stand_ins[id(p)], {})) for p in missing}
    if any(_tensors_in(first.get(p, {})) != _tensors_in(made[p]) for p in missing):
        raise Unsupported(f"capture: found {type(optimizer).__name__} without state, "
                          "whose first values are not known, needed one that has made a step")
    return made


def _begins_with_zeros(optimizer: Optimizer) -> bool:
    """Returns True if an optimizer's step from zero state equals its step without state."""
    return type(optimizer) in _BEGIN_WITH_ZEROS and not any(group.get("dampening")
                                                            for group in optimizer.param_groups)


def _tensors_in(state: dict[str, Any]) -> set[str]:
    return {key for key, value in state.items() if isinstance(value, torch.Tensor)}


@contextlib.contextmanager
def _on_stand_ins(optimizer: Optimizer, stand_ins: dict[int, torch.Tensor]) -> Iterator[None]:
    """Lets an optimizer work on stand-ins for its parameters only, by their ids, without state."""
    before, state = optimizer.param_groups, optimizer.state
    optimizer.param_groups = [
        {
            **_plain_group(optimizer, group),
            "params": [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins],
        }
        for group in before
    ]
    optimizer.state = type(state)(dict)
    try:
        yield
    finally:
        optimizer.param_groups, optimizer.state = before, state


def _initialise(optimizer: Any) -> None:
    """Makes the state with which an optimizer of torch begins."""
    lists = len(inspect.signature(optimizer._init_group).parameters) - 1
    for group in optimizer.param_groups:
        optimizer._init_group(group, *([] for _ in range(lists)))


def _first_state(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    stand_in = torch.zeros_like(parameter, requires_grad=True)
    stand_in.grad = torch.zeros_like(stand_in)
    with _on_stand_ins(optimizer, {id(parameter): stand_in}):
        _initialise(optimizer)
        return dict(optimizer.state[stand_in])


def _roots(modules: dict[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Returns the modules that are in no other module. If only one of them has tensors, its names get no
    prefix."""
    inner = {id(m) for module in modules.values() for m in module.modules() if m is not module}
    roots = {name: m for name, m in modules.items() if id(m) not in inner}
    with_tensors = [name for name, m in roots.items() if any(True for _ in m.parameters())
                    or any(True for _ in m.buffers())]
    if len(with_tensors) == 1:
        roots = {"" if name in with_tensors else name: m for name, m in roots.items()}
    return roots


def _held_by(
    step: Callable[..., Any], uses: Iterable[Any], containers: list[tuple[str, Any, str]]
) -> Iterator[tuple[str, Any]]:
    """Yields modules and optimizers, each once, with the names of the variables that hold them. `containers`
    gets the lists, dicts and variables that may hold their tensors."""
    open_: deque[tuple[str, Any]] = deque([*((type(one).__name__.lower(), one) for one in uses),
                                           ("step", step)])
    seen: set[int] = set()
    names: set[str] = set()
    while open_ and len(seen) < MOST_HOLDERS:
        name, holder = open_.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        if isinstance(holder, (torch.nn.Module, Optimizer)):
            while name in names:
                name += "_"
            names.add(name)
            yield name, holder
        if isinstance(holder, torch.nn.Module):
            for path, module in holder.named_modules():
                place = ".".join(filter(None, (name, path)))
                containers.append((place, vars(module), "module"))
                containers += (
                    (place if key == "_buffers" else f"{place}.{key}", value, "module")
                    for key, value in vars(module).items()
                    if isinstance(value, (*SEQUENCES, dict)) and key != "_parameters"
                )
            open_ += (("hook", hook) for hook in _hooks_of(holder))
        elif not isinstance(holder, Optimizer):
            if isinstance(holder, (*SEQUENCES, dict)):
                containers.append((name, holder, "items"))
            elif inspect.isfunction(holder):
                containers.append(("", _Variables(holder), "names"))
            elif inspect.ismethod(holder):
                if not isinstance(holder.__self__, (torch.nn.Module,
                                                    type)) and hasattr(holder.__self__, "__dict__"):
                    containers.append(("", vars(holder.__self__), "names"))
            elif hasattr(holder, "__dict__") and not isinstance(
                    holder, (type, types.ModuleType, types.FunctionType, torch.Tensor)):
                containers.append((name, holder.__dict__, "names"))
            open_ += parts_of(holder)


def _hooks_of(module: torch.nn.Module) -> Iterator[Callable[..., Any]]:
    """Yields the hooks of a module, of its parameters and of its inner modules."""
    for parameter in module.parameters():
        yield from (parameter._backward_hooks or {}).values()
        yield from (parameter._post_accumulate_grad_hooks or {}).values()
    for inner in module.modules():
        for hooks in (inner._forward_pre_hooks, inner._forward_hooks, inner._backward_hooks,
                      inner._backward_pre_hooks):
            yield from hooks.values()


def parts_of(holder: Any) -> Iterable[tuple[str, Any]]:
    """Returns the parts of a container, an object or a function, by name."""
    if isinstance(holder, functools.partial):
        return [("step", holder.func), *holder.keywords.items(),
                *((f"argument{i}", a) for i, a in enumerate(holder.args))]
    if inspect.ismethod(holder):
        return [("step", holder.__func__), *_attributes(holder.__self__)]
    if inspect.isfunction(holder):
        if (holder.__module__ or "").partition(".")[0] in ("torch", "shardwise"):
            return parts_of(holder.__wrapped__) if hasattr(holder, "__wrapped__") else []
        found = inspect.getclosurevars(holder)
        defaults = [(name, p.default)
                    for name, p in inspect.signature(holder).parameters.items() if p.default is not p.empty]
        return [*found.nonlocals.items(), *found.globals.items(), *defaults]
    if isinstance(holder, dict):
        return [(str(place if isinstance(key, torch.Tensor) else key), value)
                for place, (key, value) in enumerate(holder.items())]
    if isinstance(holder, (*SEQUENCES, tuple)):
        return [(f"{i}", value) for i, value in enumerate(holder)]
    return _attributes(holder)


def _attributes(holder: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(holder, (torch.nn.Module, Optimizer)):
        return [("model", holder)]
    if isinstance(holder, (type, types.ModuleType, torch.Tensor)):
        return []
    slots = {name: getattr(holder, name) for kind in type(holder).__mro__
             for name in getattr(kind, "__slots__", ()) if isinstance(name, str) and hasattr(holder, name)}
    return [*slots.items(), *getattr(holder, "__dict__", {}).items()]
