"""Turns Python objects into JSON, and back into the types that were saved, without pickle.

These values are JSON themselves: None, bool, int, str, list, and dict whose keys are str and do not begin
with "$". Every other value is an object of one key: {"$tuple": [...]}, {"$float": "nan"}, {"$int": "hex"} (of
very many digits), {"$items": [[key, value], ...]}, {"$bytes": "hex"}, {"$complex": ["re", "im"]}, {"$text":
"hex of utf-8 with surrogates"}, {"$set": [...]}, {"$frozenset": [...]}, {"$kept": [kind, items]} (other
containers, with a kind of `_containers`), {"$enum": ["module:class", name, value]}, {"$numpy": [dtype,
value]}, {"$array": [dtype, shape, "hex"]}, and those of `_values`: {"$date": "2026-11-27"}.

A load never imports a class. An enum or a named tuple gets its class if the module is imported already.
Otherwise an enum becomes its value, and a named tuple a dict of its fields, or a tuple of them as a key or in
a set. A dataclass always becomes such a dict, as only a target names its class. A value of any other subclass
of a known type becomes the known type, and must be equal to it.
"""

from __future__ import annotations

import contextlib
import enum
import json
import math
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from .._dtypes import NUMPY, dtype_called, is_masked, known_name
from .._errors import Corrupt, Error, InvalidArgument, WrongType
from . import containers as _containers, values as _values

# The manifest may be nested 256 levels deep, and the levels around an object take some of them.
_MOST_LEVELS = 200
# Larger arrays must be tensors: every reader reads the whole manifest, which holds these arrays.
_MOST_ARRAY_BYTES = 1 << 20
# An int of more bits is stored in hex: no number of the manifest may exceed the range of a double.
_MOST_DECIMAL_BITS = 1000

_NEEDED = ("needed are None, bool, int, float, complex, str, bytes, enums, dtypes, arrays, dates and times, "
           "paths, and list, tuple, dict, set and dataclass of these: give its state_dict(), "
           "a dict of its fields, or the bytes of a pickle")


def encode(value: Any, level: int = 0) -> Any:
    """Returns a value as JSON values. Raises WrongType with the type that cannot be stored, InvalidArgument
    if the value is nested too deep. level: the level of JSON that holds the value."""
    if level > _MOST_LEVELS:
        raise InvalidArgument(f"found values nested deeper than {_MOST_LEVELS} levels of JSON, "
                              "or one that holds itself: needed are fewer levels")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value.bit_length() <= _MOST_DECIMAL_BITS else {"$int": hex(value)}
    if kind is str:
        return value if is_text(value) else {"$text": value.encode("utf-8", "surrogatepass").hex()}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [encode(v, level + 1) for v in value]
    if kind is tuple:
        return {"$tuple": [encode(v, level + 2) for v in value]}
    if kind is dict:
        if all(type(k) is str and not k.startswith("$") and is_text(k) for k in value):
            return {k: encode(v, level + 1) for k, v in value.items()}
        return {"$items": [[encode(k, level + 3), encode(v, level + 3)] for k, v in value.items()]}
    return _encode_tagged(value, kind, level)


def _encode_tagged(value: Any, kind: type, level: int) -> Any:
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is complex:
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if kind in (set, frozenset):
        # The members are sorted because the order of a set differs between processes, as hashes do.
        return {"$set" if kind is set
                else "$frozenset": sorted((encode(v, level + 2) for v in value), key=json.dumps)}
    if isinstance(value, enum.Enum):
        return {"$enum": [_containers.class_name(kind), value.name, encode(value.value, level + 2)]}
    if isinstance(value, (np.generic, np.ndarray)) and not isinstance(value, np.character):
        return _encode_numpy(value)
    tagged = _values.encoded(value)
    if tagged is not None:
        return {tagged[0]: encode(tagged[1], level + 1)}
    container = _containers.kind_of(value)
    if container not in (None, "list", "tuple"):
        items = [[encode(k, level + 4), encode(v, level + 4)] for k, v in _containers.items(value)]
        return {"$kept": [_containers.written(container), items]}
    plain = _containers.plain(value)
    if plain is not None:
        return encode(plain, level)
    raise WrongType(f"{kind.__module__}.{kind.__qualname__} cannot be stored: {_NEEDED}")


def _encode_numpy(value: np.generic | np.ndarray) -> Any:
    if is_masked(value):
        raise WrongType("a masked array cannot be stored, as its mask would be lost: "
                        "needed are its data and its mask")
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return {"$numpy": [value.dtype.str, int(value.view(np.int64))]}
    if known_name(value.dtype.newbyteorder("<")) is None:
        raise WrongType(f"numpy's {type(value).__name__} of dtype {value.dtype} cannot be stored: "
                        "needed are numbers")
    if isinstance(value, np.generic):
        # Types of ml_dtypes share one dtype.str.
        dtype = (value.dtype.str if value.dtype.kind in "biufc" and value.dtype.isbuiltin == 1
                 else value.dtype.name)
        return {"$numpy": [dtype, encode(value.item())]}
    if value.nbytes > _MOST_ARRAY_BYTES:
        raise WrongType(f"an array of {value.nbytes} bytes within an object cannot be stored: "
                        f"needed are at most {_MOST_ARRAY_BYTES}, or the array as a value of a dict or list")
    native = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"$array": [known_name(native.dtype), list(value.shape), native.tobytes().hex()]}


def _decode_numpy(encoded: Any) -> Any:
    dtype, value = dtype_called(encoded[0]), decode(encoded[1])
    is_time = dtype.kind in "mM"
    if not (is_time or known_name(dtype.newbyteorder("<"))) or type(value) not in (
            (int,) if is_time else (bool, int, float, complex)):
        raise WrongType(f"found a {type(value).__name__} as an element of {dtype}")
    return np.int64(value).view(dtype) if is_time else dtype.type(value)


def _decode_array(encoded: Any) -> np.ndarray:
    dtype, shape, data = encoded
    return np.frombuffer(bytearray.fromhex(data), NUMPY[dtype]).reshape(shape)


def _decode_enum(encoded: Any) -> Any:
    name, member, value = encoded
    kind = _containers.loaded_class(name)
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return decode(value)
    if member in kind.__members__:
        return kind.__members__[member]
    # A combination of flags has no name.
    return kind(decode(value)) if issubclass(kind, enum.Flag) else decode(value)


def decode(value: Any) -> Any:
    """Returns the value that encode() got."""
    if type(value) is list:
        return [decode(v) for v in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        (tag, inner), = value.items()
        decoder = _DECODERS.get(tag)
        if decoder is not None:
            return decoder(inner)
        if tag in _values.DECODERS:
            return _values.DECODERS[tag](decode(inner))
    return {k: decode(v) for k, v in value.items()}


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns any error that a hostile text causes in a constructor into one Corrupt."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Error) and not isinstance(error, WrongType):
            raise
        raise Corrupt(f"{what} cannot be decoded: {type(error).__name__}: {error}"[:400]) from None


def decode_named(name: str, value: Any, where: str) -> Any:
    """Decodes the object of a name. Raises Corrupt for a value that encode() would not write."""
    with refusing(f"{where}: object {name!r}"):
        return decode(value)


def decode_key(value: Any) -> Any:
    """Decodes a key of a dict, or a member of a set."""
    return _hashable(decode(value))


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):  # a named tuple whose class is not imported
        return tuple(map(_hashable, value.values()))
    if isinstance(value, list):  # the value of an enum whose class is not imported
        return tuple(map(_hashable, value))
    return tuple.__new__(type(value), map(_hashable, value)) if isinstance(value, tuple) else value


def is_text(value: str) -> bool:
    """Returns True if UTF-8 can hold the text, which then has no lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda v: tuple(decode(i) for i in v),
    "$items": lambda v: {decode_key(k): decode(i) for k, i in v},
    "$bytes": bytes.fromhex,
    "$complex": lambda v: complex(float(v[0]), float(v[1])),
    "$float": float,
    "$int": lambda v: int(v, 16),
    "$text": lambda v: bytes.fromhex(v).decode("utf-8", "surrogatepass"),
    "$set": lambda v: {decode_key(i) for i in v},
    "$frozenset": lambda v: frozenset(decode_key(i) for i in v),
    "$kept": lambda v: _containers.container_of(v[0], [(decode_key(k), decode(i)) for k, i in v[1]]),
    "$enum": _decode_enum,
    "$numpy": _decode_numpy,
    "$array": _decode_array,
}


def dumps(value: Any) -> str:
    """Returns the JSON text of encode(value)."""
    return json.dumps(encode(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def loads(text: str) -> Any:
    """Returns the value that dumps() got."""
    return decode(json.loads(text))


def plain_copy(value: Any, what: str) -> Any:
    """Returns a copy of a value that must be plain JSON, so that later changes of it have no effect; {} for
    None."""
    return json.loads(plain_json({} if value is None else value, what))


def plain_json(value: Any, what: str) -> str:
    """Returns the JSON text of a value that must be plain JSON, such as `user`. Raises WrongType, and
    InvalidArgument for texts that UTF-8 cannot hold and for values nested too deep."""
    _containers.check_places(value, (what,))
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except RecursionError:
        raise InvalidArgument(f"{what} is nested too deep: "
                              f"needed are at most {_MOST_LEVELS} levels") from None
    except (TypeError, ValueError) as error:
        raise WrongType(f"{what} is no JSON, needed is plain JSON: {error}") from None
    if not is_text(text):
        raise InvalidArgument(f"{what} holds a text with a lone surrogate: "
                              "needed are texts that UTF-8 can hold")
    return text
