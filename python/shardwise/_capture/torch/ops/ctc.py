"""Writes the loss of connectionist temporal classification, and its gradient, as loops over time. In torch
the shape of a result follows from the lengths; here it follows from the longest possible target."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._programs.text import Value
from .rules import Builder, Type, rule

_library: Any = torch.library.Library("shardwise", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("ctc_loss(Tensor scores, Tensor targets, Tensor lengths, Tensor target_lengths, "
                "int blank) -> (Tensor, Tensor)")
_library.define("ctc_loss_gradient(Tensor gradient, Tensor scores, Tensor targets, Tensor lengths, "
                "Tensor target_lengths, Tensor loss, Tensor so_far, int blank, bool zero_infinity) -> Tensor")
_library.define("masked_select(Tensor x, Tensor mask) -> Tensor")
_operations = torch.ops.shardwise

#: Operations that take a tensor whose number of elements follows from values.
TAKES_SELECTED = frozenset({"aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_to_copy", "aten::clone",
                            "aten::detach", "aten::alias", "aten::lift_fresh"})


@torch.library.register_fake("shardwise::ctc_loss")  # type: ignore[untyped-decorator]
def _shapes(scores: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor,
            blank: int) -> tuple[Tensor, Tensor]:
    times, count, _ = scores.shape
    extent = targets.shape[-1]  # a target with more labels than there are times has no path
    states = 2 * (min(times, extent) if isinstance(extent, int) else times) + 1
    return scores.new_empty(count), scores.new_empty(times, count, states)


@torch.library.register_fake("shardwise::ctc_loss_gradient")  # type: ignore[untyped-decorator]
def _shape(gradient: Tensor, scores: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(scores)


@torch.library.register_fake("shardwise::masked_select")  # type: ignore[untyped-decorator]
def _selected_shape(x: Tensor, mask: Tensor) -> Tensor:
    shape_env = torch.library.get_ctx()._shape_env
    return x.new_empty(shape_env.create_unbacked_symint())


def decompositions() -> dict[Any, Any]:
    def loss(scores: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int = 0,
             zero_infinity: bool = False) -> Any:
        return _operations.ctc_loss(scores, targets, lengths, target_lengths, blank)

    def gradient(given: Tensor, scores: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor,
                 loss: Tensor, so_far: Tensor, blank: int, zero_infinity: bool = False) -> Any:
        return _operations.ctc_loss_gradient(given, scores, targets, lengths, target_lengths, loss, so_far,
                                             blank, zero_infinity)

    return {torch.ops.aten._ctc_loss.Tensor: loss, torch.ops.aten._ctc_loss_backward.Tensor: gradient,
            torch.ops.aten.masked_select.default: lambda x, mask: _operations.masked_select(x, mask)}


@rule("masked_select")
def _masked_select(build: Builder, out: Type, x: Value, mask: Value) -> Value:
    """Returns the selected elements one after another, and then the others."""
    shape = np.broadcast_shapes(x.shape, mask.shape)
    line = (math.prod(shape),)
    x, mask = (build.reshape(build.broadcast_to(one, shape), line) for one in (x, mask))
    return build.take(x, build.argsort(build.convert(mask, "i32"), 0, True), 0)


class _States:
    """Targets with blanks around each label: [count, 2 * labels + 1]."""

    def __init__(self, build: Builder, classes: int, states: int, targets: Value, lengths: Value,
                 blank: int) -> None:
        count, labels = lengths.shape[0], states // 2
        self.build, self.shape = build, (count, states)
        self.lengths = build.convert(lengths, "i32")
        targets = build.convert(targets, "i32")
        place = build.iota("i32", (count, labels), 1)
        if len(targets.shape) == 1:  # targets in a row
            begins = build.binary("sub", build.along("cumsum", self.lengths, 0), self.lengths)
            ids = build.binary("add", build.broadcast(begins, place.shape, [0]), place)
            targets = build.take(targets, build.binary("min", ids, targets.shape[0] - 1), 0)
        else:
            targets = build.cut(targets, 1, 0, labels)
        is_label = build.binary("lt", place, build.broadcast(self.lengths, place.shape, [0]))
        targets = build.select(is_label, targets, build.full(targets, blank))
        pairs = build.reshape(targets, (count, labels, 1))
        pairs = build.concatenate([build.operand(blank, "i32", pairs.shape), pairs], 2)
        ends = build.operand(blank, "i32", (count, 1))
        self.classes = build.concatenate([build.reshape(pairs, (count, 2 * labels)),
                                          ends], 1) if labels else ends
        # A path may skip a blank between two different labels.
        self.follows = build.binary("ne", self.classes, self.moved(self.classes, 2, -1))
        if states > 1:
            self.follows = build.elementwise("logical_and", self.follows,
                                             build.binary("gt", build.iota("i32", self.shape, 1), 1))

    def moved(self, x: Value, by: int, rest: float) -> Value:
        """Moves each element forward by `by` places, or back if `by` is negative."""
        low, high = ([0, max(0, n)] for n in (by, -by))
        states = self.shape[1]
        if abs(by) >= states:
            return self.build.full(x, rest)
        kept = self.build.cut(x, 1, 0, states - by) if by > 0 else self.build.cut(x, 1, -by, states)
        return self.build.padded(kept, low, high, rest)

    def is_last(self) -> Value:
        """Returns True for states that a path may end in."""
        build = self.build
        left = build.binary("sub", build.broadcast(build.binary("mul", self.lengths, 2), self.shape, [0]),
                            build.iota("i32", self.shape, 1))
        return build.elementwise("logical_or", build.binary("eq", left, 0), build.binary("eq", left, 1))

    def total(self, parts: list[Value]) -> Value:
        """Returns log(exp(a) + exp(b) + ..), with -inf as the logarithm of 0."""
        build = self.build
        most = parts[0]
        for one in parts[1:]:
            most = build.elementwise("max", most, one)
        base = build.select(build.binary("eq", most, -math.inf), build.full(most, 0), most)
        exponentials = [build.unary("exp", build.elementwise("sub", one, base)) for one in parts]
        made = exponentials[0]
        for one in exponentials[1:]:
            made = build.elementwise("add", made, one)
        return build.elementwise("add", build.unary("log", made), base)


@rule("ctc_loss")
def _loss(build: Builder, out: list[Type], scores: Value, targets: Value, lengths: Value,
          target_lengths: Value, blank: int) -> list[Value]:
    """Returns the loss, and the logarithm of the sum of paths to each state and time: [times, count,
    states]."""
    times, count, classes = scores.shape
    wide = build.wide(scores)
    states = _States(build, classes, out[1].shape[2], targets, target_lengths, blank)
    begin = build.select(build.binary("eq", build.iota("i32", states.shape, 1), 0),
                         build.operand(0.0, wide.dtype, states.shape),
                         build.operand(-math.inf, wide.dtype, states.shape))

    def later(values: list[Value]) -> list[Value]:
        ids, follows, lengths, before, scores, time = values
        jumped = build.select(follows, states.moved(before, 2, -math.inf), build.full(before, -math.inf))
        made = states.total([before, states.moved(before, 1, -math.inf), jumped])
        made = build.elementwise("add", made, build.take_along(scores, ids, 1))
        is_there = build.binary("lt", build.broadcast(time, (count,), []), lengths)
        made = build.select(build.broadcast(is_there, states.shape, [0]), made, before)
        return [made, made]

    last, so_far = build.scan([states.classes, states.follows, build.convert(lengths, "i32")], [begin],
                              [wide, build.iota("i32", (times,), 0)], times, False, later)
    ends = build.select(states.is_last(), last, build.full(last, -math.inf))
    most = build.reduce("reduce_max", ends, [1])
    base = build.select(build.binary("eq", most, -math.inf), build.full(most, 0), most)
    exponentials = build.unary("exp",
                               build.elementwise("sub", ends, build.broadcast(base, states.shape, [0])))
    loss = build.unary("neg", build.elementwise(
        "add", build.unary("log", build.reduce("reduce_sum", exponentials, [1])), base))
    return [build.convert(loss, out[0].dtype), build.convert(so_far, out[1].dtype)]


@rule("ctc_loss_gradient")
def _gradient(build: Builder, out: Type, gradient: Value, scores: Value, targets: Value, lengths: Value,
              target_lengths: Value, loss: Value, so_far: Value, blank: int, zero_infinity: bool) -> Value:
    """Returns the gradient of the scores before a log_softmax, as torch does."""
    times, count, classes = scores.shape
    wide, loss, so_far, gradient = (build.wide(one) for one in (scores, loss, so_far, gradient))
    states = _States(build, classes, so_far.shape[2], targets, target_lengths, blank)
    nothing = build.operand(-math.inf, wide.dtype, states.shape)
    ends = build.select(states.is_last(), build.operand(0.0, wide.dtype, states.shape), nothing)
    is_jump = states.moved(build.convert(states.follows, "i32"), -2, 0)

    def earlier(values: list[Value]) -> list[Value]:
        ids, is_jump, ends, lengths, loss, after, scores, so_far, time = values
        jumped = build.select(build.binary("ne", is_jump, 0), states.moved(after, -2, -math.inf),
                              build.full(after, -math.inf))
        rest = states.total([after, states.moved(after, -1, -math.inf), jumped])
        is_end = build.binary("eq", build.binary("add", build.broadcast(time, (count,), []), 1), lengths)
        rest = build.select(build.broadcast(is_end, states.shape, [0]), ends, rest)
        share = build.unary("exp", build.elementwise("add", build.elementwise("add", so_far, rest),
                                                     build.broadcast(loss, states.shape, [0])))
        return [build.elementwise("add", rest, build.take_along(scores, ids, 1)),
                build.scatter_add_along(ids, share, 1, classes)]

    is_finite = build.binary("ne", loss, math.inf)
    finite = build.select(is_finite, loss, build.full(loss, 0))
    lengths = build.convert(lengths, "i32")
    xs = [wide, so_far, build.iota("i32", (times,), 0)]
    _, shares = build.scan([states.classes, is_jump, ends, lengths, finite], [nothing], xs, times, True,
                           earlier)
    made = build.elementwise("sub", build.unary("exp", wide), shares)
    made = build.elementwise("mul", made, build.broadcast(gradient, wide.shape, [1]))
    made = build.select(build.broadcast(is_finite, wide.shape, [1]), made,
                        build.full(made, 0.0 if zero_infinity else math.nan))
    is_there = build.elementwise("lt", build.iota("i32", wide.shape, 0),
                                 build.broadcast(lengths, wide.shape, [1]))
    return build.convert(build.select(is_there, made, build.full(made, 0)), out.dtype)
