"""Reads pieces that DCP's FileSystemWriter(serialization_format=SerializationFormat.SAFETENSORS) has
written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import IO, Any

_MOST_HEADER_BYTES = 100 << 20  # the limit of the safetensors library
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def tensor_at(file: IO[bytes], start: int, name: str, offsets: Sequence[int]) -> Any:
    """Returns the tensor of a piece; None if no safetensors data begins at `start`. DCP's metadata gives that
    byte of the file, and the header there gives the place of the piece. Raises ValueError, KeyError or
    TypeError for a header that DCP would not write."""
    import torch

    file.seek(start)
    first = file.read(9)
    if first[8:] != b"{":
        return None
    length = int.from_bytes(first[:8], "little")
    begin = start + 8 + length
    there = os.fstat(file.fileno()).st_size - begin
    if length > _MOST_HEADER_BYTES or there < 0:
        raise ValueError(f"a header of {length} bytes, needed is one inside the file")
    header = json.loads(first[8:] + file.read(length - 1))
    placed = json.loads(header.get("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
    at = placed[name]["saved_offsets"] if name in placed else list(offsets)
    if at != list(offsets):  # DCP writes at most one piece of a name into a file
        raise ValueError(f"the piece at {at}, needed that at {list(offsets)}: DCP has not stored it")
    entry = header[name]
    dtype = getattr(torch, _DTYPES[entry["dtype"]])
    low, high = entry["data_offsets"]
    size = math.prod(entry["shape"]) * dtype.itemsize
    if not 0 <= low <= high <= there or high - low != size or min(entry["shape"], default=0) < 0:
        raise ValueError(f"bytes from {low} to {high} of {there}, needed are {size}")
    file.seek(begin + low)
    data = bytearray(file.read(size))
    return (torch.frombuffer(data,
                             dtype=dtype) if size else torch.empty(0, dtype=dtype)).reshape(entry["shape"])
