"""Runs layers as a pipeline over stages, by the shifted buffer of GSPMD (Xu et al., arXiv 2105.04663,
section 3.3): the stages are a dim, and each trip moves it by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .._programs import pipelines as _pipelines


def pipeline(block: Callable[[Any, Any], Any], params: Any, x: Any, *, stages: int,
             micro_batches: int) -> Any:
    """Returns x after all layers, as a pipeline over stages. block(x, layer) gets a micro-batch of x and one
    layer's slices of params along dim 0, and returns x's type. Values and gradients are those of the layers
    one after the other.

        def block(h, layer):
            return torch.tanh(h @ layer["w"] + layer["b"])

        y = swt.pipeline(block, {"w": self.w, "b": self.b}, x, stages=4, micro_batches=8)

    It is made of torch's operations, for autograd and capture(); torch.func.vmap applies the block to all
    stages. In a program, mark dim 0 of the params with an axis of the mesh: each of its devices has the
    layers of one stage. A capture writes out all trips.

    params, x: tensors or trees of them, with the layers and the batch along dim 0. A micro-batch has every
    micro_batches-th row, so a batch that is cut over other devices stays cut.

    stages: divides the layers. micro_batches: divides the batch, and is as large as stages or larger.

    Raises InvalidArgument for other numbers, and for a block that changes its type."""
    each, rows = _pipelines.sizes(_named(params, "params"), _named(x, "x"), stages, micro_batches)
    layers = [pytree.tree_map(lambda w: w.reshape(stages, each, *w.shape[1:])[:, number], params)
              for number in range(each)]

    def micro_batch(leaf: torch.Tensor, trip: int) -> torch.Tensor:
        """Bubbles run on numbers of the data, since a block may have no finite gradient at zeros, and 0 times
        that is NaN."""
        by_row = leaf.reshape(rows, micro_batches, *leaf.shape[1:])
        return by_row[:, trip] if 0 <= trip < micro_batches else by_row[:, 0].detach()

    def fed(before: torch.Tensor, leaf: torch.Tensor, trip: int) -> torch.Tensor:
        """Returns the buffer for a trip: shifted by one stage, with a micro-batch in stage 0."""
        return _padded(before[:-1], 1, 0) + _padded(micro_batch(leaf, trip)[None], 0, stages - 1)

    def last_stage(*trips: torch.Tensor) -> torch.Tensor:
        own = torch.stack(trips, 2)[stages - 1]
        return own.reshape(rows * micro_batches, *own.shape[2:])

    buffer = pytree.tree_map(lambda leaf: torch.stack([micro_batch(leaf, -1)] * stages), x)
    trips = []
    for trip in range(micro_batches + stages - 1):
        buffer = pytree.tree_map(lambda before, leaf, trip=trip: fed(before, leaf, trip), buffer, x)
        for layer in layers:
            buffer = _of_all_stages(block, buffer, layer)
        trips.append(buffer)
    return pytree.tree_map(last_stage, *trips[stages - 1:])


def _of_all_stages(block: Callable[[Any, Any], Any], buffer: Any, layer: Any) -> Any:
    made = torch.func.vmap(block)(buffer, layer)
    needed, found = ({name: f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape[1:])}"
                      for name, leaf in _named(one, "x").items()} for one in (buffer, made))
    _pipelines.need_same(needed, found)
    return made


def _padded(tensor: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Returns the tensor with zeros along dim 0."""
    return torch.nn.functional.pad(tensor, [*[0, 0] * (tensor.dim() - 1), before, after])


def _named(tree: Any, name: str) -> dict[str, Any]:
    """Returns the tensors by their names in messages."""
    return {name + pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(tree)[0]}
