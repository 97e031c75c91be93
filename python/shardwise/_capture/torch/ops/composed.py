"""Writes ATen operations that torch does not decompose itself as functions of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._programs.text import Refused
from .graph import composed, gradients

# Distances.


@composed("_cdist_forward")
def _distances(x: Tensor, y: Tensor, p: float, _: int | None = None) -> Tensor:
    """Returns the distance of each row of x from each row of y."""
    size = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (size != 0).to(x.dtype).sum(-1)
    if math.isinf(p):
        return size.amax(-1)
    if p == 1:
        return size.sum(-1)
    return size.square().sum(-1).sqrt() if p == 2 else size.pow(p).sum(-1).pow(1 / p)


@composed("_cdist_backward")
def _of_distances(gradient: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """Returns the gradient of x, which is zero for equal rows."""
    share = gradient / torch.where(distances == 0, torch.inf, distances)
    if p == 2:
        return x * share.sum(-1, keepdim=True) - share @ y
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 0:
        return torch.zeros_like(difference).sum(-2)
    if p == 1:
        return (difference.sign() * gradient.unsqueeze(-1)).sum(-2)
    far = distances.unsqueeze(-1)
    if math.isinf(p):
        return (difference.sign() * (difference.abs() == far) * gradient.unsqueeze(-1)).sum(-2)
    near = difference.abs() / torch.where(far == 0, torch.inf, far)
    powers = torch.where(difference == 0, 0.0, torch.where(difference == 0, 1.0, near).pow(p - 1))
    return (difference.sign() * powers * gradient.unsqueeze(-1)).sum(-2)


@composed("dist")
def _distance(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    made: Tensor = torch.linalg.vector_norm(x - y, p)
    return made


@composed("addbmm")
def _sum_of_products(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = alpha * torch.einsum("bij,bjk->ik", a, b)
    return product if beta == 0 else beta * x + product


@composed("_trilinear")
def _trilinear(x: Tensor, y: Tensor, z: Tensor, new_x: Sequence[int], new_y: Sequence[int],
               new_z: Sequence[int], dims: Sequence[int], _: int = 1) -> Tensor:
    """Returns the sum over some dims of a product of three tensors, after each gets its new dims."""
    letters = "abcdefgh"[:x.dim() + len(new_x)]
    own = ["".join(letters[d] for d in range(len(letters)) if d not in new)
           for new in (new_x, new_y, new_z, dims)]
    made: Tensor = torch.einsum(f"{own[0]},{own[1]},{own[2]}->{own[3]}", x, y, z)
    return made


@composed("embedding_renorm")
def _shortened(table: Tensor, ids: Tensor, most: float, p: float) -> Tensor:
    """Returns the table with the rows of these ids shortened to the length `most`."""
    length = torch.linalg.vector_norm(table, p, 1)
    is_used = torch.zeros_like(length).index_fill(0, ids.flatten(), 1) > 0
    return table * torch.where(is_used & (length > most), most / (length + 1e-7), 1).unsqueeze(1)


# Indexing.


@composed("masked_scatter")
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Returns x with the elements of `source`, one after another, where the mask is True."""
    if not source.numel():
        return x.clone()
    shape = np.broadcast_shapes(x.shape, mask.shape)
    x, mask = x.expand(shape), mask.expand(shape)
    places = (mask.flatten().cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.flatten()[places].view_as(x), x)


@composed("masked_scatter_backward")
def _of_masked_scatter(gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    mask = mask.expand_as(gradient).flatten()
    places = (mask.cumsum(0) - 1).clamp(0, math.prod(sizes) - 1)
    return torch.zeros(math.prod(sizes),
                       dtype=gradient.dtype).index_add(0, places, gradient.flatten() * mask).view(sizes)


@composed("put")
def _put(x: Tensor, ids: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return x.flatten().index_put((ids.flatten(),), source.flatten(), accumulate).view_as(x)


@composed("index_reduce")
def _index_reduce(x: Tensor, dim: int, ids: Tensor, source: Tensor, reduce: str, *,
                  include_self: bool = True) -> Tensor:
    """Combines slices along a dim, each with one id."""
    if not x.dim():
        x, source = x.view(1), source.view(1)
        return _index_reduce(x, 0, ids.view(1), source, reduce, include_self=include_self).view(())
    dim %= x.dim()
    along = [1] * x.dim()
    along[dim] = ids.numel()
    return x.scatter_reduce(dim, ids.view(along).expand_as(source), source, reduce, include_self=include_self)


@composed("searchsorted")
def _search_sorted(edges: Tensor, x: Tensor | float, *, out_int32: bool = False, right: bool = False,
                   side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    """Counts the edges below x in the same row. NaN is above all edges."""
    x = torch.as_tensor(x, dtype=None if isinstance(x, Tensor) or not edges.is_floating_point()
                        else edges.dtype)
    edges = edges if sorter is None else edges.gather(-1, sorter)
    edges = edges if edges.dim() == 1 else edges.unsqueeze(-2)
    x = x.unsqueeze(-1)
    is_below = (edges <= x if right or side == "right" else edges < x) | (x != x)
    return is_below.sum(-1).to(torch.int32 if out_int32 else torch.int64)


@composed("bucketize")
def _bucketize(x: Tensor | float, edges: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _search_sorted(edges, x, out_int32=out_int32, right=right)


# Bags of embeddings. Mode 0 is a sum, 1 a mean, 2 the maximum.


def _bags(ids: Tensor, offsets: Tensor, bags: int) -> Tensor:
    """Returns the bag of each id: the last bag that begins at it or before it."""
    begins = torch.zeros(ids.numel() + 1, dtype=torch.int64).index_add(0, offsets[:bags].long(),
                                                                       torch.ones(bags, dtype=torch.int64))
    return begins.cumsum(0)[:-1] - 1


@composed("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(table: Tensor, ids: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = 0,
                   sparse: bool = False, weights: Tensor | None = None, has_last: bool = False,
                   padding: int = -1) -> list[Tensor | None]:
    count, width = offsets.numel() - has_last, table.shape[1]
    bags = _bags(ids, offsets, count)
    is_used = ids != padding if padding >= 0 else torch.ones_like(ids, dtype=torch.bool)
    rows = table[ids] if weights is None else table[ids] * weights.unsqueeze(1)
    if mode != 2:
        made = torch.zeros(count, width, dtype=rows.dtype).index_add(0, bags, rows * is_used.unsqueeze(1))
        return [made / _sizes(bags, is_used, count) if mode == 1 else made, None, None, None]
    wide = bags.unsqueeze(1).expand_as(rows)
    low = torch.full((count, width), -torch.inf, dtype=rows.dtype)
    best = low.scatter_reduce(0, wide, torch.where(is_used.unsqueeze(1), rows, -torch.inf), "amax")
    place = torch.where(is_used.unsqueeze(1) & (rows == best[bags]), torch.arange(ids.numel()).unsqueeze(1),
                        ids.numel())
    first = torch.full((count, width), ids.numel()).scatter_reduce(0, wide, place, "amin")
    is_filled = first < ids.numel()
    most = torch.where(is_filled, ids[first.clamp(max=ids.numel() - 1)].long(), -1)
    return [torch.where(is_filled, best, 0), None, None, most.to(ids.dtype)]


def _sizes(bags: Tensor, is_used: Tensor, count: int) -> Tensor:
    """Returns the sizes of bags, [bags, 1], at least 1."""
    return torch.zeros(count, dtype=torch.int64).index_add(0, bags, is_used.long()).clamp(min=1).unsqueeze(1)


@composed("_embedding_bag_backward")
def _of_embedding_bag(gradient: Tensor, ids: Tensor, offsets: Tensor, _: Tensor, __: Tensor, most: Tensor,
                      rows: int, by_frequency: bool,
                      mode: int, sparse: bool, weights: Tensor | None, padding: int = -1) -> Tensor:
    if by_frequency or sparse:
        raise Refused("embedding_bag with scale_grad_by_freq, or sparse")
    count, width = gradient.shape
    if mode == 2:
        is_filled = (most >= 0).to(gradient.dtype)
        return torch.zeros(rows, width, dtype=gradient.dtype).scatter_add(0, most.clamp(min=0).long(),
                                                                          gradient * is_filled)
    bags = _bags(ids, offsets, count)
    is_used = ids != padding if padding >= 0 else torch.ones_like(ids, dtype=torch.bool)
    of_rows = (gradient / _sizes(bags, is_used, count) if mode == 1 else gradient)[bags]
    of_rows = of_rows if weights is None else of_rows * weights.unsqueeze(1)
    return torch.zeros(rows, width, dtype=gradient.dtype).index_add(0, ids, of_rows * is_used.unsqueeze(1))


@composed("_embedding_bag_per_sample_weights_backward")
def _of_bag_weights(gradient: Tensor, table: Tensor, ids: Tensor, offsets: Tensor, bags: Tensor, mode: int,
                    padding: int = -1) -> Tensor:
    made = (table[ids] * gradient[_bags(ids, offsets, gradient.shape[0])]).sum(1)
    return made * (ids != padding) if padding >= 0 else made


# Samples of pictures at computed places. Mode 0 is linear, 1 the nearest, 2 cubic. Places beyond the edge
# have zeros for 0, the edge for 1, and reflections for 2.


def _in_pixels(place: Tensor, size: int, align_corners: bool) -> Tensor:
    """Converts places from -1 to 1 into pixels."""
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _inside(place: Tensor, size: int, beyond: int, align_corners: bool) -> Tensor:
    if beyond == 2:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(place)
        far = (place - low).abs()
        rest, turns = torch.fmod(far, span), (far / span).floor()
        place = torch.where(torch.remainder(turns, 2) == 0, rest + low, span - rest + low)
    if beyond:
        place = torch.where((place > 0) & (place < size - 1), place, place.detach().clamp(0, size - 1))
    return place


def _picked(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Returns the elements of x [n, c, ..] at whole places [n, ..] along each dim of space, with zeros
    outside."""
    sizes = x.shape[2:]
    flat, is_there = (torch.zeros_like(places[0], dtype=torch.int64),
                      torch.ones_like(places[0], dtype=torch.bool))
    for place, size in zip(places, sizes, strict=True):
        is_there = is_there & (place >= 0) & (place <= size - 1)
        flat = flat * size + place.clamp(0, size - 1).long()
    shape = (*x.shape[:2], *flat.shape[1:])
    found = x.flatten(2).gather(2, flat.flatten(1).unsqueeze(1).expand(*x.shape[:2], -1)).view(shape)
    return found * is_there.unsqueeze(1)


def _sampled(x: Tensor, grid: Tensor, mode: int, beyond: int, align_corners: bool) -> Tensor:
    sizes = x.shape[2:]
    places = [_in_pixels(grid[..., -1 - dim], size, align_corners) for dim, size in enumerate(sizes)]
    if mode != 2:
        places = [_inside(place, size, beyond, align_corners)
                  for place, size in zip(places, sizes, strict=True)]
    if mode == 1:
        return _picked(x, [place.round() for place in places])
    first = [place.detach().floor() for place in places]
    rest = [place - low for place, low in zip(places, first, strict=True)]
    weights = [_cubic_weights(part) if mode == 2 else [1 - part, part] for part in rest]
    begin = -1 if mode == 2 else 0

    def near(dim: int, taken: list[Tensor], weight: Tensor | None) -> Tensor:
        if dim == len(sizes):
            assert weight is not None
            return _picked(x, taken) * weight.unsqueeze(1)
        parts = []
        for tap, own in enumerate(weights[dim]):
            place = first[dim] + (tap + begin)
            place = _inside(place, sizes[dim], beyond, align_corners) if mode == 2 else place
            parts.append(near(dim + 1, [*taken, place], own if weight is None else weight * own))
        return torch.stack(parts).sum(0)

    return near(0, [], None)


def _cubic_weights(rest: Tensor) -> list[Tensor]:
    """Returns the weights of Keys' kernel with -0.75 for the four elements around a place."""
    def of_next(x: Tensor) -> Tensor:
        return (1.25 * x - 2.25) * x * x + 1

    def of_others(x: Tensor) -> Tensor:
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    return [of_others(rest + 1), of_next(rest), of_next(1 - rest), of_others(2 - rest)]


@composed("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Tensor, grid: Tensor, mode: int, beyond: int, align_corners: bool) -> Tensor:
    return _sampled(x, grid, mode, beyond, align_corners)


@composed("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _of_grid_sampler(gradient: Tensor, x: Tensor, grid: Tensor, mode: int, beyond: int, align_corners: bool,
                     wanted: Sequence[bool] = (True, True)) -> list[Tensor | None]:
    x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
    of_x, of_grid = gradients(_sampled(x, grid, mode, beyond, align_corners), [x, grid], gradient)
    return [of_x if wanted[0] else None, of_grid]


# Padding with the edge.


def _with_edges(x: Tensor, pads: Sequence[int]) -> Tensor:
    for i in range(len(pads) // 2):
        dim = x.dim() - 1 - i
        places = torch.arange(-pads[2 * i], x.shape[dim] + pads[2 * i + 1]).clamp(0, x.shape[dim] - 1)
        x = x.index_select(dim, places)
    return x


@composed("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _of_edges(gradient: Tensor, x: Tensor, pads: Sequence[int]) -> Tensor:
    x = x.detach().requires_grad_()
    return gradients(_with_edges(x, pads), [x], gradient)[0]


# The largest elements of windows of uneven sizes.


def _adaptive_places(before: int, after: int) -> Tensor:
    """Returns [after, longest window], the elements of each window; the last one may be repeated."""
    begins = [i * before // after for i in range(after)]
    ends = [-(-(i + 1) * before // after) for i in range(after)]
    longest = max(end - begin for begin, end in zip(begins, ends, strict=True))
    return torch.tensor(begins).unsqueeze(1).add(torch.arange(longest)).minimum(
        torch.tensor(ends).unsqueeze(1) - 1)


@composed("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    space, rank = len(sizes), x.dim()
    windows, flat = x, torch.zeros([1] * (2 * space), dtype=torch.int64)
    for i, size in enumerate(sizes):
        dim, extent = rank - space + 2 * i, x.shape[rank - space + i]
        places = _adaptive_places(extent, size)
        windows = windows.index_select(dim, places.flatten()).reshape(*windows.shape[:dim], *places.shape,
                                                                      *windows.shape[dim + 1:])
        shape = [1] * (2 * space)
        shape[2 * i], shape[2 * i + 1] = places.shape
        flat = flat * extent + places.view(shape)
    before = list(range(rank - space))
    order = [*range(0, 2 * space, 2), *range(1, 2 * space, 2)]
    windows = windows.permute([*before, *(rank - space + d for d in order)]).flatten(rank)
    flat = flat.permute(order).flatten(space).expand_as(windows)
    best, place = windows.max(-1)
    return [best, flat.gather(-1, place.unsqueeze(-1)).squeeze(-1)]


def _of_adaptive_max(space: int) -> Callable[..., Tensor]:
    def backward(gradient: Tensor, x: Tensor, places: Tensor) -> Tensor:
        flat = torch.zeros_like(x).flatten(-space)
        return flat.scatter_add(-1, places.flatten(-space), gradient.flatten(-space)).view_as(x)

    return backward


composed("adaptive_max_pool2d_backward")(_of_adaptive_max(2))
composed("adaptive_max_pool3d_backward")(_of_adaptive_max(3))


# Losses.


def _derived(loss: Callable[..., Tensor]) -> Callable[..., Any]:
    def backward(gradient: Tensor, x: Tensor, *arguments: Any) -> Tensor:
        x = x.detach().requires_grad_()
        return gradients(loss(x, *arguments).view_as(gradient), [x], gradient)[0]

    return backward


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    return losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses


def _multi_margin(x: Tensor, target: Tensor, p: float, margin: float, weight: Tensor | None = None,
                  reduction: int = 1) -> Tensor:
    rows, classes = x.view(-1, x.shape[-1] if x.dim() else 1), target.view(-1, 1)
    far = (margin - rows.gather(1, classes) + rows).clamp(min=0).pow(p)
    far = far if weight is None else far * weight[classes]
    own = torch.arange(rows.shape[1]) == classes
    return _reduced(torch.where(own, 0, far).sum(1) / rows.shape[1], reduction).view(
        () if x.dim() < 2 or reduction else (-1,))


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    classes = x.shape[-1] if x.dim() else 1
    rows, targets = x.view(-1, classes), target.view(-1, classes)
    is_real = (targets >= 0).long().cumprod(1).bool()
    own = rows.gather(1, targets.clamp(min=0))
    far = (1 - own.unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0) * is_real.unsqueeze(2)
    others = is_target.view_as(rows).to(x.dtype).sub(1).neg().unsqueeze(1)
    return _reduced((far * others).sum((1, 2)) / classes, reduction).view(() if x.dim() < 2 or reduction
                                                                          else (-1,))


composed("multi_margin_loss_backward")(_derived(_multi_margin))
composed("multilabel_margin_loss_backward")(_derived(_multilabel_margin))
