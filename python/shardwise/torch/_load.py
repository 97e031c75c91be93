"""shardwise.torch.load: into modules, optimizers, DTensors and tensors of any mesh, or without a target."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _objects
from .._errors import InvalidArgument
from .._sources import Path as FilePath
from .._sources import check_choice
from .._tensor import Checkpoint
from ..group import Group, auto
from ._state import Layouts, Path, PerRank, Shard, give_state, is_stateful, named_leaves
from ._tensors import TORCH, TensorReads

Tree = dict[str | int, Any]


def load(path: FilePath, state: Mapping[str, Any], *, strict: bool = True, unused: str | None = None,
         group: Group | None = None, threads: int = 0) -> dict[str, Any]:
    """Restores a checkpoint into a state as save() takes it, on any number of processes.

    Tensors and DTensors are filled in place, each process reading only what it holds; modules, optimizers and other
    Stateful objects are given their state. Returns the state with its plain objects replaced by what was saved. An empty
    dict is filled with all that is stored under its name.

    Every name, dtype and shape that does not fit is in one InvalidArgument, before anything is changed; nothing is cast.
    strict=False leaves what the checkpoint has not as it is. unused: what becomes of stored names that the state has not:
    "error" (the default where strict), "warn" or "ignore".
    """
    unused = unused or ("error" if strict else "ignore")
    check_choice("unused", unused, ("error", "warn", "ignore"))
    rank = (auto() if group is None else group).rank
    with Checkpoint(path, threads=threads) as checkpoint:
        target = _Target(checkpoint, state, rank, strict, unused)
        target.reads.run()
        return target.finish()


class _Target:
    def __init__(self, checkpoint: Checkpoint, state: Mapping[str, Any], rank: int, strict: bool, unused: str) -> None:
        self.checkpoint, self.state, self.rank, self.strict = checkpoint, state, rank, strict
        self.wrong: list[str] = []
        self.reads = TensorReads(checkpoint._reader)
        self.found: dict[Path, Any] = {}
        self.used: set[str] = set()
        self.layouts = Layouts()
        self.paths = stored_paths(checkpoint)
        for name, (path, leaf) in named_leaves(state).items():
            self.found[path] = self._take(name, path, leaf)
        self._check_unused(unused)
        if self.wrong:
            raise InvalidArgument(f"checkpoint {checkpoint.path} does not fit the state: {len(self.wrong)} faults: "
                                  f"{'; '.join(self.wrong[:20])}")

    def _take(self, name: str, path: Path, leaf: Any) -> Any:
        if isinstance(leaf, PerRank):
            return self._take_per_rank(name, leaf)
        if isinstance(leaf, torch.Tensor):
            self._take_tensor(name, leaf)
            return leaf
        if isinstance(leaf, dict) and not leaf and name not in self.checkpoint.objects:
            return self._subtree(path)
        # DCP stores a list without tensors, as an optimizer's param_groups, value by value.
        if type(leaf) in (list, tuple) and name not in self.checkpoint.objects and name not in self.checkpoint and any(
                p[: len(path)] == path for p in self.paths.values()):
            return type(leaf)(self._subtree(path))
        if name in self.checkpoint.objects:
            self.used.add(name)
            return self.checkpoint.objects[name]
        if name in self.checkpoint:
            if leaf is None:
                return self._fresh(name)
            self.used.add(name)
            self.wrong.append(f"{name!r} is a tensor there, {type(leaf).__name__} here")
        else:
            self._missing(name)
        return leaf

    def _missing(self, name: str) -> None:
        if self.strict:
            self.wrong.append(f"there is no {name!r}")

    def _take_per_rank(self, name: str, leaf: PerRank) -> Any:
        ranks = self.checkpoint.document.get("per_rank", {}).get(name)
        if ranks is None:
            self._missing(name)
            return leaf.value
        self.used |= {PerRank.name(name, rank) for rank in range(ranks)}
        own = PerRank.name(name, self.rank)
        if own in self.checkpoint.objects:
            return self.checkpoint.objects[own]
        if own in self.checkpoint:
            return self._fresh(own)
        warnings.warn(f"{name!r} was saved by {ranks} ranks: rank {self.rank} keeps its own", stacklevel=4)
        return leaf.value

    def _take_tensor(self, name: str, leaf: torch.Tensor) -> None:
        if name not in self.checkpoint:
            if name in self.checkpoint.objects:
                self.used.add(name)
                self.wrong.append(f"{name!r} is {type(self.checkpoint.objects[name]).__name__} there, a tensor here")
            else:
                self._missing(name)
            return
        self.used.add(name)
        number, dtype_name, shape = self.checkpoint.stored(name)
        dtype = TORCH[dtype_name]
        if leaf.dtype != dtype or list(leaf.shape) != shape:
            self.wrong.append(f"{name!r} is {dtype} {shape} there, {leaf.dtype} {list(leaf.shape)} here")
            return
        shards = self.layouts.of(leaf, name).shards if isinstance(leaf, DTensor) else [Shard((0,) * leaf.ndim, leaf.detach())]
        for shard in shards:
            self.reads.add(number, shard.begin, shard.local.detach(), dtype)

    def _fresh(self, name: str) -> torch.Tensor:
        self.used.add(name)
        number, dtype, shape = self.checkpoint.stored(name)
        tensor = torch.empty(shape, dtype=TORCH[dtype])
        self.reads.add(number, (0,) * len(shape), tensor, tensor.dtype)
        return tensor

    def _subtree(self, path: Path) -> Any:
        """All that is stored under a path, as a tree."""
        inside = {n: p[len(path) :] for n, p in self.paths.items() if p[: len(path)] == path and len(p) > len(path)}
        if not inside:
            self._missing(".".join(map(str, path)))
            return {}
        tree: dict[Path, Any] = {}
        for name, rest in inside.items():
            self.used.add(name)
            tree[rest] = self.checkpoint.objects[name] if name in self.checkpoint.objects else self._fresh(name)
        return built(tree)

    def _check_unused(self, unused: str) -> None:
        names = sorted({*self.checkpoint, *self.checkpoint.objects} - self.used)
        if not names or unused == "ignore":
            return
        text = f"not in the state: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
        if unused == "error":
            self.wrong.append(f"{len(names)} stored names are {text}")
        else:
            warnings.warn(f"checkpoint {self.checkpoint.path}: {len(names)} of its names are {text}", stacklevel=4)

    def finish(self) -> dict[str, Any]:
        tree = built(self.found)
        result: dict[str, Any] = {}
        for name, value in self.state.items():
            if is_stateful(value):
                give_state(value, tree.get(name, {}), self.state, self.strict)
                result[name] = value
            else:
                result[name] = tree[name]
        return result


def stored_paths(checkpoint: Checkpoint) -> dict[str, Path]:
    """Where each name stands in the tree that was saved; a name that says nothing of one is its own path."""
    encoded = checkpoint.document.get("paths", {})
    return {name: tuple(map(_objects.decode, encoded[name])) if name in encoded else (name,)
            for name in (*checkpoint, *checkpoint.objects)}


def built(leaves: Mapping[Path, Any]) -> Any:
    """The tree of dicts that has these leaves; a list where the keys are 0, 1, 2, ..."""
    tree: Any = {}
    for path, leaf in leaves.items():
        if not path:
            return leaf
        at = tree
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = leaf
    return _with_lists(tree, leaves)


def _with_lists(tree: Any, leaves: Mapping[Path, Any], path: Path = ()) -> Any:
    if not isinstance(tree, dict) or path in leaves:
        return tree
    made = {k: _with_lists(v, leaves, (*path, k)) for k, v in tree.items()}
    if made and list(made) == list(range(len(made))):
        return list(made.values())
    return made


def load_state_dict(path: FilePath, names: str | Iterable[str] | None = None, *, device: Any = "cpu",
                    threads: int = 0) -> dict[str, Any]:
    """What was saved, as the tree it was saved as, without a target: whole tensors. names: patterns, as "model.*"."""
    with Checkpoint(path, threads=threads) as checkpoint:
        paths = stored_paths(checkpoint)
        found: dict[Path, Any] = {}
        reads = TensorReads(checkpoint._reader)
        for name in checkpoint.select(names):
            if name in checkpoint.objects:
                found[paths[name]] = checkpoint.objects[name]
                continue
            number, dtype, shape = checkpoint.stored(name)
            tensor = torch.empty(shape, dtype=TORCH[dtype], device=device)
            reads.add(number, (0,) * len(shape), tensor, tensor.dtype)
            found[paths[name]] = tensor
        reads.run()
        tree: dict[str, Any] = built(found)
        return tree
