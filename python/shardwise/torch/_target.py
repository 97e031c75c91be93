"""Compares a state with the stored names of a checkpoint, then fills it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from .._arrays.overlap import Region, Regions
from .._arrays.torch_tensors import (TORCH, TensorReads, address_of, empty_beside, is_shareable, no_memory,
                                     region_of, settled, shared_tensor)
from .._checkpoint.resize import Resize, Resizing
from .._checkpoint.tensor import Checkpoint
from .._checkpoint.ties import differ_text, differ_there
from .._dtypes import NUMPY
from .._errors import InvalidArgument, warn
from .._trees import containers as _containers
from .._trees.nested import Flat, Path, build, decoded_path, moved, named, places
from . import _modules, _optimizers
from ._layouts import Layouts, MemoryKey, Shard, memory_key
from ._name_lists import count_of, few_of, grouped, nearest, number_of, what_to_write
from ._state import PerRank, State, flat_values, is_array

_NOTHING = object()


class Target:
    """A state to fill. The constructor compares all names, dtypes and shapes; check() raises for misfits;
    fill() reads."""

    def __init__(self, checkpoint: Checkpoint, state: Mapping[str, Any], rank: int, ranks: int, strict: bool,
                 skip_mismatched: bool = False, resize: Resize | None = None) -> None:
        self.checkpoint, self.rank, self.ranks = checkpoint, rank, ranks
        self.strict, self.skip_mismatched = strict, skip_mismatched
        self._of_absent_ranks: set[str] = set()
        self._resizing = Resizing(resize)
        self.state, self._top = State(state), state
        self.wrong: list[str] = []
        self.missing: list[str] = []
        self.unused: list[str] = []
        self.skipped: list[str] = []
        self.reads = TensorReads(checkpoint._reader)
        self.objects = 0
        self._used: set[str] = set()
        self._paths, self._kinds = places(checkpoint.paths, checkpoint.document, state)
        self._stored = {path: name for name, path in self._paths.items()}
        self._versions = _modules.stored_versions(checkpoint.document)
        encoded = checkpoint.document.get("paths", {})
        self._per_rank: dict[Path, str] = {decoded_path(encoded[name]) if name in encoded else (name,): name
                                           for name in checkpoint.document.get("per_rank", {})}
        self._below: dict[Path, list[str]] | None = None
        self._layouts = Layouts()
        self._regions = Regions()
        # tied targets, each with its name and the first name of its memory
        self._ties: list[tuple[str, str, torch.Tensor]] = []
        self._fills: list[tuple[str, torch.Tensor]] = []
        # tensors on the meta device, by path, as they have no memory yet
        self._later: list[tuple[str, Path]] = []
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []  # arrays that torch cannot represent
        # state of optimizers that is filled in place
        self._own: dict[Path, list[tuple[torch.Tensor, Path, torch.Tensor]]] = {}
        self._leaves: dict[Path, Any] = {}  # leaves of containers
        self._inner: dict[Path, Any] = {}  # states for Stateful objects
        self._modules: dict[Path, Flat] = {}  # states for modules on the meta device
        self._hits: set[Path] = set()  # Stateful objects and top names that have stored values
        self._misses: dict[Path, None] = {}  # Stateful objects and top names that lack stored values
        self._filled: list[torch.Tensor] = []
        self._absent: list[tuple[Path, torch.Tensor]] = []
        for path, leaf in self.state.flat.leaves.items():
            self._take(path, leaf)
        filled = set(map(self._key, self._filled)) if self._absent else set()
        for path, leaf in self._absent:  # a tensor filled under another name is not missing
            if self._key(leaf) in filled:
                self.missing.remove(named(path))
                self._hits.add(path[:1])

    @property
    def tensors(self) -> int:
        return len({name for name, *_ in (*self._fills, *self._later, *self._ties)})

    def _take(self, path: Path, leaf: Any) -> None:
        used, missing = len(self._used), len(self.missing)
        if isinstance(leaf, torch.optim.Optimizer) and not self._is_of_fsdp1(leaf):
            self._inner[path] = self._take_optimizer(path, leaf)
        elif isinstance(leaf, torch.nn.Module):
            self._inner[path] = self._take_module(path, leaf)
        elif path in self.state.stateful:
            self._inner[path] = self._take_stateful(path, leaf)
        else:
            self._leaves[path] = self._take_leaf(path, leaf)
        # A warning names a Stateful object itself, and other values by their top name.
        whole = path if path in self.state.stateful else path[:1]
        if len(self._used) > used:
            self._hits.update([whole, path[:1]])
        elif len(self.missing) > missing:
            self._misses[whole] = None

    # ---- names

    def _name_of(self, path: Path) -> str | None:
        """Returns the stored name of a path; a checkpoint without trees has its keys joined with dots."""
        name = self._stored.get(path)
        if name is None:
            name = named(path)
            name = name if (name in self.checkpoint or name in self.checkpoint.objects) else None
        return name

    def _names_below(self, path: Path) -> list[str]:
        if self._below is None:
            self._below = {}
            for name, stored in self._paths.items():
                for length in range(1, len(stored)):
                    self._below.setdefault(stored[:length], []).append(name)
        return self._below.get(path, [])

    def _nearest(self, name: str) -> str:
        if reason := self.checkpoint._left_out(name):
            return f" ({reason})"
        return nearest(name, [*self.checkpoint, *self.checkpoint.objects, *{str(p[0]) for p in self._stored}])

    def _miss(self, path: Path) -> None:
        self.missing.append(named(path))

    def _object(self, name: str) -> Any:
        self._used.add(name)
        self.objects += 1
        return self.checkpoint.objects[name]

    # ---- leaves

    def _take_leaf(self, path: Path, leaf: Any) -> Any:
        if isinstance(leaf, PerRank):
            return self._take_per_rank(path, leaf)
        name = self._name_of(path)
        if is_array(leaf):
            if _modules.is_meta(leaf):
                self._used.update([] if name is None else [name])
                self.wrong.append(f"{named(path)!r} is on the meta device, where it has no memory to be "
                                  "filled: needed is a tensor with memory, or a module, or None")
                return leaf
            return self._take_array(path, name, leaf)
        if name is not None and name in self.checkpoint.objects:
            return self._as(leaf, self._object(name), path)
        if leaf is None or _containers.is_container(leaf):
            if self._names_below(path):
                return self._as(leaf, self._subtree(path), path)
            if leaf is None and name is not None:
                return self._fresh(name)
        if name is not None:
            self._used.add(name)
            self.wrong.append(f"{name!r} is a tensor there, {type(leaf).__name__} here")
            return leaf
        within = self._within_object(path)
        if within is not _NOTHING:
            return within
        self._miss(path)
        return leaf

    def _as(self, leaf: Any, found: Any, path: Path) -> Any:
        # DCP and earlier versions stored a list without tensors value by value, and a tuple as a list.
        found = type(leaf)(found) if type(leaf) in (list, tuple) and type(found) is list else found
        try:
            return _containers.like(leaf, found)
        except InvalidArgument as error:
            self.wrong.append(f"{named(path)!r} {error}")
            return leaf

    def _within_object(self, path: Path) -> Any:
        """Returns a value in a container that was stored as one object; _NOTHING if there is no such
        value."""
        for length in range(len(path) - 1, 0, -1):
            name = self._stored.get(path[:length])
            if name is None or name not in self.checkpoint.objects:
                continue
            value = self.checkpoint.objects[name]
            for key in path[length:]:
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):
                    return _NOTHING
            self._used.add(name)
            return value
        return _NOTHING

    def _take_array(self, path: Path, name: str | None, leaf: Any) -> Any:
        if name is None:
            within = self._within_object(path)
            if within is _NOTHING or not is_array(within):
                self._miss(path)
                if isinstance(leaf, torch.Tensor):
                    self._absent.append((path, leaf))
                return leaf
            return within
        if name in self.checkpoint.objects:
            self._used.add(name)
            self.wrong.append(f"{name!r} is {type(self.checkpoint.objects[name]).__name__} there, "
                              "a tensor here")
            return leaf
        if isinstance(leaf, torch.Tensor):
            if self._fits(name, leaf.dtype, leaf.shape):
                self._fill(name, leaf)
            self._filled.append(leaf)
            return leaf
        dtype = NUMPY[self.checkpoint[name].dtype_name]
        if not self._fits(name, leaf.dtype.newbyteorder("="), leaf.shape, dtype):
            return leaf
        if not leaf.flags.writeable:
            return self._fresh(name, numpy=True)
        if leaf.dtype == dtype and is_shareable(leaf):
            self._fill(name, shared_tensor(leaf))
            return leaf
        tied = self._regions.add(name, Region.of_array(leaf, str(leaf.dtype)))
        if tied is None:
            self._copies.append((leaf, self._fresh(name, numpy=True)))
        else:
            self._ties.append((name, tied, torch.empty(leaf.shape, device="meta")))
        return leaf

    def _key(self, tensor: torch.Tensor) -> MemoryKey:
        """Returns a key that is equal for tied tensors."""
        layout = self._layouts.of(tensor, "") if isinstance(tensor, DTensor) else None
        return memory_key(tensor if layout is None else layout.local, layout) or (id(tensor),)

    def _fits(self, name: str, dtype: Any, shape: Any, stored_dtype: Any = None) -> bool:
        self._used.add(name)
        stored = self.checkpoint[name]
        expected = TORCH[stored.dtype_name] if stored_dtype is None else stored_dtype
        if dtype == expected and tuple(shape) != stored.shape:
            if self._resizing.allows(name, stored.shape, tuple(shape)):
                return True
            if self.skip_mismatched:
                self.skipped.append(name)
                return False
        if dtype != expected or tuple(shape) != stored.shape:
            self.wrong.append(f"{name!r} is {expected} {list(stored.shape)} there, "
                              f"{dtype} {list(shape)} here")
            return False
        return True

    def _fill(self, name: str, target: torch.Tensor) -> None:
        local = target = settled(target)
        cut = ""
        if isinstance(target, DTensor):
            layout = self._layouts.of(target, name)  # refuses layouts that cannot be loaded
            local, cut = layout.local, str(id(layout.how))
        if local.numel() and local.device.type == "cpu" and not address_of(local):
            self.wrong.append(no_memory(local, name))
        self._used.add(name)
        tied = self._regions.add(name, region_of(local, cut))
        if tied is None:
            self._fills.append((name, target))
        else:
            self._ties.append((name, tied, target))

    def _fresh(self, name: str, numpy: bool = False, own: Any = None) -> Any:
        """Returns new memory for a whole stored tensor, on the device of `own`."""
        stored = self.checkpoint[name]
        if numpy or isinstance(own, np.ndarray) or name in self.checkpoint.document.get("numpy", {}):
            array = np.empty(stored.shape, NUMPY[stored.dtype_name])
            self._fill(name, shared_tensor(array))
            return array
        tensor = empty_beside(own if isinstance(own, torch.Tensor) else None, stored.shape,
                              TORCH[stored.dtype_name])
        self._fill(name, tensor)
        return tensor

    def _as_stored(self, place: Path, name: str, own: Any, in_place: bool = False) -> Any:
        """Returns a stored value for an object's own load_state_dict(), in the memory of `own` if that has
        its dtype and shape. in_place: no other memory may be used."""
        if name in self.checkpoint.objects:
            return self._as(own, self._object(name), place)
        if is_array(own) and not _modules.is_meta(own) and (in_place or self._is_alike(name, own)):
            return self._take_array(place, name, own)
        return self._fresh(name, own=own)

    def _is_alike(self, name: str, own: Any) -> bool:
        """Returns True if the stored tensor fits into a tensor or an array."""
        stored = self.checkpoint[name]
        stored_dtype, dtype = ((TORCH[stored.dtype_name], own.dtype) if isinstance(own, torch.Tensor)
                               else (NUMPY[stored.dtype_name], own.dtype.newbyteorder("=")))
        return not is_lazy(own) and dtype == stored_dtype and (
            tuple(own.shape) == stored.shape or self._resizing.allows(name, stored.shape, tuple(own.shape)))

    def _subtree(self, path: Path) -> Any:
        """Returns the tree of everything that is stored below a path."""
        return self._tree(path, {self._paths[name][len(path):]: self._object(name)
                                 if name in self.checkpoint.objects
                                 else self._fresh(name) for name in self._names_below(path)})

    def _tree(self, at: Path, leaves: Mapping[Path, Any]) -> Any:
        return build(leaves, self._kinds, at)

    def _take_per_rank(self, path: Path, leaf: PerRank) -> Any:
        name = self._per_rank.get(path, named(path))
        ranks = self.checkpoint.document.get("per_rank", {}).get(name)
        if ranks is None:
            self._miss(path)
            return leaf.value
        for rank in range(ranks):
            of_rank = PerRank.name(name, rank)
            names = {of_rank, *self._names_below((of_rank,))}
            (self._used if rank < self.ranks else self._of_absent_ranks).update(names)
        if ranks > self.ranks and self.rank == 0:
            absent = f"rank {self.ranks}" if ranks == self.ranks + 1 else f"ranks {self.ranks} to {ranks - 1}"
            warn(f"{name!r} was saved by {ranks} ranks, found are {self.ranks}: "
                 f"the values of {absent} are not used")
        own = PerRank.name(name, self.rank)
        if own in self.checkpoint.objects:
            return self._object(own)
        if self._names_below((own,)):
            return self._subtree((own,))
        if own in self.checkpoint:
            return self._fresh(own)
        warn(f"{name!r} was saved by {ranks} ranks: rank {self.rank} keeps its own")
        return leaf.value

    # ---- Stateful objects

    def _take_module(self, path: Path, module: torch.nn.Module) -> Any:
        state = _modules.state_of(module)
        flat = flat_values(state, path)
        taken = Flat(kinds=flat.kinds)
        names = self._names_in_module(path, flat.leaves)
        # Formats without ties, such as safetensors, have one name of a tied tensor.
        for tied in _modules.ties(module) if len(names) < len(flat.leaves) else ():
            there = [names[(*path, name)] for name in tied if (*path, name) in names]
            names.update({(*path, name): there[0] for name in tied if there and (*path, name) not in names})
        firsts = {(*path, name): names.get((*path, tied[0])) for tied in _modules.ties(module)
                  for name in tied[1:]}
        own_loading = {(*path, name) for name in _modules.own_loading(module, state)}
        given = own_loading | {(*path, name) for name in _modules.given_names(module, state)}
        for place, leaf in flat.leaves.items():
            name = names.get(place)
            whole = place[: len(path) + 1]
            if whole in given:
                if _modules.is_meta(leaf):
                    self._modules[path] = taken
                if whole not in taken.leaves:
                    taken.leaves[whole] = self._take_given(whole, flat.leaves, names, whole in own_loading)
            elif _modules.is_meta(leaf):
                self._modules[path] = taken
                taken.leaves[place] = leaf
                self._take_meta(place, name, leaf, firsts.get(place))
            elif is_array(leaf):
                taken.leaves[place] = self._take_array(place, name, leaf)
            elif name is not None and name in self.checkpoint.objects:
                taken.leaves[place] = self._object(name)
            elif place == path:  # the module has no values, so values stored below its name are not its own
                self._miss(place)
                taken.leaves[place] = leaf
            else:
                taken.leaves[place] = self._take_leaf(place, leaf)
        unsaved = _modules.unsaved_on_meta(module)
        if unsaved:
            self.wrong.append(f"{named(path)!r} has buffers on the meta device that no checkpoint has, "
                              f"as they are not persistent: {', '.join(unsaved[:5])}: "
                              "needed is a module whose buffers have memory")
        return taken.tree_below(path)

    def _take_given(self, place: Path, leaves: Mapping[Path, Any], names: Mapping[Path, str],
                    apart: bool) -> Any:
        """Returns a value that a module loads by its own code. names: those of stored values. apart: the
        value must not be in the module's memory."""
        own = {at: leaf.detach().clone() if apart and isinstance(leaf, torch.Tensor) and not is_lazy(leaf)
               else leaf for at, leaf in leaves.items() if at[: len(place)] == place}
        name = names.get(place) or self._name_of(place)
        below = {self._paths[inner]: inner for inner in self._names_below(place)} if name is None else {
            place: name}
        if below := below or {at: names[at] for at in own if at in names}:
            return self._tree(place, {at[len(place):]: self._as_stored(at, inner, own.get(at))
                                      for at, inner in below.items()})
        for at in own:
            self._miss(at)
        return build({at[len(place):]: leaf for at, leaf in own.items()}, {}, place)

    def _take_meta(self, place: Path, name: str | None, leaf: torch.Tensor, first: str | None) -> None:
        """Plans a tensor on the meta device. first: the stored name of the tensor that it is tied to."""
        if name is None or name not in self.checkpoint:
            self.wrong.append(f"{named(place)!r} is on the meta device, "
                              "and there is no such tensor that could fill it")
        elif self._fits(name, leaf.dtype, leaf.shape):
            if any(a < b for a, b in zip(self.checkpoint[name].shape, leaf.shape)):
                self.wrong.append(f"{named(place)!r} is on the meta device, "
                                  "where there is nothing that could pad it")
            if first is None:
                self._later.append((name, place))
            else:
                self._ties.append((name, first, leaf))

    def _names_in_module(self, path: Path, places: Iterable[Path]) -> dict[Path, str]:
        """Returns the stored names of a module's values: their own names, or else the one name that is equal
        without the parts of wrappers, which earlier versions stored."""
        names: dict[Path, str] = {}
        here: dict[str, list[Path]] = {}
        for place in places:
            name = self._name_of(place)
            if name is None:
                here.setdefault(_modules.without_wrappers(named(place[len(path):])), []).append(place)
            else:
                names[place] = name
        if here:
            there: dict[str, list[str]] = {}
            for name in set(self._names_below(path)) - set(names.values()):
                there.setdefault(_modules.without_wrappers(named(self._paths[name][len(path):])), []).append(
                    name)
            names.update({of_place[0]: there[inner][0] for inner, of_place in here.items()
                          if len(of_place) == len(there.get(inner, ())) == 1})
        return names

    def _take_stateful(self, path: Path, value: Any) -> Any:
        """Returns the stored state of a Stateful object, in the memory of its own tensors if these fit."""
        template = flat_values(self.state.tree_of(value), path)
        if self._kinds is not None:
            self._kinds.update({place: kind
                                for place, kind in template.kinds.items() if isinstance(kind, type)})
        names = self._names_below(path)
        per_rank = [place for place in self._per_rank if place[: len(path)] == path]
        if path in self._stored:
            return self._as_stored(path, self._stored[path], template.leaves.get(path, {}))
        there = {str(place[len(path)])
                 for place in (*map(self._paths.__getitem__, names), *per_rank) if len(place) > len(path)}
        here = {str(place[len(path)]) for place in template.leaves if len(place) > len(path)}
        if not names and not per_rank or here and there and not here & there:
            return self._missed(path, template.leaves)
        taken = {}
        for place in per_rank:
            own = template.leaves.get(place)
            taken[place] = self._take_per_rank(place, own if isinstance(own, PerRank) else PerRank(own))
        for name in names:
            place = self._paths[name]
            taken[place] = self._as_stored(place, name, template.leaves.get(place),
                                           isinstance(value, torch.optim.Optimizer)
                                           and self._is_of_fsdp1(value))
        return self._tree(path, {place[len(path):]: leaf for place, leaf in taken.items()})

    def _missed(self, path: Path, leaves: Mapping[Path, Any]) -> Any:
        for place in leaves:
            self._miss(place)
        return None

    def _is_of_fsdp1(self, optimizer: torch.optim.Optimizer) -> bool:
        owner = self.state.names.owner(optimizer)
        return owner is not None and _optimizers.is_fsdp1(self.state.names.modules[owner][1])

    def _take_optimizer(self, path: Path, optimizer: torch.optim.Optimizer) -> Any:
        parameters = _optimizers.parameters_of(optimizer)
        if any(map(_modules.is_meta, parameters)):
            self.wrong.append(f"{named(path)!r} has parameters on the meta device: "
                              "needed is an optimizer that was made when its module had memory")
            return None
        present = optimizer.state_dict()
        names = self._names_below(path)
        if not _optimizers.has_numbers(present) or not names:
            return self._take_stateful(path, optimizer)
        inner = {name: self._paths[name][len(path):] for name in names}
        groups = self._values_at((*path, "param_groups"),
                                 [n for n, place in inner.items() if place[0] == "param_groups"])
        of_state = {name: place for name, place in inner.items() if place[0] == "state" and len(place) > 1}
        match = _optimizers.matched(optimizer, self.state.names, groups,
                                    [place[1] for place in of_state.values()], self.strict)
        self.wrong += [f"{named(path)!r} {fault}" for fault in match.faults]
        state: dict[Any, dict[Path, Any]] = {}
        for name, (_, key, *rest) in of_state.items():
            if key in match.numbers:
                leaf = self._of_parameter(name, path, optimizer, parameters[match.numbers[key]], tuple(rest))
                state.setdefault(key, {})[tuple(rest)] = leaf
        # A parameter of another shape gets no state.
        state = {key: leaves for key, leaves in state.items()
                 if all(leaf is not _NOTHING for leaf in leaves.values())}
        packed = {match.numbers[key]: self._tree((*path, "state", key), leaves)
                  for key, leaves in state.items()}
        unknown = set(range(len(parameters))) - set(match.numbers.values())
        packed.update({number: present["state"][number] for number in unknown if number in present["state"]})
        others = {place: self._object(name) if name in self.checkpoint.objects else self._fresh(name)
                  for name, place in inner.items() if place[0] not in ("state", "param_groups")}
        self._used.update(name for name, place in inner.items() if place == ("state",))  # an empty one
        return {**(self._tree(path, others) if others else {}), "state": packed, "param_groups": match.groups}

    def _values_at(self, path: Path, names: list[str]) -> Any:
        """Returns the options of groups, which are stored as one object or value by value."""
        if len(names) == 1 and self._paths[names[0]] == path:
            return self._object(names[0])
        return self._subtree(path) if names else []

    def _of_parameter(self, name: str, path: Path, optimizer: torch.optim.Optimizer, parameter: torch.Tensor,
                      keys: Path) -> Any:
        if name in self.checkpoint.objects:
            return self._object(name)
        stored = self.checkpoint[name]
        own = _optimizers.existing(optimizer, parameter, keys)
        like = keys and (_optimizers.must_be_like_parameter(keys[-1], stored.shape)
                         or isinstance(own, torch.Tensor)
                         and _optimizers.must_be_like_parameter(keys[-1], own.shape))
        if isinstance(own, torch.Tensor) and (like or self._is_alike(name, own)):
            if self._fits(name, own.dtype, own.shape):
                self._fill(name, own)
                self._own.setdefault(path, []).append((parameter, keys, own))
            return own
        if like and stored.shape != tuple(parameter.shape):
            self._used.add(name)
            if self._resizing.allows(name, stored.shape, tuple(parameter.shape)):
                padded = torch.zeros_like(parameter, dtype=TORCH[stored.dtype_name], requires_grad=False)
                self._fill(name, padded)
                return padded
            if self.skip_mismatched:
                self.skipped.append(name)
                return _NOTHING
            self.wrong.append(f"{name!r} is {list(stored.shape)} there, "
                              f"its parameter {list(parameter.shape)} here")
            return None
        if isinstance(parameter, DTensor) and stored.shape == tuple(parameter.shape) and stored.shape:
            cut = torch.empty_like(parameter, dtype=TORCH[stored.dtype_name], requires_grad=False)
            self._fill(name, cut)
            return cut
        return self._fresh(name, own=own)

    # ---- checks and reads

    def check(self, unused: str) -> None:
        """Raises one InvalidArgument that names everything that does not fit, before anything is changed."""
        where = f"checkpoint {self.checkpoint.path}"
        there = [*self.checkpoint, *self.checkpoint.objects]
        asked = [named(path) for path in self.state.flat.leaves]
        if not self._used and (there or asked):
            of_checkpoint = (few_of(list(dict.fromkeys(str(path[0]) for path in self._stored)))
                             + what_to_write(map(str, self._top), asked, self.missing, there))
            raise InvalidArgument(f"{where}: found none of the {len(asked)} names of the state "
                                  f"({few_of(asked) or 'it is empty'}), needed is at least one: "
                                  f"the checkpoint has {of_checkpoint if there else 'no names'}")
        if self.strict and self.missing:
            tops = {str(path[0]) for path in self._stored}
            groups = grouped(self.missing, tops)
            few = [f"{name!r}{count_of(names)}{self._nearest(name)}"
                   for name, names in list(groups.items())[:10]]
            more = (", ..." if len(groups) > len(few) else "") + moved(self.missing, set(there) - self._used,
                                                                       ".")
            self.wrong.append(f"{number_of(self.missing, 'name')} of the state "
                              f"{'is' if len(self.missing) == 1 else 'are'} not there: "
                              f"{', '.join(few)}{more}")
        self.wrong += [*self._resizing.faults(), *self._regions.faults()]
        self.unused = sorted(set(there) - self._used - self._of_absent_ranks)
        if self.unused:
            groups = grouped(self.unused, {str(name) for name in self._top})
            text = (f"{number_of(self.unused, 'stored name')} "
                    f"{'is' if len(self.unused) == 1 else 'are'} not in the state: "
                    f"{', '.join(f'{name!r}{count_of(names)}' for name, names in list(groups.items())[:10])}"
                    f"{', ...' if len(groups) > 10 else ''}")
            if unused == "error":
                self.wrong.append(f'{text} (unused="ignore" leaves them out)')
            elif unused == "warn":
                warn(f"{where}: {text}")
        # A job may continue with fewer ranks, so these are no faults; a warning has named them.
        self.unused = sorted({*self.unused, *self._of_absent_ranks.intersection(there)})
        if self.wrong:
            raise InvalidArgument(f"{where} does not fit the state: {number_of(self.wrong, 'fault')}: "
                                  f"{'; '.join(self.wrong[:20])}")
        for path in self._misses:
            if path not in self._hits:
                warn(f"{where}: nothing is there of {named(path)!r}, "
                     f"which stays as it is{self._nearest(named(path))}")

    def fill(self) -> dict[str, Any]:
        """Reads all values, gives Stateful objects their states, and returns the state. Raises
        InvalidArgument, before anything is changed, if two different values are stored for one tensor."""
        self._refuse_two_values()
        real: dict[Path, Any] = {}
        for path, taken in self._modules.items():
            module = self.state.stateful[path]
            _modules.materialise(module)
            now = flat_values(_modules.state_of(module), path).leaves
            real.update({place: now[place] for place, leaf in taken.leaves.items() if _modules.is_meta(leaf)})
            leaves = {**taken.leaves, **{place: now[place] for place in real if place in taken.leaves}}
            self._inner[path] = Flat(leaves, taken.kinds).tree_below(path)
        for name, target in [*self._fills, *((name, real[place]) for name, place in self._later)]:
            self._read(name, target)
        self.reads.run()
        for array, filled in self._copies:
            common = tuple(map(slice, map(min, array.shape, filled.shape)))
            array[common] = filled[common]
        for path, value in self.state.stateful.items():
            if self._inner[path] is not None:
                self._give(path, value, self._inner[path])
                _optimizers.keep(value, self._own.get(path, ()))
            self._leaves[path] = value
        tree = build(self._leaves, self.state.flat.kinds)
        return {name: tree[name] for name in self._top}

    def _refuse_two_values(self) -> None:
        wrong = []
        for name, first, target in self._ties:
            boxes, of_first = ([(shard.begin, extents)
                                for shard, extents in self._stored_parts(stored, target)]
                               for stored in (name, first))
            if boxes != of_first or any(differ_there(self.checkpoint[first], self.checkpoint[name], *box)
                                        for box in boxes):
                wrong.append(differ_text(first, name))
        if wrong:
            raise InvalidArgument(f"checkpoint {self.checkpoint.path} does not fit the state: "
                                  f"{number_of(wrong, 'fault')}: {'; '.join(wrong[:20])}")

    def _read(self, name: str, target: torch.Tensor) -> None:
        stored = self.checkpoint[name]
        for shard, extents in self._stored_parts(name, target):
            self.reads.add(stored.number, shard.begin, shard.local.detach()[tuple(map(slice, extents))],
                           TORCH[stored.dtype_name])

    def _stored_parts(self, name: str, target: torch.Tensor) -> Iterable[tuple[Shard, list[int]]]:
        """Yields the parts of a target, and the stored extents of each."""
        shards = (self._layouts.of(target, name).shards if isinstance(target, DTensor)
                  else [Shard((0,) * target.ndim, target.detach())])
        for shard in shards:
            extents = [min(extent, stored - begin) for extent, stored, begin
                       in zip(shard.local.shape, self.checkpoint[name].shape, shard.begin)]
            if all(extent > 0 for extent in extents):
                yield shard, extents

    def boxes(self) -> list[tuple[int, tuple[int, ...], list[int]]]:
        """Returns the boxes that fill() will read: the number of the tensor, the begin of the box, and its
        shape."""
        on_meta = {place: leaf for taken in self._modules.values() for place, leaf in taken.leaves.items()}
        return [(self.checkpoint[name].number, shard.begin, extents)
                for name, target in [*self._fills, *((name, target) for name, _, target in self._ties),
                                     *((name, on_meta[place]) for name, place in self._later)]
                for shard, extents in self._stored_parts(name, target)]

    def _give(self, path: Path, value: Any, filled: Any) -> None:
        if isinstance(value, torch.optim.Optimizer) and self._is_of_fsdp1(value):
            from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

            owner = self.state.names.owner(value)
            assert owner is not None
            set_optimizer_state_dict(self.state.names.modules[owner][1], value, filled)
        elif isinstance(value, torch.nn.Module):
            _modules.give_state(value, filled, self.strict, self._versions.get(named(path)))
        else:
            value.load_state_dict(filled)
