"""Rules of shardwise.torch.capture: results and gradients of each operation are torch's."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F

import shardwise.torch as swt


def floats(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


X, Y, POSITIVE = floats(4, 6), floats(4, 6), floats(4, 6).abs() + 0.5
IMAGE, LINE = floats(2, 4, 9, 8), floats(2, 4, 11)
IDS = torch.tensor([[2, 0, 3], [3, 3, 1]])
HALVES = torch.tensor([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, -0.5, 5, -1])
SHARP = torch.tensor([1, -1, 0.1, -0.1, 0.3, 7, -7, 0, -0.0, 3e38, 1e-3, torch.inf, -torch.inf, torch.nan])
INTEGERS = torch.tensor([[-7, 5, 0], [3, -2, 9]])

ELEMENTWISE = {
    "arithmetic": lambda x, y: (x + 2 * y - 1) / (y.abs() + 1) * x,
    "alpha": lambda x, y: torch.sub(torch.add(x, y, alpha=3), y, alpha=2) + torch.rsub(x, y, alpha=2),
    "powers": lambda x, y: x**2 + x**3 + (y.abs() + 1) ** 0.5 + (y.abs() + 1) ** -0.5 + (x.abs() + 0.5) ** y + 2.0**x,
    "exponentials": lambda x, y: torch.exp(x) + torch.expm1(y) + torch.exp2(x) + torch.sigmoid(y) + torch.tanh(x) + torch.erf(y),
    "angles": lambda x, y: torch.sin(x) + torch.cos(y) + torch.atan2(x, y),
    "arcs": lambda x, y: torch.asin(x / 4) + torch.acos(y / 4) + torch.atan(x) + torch.tan(y) + torch.sinh(x) + torch.cosh(y) + torch.asinh(x)
    + torch.atanh(y / 4) + torch.acosh(x.abs() + 1.5) + torch.erfc(y),
    "gammas": lambda x, y: torch.lgamma(x.abs() * 5 + 0.1) / 4 + torch.lgamma(y - 4.3) / 4,
    "shrunk": lambda x, y: F.hardshrink(x) + F.softshrink(y),
    "extremes": lambda x, y: torch.maximum(x, y) + torch.minimum(x, y) + x.clamp(-0.5, 0.5) + y.clamp(min=0) + x.clamp(max=y),
    "activations": lambda x, y: F.relu(x) + F.silu(y) + F.gelu(x) + F.gelu(y, approximate="tanh") + F.leaky_relu(x) + F.elu(y) + F.softplus(x)
    + F.hardswish(y) + F.mish(x) + F.hardtanh(y) + F.relu6(x),
    "between": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, y, x, value=2) + torch.addcdiv(x, y, x.abs() + 1, value=3),
    "conditions": lambda x, y: torch.where(x > y, x, y) + x.masked_fill(y < 0, 2) + torch.where(x == x, x, 0.0),
    "broadcast": lambda x, y: x + y[0] * y[:, :1] + y[1:2],
}
LAYOUT = {
    "dims": lambda x, y: x.t().reshape(2, 12).unsqueeze(1).expand(2, 3, 12).permute(2, 0, 1) * 2,
    "slices": lambda x, y: x[1:, ::2] * y[:3, 1::2] + x[-1, 0],
    "joined": lambda x, y: torch.cat([x, y], 1)[:, 2:8] * torch.stack([x, y])[1] + sum(torch.split(x, 2))[:1].repeat(4, 1),
    "turned": lambda x, y: x.flip(1) + torch.roll(y, 2, 1) + torch.roll(x, (1, 2), (0, 1)) + F.pad(y, (1, 2, 0, 0))[:, :6],
    "triangles": lambda x, y: torch.tril(x) + torch.triu(y, 1) + torch.diagonal(x, 1).sum() + torch.diagonal(y, -1).sum(),
    "in place": lambda x, y: written(x, y),
    "chunks": lambda x, y: torch.cat([part * i for i, part in enumerate(x.chunk(3, 1))], 1) + torch.stack(y.unbind(0)),
}
SUMS = {
    "sums": lambda x, y: x.sum(1, keepdim=True) + y.mean(0) + x.sum() + y.var(1, keepdim=True) + x.std(),
    "products": lambda x, y: x.prod(1) + y[:1].prod(),
    "extremes of rows": lambda x, y: x.amax(1) + y.amin(1) + x.max(1).values + y.min(1).values,
    "softmax": lambda x, y: F.softmax(x, 1) + F.log_softmax(y, 0) + torch.logsumexp(x, 1, keepdim=True),
    "norms": lambda x, y: F.layer_norm(x, (6,), y[0], y[1]) + F.normalize(y) + F.rms_norm(x, (6,), y[2]) + y.norm(),
    "group norm": lambda x, y: F.group_norm(x.reshape(2, 4, 3), 2, y[0, :4], y[1, :4]),
    "cumulative": lambda x, y: x.cumsum(1) + y.cumprod(0) + x.logcumsumexp(1),
    "matmul": lambda x, y: x @ y.T @ (x @ y[0]) / 9 + torch.addmm(x[:, :4], x, y.T, beta=0.5, alpha=2).sum() + torch.dot(x[0], y[1]),
    "batches": lambda x, y: torch.einsum("bij,bkj->bik", x.reshape(2, 2, 6), y.reshape(2, 2, 6)) + torch.baddbmm(
        x[:2, :2].expand(2, 2, 2), x.reshape(2, 2, 6), y.reshape(2, 6, 2)),
    "losses": lambda x, y: F.mse_loss(x, y) + F.l1_loss(x, y) + F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, y.sigmoid())
    + F.cross_entropy(x, torch.tensor([1, -100, 5, 0])) + F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1)),
    "attention": lambda x, y: F.scaled_dot_product_attention(x.reshape(1, 2, 2, 6), y.reshape(1, 2, 2, 6), x.reshape(1, 2, 2, 6), is_causal=True),
}
INDEXED = {
    "gather": lambda x, y: x.gather(1, IDS) + y.gather(0, IDS),
    "take": lambda x, y: x[IDS] + F.embedding(IDS, y, padding_idx=3) + x[IDS - 4],
    "several": lambda x, y: x[IDS, IDS + 1] + y[:, IDS[0]].T[:, :2].T + x.reshape(2, 2, 6)[:, IDS % 2, IDS].sum(0),
    "scatter": lambda x, y: torch.zeros(4, 6).scatter(1, IDS.repeat(2, 1), x[:, :3] * 0 + 5.0) + y.scatter(1, torch.tensor([[1], [0], [5], [2]]), 3.0)
    + x.scatter(1, torch.tensor([[1, 0], [0, 2], [5, 4], [2, 3]]), y[:, :2]) + torch.zeros(4, 6).scatter_add(1, IDS.repeat(2, 1), x[:, :3])
    + y.scatter_add(0, IDS, x[:2, :3]),
    "put": lambda x, y: x.index_put((IDS,), y[0], accumulate=True) + y.index_put((torch.tensor([1, 0]), torch.tensor([2, 3])), x[0, :2]),
    "places": lambda x, y: x.median(1).values + y.median(0, keepdim=True).values[:, :4] + x.median() + y.kthvalue(3, 1).values,
    "order": lambda x, y: x.topk(3, 1).values + y.sort(1).values[:, :3] + x.sort(0, descending=True).values[:, 3:],
    "one hot": lambda x, y: F.one_hot(x.topk(3, 1)[1], 6).float() @ x.T + torch.arange(2, 10, 2).float()[:, None, None],
}
IMAGES = {
    "convolution": lambda x, k: F.conv2d(x, k[:, :2], k[:, 0, 0, 0], stride=2, padding=1, groups=2),
    "dilated": lambda x, k: F.conv2d(x, k, stride=(2, 1), padding=(2, 0), dilation=(2, 3)),
    "transposed": lambda x, k: F.conv_transpose2d(x, k[:4], stride=2, padding=1, output_padding=1),
    "transposed groups": lambda x, k: F.conv_transpose2d(x, k[:4, :3], stride=(1, 2), groups=2),
    "max pool": lambda x, k: F.max_pool2d(x, 3, 2, 1) + F.max_pool2d(x, 2, 2, ceil_mode=True).sum(),
    "average pool": lambda x, k: F.avg_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, ceil_mode=True)[:, :, :5, :4],
    "ceiling": lambda x, k: F.avg_pool2d(x, 2, 3, 1, ceil_mode=True),
    "adaptive pool of a turned picture": lambda x, k: F.adaptive_avg_pool1d(x.flatten(2).transpose(1, 2), 1) + F.adaptive_avg_pool2d(x.transpose(1, 2), 1).sum(),
    "adaptive pool": lambda x, k: F.adaptive_avg_pool2d(x, 1) + F.adaptive_avg_pool2d(x[:, :, :8], 4),
    "batch norm": lambda x, k: F.batch_norm(x, torch.zeros(4), torch.ones(4), k[:4, 0, 0, 0], k[:4, 1, 0, 0], training=True),
    **{f"interpolated {mode} {align}": lambda x, k, mode=mode, align=align: F.interpolate(x, size=(5, 13), mode=mode, align_corners=align)
       + F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode, align_corners=align).mean() for mode in ("bilinear", "bicubic") for align in (False, True)},
    "interpolated lines": lambda x, k: F.interpolate(x.flatten(2), size=7, mode="linear") + F.interpolate(x.flatten(2), scale_factor=0.1, mode="linear").sum(),
    "weight norm": lambda x, k: F.conv2d(x, torch._weight_norm(k, k[:, :1, :1, :1], 0)) + torch._weight_norm(k, k[:1, :1, :1, :1].expand(1, 1, 1, 2), 3).mean(),
    "upsampled": lambda x, k: F.interpolate(x, scale_factor=2),
}


def written(x, y):
    made = x.clone()
    made[1:3, 2:5] = y[:2, :3]
    made[:, 0] += y[:, 1]
    made[0].mul_(2)
    made[:, ::3] = y[:, :2]
    return made


def agree(function, *operands):
    """Returns the function's value and each operand's gradient, from a program and from torch."""

    def step(*given):
        leaves = [x.detach().requires_grad_() for x in given]
        value = function(*leaves)
        return value, torch.autograd.grad(value.sin().sum(), leaves, allow_unused=True, materialize_grads=True)

    found = swt.capture(step, *operands).run(*operands, devices=1)
    torch.testing.assert_close(found, step(*operands), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*ELEMENTWISE, *LAYOUT, *SUMS, *INDEXED])
def test_an_operation_and_its_gradient_are_those_of_torch(name):
    agree({**ELEMENTWISE, **LAYOUT, **SUMS, **INDEXED}[name], X, Y)


@pytest.mark.parametrize("name", IMAGES)
def test_an_operation_of_images_and_its_gradient_are_those_of_torch(name):
    agree(IMAGES[name], IMAGE, floats(6, 4, 3, 2))


def test_convolutions_of_lines_are_those_of_torch():
    agree(lambda x, k: F.conv1d(x, k, stride=2, padding=1) + F.avg_pool1d(F.conv1d(x, k, padding=1), 2, 2, ceil_mode=True), LINE, floats(6, 4, 3))


WITHOUT_GRADIENT = {
    "logarithms": lambda x, y: torch.log(POSITIVE) + torch.log2(POSITIVE) + torch.log10(POSITIVE) + torch.log1p(POSITIVE) + torch.rsqrt(POSITIVE),
    "gammas of poles": lambda x, y: [torch.lgamma(HALVES - 3), torch.digamma(HALVES * 2.5 - 6.2), torch.digamma(torch.tensor([0.0, -0.0, -1, -2, 3, 1e9])),
                                     torch.lgamma(torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, 1, 2]))],
    "signs": lambda x, y: [torch.signbit(SHARP[:-1]), torch.signbit(INTEGERS)],
    "medians": lambda x, y: [(x / x.relu()).median(1).values, (x / x.relu()).median(), INTEGERS.median(1), x.median(1).indices],
    "rounding": lambda x, y: (x * 3).floor() + (y * 3).ceil() + (x * 3).round() + (y * 3).trunc() + x.sign(),
    "division": lambda x, y: (x // 0.3) + torch.fmod(x, y) + torch.remainder(x, y) + torch.div(x, y, rounding_mode="trunc"),
    "comparisons": lambda x, y: [x > y, x <= 0, x == x, x != y, (x > 0) & (y > 0), (x > 0) ^ (y > 0), ~(x > 0), torch.isfinite(x / 0 * y)],
    "special": lambda x, y: [torch.isnan(x / 0 * 0), torch.isinf(x / 0), (x / 0).isinf().any(), (x > -9).all(1), (x > 1).any(0)],
    "whole quotients": lambda x, y: [SHARP[:, None] // SHARP, 1 / (SHARP[:, None] // SHARP), SHARP.bfloat16()[:, None] // SHARP.bfloat16(), SHARP // 0.1],
    "histograms": lambda x, y: [torch.histc(HALVES, 4, 0, 4), torch.histc(HALVES, 4, 0, 3), torch.histc(HALVES, 5, -1, 2), torch.histc(x, 7, -1.5, 0.8)],
    "integers": lambda x, y: [INTEGERS // 2, INTEGERS % 3, INTEGERS - 2 * INTEGERS, INTEGERS.clamp(-2, 4), INTEGERS.sum(), INTEGERS * 0.5, INTEGERS / 2],
    "strided": lambda x, y: [torch.as_strided(x, (2, 12), (12, 1)), torch.as_strided(x[1:], (6, 3), (3, 1))],
    "rounded": lambda x, y: [torch.full((2,), 0.1, dtype=torch.bfloat16).float(), torch.full((2,), 0.1).double(), torch.full((2,), 7).float()],
    "conversions": lambda x, y: [x.to(torch.float64), x.int(), x.bool(), (x > 0).sum(), (x > 0).float().mean(), (x > 0) + (y > 0), INTEGERS > 0.5],
    "indices": lambda x, y: [x.argmax(1), y.argmin(0, keepdim=True), x.argmax(), x.topk(2)[1], y.argsort(1), x.max(1).indices],
    "half": lambda x, y: [F.softmax(x.bfloat16(), 1), F.layer_norm(x.bfloat16(), (6,)), x.half() * 2, x.bfloat16().mean(1), F.gelu(x.bfloat16())],
    "made": lambda x, y: [torch.zeros(2), torch.ones(3, dtype=torch.int64), torch.arange(5), torch.arange(1.0, 2.0, 0.25), torch.eye(3), torch.full((2,), 7),
                          torch.zeros_like(x), torch.tensor([1.0, 2.0]), torch.linspace(0, 1, 5)],
    "masked": lambda x, y: masked(x),
}


def masked(x):
    made = x.clone()
    made[x > 0] = 0
    return made


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_an_operation_without_a_gradient_is_that_of_torch(name):
    found = swt.capture(WITHOUT_GRADIENT[name], X, Y).run(X, Y, devices=1)
    expected = WITHOUT_GRADIENT[name](X, Y)
    torch.testing.assert_close(found, expected, rtol=1.6e-2 if name == "half" else 1e-5, atol=1e-5, equal_nan=True)
