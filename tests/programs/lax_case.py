"""What lax_cases (C++) has written: each node of its programs, with its operands and the results."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
from typing import Any

import ml_dtypes
import numpy as np

PROGRAMS = 400

FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
INTEGERS = {"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u64": np.uint64, "u32": np.uint32,
            "u16": np.uint16, "u8": np.uint8}
STORED = {"f8_e4m3fn": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
          "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
          "f8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "c64": np.complex64, "c128": np.complex128}
DTYPES = {name: np.dtype(d) for name, d in {**FLOATS, **INTEGERS, "bool": np.bool_, **STORED}.items()}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
NUMBERS = {*FLOATS, *INTEGERS}
COMPUTED = {*NUMBERS, "bool"}
BITS = {*INTEGERS, "bool"}

Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Case:
    origin: str
    op: str
    dims: list[int]
    begin: list[int]
    end: list[int]
    stride: list[int]
    number: list[str]
    text: str
    zeros: bool
    operands: list[Array]
    found: list[Array]

    @property
    def dtype(self) -> Any:
        return self.found[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.found[0].shape

    def number_of_dtype(self) -> Array:
        kind, bits = self.number
        return np.array([int(bits, 16)], np.uint64).view(DTYPES[kind])[0].astype(self.dtype)

    def signature(self) -> str:
        operands = ", ".join(f"{NAMES[x.dtype]}{list(x.shape)}" for x in self.operands)
        return (f"{self.op}({operands}) dims={self.dims} begin={self.begin} end={self.end} stride={self.stride} "
                f"number={self.number} text={self.text!r} -> {NAMES[self.dtype]}{list(self.shape)}")


def read_cases(path: pathlib.Path) -> tuple[list[str], list[Case]]:
    subprocess.run([os.environ["LAX_CASES"], path, "1", str(PROGRAMS)], check=True)
    data = path.with_suffix(".bin").read_bytes()
    described = json.loads(path.with_suffix(".json").read_text())
    arrays = [np.frombuffer(data, DTYPES[dtype], math.prod(shape), offset).reshape(shape)
              for dtype, shape, offset in described["arrays"]]
    cases = [Case(**{**case, "operands": [arrays[i] for i in case["operands"]], "found": [arrays[i] for i in case["found"]]})
             for case in described["cases"]]
    return described["ops"], cases
