"""Attention that a fused kernel computes on a GPU is planned without memory for its scores; any other is not."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import shardwise as sw
import shardwise.torch as swt

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 16
SCORES = BATCH * HEADS * LENGTH * LENGTH * 4  #: bytes in f32


class Attention(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv = torch.nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, bias=False)
        self.out = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        if self.kind == "own":
            mixed = torch.softmax(query @ key.transpose(-1, -2) / WIDTH**0.5, -1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * WIDTH))


def program_of(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, torch.Tensor]:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([Attention(kind) for _ in range(3)]).to(dtype)

    def step(x: torch.Tensor) -> Any:
        h = x
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=False) if kind == "checkpoint" else layer(h)
        loss = h.square().mean()
        loss.backward()
        gradients = [one.grad.clone() for one in layers.parameters() if one.grad is not None]
        layers.zero_grad()
        return loss.detach(), gradients

    x = torch.randn(BATCH, LENGTH, HEADS * WIDTH, dtype=dtype)
    return swt.capture(step, x).mark({"x": "d,-,-"}), step, x


@pytest.mark.parametrize("kind", ["kernel", "checkpoint"])
def test_scores_of_a_kernel_have_no_memory_unless_asked_for(kind: str) -> None:
    program, step, x = program_of(kind)
    fused, written = program.plan("d=1"), program.plan("d=1", attention="written")
    largest = [[one["bytes"] for one in plan.to_json()["memory"]["largest"]] for plan in (fused, written)]
    assert largest[1][:2] == [SCORES, SCORES] and largest[0][0] == 3 * BATCH * LENGTH * HEADS * WIDTH * 4 < SCORES
    assert written.peak_bytes - fused.peak_bytes >= 2 * SCORES  # they and their gradient
    loss, gradients = program.run(x, mesh="d=1")
    right_loss, right = step(x)
    torch.testing.assert_close(torch.as_tensor(loss), right_loss)
    for mine, theirs in zip(gradients, right):
        torch.testing.assert_close(torch.as_tensor(mine), theirs)


def test_a_verdict_counts_no_scores() -> None:
    """Blocks that are computed again fit in the bytes that they need without the scores of one block."""
    program, _, _ = program_of("kernel")
    needed = program.plan("d=1").peak_bytes + 2 * SCORES
    assert program.plan("d=1", needed).fits and not program.plan("d=1", needed, "written").fits
    again = [next(one for one in program.plan("d=1", needed, how).changes().found if one.kind == "recompute")
             for how in ("fused", "written")]
    assert again[1].cost.peak_bytes - again[0].cost.peak_bytes >= 2 * SCORES
    [one], [other] = (program.meshes(1, capacity=needed, attention=how) for how in ("fused", "written"))
    assert (one.fits, other.fits) == (True, False)


def test_pages_say_how_attention_is_planned() -> None:
    program, _, _ = program_of("kernel")
    fused, written = program.plan("d=1"), program.plan("d=1", attention="written")
    assert "planned as a fused kernel" in fused.report() and "planned as written" in written.report()
    assert (fused.to_json()["attention"], written.to_json()["attention"]) == ("fused", "written")
    for how, plan in (("fused", fused), ("written", written)):
        assert program.to_html("d=1", attention=how) == plan.to_html()
        assert f"attention planned as {how}" in plan._repr_html_()
    with pytest.raises(sw.InvalidArgument, match="attention: found 'flash', needed \"fused\" or \"written\""):
        program.plan("d=1", attention="flash")


def test_a_kernel_takes_less_time() -> None:
    program, _, _ = program_of("kernel")
    times = [program.plan("d=1", attention=one).to_json(machine="h100-80gb") for one in ("fused", "written")]
    assert times[0]["device_flops"] == times[1]["device_flops"]
    assert times[0]["modelled"]["compute_seconds"] < times[1]["modelled"]["compute_seconds"]


@pytest.mark.parametrize(("kind", "dtype"), [("own", torch.float32), ("kernel", torch.float64)])
def test_what_no_kernel_computes_is_planned_as_written(kind: str, dtype: torch.dtype) -> None:
    program, _, _ = program_of(kind, dtype)
    fused, written = program.plan("d=1"), program.plan("d=1", attention="written")
    kept = 3 * SCORES * dtype.itemsize // 4  # of each layer, for its gradient
    assert fused.peak_bytes == written.peak_bytes > kept
    assert fused.to_json()["attention"] is None and "attention is planned" not in fused.report()


BF16 = torch.bfloat16


@pytest.mark.parametrize(("is_fused", "dtype", "width", "heads", "is_masked", "backends"), [
    (True, BF16, 20, HEADS, False, None),  # flash attention pads its rows
    (False, BF16, 20, HEADS, True, None),  # but takes no mask
    (True, BF16, 24, HEADS, True, None),
    (False, BF16, 264, 1, False, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
    (True, BF16, 16, 1, False, None),  # grouped heads
    (False, torch.float32, 16, 1, False, None),
    (True, torch.float32, 16, HEADS, True, None),
    (False, torch.float32, 18, HEADS, False, None),
    (False, BF16, 16, HEADS, False, SDPBackend.MATH),
    (True, BF16, 16, HEADS, False, SDPBackend.FLASH_ATTENTION),
    (True, BF16, 16, HEADS, False, SDPBackend.CUDNN_ATTENTION),
    (False, torch.float32, 16, HEADS, False, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
])
def test_a_kernel_is_chosen_as_on_a_gpu(is_fused: bool, dtype: torch.dtype, width: int, heads: int, is_masked: bool, backends: Any) -> None:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if is_masked else None

    def step(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backends) if backends else contextlib.nullcontext():
            return functional.scaled_dot_product_attention(query, key, key, mask, enable_gqa=heads != HEADS)

    def around(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, key, mask, enable_gqa=heads != HEADS)

    query, key = (torch.zeros(BATCH, count, LENGTH, width, dtype=dtype) for count in (HEADS, heads))
    assert swt.capture(step, query, key).plan("d=1").to_json()["attention"] == ("fused" if is_fused else None)
    with sdpa_kernel(backends) if backends else contextlib.nullcontext():
        assert swt.capture(around, query, key).plan("d=1").to_json()["attention"] == ("fused" if is_fused else None)
