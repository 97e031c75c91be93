"""Containers of Python, so that what is loaded has the kinds of what was saved.

A kind is JSON: "list", "tuple", "OrderedDict", "Counter", ["defaultdict", name of a built-in type or null],
["deque", maximum or null], {"namedtuple": "module:class", "fields": names}. Of a plain dict, and of what is none, it is
None. A container of any other class is of the kind of the built-in class that it derives from. A named tuple is of its
class if that module is imported when it is loaded, else a dict of its fields: nothing is imported, and no code of theirs
runs.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterable, Mapping
from typing import Any

_FACTORIES = {kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str)}


def class_name(kind: type) -> str:
    """By which loaded_class() finds it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def public_name(kind: type) -> str:
    """Of a class of this package, by the module that its users import it from."""
    return ".".join([*(part for part in kind.__module__.split(".") if not part.startswith("_")), kind.__name__])


def loaded_class(name: Any) -> Any:
    """What "module:class" names, in a module that is imported already; else None."""
    module, _, path = str(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def named_tuple(name: Any, fields: Iterable[str]) -> type[tuple[Any, ...]] | None:
    """The class of a named tuple with these fields, if its module is imported already."""
    found = loaded_class(name)
    if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == tuple(fields):
        return found
    return None


def kind_of(value: Any) -> Any:
    """None for a plain dict, for a mapping of any other class, and for what is no container. Raises TypeError for a named
    tuple whose class could not be found again, and as plain()."""
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
            raise TypeError(f"the named tuple {class_name(kind)} cannot be stored, as its module has no such class by this name: "
                            f"needed is a class at the top of a module, or its _asdict()")
        return {"namedtuple": class_name(kind), "fields": list(fields)}
    if isinstance(value, collections.deque):
        return ["deque", value.maxlen]
    found = type(plain(value)) if kind is not dict and isinstance(value, (dict, list, tuple)) else None
    return "list" if found is list else "tuple" if found is tuple else None


def plain(value: Any) -> Any:
    """Of a subclass of a built-in type, the value of that type; None for any other. Raises TypeError if they are not equal:
    what is loaded would not be what was saved."""
    known: Any
    for known in (dict, list, tuple, str, bytes, int, float):
        if not isinstance(value, known):
            continue
        found = known.__str__(value) if known is str else known(value)
        if found != value and not (known is float and found != found):
            raise TypeError(f"{class_name(type(value))} cannot be stored, as it is not equal to the {known.__name__} of its values: "
                            f"needed is that {known.__name__}")
        return found
    return None


def is_container(value: Any) -> bool:
    """Whether items() takes it apart: a mapping, a list, a tuple or a deque, of any class."""
    return isinstance(value, (Mapping, list, tuple, collections.deque))


def items(value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys, or numbers from 0 on, and values of a container."""
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def made(kind: Any, found: Iterable[tuple[Any, Any]]) -> Any:
    """A container of a kind with these items; a dict, if the kind is not known, or not all items of a list are there."""
    if kind == "OrderedDict":
        return collections.OrderedDict(found)
    values = dict(found)
    if kind == "Counter":
        return collections.Counter(values)
    name, argument = kind if isinstance(kind, list) and len(kind) == 2 else (kind, None)
    if name == "defaultdict":
        return collections.defaultdict(_FACTORIES.get(str(argument)), values)
    if kind is None or set(values) != set(range(len(values))):
        return values
    ordered = [values[i] for i in range(len(values))]
    if isinstance(kind, dict):
        fields = kind.get("fields", [])
        of_class = named_tuple(kind.get("namedtuple"), fields) if len(fields) == len(ordered) else None
        return dict(zip(fields, ordered)) if of_class is None else tuple.__new__(of_class, ordered)
    if name == "deque":
        return collections.deque(ordered, argument)
    return ordered if name == "list" else tuple(ordered) if name == "tuple" else values
