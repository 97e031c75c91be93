"""Stores the kinds of Python's containers, so that a load returns containers of the saved kinds.

A kind is JSON: "list", "tuple", "OrderedDict", "Counter", ["defaultdict", name of a built-in type or null],
["deque", maximum or null], {"namedtuple": "module:class", "fields": names},
{"dataclass": "module:class", "fields": names}. It is None for a plain dict, and for a value that is not a
container. Before it is saved, a dataclass has its class as its kind. A container of any other class has the
kind of its built-in base.

A named tuple is loaded as its class if the module is imported already, else as a dict of its fields: nothing
is imported, and no code of the class runs. A dataclass is loaded as a dict of its fields, unless the target
has a dataclass in that place: like().
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._errors import InvalidArgument, WrongType
from .._interpreter import imported

# The most repeated places of containers in a tree: twenty levels of [a, a] have a million.
_MOST_REPEATS = 1 << 18
# The walks refuse deeper containers.
_MOST_LEVELS = 200
SCALARS = frozenset((int, float, bool, str, bytes, type(None)))
_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str)}


def class_name(kind: type) -> str:
    """Returns the name of a class for loaded_class()."""
    return f"{kind.__module__}:{kind.__qualname__}"


def public_name(kind: type) -> str:
    """Returns the name of a class of this package, with the module that users import it from."""
    modules = itertools.takewhile(lambda part: not part.startswith("_"), kind.__module__.split("."))
    return ".".join([*modules, kind.__name__])


def loaded_class(name: Any) -> Any:
    """Returns the object that "module:class" names if its module is imported already, else None."""
    module, _, path = str(name).partition(":")
    member: Any = imported(module)
    for part in path.split("."):
        member = getattr(member, "__dict__", {}).get(part)
    return member


def named_tuple(name: Any, fields: Iterable[str]) -> type[tuple[Any, ...]] | None:
    """Returns the class of a named tuple with these fields if its module is imported already, else None."""
    kind = loaded_class(name)
    if isinstance(kind, type) and issubclass(kind, tuple) and getattr(kind, "_fields", None) == tuple(
            fields):
        return kind
    return None


def kind_of(value: Any) -> Any:
    """Returns the kind of a value: None for a plain dict, a mapping of any other class, and a value that is
    not a container. Raises WrongType for a named tuple whose class could not be found again, for a dataclass
    that holds more than its fields, and as plain() does."""
    kind = type(value)
    if kind is list:
        return "list"
    if kind is tuple:
        return "tuple"
    if kind is collections.OrderedDict:
        return "OrderedDict"
    if kind is collections.Counter:
        return "Counter"
    if kind is collections.defaultdict:
        factory = value.default_factory
        return ["defaultdict", factory.__name__ if factory in _FACTORIES.values() else None]
    if kind is collections.deque:
        return ["deque", value.maxlen]
    fields = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and isinstance(fields, tuple):
        if named_tuple(class_name(kind), fields) is not kind:
            raise WrongType(f"the named tuple {class_name(kind)} cannot be stored, as its module has no such "
                            "class by this name: needed is a class at the top of a module, or its _asdict()")
        return {"namedtuple": class_name(kind), "fields": list(fields)}
    if isinstance(value, collections.deque):
        return ["deque", value.maxlen]
    if _is_dataclass(value):
        _check_dataclass(value)
        return kind
    base = type(plain(value)) if kind is not dict and isinstance(value, (dict, list, tuple)) else None
    return "list" if base is list else "tuple" if base is tuple else None


def _is_dataclass(value: Any) -> bool:
    """Returns True for a dataclass that has no container or scalar as another base."""
    return (dataclasses.is_dataclass(value) and not isinstance(
        value, (type, Mapping, list, tuple, collections.deque, str, bytes, int, float)))


def _check_dataclass(value: Any) -> None:
    kind, names = type(value), {field.name for field in dataclasses.fields(value)}
    declared = [of.__dict__.get("__slots__", ()) for of in kind.__mro__]
    slots = [name for of in declared
             for name in ([of] if isinstance(of, str) else of) if name[:2] != "__" and hasattr(value, name)]
    more = [*(name for name in (*getattr(value, "__dict__", ()), *slots) if name not in names),
            *(n for n in names if not hasattr(value, n))]
    try:
        object.__new__(kind)
    except TypeError:
        more.append("its built-in base")
    if more:
        raise WrongType(f"the dataclass {class_name(kind)} cannot be stored, as it is not what its fields "
                        f"say: {', '.join(map(str, more))}: needed is a dict of the values to keep")


def written(kind: Any) -> Any:
    """Returns a kind as JSON."""
    if not isinstance(kind, type):
        return kind
    return {"dataclass": class_name(kind), "fields": [field.name for field in dataclasses.fields(kind)]}


def like(wanted: Any, found: Any) -> Any:
    """Returns the loaded value `found` with its dicts of fields turned into the dataclasses and named tuples
    that the target `wanted` has in their places. Raises InvalidArgument if the fields differ. No code of
    these classes runs."""
    names = ([field.name for field in dataclasses.fields(wanted)] if _is_dataclass(wanted) else
             list(getattr(wanted, "_fields", ())) if isinstance(wanted, tuple) else [])
    if type(found) is dict and (names or _is_dataclass(wanted)):
        if found.keys() != set(names):
            raise InvalidArgument(f"has the fields {', '.join(map(str, found)) or 'of nothing'} there, "
                                  f"the target's {type(wanted).__name__} {', '.join(names)}")
        values = [like(getattr(wanted, name), found[name]) for name in names]
        return tuple.__new__(type(wanted), values) if isinstance(wanted, tuple) else _dataclass(
            type(wanted), zip(names, values))
    if isinstance(found, dict) and isinstance(wanted, Mapping):
        filled = copy.copy(found)
        for key in found.keys() & wanted.keys():
            filled[key] = like(wanted[key], found[key])
        return filled
    is_taken_apart = type(found) in (list, tuple, collections.deque) or isinstance(found, tuple) and hasattr(
        found, "_fields")
    if is_taken_apart and type(wanted) is type(found) and len(wanted) == len(found):
        inner = map(like, wanted, found)
        return (collections.deque(inner, found.maxlen) if isinstance(found, collections.deque) else
                list(inner) if isinstance(found, list) else tuple.__new__(type(found), inner))
    return found


def _dataclass(kind: type, found: Iterable[tuple[Any, Any]]) -> Any:
    value: Any = object.__new__(kind)
    for name, inner in found:
        object.__setattr__(value, name, inner)
    return value


def plain(value: Any) -> Any:
    """Returns a value as the built-in type that its class derives from; None if there is no such type.
    Raises WrongType if the two are not equal, as a load would not return the saved value."""
    known: Any
    for known in (dict, list, tuple, str, bytes, int, float):
        if not isinstance(value, known):
            continue
        base_value = known.__str__(value) if known is str else known(value)
        if base_value != value and not (known is float and base_value != base_value):
            raise WrongType(f"{class_name(type(value))} cannot be stored, as it is not equal to the "
                            f"{known.__name__} of its values: needed is that {known.__name__}")
        return base_value
    return None


def is_container(value: Any) -> bool:
    """Returns True for a mapping, a list, a tuple, a deque or a dataclass, of any class: items() takes it."""
    return isinstance(value, (Mapping, list, tuple, collections.deque)) or _is_dataclass(value)


def items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Returns pairs of a container's values with their keys, numbers from 0 on, or names of fields."""
    if _is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def values(value: Any) -> Iterator[Any]:
    """Returns the values of items(), without the keys."""
    if _is_dataclass(value):
        return (inner for _, inner in items(value))
    return iter(value.values() if isinstance(value, Mapping) else value)


def container_of(kind: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    """Returns a container of a kind with these items; a dict if the kind is unknown, or if items of a list
    are missing."""
    if kind == "OrderedDict":
        return collections.OrderedDict(items)
    values = dict(items)
    if isinstance(kind, type):
        return (_dataclass(kind, values.items())
                if values.keys() == {field.name for field in dataclasses.fields(kind)} else values)
    if kind == "Counter":
        return collections.Counter(values)
    name, argument = kind if isinstance(kind, list) and len(kind) == 2 else (kind, None)
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES.get(str(argument)), values)
    if kind is None or set(values) != set(range(len(values))):
        return values
    ordered = [values[i] for i in range(len(values))]
    if isinstance(kind, dict):
        if "dataclass" in kind:
            return values
        fields = kind.get("fields", [])
        of_class = named_tuple(kind.get("namedtuple"), fields) if len(fields) == len(ordered) else None
        return dict(zip(fields, ordered)) if of_class is None else tuple.__new__(of_class, ordered)
    if name == "deque":
        return collections.deque(ordered, argument)
    return ordered if name == "list" else tuple(ordered) if name == "tuple" else values


def check_places(tree: Any, at: tuple[Any, ...] = ()) -> None:
    """Raises InvalidArgument for a container that holds itself, and for containers at too many places, as in
    40 levels of [a, a], where each place would be saved and loaded separately. Takes time by the number of
    containers, not of places."""
    kinds: dict[type, bool] = {}
    known: dict[int, tuple[Any, int]] = {}  # keeps the containers alive, so that no id is used twice

    def name_of(path: tuple[Any, ...]) -> str:
        return "/".join(map(str, (*at, *path)[:4]))

    def places(value: Any, path: tuple[Any, ...]) -> int:
        _, counted = known.get(id(value), (value, -1))
        if counted == 0:  # its count is under way, so this place is inside it
            raise InvalidArgument(f"{name_of(path)!r}: found the container that holds it, "
                                  "needed is one that does not hold itself")
        if counted > 0 or len(path) > _MOST_LEVELS:
            return max(counted, 1)
        known[id(value)] = value, 0
        count = 1
        for key, inner in items(value):
            kind = type(inner)
            if kind not in kinds:
                kinds[kind] = kind not in SCALARS and is_container(inner)
            if kinds[kind]:
                count += places(inner, (*path, key))
        known[id(value)] = value, count
        if count - len(known) > _MOST_REPEATS:
            raise InvalidArgument(f"{name_of(path)!r}: found containers at {count} places, "
                                  f"most of them at several, needed are at most {_MOST_REPEATS} repeats: "
                                  "save a shared container once")
        return count

    if is_container(tree):
        places(tree, ())
