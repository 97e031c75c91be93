"""Rules of shardwise.torch.capture beyond those of the usual layers: results and gradients are torch's, on one
device and on eight."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F

import shardwise as sw
import shardwise.torch as swt
from test_torch_program_rules import SHARP, floats

X, Y = floats(8, 6), floats(8, 6) * 1.5
IDS = torch.tensor([[2, 0, 3], [3, 3, 1], [0, 5, 5], [1, 1, 1], [4, 2, 0], [5, 0, 1], [2, 2, 3], [0, 1, 4]])
MASK = X > 0.2
LONG = floats(2, 600)
BYTES = torch.full((2,), 200, dtype=torch.uint8)
BAGS = torch.tensor([0, 5, 5, 6, 13, 14, 20, 22])

DISTANCES = {
    **{f"norm {p}": lambda x, y, p=p: torch.cdist(x, y[:5], p=p) for p in (1.0, 1.5, 2.0, 3.0, torch.inf)},
    "many rows": lambda x, y: torch.cdist(x.repeat(4, 1) + torch.arange(32.0)[:, None], y),
    "pairs": lambda x, y: torch.dist(x, y, 3) + F.pairwise_distance(x, y),
    "sides": lambda x, y: torch.hypot(x, y) + torch.fmax(x, y) * torch.fmin(x, y) + torch.copysign(x, y),
    "powers of two": lambda x, y: torch.ldexp(x, (y * 2).round()) + torch.round(x.detach(), decimals=1),
    "sums of products": lambda x, y: torch.addbmm(x[:2, :3], x.view(4, 2, 6), y.view(4, 6, 2)[:, :, :1].expand(4, 6, 3), beta=0.5, alpha=2),
}
def experts(x, y):
    """Multiplies each group of rows with its own matrix; one group has no rows."""
    ends = torch.tensor([2, 2, 7, 8], dtype=torch.int32)
    rows, columns = F.pad(x, (0, 2)), F.pad(y, (0, 2))
    made = torch._grouped_mm(rows, columns * torch.arange(1.0, 5).view(4, 1, 1), offs=ends)
    return (made + torch._grouped_mm(rows.t(), columns, offs=ends).mean(0))[:, :6]


def triangles(x, y):
    lower, upper = x[:5, :5].tril(-1) + 2 * torch.eye(5), x[:3, :3].triu()
    solve = torch.linalg.solve_triangular
    return (solve(lower, y[:5], upper=False) + solve(lower.mT, y[:5], upper=True, unitriangular=True)
            + solve(upper * 0.1 + torch.eye(3), y[:5, :3], upper=True, left=False).mean() + torch.triangular_solve(y[:5], lower, upper=False)[0])


def chunks(x, y):
    """Returns overlapping windows of rows of several heads, as Longformer has them."""
    heads = x.view(8, 3, 2).transpose(0, 1)
    own = [heads.stride(0), 2 * heads.stride(1), heads.stride(1), 1]
    windows = heads.as_strided((3, 3, 4, 2), own).transpose(0, 1).reshape(3, 24)
    places = y * 1
    places.as_strided((2, 3), (24, 2), 7).copy_(x[:2, :3])
    return windows.sum(0).view(4, 6) @ places.t() + x.as_strided((3, 8), (16, 0), 3).mean() + x.t().as_strided((4, 8), (2, 5), 1)


PRODUCTS = {
    "groups": experts, "triangles": triangles,
    "both sides": lambda x, y: F.bilinear(x, y, torch.stack([x[:6], y[:6]])),
    "short rows": lambda x, y: F.embedding(IDS, (x * 2).detach().clone(), max_norm=1.0).sum(1) * y[:, :1] + F.embedding(IDS, y, scale_grad_by_freq=True).mean(1),
}
INDEXED = {
    **{f"reduced by {how} {own}": lambda x, y, how=how, own=own: x.scatter_reduce(1, IDS, y[:, :3], how, include_self=own)
       for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)},
    "slices reduced": lambda x, y: x.index_reduce(0, IDS[0], y[:3], "amax") + x.index_reduce(1, IDS[4], y[:, :3], "mean", include_self=False),
    "into more rows": lambda x, y: x.scatter(0, IDS[:1], y[:1, :3]) + x.scatter(1, IDS[:3], 2.0),
    "scattered sums": lambda x, y: torch.zeros(8, 6).scatter(1, IDS, y.detach()[:, :3], reduce="add") * x,
    "masked": lambda x, y: x.masked_scatter(MASK, y) + x.masked_scatter(MASK[0], y),
    "put": lambda x, y: x.put(IDS, y[:, :3], accumulate=True) + x.put(IDS[0] * 7, y[0, :3]) + x.take(IDS.flatten()[:6]),
    "extremes so far": lambda x, y: x.cummax(1).values + y.cummin(0).values,
    "windows": lambda x, y: x.unfold(1, 3, 1).sum(1) @ y[:3] + x.unfold(0, 5, 3).mean() + x.unfold(1, 2, 2).flatten(1),
    "chunks": chunks, "windows of a line": lambda x, y: torch.as_strided(x.detach(), (8, 6), (5, 1)) * y,
    "medians of numbers": lambda x, y: x.nanmedian(1).values + torch.where(MASK, y, torch.nan).nanmedian(1).values,
    "bags": lambda x, y: F.embedding_bag(IDS, x, mode="sum", per_sample_weights=y[:, :3]) + F.embedding_bag(IDS, y, mode="mean", padding_idx=1)
    + F.embedding_bag(IDS, x, mode="max"),
    "uneven bags": lambda x, y: F.embedding_bag(IDS.flatten(), x, BAGS, mode="mean") * y + F.embedding_bag(IDS.flatten(), y, BAGS, mode="max"),
}
FOURIER = {
    "FNet": lambda x, y: torch.fft.fft(torch.fft.fft(x.view(2, 4, 6), dim=-1), dim=-2).real.reshape(8, 6) * y,
    "two dims": lambda x, y: torch.fft.fftn(x.view(2, 4, 6), dim=(1, 2)).real.reshape(8, 6) * y,
    "half": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * torch.fft.rfft(y), n=6, norm="ortho") + torch.fft.rfft2(x).abs().mean(),
    "odd": lambda x, y: torch.fft.irfft(torch.fft.rfft(x[:, :5]), n=5) * y[:, :5] + torch.fft.hfft(torch.fft.ihfft(y[:, :5]), n=5),
    "quotients": lambda x, y: (torch.fft.rfft(x) / (torch.fft.rfft(y) + 20)).imag + torch.fft.ifft(x, n=4).real,
    "frequencies": lambda x, y: torch.fft.fftshift(x, dim=1) * torch.fft.fftfreq(6) + y * torch.fft.rfftfreq(10, 0.5) + torch.fft.fftfreq(7, d=2.0)[:6],
    "there and back": lambda x, y: torch.istft(torch.stft(x.flatten(), 8, 4, window=torch.hann_window(8), return_complex=True), 8, 4, window=torch.hann_window(8)).view(8, 6) * y,
    "spectrogram": lambda x, y: torch.stft(x.flatten(), 8, 4, window=torch.hann_window(8), return_complex=True).abs().mean() * y,
}
PICTURES = {
    "uneven means": lambda x, k: F.adaptive_avg_pool2d(x, (4, 3)) + F.adaptive_avg_pool2d(x, (12, 5)).mean() + F.adaptive_avg_pool1d(x.flatten(2), 7).mean(),
    "uneven maxima": lambda x, k: F.adaptive_max_pool2d(x, (4, 3)) + F.adaptive_max_pool1d(x.flatten(2), 7).mean(),
    "places of maxima": lambda x, k: F.max_unpool2d(*F.max_pool2d(x, 3, 3, return_indices=True), 3, 3, output_size=(9, 8)),
    "folded": lambda x, k: F.fold(F.unfold(x, 3, padding=1, stride=2), (9, 8), 3, padding=1, stride=2),
    "edges": lambda x, k: F.pad(x, (2, 1, 0, 3), mode="replicate") * 2,
    **{f"nearest {mode}": lambda x, k, mode=mode: F.interpolate(x, size=(5, 13), mode=mode) + F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode).mean()
       + F.interpolate(x.flatten(2), scale_factor=2, mode=mode).mean() for mode in ("nearest", "nearest-exact")},
    "trilinear": lambda x, k: F.interpolate(x.unsqueeze(1), size=(5, 6, 11), mode="trilinear").mean(1),
    **{f"sampled {mode} {beyond}": lambda x, k, mode=mode, beyond=beyond: F.grid_sample(
        x, k.flatten(1)[:, :30].view(8, 3, 5, 2), mode=mode, padding_mode=beyond, align_corners=beyond == "border")
       for mode, beyond in (("bilinear", "zeros"), ("bilinear", "border"), ("bilinear", "reflection"), ("nearest", "zeros"), ("bicubic", "zeros"),
                            ("bicubic", "reflection"))},
    **{f"smooth {mode} {ends}": lambda x, k, mode=mode, ends=ends: F.interpolate(x, size=(5, 11), mode=mode, antialias=True, align_corners=ends)
       + F.interpolate(x, scale_factor=(0.6, 1.7), mode=mode, antialias=True, align_corners=ends).mean() for mode in ("bilinear", "bicubic") for ends in (False, True)},
    "wide steps back": lambda x, k: F.conv_transpose2d(x, k[:4], output_padding=1, dilation=2),
}
LOSSES = {
    "margins": lambda x, y: F.multi_margin_loss(x, IDS[:, 0], weight=torch.arange(1.0, 7)) + F.multi_margin_loss(y, IDS[:, 1], p=2, reduction="none")
    + F.multi_margin_loss(x[0], IDS[0, 0], reduction="none").sum(),
    "margins of labels": lambda x, y: F.multilabel_margin_loss(x, torch.tensor([[2, 0, -1, 1, 1, 1]]).expand(8, 6)),
}
NOT_A_NUMBER = torch.tensor([torch.nan, 2.0, 0.5, torch.inf])
WITHOUT_GRADIENT = {
    "edges of other types": lambda x, y: [torch.bucketize(x * 4, torch.tensor([-1, 0, 2])), torch.bucketize(NOT_A_NUMBER, torch.tensor([1.0, 2.0])),
                                          torch.searchsorted(torch.tensor([1.0, 2.0]), NOT_A_NUMBER, right=True)],
    "small numbers": lambda x, y: [(IDS * 50).to(torch.uint8) >> 2, torch.round(x.half() * 100, decimals=2), torch.round(x.bfloat16() * 100, decimals=2),
                                   BYTES.scatter_reduce(0, torch.zeros(256, dtype=torch.int64), torch.ones(256, dtype=torch.uint8), "amax", include_self=False)],
    "nothing": lambda x, y: [x.masked_scatter(x > 100, x[:0]), x.unfold(1, 0, 1), *x[0, 0].nanmedian(0)],
    "edges": lambda x, y: [torch.bucketize(x, y[0].sort().values), torch.searchsorted(y.sort(1).values, x, right=True)],
    "so far": lambda x, y: [*x.cummax(1), *y.cummin(0), *torch.where(MASK, x, torch.nan).cummax(0), *(x * 2).round().cummin(1)],
    "sides": lambda x, y: [torch.hypot(SHARP[:, None], SHARP), torch.fmax(SHARP[:, None], SHARP), torch.copysign(SHARP[:-1, None], SHARP[:-1]),
                           torch.angle(SHARP)],
    "bits": lambda x, y: [IDS << 2, IDS >> 1, torch.tril_indices(4, 5, 1), torch.triu_indices(3, 3)],
    "places": lambda x, y: [*F.adaptive_max_pool2d(x.view(1, 8, 6), (3, 4), return_indices=True),
                            *F.max_pool2d(x.view(1, 8, 6).round(), 3, 2, 1, return_indices=True), *F.max_pool1d(x, 2, return_indices=True)],
    "whole numbers": lambda x, y: [IDS.scatter_reduce(1, IDS % 3, IDS, how, include_self=own) for how in ("sum", "mean", "amax", "amin")
                                   for own in (True, False)],
    "many dims": lambda x, y: [torch.fft.fft(x.view(2, 1, 2, 1, 2, 1, 1, 1, 1, 6))],
    "large": lambda x, y: [torch.fft.rfft(LONG), torch.fft.fft(LONG[:, :521]), torch.complex(x, y).angle()],
}


def marked(program):
    return program.mark({one.label: ",".join(["data", *["-"] * (len(one.shape) - 1)]) for one in program.inputs})


def agree(function, *operands):
    """Returns the function's value and each operand's gradient, from a program on one device and on eight, and from torch."""

    def step(*given):
        leaves = [x.detach().requires_grad_() for x in given]
        value = function(*leaves)
        return value, torch.autograd.grad(value.sin().sum(), leaves, allow_unused=True, materialize_grads=True)

    program, expected = swt.capture(step, *operands), step(*operands)
    torch.testing.assert_close(program.run(*operands, devices=1), expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(marked(program).run(*operands, mesh="data=8"), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", [*DISTANCES, *PRODUCTS, *INDEXED, *FOURIER, *LOSSES])
def test_an_operation_and_its_gradient_are_those_of_torch(name):
    agree({**DISTANCES, **PRODUCTS, **INDEXED, **FOURIER, **LOSSES}[name], X, Y)


@pytest.mark.parametrize("name", PICTURES)
def test_an_operation_of_pictures_and_its_gradient_are_those_of_torch(name):
    agree(PICTURES[name], floats(8, 4, 9, 8), floats(8, 4, 3, 3))


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_an_operation_without_a_gradient_is_that_of_torch(name):
    program, expected = swt.capture(WITHOUT_GRADIENT[name], X, Y), WITHOUT_GRADIENT[name](X, Y)
    for one in (program.run(X, Y, devices=1), marked(program).run(X, Y, mesh="data=8")):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_value_that_leaves_torch_is_refused_with_its_line():
    with pytest.raises(sw.Unsupported, match=r"test_torch_more_rules.py:\d+ .*numpy"):
        swt.capture(lambda x: x.detach().numpy().sum(), X)


def test_what_works_in_memory_of_its_own_is_refused():
    with pytest.raises(sw.Unsupported, match="found CrossMapLRN2d, .* needed LocalResponseNorm"):
        swt.capture(torch.nn.CrossMapLRN2d(3), floats(8, 4, 9, 8))


def gaussian(x, y):
    one, other = F.gaussian_nll_loss(x, y, x.abs(), full=True, eps=0.5), F.gaussian_nll_loss(x, y, y.abs()[:, 0] + 0.1, reduction="sum")
    return one + other * torch.cov(x).mean() + x * 0 + F.gaussian_nll_loss(x, y, 2.0, reduction="none")


def test_a_gaussian_loss_asks_for_the_signs_of_its_variances():
    given = floats(8, 6), floats(8, 6) + 1
    with pytest.raises(sw.Unsupported, match=r"more_rules.py:\d+ .*found the value of a tensor.*assume="):
        swt.capture(gaussian, *given)

    def step(x, y):
        x = x.detach().requires_grad_()
        made = gaussian(x, y)
        return made.detach(), torch.autograd.grad(made.sum(), x)

    program = swt.capture(step, *given, assume=["functional.py:torch.any(var < 0)"])
    torch.testing.assert_close(program.run(*given, devices=1), step(*given), rtol=1e-4, atol=1e-5)


def test_inference_mode_is_a_trace_without_gradients():
    layer = torch.nn.Linear(6, 4)

    def step(x):
        with torch.inference_mode():
            return layer(x) + torch.is_grad_enabled()

    torch.testing.assert_close(swt.capture(step, X).run(X, devices=1), step(X))


def test_what_torch_compiles_by_itself_is_refused_with_its_line():
    from torch.nn.attention.flex_attention import flex_attention

    with pytest.raises(sw.Unsupported, match=r"test_torch_more_rules.py:\d+ .*flex_attention"):
        swt.capture(lambda x: flex_attention(x, x, x), floats(1, 2, 8, 4))
