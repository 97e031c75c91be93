"""Keeps the host memory into which asynchronous saves copy from save to save, as new pages cost more than the
copy."""

from __future__ import annotations

import threading

import numpy as np
import torch


class Staging:
    """The copies of one save. They reuse the memory that the save before has released; saves that overlap
    share no memory."""

    def __init__(self) -> None:
        self._free = _pool.take()
        self._used: list[torch.Tensor] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the memory for a copy of a tensor on the CPU, with the strides of clone(). fill() copies
        into it, and release() ends its use."""
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
        """Makes all copies in a row: other work of Python between them would be slow, as copies empty the
        caches of the CPU."""
        for copy, tensor in self._copies:
            copy.copy_(tensor)
        self._copies.clear()

    def _memory(self, size: int) -> torch.Tensor:
        same = self._free.get(size)
        if same:
            return same.pop()
        self._make_room(size)
        # Memory of numpy, which asks the system for huge pages.
        return torch.from_numpy(np.empty(size, np.uint8))

    def _make_room(self, size: int) -> None:
        """Frees at least `size` bytes of old copies, so that old and new copies are not in memory at once if
        sizes have changed."""
        while size > 0 and (sizes := [s for s, pieces in self._free.items() if pieces]):
            fits = [s for s in sizes if s >= size]
            dropped = min(fits) if fits else max(sizes)
            self._free[dropped].pop()
            size -= dropped

    def drop_unused(self) -> None:
        """Frees the memory into which no tensor was copied."""
        self._free.clear()

    def release(self, keep: bool) -> None:
        """Ends the use of the copies. keep: leaves their memory to the next save."""
        self._copies.clear()
        if keep:
            _pool.put([*self._used, *(piece for pieces in self._free.values() for piece in pieces)])
        self._used, self._free = [], {}


class _Pool:
    """The memory that the last save has released, by size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[int, list[torch.Tensor]] = {}

    def take(self) -> dict[int, list[torch.Tensor]]:
        with self._lock:
            memory, self._memory = self._memory, {}
            return memory

    def put(self, memory: list[torch.Tensor]) -> None:
        by_size: dict[int, list[torch.Tensor]] = {}
        for piece in memory:
            by_size.setdefault(piece.numel(), []).append(piece)
        with self._lock:
            self._memory = by_size


_pool = _Pool()
