"""Python objects as JSON, exactly: what is loaded has the types of what was saved. No pickle.

JSON's own are themselves: None, bool, int (of any size), str, list, and dict with keys that are str and do not begin
with "$". All else is an object of one key: {"$tuple": [...]}, {"$float": "nan"}, {"$items": [[key, value], ...]},
{"$bytes": "hex"}, {"$complex": ["re", "im"]}, {"$text": "hex of utf-8 with surrogates"}, {"$set": [...]},
{"$torch": "torch.float32"}, {"$numpy": [dtype, value]}.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable

import numpy as np

# Of other types, by the name of their tag: torch's, which shardwise.torch adds.
_DECODERS: dict[str, Callable[[Any], Any]] = {}
_ENCODERS: list[Callable[[Any], Any]] = []


def encode(value: Any) -> Any:
    """As JSON values. Raises TypeError naming the type that cannot be stored."""
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return value if _is_text(value) else {"$text": value.encode("utf-8", "surrogatepass").hex()}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [encode(v) for v in value]
    if kind is tuple:
        return {"$tuple": [encode(v) for v in value]}
    if kind is dict:
        if all(type(k) is str and not k.startswith("$") and _is_text(k) for k in value):
            return {k: encode(v) for k, v in value.items()}
        return {"$items": [[encode(k), encode(v)] for k, v in value.items()]}
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind is complex:
        return {"$complex": [repr(value.real), repr(value.imag)]}
    if kind in (set, frozenset):
        # In one order, whatever the process: strings have another hash in each.
        return {"$set" if kind is set else "$frozenset": sorted((encode(v) for v in value), key=json.dumps)}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return {"$numpy": [value.dtype.str, encode(value.item())]}
    for encoder in _ENCODERS:
        encoded = encoder(value)
        if encoded is not None:
            return encoded
    # Subclasses of what is known: an OrderedDict is loaded as a dict.
    known: Any
    for known in (dict, list, tuple, str, int, float):
        if isinstance(value, known) and kind is not known and known is not tuple:
            return encode(known(value))
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be stored without pickle")


def decode(value: Any) -> Any:
    """What encode() was given."""
    if type(value) is list:
        return [decode(v) for v in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        (tag, inner), = value.items()
        decoder = _DECODERS.get(tag)
        if decoder is not None:
            return decoder(inner)
    return {k: decode(v) for k, v in value.items()}


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_DECODERS.update({
    "$tuple": lambda v: tuple(decode(i) for i in v),
    "$items": lambda v: {decode(k): decode(i) for k, i in v},
    "$bytes": bytes.fromhex,
    "$complex": lambda v: complex(float(v[0]), float(v[1])),
    "$float": float,
    "$text": lambda v: bytes.fromhex(v).decode("utf-8", "surrogatepass"),
    "$set": lambda v: {decode(i) for i in v},
    "$frozenset": lambda v: frozenset(decode(i) for i in v),
    "$numpy": lambda v: np.dtype(v[0]).type(decode(v[1])),
})


def register(tag: str, encoder: Callable[[Any], Any], decoder: Callable[[Any], Any]) -> None:
    """Adds a type. The encoder gives None for what is not of it."""
    _DECODERS[tag] = decoder
    _ENCODERS.append(encoder)


def dumps(value: Any) -> str:
    """The JSON text of encode(value)."""
    return json.dumps(encode(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def loads(text: str) -> Any:
    """Inverse of dumps()."""
    return decode(json.loads(text))


def plain_copy(value: Any, what: str) -> Any:
    """What must be plain JSON as it is now, whatever becomes of it; {} for None."""
    return json.loads(plain_json({} if value is None else value, what))


def plain_json(value: Any, what: str) -> str:
    """The JSON text of what must be plain JSON: `user`."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be JSON: {error}") from None
