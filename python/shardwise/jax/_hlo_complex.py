"""Operations of StableHLO on complex numbers, pairs of real tensors: those that do the same to both parts, those that are primitives of JAX
(_complex.py), and constants."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir.dialects import stablehlo

from .._dtypes import NUMPY
from .._program_text import PARTS, Complex, Refused, Value
from . import _hlo_bodies
from . import _hlo_loops as _hlo_loops  # the rules that are used here
from . import _hlo_ops as _hlo_ops
from ._hlo_writer import COMPLEX_RULES, MOST_HELD, RULES, Op

#: Those that do to each part what they do to a real tensor.
_OF_EACH = """broadcast_in_dim broadcast reshape transpose slice pad concatenate reverse select dynamic_slice dynamic_update_slice gather
    optimization_barrier custom_call add subtract negate"""

#: Those that take complex operands as they are.
_OF_ANY = ("func.call", "stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.composite", "stablehlo.get_tuple_element",
           "sdy.named_computation", "sdy.propagation_barrier", "sdy.sharding_group", "stablehlo.get_dimension_size")

_PRIMITIVES = {"complex": "complex", "real": "real", "imag": "imag", "convert": "convert_element_type", "multiply": "mul", "divide": "div",
               "abs": "abs", "sign": "sign", "exponential": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
               "power": "pow", "sine": "sin", "cosine": "cos"}

rule = COMPLEX_RULES.rule


def _each(op: Op, *operands: Any) -> list[Any]:
    """The same of both parts. What is real, as a condition or an index, is the same for both."""
    def made(part: str) -> list[Value]:
        of_part = copy.copy(op)
        of_part.results = [(PARTS.get(dtype, dtype), shape) for dtype, shape in op.results]
        of_part.part = part
        found = RULES[op.operation.name](of_part, *(getattr(x, part) if isinstance(x, Complex) else x for x in operands))
        return list(found) if isinstance(found, (list, tuple)) else [found]

    real, imag = made("real"), made("imag")
    return [Complex(a, b) if dtype in PARTS else a for a, b, (dtype, _) in zip(real, imag, op.results)]


def _primitive(name: str) -> Any:
    return lambda op, *operands: op.primitive(name, {}, *operands)


COMPLEX_RULES.update({f"stablehlo.{name}": _each for name in _OF_EACH.split()})
COMPLEX_RULES.update({f"stablehlo.{theirs}": _primitive(name) for theirs, name in _PRIMITIVES.items()})
COMPLEX_RULES["chlo.square"] = _primitive("square")
COMPLEX_RULES.update({name: RULES[name] for name in _OF_ANY})
COMPLEX_RULES.update({name: _each for name in ("sdy.sharding_constraint", "sdy.reshard")})
COMPLEX_RULES["stablehlo.dot_general"], COMPLEX_RULES["stablehlo.dot"] = RULES["stablehlo.dot_general"], RULES["stablehlo.dot"]


@rule("stablehlo.constant")
def _constant(op: Op) -> Complex:
    """Of its text: the bindings know no complex attributes."""
    dtype, count = NUMPY[PARTS[op.dtype]], 2 * math.prod(op.shape)
    found = re.search(r"dense<(.*)> : ", str(op.operation), re.DOTALL)
    if found is None or count > MOST_HELD:
        raise Refused(f"found {count // 2} complex numbers that are not in the module itself, needed dense<..> of at most {MOST_HELD // 2}")
    inside = found[1]
    if inside.startswith('"0x'):
        parts = np.frombuffer(bytes.fromhex(inside[3:-1]), dtype)
    else:
        bits = np.dtype(f"u{dtype.itemsize}")
        parts = np.array([np.array(int(word, 16), bits).view(dtype) if word.startswith("0x") else dtype.type(float(word))
                          for word in re.findall(r"[^\s,\[\]()]+", inside)], dtype)
    pairs = np.ascontiguousarray(np.broadcast_to(parts.reshape(-1, 2), (count // 2, 2))).reshape(*op.shape, 2)
    return Complex(op.text.array(pairs[..., 0]), op.text.array(pairs[..., 1]))


@rule("stablehlo.iota")
def _iota(op: Op) -> Sequence[Value]:
    return op.primitive("iota", {"dimension": op.integer("iota_dimension")})


@rule("stablehlo.compare")
def _compare(op: Op, a: Complex, b: Complex) -> Sequence[Value]:
    direction = stablehlo.ComparisonDirectionAttr(op.operation.attributes["comparison_direction"]).value
    return op.primitive(str(direction).lower(), {}, a, b)


@rule("stablehlo.fft")
def _fft(op: Op, x: Any) -> Sequence[Value]:
    kinds = {"FFT": 0, "IFFT": 1, "RFFT": 2, "IRFFT": 3}
    kind = kinds[str(stablehlo.FftTypeAttr(op.operation.attributes["fft_type"]).value)]
    return op.primitive("fft", {"fft_lengths": op.integers("fft_length"), "fft_type": kind}, x)


@rule("stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter")
def _combined(op: Op, *operands: Any) -> Any:
    """Sums, and what is set."""
    kind = _hlo_bodies.combination(op.operation.regions[0])
    if kind not in ("add", "sub", "set"):
        raise Refused(f"found the combination {kind} of complex numbers, needed a sum")
    return _each(op, *operands)
