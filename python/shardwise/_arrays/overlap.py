"""Finds targets that share memory, as a load must fill each element once."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# The most steps that numpy takes to find out whether two views share an element.
_MOST_WORK = 100_000


class _ArrayInterface:
    """An object that numpy turns into an array."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


class Region(NamedTuple):
    """The elements of an array or a tensor."""

    space: str  #: the device; empty is the host
    address: int  #: the address of the element whose indices are all 0
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  #: in bytes, 0 for dims of extent 1; None is row-major without gaps
    itemsize: int
    dtype: str

    @classmethod
    def of_array(cls, array: np.ndarray, dtype: str) -> Region:
        strides = None if array.flags.c_contiguous else strides_without_ones(array.shape, array.strides)
        return cls("", array.__array_interface__["data"][0], array.shape, strides, array.itemsize, dtype)

    def interval(self) -> tuple[int, int]:
        """Returns the addresses of the first byte and of the byte after the last."""
        if self.strides is None:
            return self.address, self.address + math.prod(self.shape) * self.itemsize
        spans = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        return (self.address + sum(span for span in spans if span < 0),
                self.address + sum(span for span in spans if span > 0) + self.itemsize)

    def view(self) -> np.ndarray:
        """Returns an array at the same addresses. Its elements must not be read."""
        return np.asarray(_ArrayInterface({
            "data": (self.address, True), "shape": self.shape, "strides": self.strides,
            "typestr": f"|V{self.itemsize}", "version": 3}))

    def overlaps_itself(self) -> bool:
        """Returns True if two indices refer to one element."""
        if self.strides is None:
            return False
        inner = self.itemsize
        for stride, extent in sorted((abs(stride), extent)
                                     for stride, extent in zip(self.strides, self.shape) if extent > 1):
            if stride < inner:
                break
            inner = (extent - 1) * stride + inner
        else:
            return False
        rest = self.view()
        while rest.ndim:  # checks pairs of indices whose first difference is in this dim
            if rest.shape[0] > 1 and _share(rest[0, ...], rest[1:]):
                return True
            rest = rest[0, ...]
        return False


class _Mappings:
    """The files and shared memories that this process has mapped. Two mappings of a file are one memory."""

    _LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ..[-x]s ([0-9a-f]+) (\S+ (?!0 )\d+)", re.M)
    _ABOVE = 1 << 40  # no address of a view is 0

    def __init__(self) -> None:
        try:
            with open("/proc/self/maps", "rb") as file:
                lines = self._LINE.findall(file.read())
        except OSError:
            lines = []  # another system than Linux
        self._rows = [(int(begin, 16), int(end, 16), int(offset, 16), what.decode())
                      for begin, end, offset, what in lines]
        self._begins = [row[0] for row in self._rows]

    def placed(self, region: Region) -> Region:
        """Returns the region as a place in the file that is mapped there, if any."""
        if region.space or not self._rows:
            return region
        number = bisect.bisect_right(self._begins, region.interval()[0]) - 1
        if number < 0 or region.interval()[0] >= self._rows[number][1]:
            return region
        begin, _, offset, what = self._rows[number]
        return region._replace(space=what, address=region.address - begin + offset + self._ABOVE)


def strides_without_ones(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, with 0 for dims of extent 1, where a stride has no meaning."""
    return tuple(stride if extent > 1 else 0 for extent, stride in zip(shape, strides))


def _share(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns True if an element is in both views, or if that is too hard to find out."""
    try:
        return np.shares_memory(first, second, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except (np.exceptions.TooHardError, OverflowError):
        return True


def several_places(name: str) -> str:
    return f"{name!r} is a view here that has one element in several places: needed is its clone() or copy()"


class Regions:
    """The memory that a load is going to fill, by name. This class does not touch it."""

    def __init__(self) -> None:
        self._names: dict[Region, str] = {}

    def add(self, name: str, region: Region | None) -> str | None:
        """Adds a region. Returns the name that the very same elements already have, if any: they are tied,
        and filled once."""
        if region is None or 0 in region.shape:
            return None
        first = self._names.get(region)
        if first is None:
            self._names[region] = name
        return first

    def faults(self) -> list[str]:
        """Returns a message for each target that shares an element with itself or with another target."""
        messages = [several_places(name) for region, name in self._names.items() if region.overlaps_itself()]
        # Regions that end after the next region begins, as (end, space, common divisor of steps, region,
        # name).
        ends: list[tuple[int, str, int, Region, str]] = []
        views: dict[Region, np.ndarray] = {}
        mappings = _Mappings()
        placed = [(mappings.placed(region), name) for region, name in self._names.items()]
        rows = [(region.space, *region.interval(), region, name) for region, name in placed]
        for space, begin, end, region, name in sorted(rows, key=lambda row: row[:3]):
            ends = [row for row in ends if row[0] > begin and row[1] == space]
            step = math.gcd(*region.strides) if region.strides else 0
            for _, _, other_step, other, other_name in ends:
                common = math.gcd(step, other_step)
                apart = (region.address - other.address) % common if step and other_step else 0
                if apart >= other.itemsize and apart + region.itemsize <= common:
                    continue  # like columns of one matrix
                for new in {other, region} - views.keys():
                    views[new] = new.view()
                if _share(views[other], views[region]):
                    messages.append(f"{other_name!r} and {name!r} share memory here: "
                                    "needed is memory of its own for each")
            ends.append((end, space, step, region, name))
        return messages
