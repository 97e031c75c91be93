"""Defines shardwise.torch.open, which reads a checkpoint, or a file of another format, as torch's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from .._arrays.arrays import Path
from .._arrays.boxes import read_boxes
from .._arrays.overlap import several_places
from .._arrays.torch_tensors import TORCH, Memory, is_plain_memory, memory_device, region_of, shared_tensor
from .._checkpoint import tensor as _tensor
from .._checkpoint.edits import Cast, Join, Rename, Resize, Split, Transpose
from .._errors import InvalidArgument
from ._load import state_of


def open(path: Path, *, device: Any = "cpu", pin: bool = True, threads: int = 0,
         names: str | Iterable[str] | None = None, rename: Rename | None = None, cast: Cast | None = None,
         transpose: Transpose | None = None, split: Split | None = None, join: Join | None = None,
         resize: Resize | None = None) -> Checkpoint:
    """Opens a checkpoint as shardwise.open() does, but an index gives a tensor of torch on a device:
    open(path)["w"][:, 2:5]."""
    device = memory_device(f"open {path}", device)
    checkpoint = Checkpoint(path, pin=pin, threads=threads, names=names, rename=rename, cast=cast,
                            transpose=transpose, split=split, join=join, resize=resize)
    checkpoint.device = device
    return checkpoint


class Tensor(_tensor.Tensor):
    """A tensor of an open checkpoint. t[10:20, ::2] reads only the chunks that it needs, and gives a tensor
    of torch; np.asarray(t) gives an array of numpy. Indices are integers, slices and "..."; steps may be
    negative."""

    __slots__ = ("device",)
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return TORCH[self.dtype_name]

    def _result(self, array: np.ndarray) -> torch.Tensor:
        return shared_tensor(np.asarray(array)).to(self.device)

    def read_into(self, out: torch.Tensor, box: Any = ...) -> None:  # type: ignore[override]
        """Fills a tensor with the elements of `box`, an index. The target has the same dtype, the shape of
        the box, and any strides and device. Raises InvalidArgument if it does not."""
        selection = _tensor.Selection(self, box)
        if not isinstance(out, torch.Tensor):
            raise InvalidArgument(f"read_into: for {self.name!r} found "
                                  f"{type(out).__module__}.{type(out).__qualname__}, needed is a tensor")
        if out.dtype != self.dtype or tuple(out.shape) != selection.shape:
            raise InvalidArgument(f"read_into: {self.name!r} is {self.dtype} {list(selection.shape)} there, "
                                  f"the tensor {out.dtype} {list(out.shape)}")
        region = region_of(out)
        if region is not None and region.overlaps_itself():
            raise InvalidArgument(f"read_into: {several_places(self.name)}")
        if selection.is_box and type(out) in (torch.Tensor, torch.nn.Parameter) and is_plain_memory(out):
            whole = out.detach().reshape([len(r) for r in selection.ranges])
            boxes: Any = [(self.number, [r.start for r in selection.ranges], Memory(whole))]
            read_boxes(self.reader, boxes)
        else:
            with torch.no_grad():
                out.copy_(shared_tensor(np.asarray(selection.read(self))))


class Checkpoint(_tensor.Checkpoint):
    """A shardwise.Checkpoint whose tensors are read as tensors of torch."""

    device = torch.device("cpu")

    def __getitem__(self, name: str) -> Tensor:
        tensor = Tensor(self._reader, *self._row(name))
        tensor.device = self.device
        return tensor

    def load(self, names: str | Iterable[str] | None = None) -> dict[str, Any]:
        """Returns tensors and objects by name; without names, the saved tree as
        shardwise.torch.load_state_dict() does."""
        if names is None:
            return state_of(self, self.device)
        chosen = self.select(names)
        stored = [name for name in chosen if name not in self.objects]
        read = dict(zip(stored, self.read(stored)))
        return {name: self.objects[name] if name in self.objects else read[name] for name in chosen}
