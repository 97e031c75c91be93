"""Targets that share memory: a load must fill each element once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Steps that numpy takes at most to find out whether two views share an element.
_MOST_WORK = 100_000


class _Shown:
    """What numpy makes an array of."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


class Region(NamedTuple):
    """The elements of an array or a tensor."""

    space: str  #: the device; empty: the host
    address: int  #: of the element whose indices are all 0
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  #: in bytes, 0 for dims of extent 1; None: row-major without gaps
    itemsize: int
    dtype: str

    @classmethod
    def of_array(cls, array: np.ndarray, dtype: str) -> Region:
        strides = None if array.flags.c_contiguous else strides_without_ones(array.shape, array.strides)
        return cls("", array.__array_interface__["data"][0], array.shape, strides, array.itemsize, dtype)

    def interval(self) -> tuple[int, int]:
        """The first byte and the one after the last."""
        if self.strides is None:
            return self.address, self.address + math.prod(self.shape) * self.itemsize
        spans = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        return (self.address + sum(span for span in spans if span < 0),
                self.address + sum(span for span in spans if span > 0) + self.itemsize)

    def view(self) -> np.ndarray:
        """Of the same addresses. Its elements must not be read."""
        return np.asarray(_Shown({"data": (self.address, True), "shape": self.shape, "strides": self.strides,
                                  "typestr": f"|V{self.itemsize}", "version": 3}))

    def overlaps_itself(self) -> bool:
        """Whether two indices are one element."""
        if self.strides is None:
            return False
        inner = self.itemsize
        for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(self.strides, self.shape) if extent > 1):
            if stride < inner:
                break
            inner = (extent - 1) * stride + inner
        else:
            return False
        rest = self.view()
        while rest.ndim:  # two indices that differ first in this dim
            if rest.shape[0] > 1 and _share(rest[0, ...], rest[1:]):
                return True
            rest = rest[0, ...]
        return False


def strides_without_ones(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Those of dims of extent 1 say nothing."""
    return tuple(stride if extent > 1 else 0 for extent, stride in zip(shape, strides))


def _share(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether an element is in both; also if that is too hard to find out."""
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except (np.exceptions.TooHardError, OverflowError):
        return True


def several_places(name: str) -> str:
    return f"{name!r} is a view here that has one element in several places: needed is its clone() or copy()"


class Regions:
    """The memory that a load is going to fill, by names. None of it is touched."""

    def __init__(self) -> None:
        self._names: dict[Region, str] = {}

    def add(self, name: str, region: Region | None) -> str | None:
        """The name that the very same elements have already, if they have one: they are tied, and to be filled once."""
        if region is None or 0 in region.shape:
            return None
        first = self._names.get(region)
        if first is None:
            self._names[region] = name
        return first

    def faults(self) -> list[str]:
        """What says, for each target that shares an element with itself or with another one, that it cannot be filled."""
        found = [several_places(name) for region, name in self._names.items() if region.overlaps_itself()]
        ends: list[tuple[int, str, int, Region]] = []  # of those that end after the begin of the next one; steps are common divisors
        views: dict[Region, np.ndarray] = {}
        for space, begin, end, region in sorted(((r.space, *r.interval(), r) for r in self._names), key=lambda row: row[:3]):
            ends = [row for row in ends if row[0] > begin and row[1] == space]
            step = math.gcd(*region.strides) if region.strides else 0
            for _, _, other_step, other in ends:
                common = math.gcd(step, other_step)
                apart = (region.address - other.address) % common if step and other_step else 0
                if apart >= other.itemsize and apart + region.itemsize <= common:
                    continue  # as columns of one matrix are
                for new in {other, region} - views.keys():
                    views[new] = new.view()
                if _share(views[other], views[region]):
                    found.append(f"{self._names[other]!r} and {self._names[region]!r} share memory here: needed is memory of its own for each")
            ends.append((end, space, step, region))
        return found
