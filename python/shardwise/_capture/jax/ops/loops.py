"""Writes while loops as scans, if they count from one known number to another, or end before such a count
does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core
import numpy as np

from ...._dtypes import NUMPY
from ...._programs.text import Number, Refused, Value
from .rules import Call, rule

_UNKNOWN = ("how many steps it takes is known only when it runs, needed a loop of a fixed length: "
            "jax.lax.scan over the most steps that it may take, with jnp.where for those after its end")
MOST_TRIPS = 10_000  #: the most trips of a loop that may end earlier, as each trip tests the condition
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}

#: The source of an atom of a jaxpr: the place of an input, a known number, or None.
_Known = int | Number | None


@rule("while")
def _while(call: Call, *operands: Value) -> Sequence[Value]:
    params = call.params
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    tested, consts, carry = (operands[:of_condition], operands[of_condition:of_condition + of_body],
                             operands[of_condition + of_body:])
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    tests = _conjuncts(condition.jaxpr.outvars[0], condition.jaxpr)
    lengths = [_length(test, condition, body, tested, consts, carry) for test in tests]
    known = [length for length in lengths if length is not None]
    if not known or (len(tests) > 1 and min(known) > MOST_TRIPS):
        raise Refused(_UNKNOWN)
    if len(tests) == 1:
        return call.text.scan(consts, carry, (), known[0], False, lambda values: call.inlined(body, values))

    def trip(values: list[Value]) -> Sequence[Value]:
        of_test, rest = values[:of_condition], values[of_condition:]
        (goes_on,) = call.inlined(condition, [*of_test, *rest[of_body:]])
        return call.text.cond(goes_on, rest, lambda inside: call.inlined(body, inside),
                              lambda inside: inside[of_body:])

    return call.text.scan([*tested, *consts], carry, (), min(known), False, trip)


def _conjuncts(atom: Any, jaxpr: Any) -> list[Any]:
    """Returns the equations that must all be true."""
    maker = _maker_of_same(atom, jaxpr)
    return ([test for part in maker.invars for test in _conjuncts(part, jaxpr)] if maker is not None
            and maker.primitive.name == "and" else [maker])


def _length(compare: Any, condition: Any, body: Any, tested: Sequence[Value], consts: Sequence[Value],
            carry: Sequence[Value]) -> int | None:
    """Returns the number of trips after which an equation of the condition is false; None if that is
    unknown."""
    body_jaxpr, test = body.jaxpr, condition.jaxpr
    returned = [_source(atom, body_jaxpr) for atom in body_jaxpr.outvars]

    def unchanged(place: int) -> bool:
        return returned[place] == len(consts) + place

    def number_of(atom: Any) -> Number | None:
        """Returns the number of an atom of the condition that is equal in all trips; None for others."""
        source = _source(atom, test)
        if not isinstance(source, int):
            return source
        place = source - len(tested)
        known = tested[source] if place < 0 else carry[place] if unchanged(place) else None
        return known if isinstance(known, Number) else None

    if compare is None or compare.primitive.name not in _TURNED:
        return None
    (left, right), name = compare.invars, compare.primitive.name
    if number_of(left) is not None:
        left, right, name = right, left, _TURNED[name]
    limit, counter = number_of(right), _source(left, test)
    if limit is None or not isinstance(counter, int) or counter < len(tested):
        return None
    place = counter - len(tested)
    start, step = carry[place], _step(body_jaxpr.outvars[place], body_jaxpr, len(consts) + place,
                                      [*consts, *carry], unchanged, len(consts))
    if step is None or not isinstance(start, Number) or start.shape or start.dtype[0] not in "iu":
        return None
    return _trips(name, int(start.value), int(limit.value), step, start.dtype)


def _trips(direction: str, first: int, last: int, step: int, dtype: str) -> int | None:
    """Returns the trips of a loop that continues while its counter is "lt", "le", "gt", "ge" or "ne" the last
    number; None if the counter may overflow its dtype before the end."""
    trips = None
    if not getattr(operator, direction)(first, last):
        trips = 0
    elif direction in ("lt", "le") and step > 0:
        trips = -(-(last - first + (direction == "le")) // step)
    elif direction in ("gt", "ge") and step < 0:
        trips = -(-(first - last + (direction == "ge")) // -step)
    elif direction == "ne" and step and (last - first) % step == 0 and (last - first) // step > 0:
        trips = (last - first) // step
    range_ = np.iinfo(NUMPY[dtype])
    return trips if trips is not None and range_.min <= first + trips * step <= range_.max else None


def _step(atom: Any, body: Any, counter: int, inputs: Sequence[Value], unchanged: Callable[[int], bool],
          consts: int) -> int | None:
    """Returns the number that a trip adds to the counter; None if that is unknown."""
    maker = _maker_of_same(atom, body)
    if maker is not None and maker.primitive.name in ("add", "sub"):
        a, b = (_source(operand, body) for operand in maker.invars)
        if maker.primitive.name == "add" and b == counter:
            a, b = b, a
        if isinstance(b, int) and (b < consts or unchanged(b - consts)):
            value = inputs[b]
            b = value if isinstance(value, Number) else None
        if a == counter and isinstance(b, Number):
            return int(b.value) * (1 if maker.primitive.name == "add" else -1)
    return None


def _maker(atom: Any, jaxpr: Any) -> Any:
    """Returns the equation that makes an atom; None for an input or a literal."""
    return next((equation for equation in jaxpr.eqns if not isinstance(atom, jax.extend.core.Literal)
                 and atom in equation.outvars), None)


def _maker_of_same(atom: Any, jaxpr: Any) -> Any:
    """Returns the equation that makes an atom, before conversions and copies."""
    maker = _maker(atom, jaxpr)
    while maker is not None and _is_same(maker):
        maker = _maker(maker.invars[0], jaxpr)
    return maker


def _source(atom: Any, jaxpr: Any) -> _Known:
    """Returns the source of an atom, before conversions and copies."""
    while True:
        if isinstance(atom, jax.extend.core.Literal):
            value = np.asarray(atom.val)
            return None if value.shape or value.dtype.kind not in "iu" else Number(int(value), "i64", ())
        if atom in jaxpr.invars:
            return list(jaxpr.invars).index(atom)
        maker = _maker(atom, jaxpr)
        if maker is None or not _is_same(maker):
            return None
        atom = maker.invars[0]


def _is_same(equation: Any) -> bool:
    """Returns True if an equation returns its operand unchanged; a conversion may make a weak type strong."""
    name, operands = equation.primitive.name, equation.invars
    if name == "convert_element_type":
        return bool(operands[0].aval.dtype == equation.outvars[0].aval.dtype)
    return name in ("copy", "pvary", "optimization_barrier") and len(operands) == 1
