"""Names the values of modules without the parts of wrappers, and gives memory to modules on the meta
device."""

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
# Activation checkpointing and FSDP1 omit these in state_dict(), but not in named_parameters().
_HIDDEN = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_ADDED = ("module", "_orig_mod", *_HIDDEN)


class Names:
    """The names of a module's values without the parts that DistributedDataParallel, DataParallel
    ("module."), torch.compile ("_orig_mod."), activation checkpointing ("_checkpoint_wrapped_module.") and
    FSDP1 ("_fsdp_wrapped_module.") add at any depth. If a wrapper itself has a value with the name of a
    wrapped value, its part of the names stays."""

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
    """Returns a stored name without the parts of wrappers, which checkpoints of earlier versions have."""
    return ".".join(part for part in name.split(".") if part not in _ADDED)


def parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields the parameters with their clean names; a tied parameter comes with each of its names."""
    names = Names(module)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield names.clean(name), parameter


def ties(module: torch.nn.Module) -> list[list[str]]:
    """Returns the clean names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters(module):
        names.setdefault(id(parameter), []).append(name)
    return [tied for tied in names.values() if len(tied) > 1]


def state_of(module: torch.nn.Module) -> dict[str, Any]:
    """Returns the state_dict() of a module by clean names."""
    names = Names(module)
    return {names.clean(name): value for name, value in module.state_dict().items()}


def versions(module: torch.nn.Module) -> dict[str, int]:
    """Returns, by clean names, each `_version` of the class of an inner module that is not 1. A module's own
    loading reads it."""
    names = Names(module)
    within = module.named_modules(remove_duplicate=False)
    return {names.clean(name): inner._version for name, inner in within if inner._version != 1}


def stored_versions(document: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Returns the versions() of each saved module, by its name. Raises Corrupt."""
    with _objects.refusing("the versions of the checkpoint's modules"):
        return {name: {inner: operator.index(version) for inner, version in within.items()}
                for name, within in document.get("versions", {}).items()}


def give_state(module: torch.nn.Module, filled: dict[str, Any], strict: bool,
               stored: Mapping[str, int] | None) -> None:
    """Gives a module the state that state_of() would return. stored: versions() of the saved module; if it is
    None, torch gets a state without _metadata."""
    names = Names(module)
    state: OrderedDict[str, Any] = OrderedDict(
        (name, filled[clean]) for name in module.state_dict() if (clean := names.clean(name)) in filled)
    if stored is not None:
        within = module.named_modules(remove_duplicate=False)
        state._metadata = {inner: {"version": stored.get(names.clean(inner), 1)}  # type: ignore[attr-defined]
                           for inner, _ in within}
    module.load_state_dict(state, strict=strict)


def own_loading(module: torch.nn.Module, state: Mapping[str, Any]) -> set[str]:
    """Returns the names in state_of() of values that a class or a hook loads by its own code, which may take
    another shape, and may read its arguments while it writes its own memory."""
    names = Names(module)
    own_names: set[str] = set()
    of_whole = [] if _loads_in_place(type(module).load_state_dict) else [""]
    for prefix, inner in module.named_modules(remove_duplicate=False):
        below = f"{clean}." if (clean := names.clean(prefix)) else ""
        if not all(map(_loads_in_place, inner._load_state_dict_pre_hooks.values())):
            of_whole.append(below)
        elif not _loads_in_place(type(inner)._load_from_state_dict):
            own_names.update(state.keys() & {below + name for name in _own(inner)})
    return own_names | {name for name in state if name.startswith(tuple(of_whole))}


def _loads_in_place(function: Any) -> bool:
    """Returns True for functions of torch, but for observers of quantization, which take other shapes."""
    function = getattr(function, "hook", function)
    where = getattr(function, "__module__", None) or type(function).__module__
    return where.partition(".")[0] == "torch" and not where.startswith("torch.ao.")


def given_names(module: torch.nn.Module, state: Mapping[str, Any]) -> list[str]:
    """Returns the names in state_of() of values that load_state_dict() copies into no parameter and no
    buffer: those of get_extra_state() and of hooks, and parameters that get their shape from the loaded
    value."""
    names = Names(module)
    own = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    known = {names.clean(name) for name, _ in own}
    others = [name for name, value in state.items() if name not in known or is_lazy(value)]
    if not others:
        return others
    extra = [name for name in others if name.endswith(_EXTRA_STATE_KEY_SUFFIX)]
    if any(type(inner).__name__ == "FullyShardedDataParallel" for inner in module.modules()):
        return extra  # the parameters of FSDP1 have other names and other memory
    memory = {_storage_of(tensor) for _, tensor in own} - {None}
    return [name for name in others if name in extra or is_lazy(state[name])
            or _storage_of(state[name]) not in memory]


def _storage_of(value: Any) -> tuple[int, int] | None:
    """Returns the device and the address of the first element of a value; None if it has no memory."""
    local = value.to_local() if isinstance(value, DTensor) else value
    if not isinstance(local, torch.Tensor) or is_lazy(local) or local.is_meta:
        return None
    return (local.get_device(), address_of(local)) if address_of(local) else None


def is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def unsaved_on_meta(module: torch.nn.Module) -> list[str]:
    """Returns the clean names of buffers on the meta device that no state_dict() has, so nothing can fill
    them."""
    names = Names(module)
    return [names.clean(f"{name}.{buffer}" if name else buffer) for name, inner in module.named_modules()
            for buffer in inner._non_persistent_buffers_set if is_meta(inner._buffers.get(buffer))]


def materialise(module: torch.nn.Module) -> None:
    """Gives uninitialised memory to tensors on the meta device: to DTensors on the devices of their mesh, to
    others on the device of the module's other tensors, else on torch's default device. Tied parameters stay
    tied."""
    here = next((t.device for t in (*module.parameters(), *module.buffers()) if not is_meta(t)), None)
    if here is None:
        default = torch.get_default_device()
        here = torch.device("cpu") if default.type == "meta" else default
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for inner in module.modules():
        for name, parameter in inner._parameters.items():
            if is_meta(parameter):
                places.setdefault(id(parameter), []).append((inner, name))

    def with_memory(tensor: torch.Tensor) -> torch.Tensor:
        if not is_meta(tensor):
            return tensor
        device = tensor.device_mesh.device_type if isinstance(tensor, DTensor) else here
        if id(tensor) not in replaced:
            replaced[id(tensor)] = tensor, torch.empty_like(tensor, device=device)
        return replaced[id(tensor)][1]

    module._apply(
        with_memory)  # type: ignore[no-untyped-call]  # to_empty() calls it, and FSDP2 overrides it
    for (first, name), *others in places.values():
        for inner, tied in others:
            inner._parameters[tied] = first._parameters[name]
