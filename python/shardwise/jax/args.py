"""Defines the arguments of save() and restore() of shardwise.jax.ocp.CheckpointManager, with Orbax's
names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from .._argument_types import check_calls


@dataclass
class StandardSave:
    """A pytree, as shardwise.jax.save() takes it."""

    item: Any


@dataclass
class StandardRestore:
    """A pytree. `item` is the target of shardwise.jax.load()."""

    item: Any = None
    strict: bool = True


@dataclass
class JsonSave:
    """One Python object: None, bool, int, float, str, bytes, and list, tuple, dict and set of these. A
    restore returns an equal object of the same types."""

    item: Any


@dataclass
class JsonRestore:
    """Asks for the object that JsonSave stored."""

    item: None = None


@jax.tree_util.register_pytree_with_keys_class
class Composite(Mapping[str, Any]):
    """Several items of one checkpoint, which are committed together: Composite(state=StandardSave(tree),
    loader=JsonSave(d)). A restore returns one with the same names and the values."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_items"][name]
        except KeyError:
            raise AttributeError(f"there is no item {name!r}") from None

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        return [(jax.tree_util.DictKey(name),
                 value) for name, value in self._items.items()], tuple(self._items)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Iterable[Any]) -> Composite:
        return cls(**dict(zip(names, values)))

    def __repr__(self) -> str:
        return f"Composite({', '.join(f'{name}={value!r}' for name, value in self._items.items())})"


SaveArgs = StandardSave | JsonSave | Composite
RestoreArgs = StandardRestore | JsonRestore | Composite


_FOREIGN = {"PyTreeSave": "StandardSave", "PyTreeRestore": "StandardRestore, whose target says the "
            "shardings, with strict=False for partial_restore=True", "ArraySave": "StandardSave",
            "ArrayRestore": "StandardRestore", "JaxRandomKeySave": "StandardSave, which takes keys",
            "JaxRandomKeyRestore": "StandardRestore",
            "NumpyRandomKeySave": "JsonSave", "ProtoSave": "JsonSave of the message's dict"}

if not TYPE_CHECKING:  # a type checker shall report a missing name
    def __getattr__(name: str) -> Any:
        raise AttributeError(
            f"ocp.args has no {name!r}: needed is "
            f"{_FOREIGN.get(name, 'StandardSave, JsonSave or Composite, or what restores these')}")

check_calls(__name__)
