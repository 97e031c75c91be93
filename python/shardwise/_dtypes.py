"""Maps our names of element types to numpy's. The package ml_dtypes supplies those that numpy lacks; their
first use imports it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._errors import Unsupported, WrongType
from ._interpreter import imported

_PLAIN = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?", "c64": "<c8", "c128": "<c16",
}  # fmt: skip
_ML_DTYPES = {
    "bf16": "bfloat16", "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz", "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip
_OF_ML_DTYPES = {theirs: ours for ours, theirs in _ML_DTYPES.items()}


def is_masked(value: Any) -> bool:
    # Reading np.ma would import it, and a child forked during that import would wait for ever.
    return isinstance(value, getattr(imported("numpy.ma"), "MaskedArray", ()))


class _Dtypes(dict[str, np.dtype]):
    def __missing__(self, name: str) -> np.dtype:
        theirs = _ML_DTYPES[name]
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported(f"dtype {name}: found no package ml_dtypes in {sys.executable}, "
                              "which has it for numpy: `pip install ml_dtypes`") from None
        dtype: np.dtype = np.dtype(getattr(ml_dtypes, theirs))
        self[name] = dtype
        return dtype


#: Numpy's dtypes by our names. A lookup raises KeyError, or Unsupported if it needs ml_dtypes in vain.
NUMPY: dict[str, np.dtype] = _Dtypes({ours: np.dtype(theirs) for ours, theirs in _PLAIN.items()})
_OURS = {np.dtype(theirs): ours for ours, theirs in _PLAIN.items()}


def known_name(native: np.dtype) -> str | None:
    """Returns our name of a numpy dtype in this machine's byte order; None if we have none."""
    if native.type.__module__ == "ml_dtypes":
        return _OF_ML_DTYPES.get(native.name)
    return _OURS.get(native)


def exported(array: np.ndarray) -> np.ndarray:
    """Returns the array as C++ takes it: numpy exports elements of ml_dtypes only as unsigned integers."""
    return array.view(f"u{array.itemsize}") if array.dtype.type.__module__ == "ml_dtypes" else array


def is_known(name: str) -> bool:
    """Returns True if we have a dtype of this name."""
    return name in _PLAIN or name in _ML_DTYPES


def dtype_called(name: str) -> np.dtype:
    """Returns a numpy dtype by numpy's or ml_dtypes' name. Raises TypeError, or Unsupported if it needs
    ml_dtypes in vain."""
    return NUMPY[_OF_ML_DTYPES[name]] if name in _OF_ML_DTYPES else np.dtype(name)


def _conversion_advice(native: np.dtype) -> str:
    """Returns advice on the conversion to write for a dtype of numbers that we lack."""
    if native.kind in "fc":
        return f': write .astype("{"f8" if native.kind == "f" else "c16"}")'
    if native.type.__module__ != "ml_dtypes":
        return ""
    values = "i1" if native.name.startswith("int") else "u1" if native.name.startswith("uint") else "f4"
    return (f': write .astype("{values}"), which keeps its values, or in numpy .view("u1"), '
            'which keeps its bits')


def name_of(dtype: object, tensor: str = "") -> str:
    """Returns our name of a numpy dtype in any byte order. Raises WrongType, or Unsupported with the name of
    the tensor."""
    try:
        native = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise WrongType(f"found {dtype!r}, needed is a dtype: {', '.join((*_PLAIN, *_ML_DTYPES))}") from None
    if native.byteorder == ">":
        native = native.newbyteorder("<")
    name = known_name(native)
    if name is None:
        subject = f"tensor {tensor!r} has" if tensor else "found"
        raise Unsupported(f"{subject} dtype {native}: "
                          f"needed is one of {', '.join((*_PLAIN, *_ML_DTYPES))}{_conversion_advice(native)}")
    return name
