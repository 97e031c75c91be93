"""Host memory into which asynchronous saves copy: kept from one to the next, as new pages cost more than the
copy."""

from __future__ import annotations

import threading

import numpy as np
import torch


class Staging:
    """The copies of one save. Takes the memory that the save before has left; saves under way at once share
    no memory."""

    def __init__(self) -> None:
        self._free = _kept.take()
        self._used: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a tensor on the CPU, made by fill() and valid until release(). Has the strides of
        clone()."""
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return tensor
        memory = self._memory(size)
        self._used.append(memory)
        strides = torch.empty_like(tensor, device="meta").stride()
        copy = memory.view(tensor.dtype).as_strided(tensor.shape, strides)
        self._copies.append((copy, tensor))
        return copy

    def fill(self) -> None:
        """One copy right after the other: what Python does in between would be slow, as copies empty the
        CPU's caches."""
        for copy, tensor in self._copies:
            copy.copy_(tensor)
        self._copies.clear()

    def _memory(self, size: int) -> torch.Tensor:
        same = self._free.get(size)
        if same:
            return same.pop()
        self._make_room(size)
        # numpy asks the system for huge pages.
        return torch.from_numpy(np.empty(size, np.uint8))

    def _make_room(self, size: int) -> None:
        """If sizes have changed, old and new copies are not there at once."""
        while size > 0 and (there := [s for s, pieces in self._free.items() if pieces]):
            fits = [s for s in there if s >= size]
            dropped = min(fits) if fits else max(there)
            self._free[dropped].pop()
            size -= dropped

    def drop_unused(self) -> None:
        """Frees the memory that no tensor was copied to."""
        self._free.clear()

    def release(self, keep: bool) -> None:
        """The copies are not read any more. keep: their memory is for the next save."""
        self._copies.clear()
        if keep:
            _kept.put([*self._used, *(piece for pieces in self._free.values() for piece in pieces)])
        self._used, self._free = [], {}


class _Kept:
    """The memory that the last save has left, by size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[int, list[torch.Tensor]] = {}

    def take(self) -> dict[int, list[torch.Tensor]]:
        with self._lock:
            taken, self._memory = self._memory, {}
            return taken

    def put(self, memory: list[torch.Tensor]) -> None:
        by_size: dict[int, list[torch.Tensor]] = {}
        for piece in memory:
            by_size.setdefault(piece.numel(), []).append(piece)
        with self._lock:
            self._memory = by_size


_kept = _Kept()
