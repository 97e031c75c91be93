"""Element types: our names and numpy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ._errors import Unsupported

_NUMPY = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16,
    "i64": "<i8", "i32": "<i4", "i16": "<i2", "i8": "i1",
    "u64": "<u8", "u32": "<u4", "u16": "<u2", "u8": "u1", "bool": "?",
    "f8_e4m3fn": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "c64": "<c8", "c128": "<c16",
}  # fmt: skip

NUMPY: dict[str, np.dtype] = {ours: np.dtype(theirs) for ours, theirs in _NUMPY.items()}
OURS: dict[np.dtype, str] = {theirs: ours for ours, theirs in NUMPY.items()}


def name_of(dtype: object, tensor: str = "") -> str:
    """Our name of a numpy dtype, of any byte order. Raises Unsupported, naming the tensor."""
    native = np.dtype(dtype)  # type: ignore[call-overload]
    if native.byteorder == ">":
        native = native.newbyteorder("<")
    found = OURS.get(native)
    if found is None:
        raise Unsupported(f"tensor {tensor!r} has dtype {native}: needed is one of {', '.join(NUMPY)}")
    return found
