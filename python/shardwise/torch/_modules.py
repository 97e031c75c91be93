"""Modules: names without those of wrappers, and memory for those on the meta device."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.nn.parameter import is_lazy

from .._arrays.torch_tensors import address_of
from .._trees import objects as _objects

_WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
# Activation checkpointing and FSDP1 leave these out of state_dict() by themselves, but not out of
# named_parameters().
_HIDDEN = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_ADDED = ("module", "_orig_mod", *_HIDDEN)


class Names:
    """The names of a module's values without those that DistributedDataParallel, DataParallel ("module."),
    torch.compile ("_orig_mod."), activation checkpointing ("_checkpoint_wrapped_module.") and FSDP1
    ("_fsdp_wrapped_module.") add, at any depth. What a wrapper has of its own by a name that is also within
    stays apart: nothing is left out there."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._added = set()
        for name, inner in module.named_modules(remove_duplicate=False):
            added = "module" if isinstance(inner, _WRAPPERS) else "_orig_mod"
            within = inner._modules.get(added)
            if within is not None and not (_own(inner) - {added}) & _own(within):
                self._added.add(".".join(_shown([*name.split("."), added] if name else [added])))

    def clean(self, name: str) -> str:
        """Returns a name of state_dict() or named_parameters() without the parts that wrappers add."""
        parts = _shown(name.split("."))
        return ".".join(part for i, part in enumerate(parts) if ".".join(parts[: i + 1]) not in self._added)


def _shown(parts: list[str]) -> list[str]:
    return [part for part in parts if part not in _HIDDEN]


def _own(module: torch.nn.Module) -> set[str]:
    return {*module._modules, *module._parameters, *module._buffers}


def without_wrappers(name: str) -> str:
    """Returns a stored name without parts that wrappers may add: checkpoints of earlier versions have
    them."""
    return ".".join(part for part in name.split(".") if part not in _ADDED)


def parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the parameters by clean names; tied ones by each of their names."""
    names = Names(module)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield names.clean(name), parameter


def ties(module: torch.nn.Module) -> list[list[str]]:
    """The clean names of parameters that have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters(module):
        names.setdefault(id(parameter), []).append(name)
    return [of_one for of_one in names.values() if len(of_one) > 1]


def state_of(module: torch.nn.Module) -> dict[str, Any]:
    """state_dict() by clean names."""
    names = Names(module)
    return {names.clean(name): value for name, value in module.state_dict().items()}


def versions(module: torch.nn.Module) -> dict[str, int]:
    """`_version` of the classes of inner modules, if it is not 1, by clean names: own loading reads it."""
    names = Names(module)
    within = module.named_modules(remove_duplicate=False)
    return {names.clean(name): inner._version for name, inner in within if inner._version != 1}


def stored_versions(document: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Gives versions() of each module that was saved, by its name. Raises Corrupt."""
    with _objects.refusing("the versions of the checkpoint's modules"):
        return {name: {inner: operator.index(one) for inner, one in within.items()}
                for name, within in document.get("versions", {}).items()}


def give_state(module: torch.nn.Module, filled: dict[str, Any], strict: bool,
               stored: Mapping[str, int] | None) -> None:
    """Inverse of state_of(). stored: versions() of the saved module; None: torch gets a state without
    _metadata."""
    names = Names(module)
    given: OrderedDict[str, Any] = OrderedDict(
        (one, filled[clean]) for one in module.state_dict() if (clean := names.clean(one)) in filled)
    if stored is not None:
        within = module.named_modules(remove_duplicate=False)
        given._metadata = {inner: {"version": stored.get(names.clean(inner), 1)}  # type: ignore[attr-defined]
                           for inner, _ in within}
    module.load_state_dict(given, strict=strict)


def own_loading(module: torch.nn.Module, state: Mapping[str, Any]) -> set[str]:
    """The names in state_of() of values that a class or a hook loads by code of its own: it may take another
    shape, and read its arguments while it writes its own memory."""
    names = Names(module)
    found: set[str] = set()
    of_whole = [] if _loads_in_place(type(module).load_state_dict) else [""]
    for prefix, inner in module.named_modules(remove_duplicate=False):
        below = f"{clean}." if (clean := names.clean(prefix)) else ""
        if not all(map(_loads_in_place, inner._load_state_dict_pre_hooks.values())):
            of_whole.append(below)
        elif not _loads_in_place(type(inner)._load_from_state_dict):
            found.update(state.keys() & {below + name for name in _own(inner)})
    return found | {name for name in state if name.startswith(tuple(of_whole))}


def _loads_in_place(function: Any) -> bool:
    """Torch's own does, but for observers of quantization, which take other shapes."""
    function = getattr(function, "hook", function)
    where = getattr(function, "__module__", None) or type(function).__module__
    return where.partition(".")[0] == "torch" and not where.startswith("torch.ao.")


def given_names(module: torch.nn.Module, state: Mapping[str, Any]) -> list[str]:
    """The names in state_of() of values that load_state_dict() copies into no parameter and no buffer: of
    get_extra_state() and of hooks, and of parameters that get their shape from the loaded value."""
    names = Names(module)
    own = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    known = {names.clean(name) for name, _ in own}
    found = [name for name, value in state.items() if name not in known or is_lazy(value)]
    if not found:
        return found
    extra = [name for name in found if name.endswith(_EXTRA_STATE_KEY_SUFFIX)]
    if any(type(inner).__name__ == "FullyShardedDataParallel" for inner in module.modules()):
        return extra  # its parameters have names and memory of their own
    memory = {_storage_of(tensor) for _, tensor in own} - {None}
    return [name for name in found if name in extra or is_lazy(state[name])
            or _storage_of(state[name]) not in memory]


def _storage_of(value: Any) -> tuple[int, int] | None:
    """Returns device and address of its first element; None for values without memory."""
    local = value.to_local() if isinstance(value, DTensor) else value
    if not isinstance(local, torch.Tensor) or is_lazy(local) or local.is_meta:
        return None
    return (local.get_device(), address_of(local)) if address_of(local) else None


def is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def unsaved_on_meta(module: torch.nn.Module) -> list[str]:
    """The clean names of buffers on the meta device that no state_dict() has: nothing can fill them."""
    names = Names(module)
    return [names.clean(f"{name}.{buffer}" if name else buffer) for name, inner in module.named_modules()
            for buffer in inner._non_persistent_buffers_set if is_meta(inner._buffers.get(buffer))]


def materialise(module: torch.nn.Module) -> None:
    """Gives tensors on the meta device memory, uninitialised: DTensors on their mesh's devices, others on the
    device of the module's other tensors, else on torch's default device. Tied parameters stay tied."""
    here = next((t.device for t in (*module.parameters(), *module.buffers()) if not is_meta(t)), None)
    if here is None:
        default = torch.get_default_device()
        here = torch.device("cpu") if default.type == "meta" else default
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for inner in module.modules():
        for name, parameter in inner._parameters.items():
            if is_meta(parameter):
                places.setdefault(id(parameter), []).append((inner, name))

    def with_memory(tensor: torch.Tensor) -> torch.Tensor:
        if not is_meta(tensor):
            return tensor
        device = tensor.device_mesh.device_type if isinstance(tensor, DTensor) else here
        if id(tensor) not in made:
            made[id(tensor)] = tensor, torch.empty_like(tensor, device=device)
        return made[id(tensor)][1]

    module._apply(
        with_memory)  # type: ignore[no-untyped-call]  # what to_empty() calls, and what FSDP2 looks out for
    for (first, name), *others in places.values():
        for inner, tied in others:
            inner._parameters[tied] = first._parameters[name]
