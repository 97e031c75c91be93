"""Turns values of the standard library, numpy and torch into plain data, and back into equal values of the
same type.

A value is written as the tag of its type with plain data: {"$date": "2026-11-27"}. A load makes values of
the types in this table only. Values of torch are loaded as texts and tuples if torch is not imported; so are
devices and dtypes that this torch lacks.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._dtypes import dtype_called, known_name
from .._errors import WrongType
from .._interpreter import imported


_MOST_BITS = 1 << 16


class _Kind(NamedTuple):
    name: str  #: "module.Class"
    tag: str
    plain: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _std(name: str) -> Any:
    """Returns a class by its name in the table, and imports its module."""
    module, _, kind = name.rpartition(".")
    return getattr(__import__(module), kind)


def _own_name(zone: datetime.timezone) -> str | None:
    """Returns the name of a zone; None if it is the name that follows from its offset."""
    name = zone.tzname(None)
    return None if name == datetime.timezone(zone.utcoffset(None)).tzname(None) else name


def _plain_time(value: datetime.datetime | datetime.time) -> Any:
    zone = value.tzinfo
    key = _key_of(zone)
    if key is None and zone is not None and type(zone) is not datetime.timezone:
        raise WrongType(f"a {type(value).__name__} of the zone {zone} cannot be stored: "
                        "needed is a zoneinfo.ZoneInfo with a key, a fixed offset, "
                        "as .astimezone(datetime.timezone.utc) has, or none")
    if key is not None:
        return [value.isoformat(), value.fold, None, key]  # the text has the offset of the fold
    text, name = (value.replace(fold=0).isoformat(),
                  _own_name(zone) if isinstance(zone, datetime.timezone) else None)
    return [text, value.fold, name] if value.fold or name is not None else text


def _key_of(zone: Any) -> str | None:
    """Returns the key of a zone of the time zone database; None for any other zone."""
    module = imported("zoneinfo")
    return zone.key if module is not None and type(zone) is module.ZoneInfo else None


def _zone(key: Any) -> Any:
    """Returns a zone by its key; None if this machine's database lacks it."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(key)
    except zoneinfo.ZoneInfoNotFoundError:
        return None


def _plain_zone(zone: Any) -> Any:
    if zone.key is None:
        raise WrongType("a zoneinfo.ZoneInfo without a key cannot be stored: "
                        "needed is one that has been made by its name")
    return zone.key


def _time(kind: Any) -> Callable[[Any], Any]:
    def decode(plain: Any) -> Any:
        if isinstance(plain, str):
            return kind.fromisoformat(plain)
        text, fold, name, *keys = plain
        value = kind.fromisoformat(text).replace(fold=fold)
        if keys:
            (key,) = keys
            zone = _zone(key)
            return value if zone is None else value.replace(tzinfo=zone)
        return value if name is None else value.replace(tzinfo=datetime.timezone(value.utcoffset(), name))

    return decode


def _path(plain: list[Any]) -> Any:
    kind, text = plain
    if kind not in ("Path", "PurePosixPath", "PureWindowsPath"):
        raise ValueError(f"found a path of the kind {kind!r}")
    return _std(f"pathlib.{kind}")(text)


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a namespace. Refuses names such as "__array_interface__": numpy would read
    memory at any address by them."""
    fields: dict[str, Any] = vars(value)
    if wrong := [name for name in fields if not isinstance(name, str) or name.startswith("__")]:
        raise WrongType(f"a {type(value).__name__} with the name {wrong[0]!r} cannot be stored: "
                        "needed are names without \"__\" before them")
    return fields


def _namespace(name: str) -> Callable[[Any], Any]:
    def decode(plain: Any) -> Any:
        value = _std(name)()
        vars(value).update(plain)
        _fields(value)
        return value

    return decode


def _whole(values: list[Any]) -> list[int]:
    """Returns the integers. Refuses texts and very large integers, as fractions and ranges compute with them
    in time that grows with the square of their bits, and faster for texts."""
    if any(type(value) is not int or value.bit_length() > _MOST_BITS for value in values):
        raise WrongType(f"its numbers cannot be stored: needed are integers of at most {_MOST_BITS} bits")
    return values


_KINDS = (
    _Kind("datetime.datetime", "$datetime", _plain_time, _time(datetime.datetime)),
    _Kind("datetime.time", "$time", _plain_time, _time(datetime.time)),
    _Kind("datetime.date", "$date", datetime.date.isoformat, datetime.date.fromisoformat),
    _Kind("datetime.timedelta", "$timedelta", lambda v: [v.days, v.seconds, v.microseconds],
          lambda v: datetime.timedelta(*v)),
    _Kind("datetime.timezone", "$timezone", lambda v: [v.utcoffset(None), _own_name(v)],
          lambda v: datetime.timezone(v[0]) if v[1] is None else datetime.timezone(*v)),
    _Kind("zoneinfo.ZoneInfo", "$zone", _plain_zone, lambda v: _zone(v) or v),
    _Kind("pathlib.PosixPath", "$path", lambda v: ["Path", str(v)], _path),
    _Kind("pathlib.WindowsPath", "$path", lambda v: ["Path", str(v)], _path),
    _Kind("pathlib.PurePosixPath", "$path", lambda v: ["PurePosixPath", str(v)], _path),
    _Kind("pathlib.PureWindowsPath", "$path", lambda v: ["PureWindowsPath", str(v)], _path),
    _Kind("decimal.Decimal", "$decimal", str, lambda v: _std("decimal.Decimal")(str(v))),
    _Kind("fractions.Fraction", "$fraction", lambda v: _whole([v.numerator, v.denominator]),
          lambda v: _std("fractions.Fraction")(*_whole(v))),
    _Kind("uuid.UUID", "$uuid", str, lambda v: _std("uuid.UUID")(v)),
    _Kind("types.SimpleNamespace", "$namespace", _fields, _namespace("types.SimpleNamespace")),
    _Kind("argparse.Namespace", "$arguments", _fields, _namespace("argparse.Namespace")),
    _Kind("builtins.slice", "$slice", lambda v: [v.start, v.stop, v.step], lambda v: slice(*v)),
    _Kind("builtins.range", "$range", lambda v: _whole([v.start, v.stop, v.step]),
          lambda v: range(*_whole(v))),
    _Kind("builtins.ellipsis", "$ellipsis", lambda v: None, lambda v: ...),
    _Kind("builtins.bytearray", "$bytearray", lambda v: v.hex(), bytearray.fromhex),
)
_BY_NAME = {kind.name: kind for kind in _KINDS}
_TORCH = ("dtype", "device", "layout", "memory_format")


def encoded(value: Any) -> tuple[str, Any] | None:
    """Returns the tag of a value, and plain data to encode in its place; None if its type is not in the
    table."""
    kind = type(value)
    # In some versions of Python, classes of pathlib have the module pathlib._local.
    entry = _BY_NAME.get(f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}")
    if entry is not None and (kind is type(...) or _std(entry.name) is kind):
        return entry.tag, entry.plain(value)
    if isinstance(value, np.dtype):
        return "$dtype", _dtype_name(value)
    if isinstance(value, type) and (value in np.sctypeDict.values() or issubclass(value, np.generic)
                                    and value.__module__ == "ml_dtypes"):
        return "$scalar", _dtype_name(np.dtype(value))
    torch = imported("torch")
    if torch is None or kind.__module__ != "torch":
        return None
    if kind is torch.Size:
        return "$size", list(value)
    return ("$torch", str(value)) if isinstance(value, tuple(getattr(torch, name)
                                                             for name in _TORCH)) else None


def _dtype_name(dtype: np.dtype) -> str:
    name = str(dtype.str if dtype.isbuiltin in (0, 1) else dtype.name)
    # This must not import ml_dtypes.
    is_known = dtype.isbuiltin in (0, 1) or known_name(dtype) is not None
    if (dtype.fields is not None or dtype.subdtype is not None or dtype.metadata or not is_known
        or dtype_called(name) != dtype):
        raise WrongType(f"numpy's dtype {dtype} cannot be stored: needed is one of numpy's, or of a tensor, "
                        "without parts and metadata")
    return name


def _of_torch(text: str) -> Any:
    torch = imported("torch")
    if torch is None:
        return text
    if not text.startswith("torch."):
        try:
            return torch.device(text)
        except RuntimeError:
            if re.fullmatch("[a-z][a-z0-9_]*(:[0-9]+)?", text):  # a device of a backend that is missing
                return text
            raise
    name = text.removeprefix("torch.")
    if name.isidentifier() and not hasattr(torch, name):  # a later version of torch has it
        return text
    member = vars(torch).get(name)
    if not isinstance(member, tuple(getattr(torch, name) for name in _TORCH)):
        raise ValueError(f"torch has no dtype, layout or memory format {text!r}")
    return member


def _size(extents: list[Any]) -> Any:
    torch = imported("torch")
    return tuple(extents) if torch is None else torch.Size(extents)


#: Functions that make a value from plain data, by tag. They may raise any exception for invalid data.
DECODERS: dict[str, Callable[[Any], Any]] = {
    **{kind.tag: kind.decode for kind in _KINDS},
    "$dtype": dtype_called,
    "$scalar": lambda name: dtype_called(name).type,
    "$torch": _of_torch,
    "$size": _size,
}
