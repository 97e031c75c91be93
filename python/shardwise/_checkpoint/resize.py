"""Lets a load fill the common part of tensors that have grown or shrunk, on request only."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Literal

from .._arrays.arrays import check_choice
from .._errors import InvalidArgument

Resize = Mapping[str, Literal["pad", "slice"]]
"""Rules by patterns of names: {"*embed*": "pad"}. "pad" fills the beginning of a larger tensor, "slice" takes
the beginning of the stored one."""


def check_extents(what: str, skip_mismatched: bool, resize: object) -> None:
    """Checks the options of a load without a target, where resize must give extents. Raises
    InvalidArgument."""
    says_none = isinstance(resize, Mapping) and not {"pad", "slice"}.isdisjoint(resize.values())
    for name, value in (("resize", resize if says_none else None), ("skip_mismatched", skip_mismatched)):
        if value:
            raise InvalidArgument(f"{what}: {name} is {value!r}, needed is a target that has the new shapes")


class Resizing:
    """Rules that pad or slice tensors, and whether each was used."""

    def __init__(self, rules: Mapping[str, str] | None) -> None:
        self._rules = dict(rules or {})
        for how in self._rules.values():
            check_choice("resize", how, ("pad", "slice"))
        self._unused = dict.fromkeys(self._rules)

    def allows(self, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
        """Returns True if a tensor of this name may have the wanted shape. The first rule that matches
        counts."""
        pattern = next((pattern for pattern in self._rules if fnmatch.fnmatchcase(name, pattern)), None)
        if pattern is None or len(stored) != len(wanted):
            return False
        smaller, larger = (stored, wanted) if self._rules[pattern] == "pad" else (wanted, stored)
        if any(a > b for a, b in zip(smaller, larger)):
            return False
        self._unused.pop(pattern, None)
        return True

    def faults(self) -> list[str]:
        unused = ", ".join(map(repr, self._unused))
        return [f"resize: {unused} matches no tensor of another shape that it allows"] if unused else []
