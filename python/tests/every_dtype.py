"""Makes arrays of every dtype, and compares them with loaded ones."""

import ml_dtypes
import numpy as np

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8", "c16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
          ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu]


def random_bits(rng, dtype, shape):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    return rng.integers(0, 2 if dtype == bool else 256, count, dtype=np.uint8).view(dtype).reshape(shape)


def same(found, expected):
    """Compares bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        got = found[name]
        if isinstance(value, np.ndarray):
            assert (got.dtype, got.shape, got.tobytes()) == (value.dtype, value.shape, value.tobytes()), name
        else:
            assert type(got) is type(value) and got == value, name
