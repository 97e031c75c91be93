"""while loops as scans: those that count from one known number to another, and those that end before such a
count does."""

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
MOST_TRIPS = 10_000  #: of a loop that may end earlier: each is at least a look at whether it has ended
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}

#: Of an atom of a jaxpr: the place of the input that it is, a known number, or None.
_Known = int | Number | None


@rule("while")
def _while(call: Call, *operands: Value) -> Sequence[Value]:
    params = call.params
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    tested, consts, carry = (operands[:of_condition], operands[of_condition:of_condition + of_body],
                             operands[of_condition + of_body:])
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    asked = _asked(condition.jaxpr.outvars[0], condition.jaxpr)
    lengths = [_length(one, condition, body, tested, consts, carry) for one in asked]
    known = [length for length in lengths if length is not None]
    if not known or (len(asked) > 1 and min(known) > MOST_TRIPS):
        raise Refused(_UNKNOWN)
    if len(asked) == 1:
        return call.text.scan(consts, carry, (), known[0], False, lambda values: call.inlined(body, values))

    def trip(values: list[Value]) -> Sequence[Value]:
        of_test, given = values[:of_condition], values[of_condition:]
        (goes_on,) = call.inlined(condition, [*of_test, *given[of_body:]])
        return call.text.cond(goes_on, given, lambda inside: call.inlined(body, inside),
                              lambda inside: inside[of_body:])

    return call.text.scan([*tested, *consts], carry, (), min(known), False, trip)


def _asked(atom: Any, jaxpr: Any) -> list[Any]:
    """The equations that must all be true."""
    made = _maker_of_same(atom, jaxpr)
    return ([one for part in made.invars for one in _asked(part, jaxpr)] if made is not None
            and made.primitive.name == "and" else [made])


def _length(compare: Any, condition: Any, body: Any, tested: Sequence[Value], consts: Sequence[Value],
            carry: Sequence[Value]) -> int | None:
    """After how many trips an equation of the condition is false; None if that is not known."""
    body_jaxpr, test = body.jaxpr, condition.jaxpr
    returned = [_source(atom, body_jaxpr) for atom in body_jaxpr.outvars]

    def unchanged(place: int) -> bool:
        return returned[place] == len(consts) + place

    def number_of(atom: Any) -> Number | None:
        """Returns the number of an atom of the condition that is the same in all trips, else None."""
        found = _source(atom, test)
        if not isinstance(found, int):
            return found
        place = found - len(tested)
        known = tested[found] if place < 0 else carry[place] if unchanged(place) else None
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
    """Returns the trips of a loop that goes on while its counter is "lt", "le", "gt", "ge" or "ne" to the
    last number; None if it is not known to end before the counter overflows its dtype."""
    found = None
    if not getattr(operator, direction)(first, last):
        found = 0
    elif direction in ("lt", "le") and step > 0:
        found = -(-(last - first + (direction == "le")) // step)
    elif direction in ("gt", "ge") and step < 0:
        found = -(-(first - last + (direction == "ge")) // -step)
    elif direction == "ne" and step and (last - first) % step == 0 and (last - first) // step > 0:
        found = (last - first) // step
    range_ = np.iinfo(NUMPY[dtype])
    return found if found is not None and range_.min <= first + found * step <= range_.max else None


def _step(atom: Any, body: Any, counter: int, inputs: Sequence[Value], unchanged: Callable[[int], bool],
          consts: int) -> int | None:
    """Returns the number that a trip adds to the counter; None if that is not known."""
    made = _maker_of_same(atom, body)
    if made is not None and made.primitive.name in ("add", "sub"):
        a, b = (_source(one, body) for one in made.invars)
        if made.primitive.name == "add" and b == counter:
            a, b = b, a
        if isinstance(b, int) and (b < consts or unchanged(b - consts)):
            given = inputs[b]
            b = given if isinstance(given, Number) else None
        if a == counter and isinstance(b, Number):
            return int(b.value) * (1 if made.primitive.name == "add" else -1)
    return None


def _maker(atom: Any, jaxpr: Any) -> Any:
    """The equation that an atom comes from; None of an input or a literal."""
    return next((one for one in jaxpr.eqns if not isinstance(atom, jax.extend.core.Literal)
                 and atom in one.outvars), None)


def _maker_of_same(atom: Any, jaxpr: Any) -> Any:
    """Through conversions and copies."""
    made = _maker(atom, jaxpr)
    while made is not None and _is_same(made):
        made = _maker(made.invars[0], jaxpr)
    return made


def _source(atom: Any, jaxpr: Any) -> _Known:
    """Through conversions and copies."""
    while True:
        if isinstance(atom, jax.extend.core.Literal):
            value = np.asarray(atom.val)
            return None if value.shape or value.dtype.kind not in "iu" else Number(int(value), "i64", ())
        if atom in jaxpr.invars:
            return list(jaxpr.invars).index(atom)
        made = _maker(atom, jaxpr)
        if made is None or not _is_same(made):
            return None
        atom = made.invars[0]


def _is_same(made: Any) -> bool:
    """True if an equation returns its operand unchanged; conversions may make a weak type strong."""
    name, given = made.primitive.name, made.invars
    if name == "convert_element_type":
        return bool(given[0].aval.dtype == made.outvars[0].aval.dtype)
    return name in ("copy", "pvary", "optimization_barrier") and len(given) == 1
