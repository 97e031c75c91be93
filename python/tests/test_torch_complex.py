"""Complex numbers in programs of torch are pairs of real tensors, as rotary embeddings need them."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn

import shardwise as sw
import shardwise.torch as swt
from test_torch_programs import MESHES, adamw, agree

Z = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
W = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


def filled(into, source):
    into = into.clone()
    into.copy_(source)
    into[1] = source[0]
    return into


CASES = {
    "arithmetic": lambda z, w, x: [z * w, z + w, z - w, z * x, x * z, z / x, z + x, x - z, z + 2, 3 * z, torch.sub(z, w, alpha=2), -z, z * (1 + 2j)],
    "parts": lambda z, w, x: [z.real, w.imag, z.conj() * w, torch.view_as_real(z), torch.complex(x, x + 1), torch.polar(x.abs(), x)],
    "layout": lambda z, w, x: [z.t(), z.reshape(2, 12)[1:, ::2], z[1], z.unsqueeze(0).expand(2, 4, 6), torch.cat([z, w], 1), torch.stack([z, w]),
                               z[torch.tensor([2, 0])], z.permute(1, 0).flip(0), z.repeat(2, 1), z.sum(1), z.mean(0), z.clone()],
    "made": lambda z, w, x: [z + torch.ones_like(z), z * torch.zeros(4, 6, dtype=torch.complex64), x.to(torch.complex64) * w, z.to(torch.complex128),
                             torch.where(x > 0, z, w), z * Z],
    "with real numbers": lambda z, w, x: [torch.where(x > 0, z, x), torch.cat([z, x]), torch.stack([x, w]), nn.functional.pad(z, (1, 2), value=3.0),
                                            x.sum(0, dtype=torch.complex64), torch.add(z, w, alpha=2j), filled(z, x), filled(x, z)],
    "as they are": lambda z, w, x: [z, w.detach(), x],
    "functions": lambda z, w, x: [torch.exp(1j * x), torch.exp(z), torch.log(z), torch.sqrt(z), torch.sin(z), torch.cos(z), torch.tanh(z * 60), torch.sinh(z), torch.cosh(z),
                                  torch.sigmoid(z), 1 / z, torch.rsqrt(z), (1j * x).conj(), z.resolve_neg().imag.neg()],
    "powers": lambda z, w, x: [z**2, z**-3, z**0.5, z**1.5, z**w, 2**z, x.abs() ** (1 + 1j), z ** (0.5 - 1j), (z * 0) ** 2, torch.zeros(2, dtype=torch.complex64) ** 1.5],
    "products": lambda z, w, x: [z @ w.mT, z @ x.mT.to(z.dtype), torch.einsum("bij,bkj->bik", z.view(2, 2, 6), w.conj().view(2, 2, 6)), z @ w[0], torch.vdot(z[0], w[0]),
                                 torch.addmm(z[:, :1], z, w.mT, beta=2j, alpha=1 + 1j), torch.nn.functional.linear(z, w)],
    "comparisons": lambda z, w, x: [z == z * 1, z != w, torch.isfinite(z / 0), z.masked_fill(z.real > 0, 1j), z.index_put((torch.tensor([1]),), w[0]), z.tril(), x * torch.tensor(1j)],
}


@pytest.mark.parametrize("name", CASES)
def test_complex_numbers_are_those_of_torch(name):
    found, expected = swt.capture(CASES[name], Z, W, X).run(Z, W, X, devices=1), CASES[name](Z, W, X)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.resolve_conj())


def test_gradients_of_functions_are_those_of_torch():
    def step(x, z):
        x, z = x.detach().requires_grad_(), z.detach().requires_grad_()
        made = torch.exp(1j * x) * (z**2 + torch.tanh(z)) + (z @ z.mT).sum() / 9 + torch.log(z) * torch.sqrt(z) + z ** (1 + 0.5j) + torch.fft.hfft(z[:, :4], n=6)
        return made, torch.autograd.grad(torch.view_as_real(made.resolve_conj()).sin().sum(), (x, z))

    torch.testing.assert_close(swt.capture(step, X, Z).run(X, Z, devices=1), step(X, Z), rtol=1e-4, atol=1e-5)


def test_a_gradient_goes_through_complex_numbers():
    def step(x, z):
        x, z = x.detach().requires_grad_(), z.detach().requires_grad_()
        y = torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 2)) * z[:, :3] * z[:, 3:].conj())
        return y, torch.autograd.grad(y.sin().sum(), (x, z))

    torch.testing.assert_close(swt.capture(step, X, Z).run(X, Z, devices=1), step(X, Z))


class Rotary(nn.Module):
    """An attention layer that turns queries and keys as Llama's own code does, by a complex buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        angles = torch.outer(torch.arange(8.0), 1 / 100 ** (torch.arange(0, 4, 2) / 4))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turned(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs_cis[: x.shape[1]].view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)

    def forward(self, x):
        q, k, v = (layer(x).view(*x.shape[:2], 4, 4) for layer in (self.q, self.k, self.v))
        made = nn.functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (self.turned(q), self.turned(k), v)), is_causal=True)
        return made.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", MESHES)
def test_rotary_embeddings_by_complex_numbers_learn_as_in_torch(kind):
    x, y = torch.randn(8, 8, 16), torch.randn(8, 8, 16)
    agree(Rotary, adamw, lambda model, x, y: (model(x) - y).square().mean(), (x, y), kind)
    program = swt.capture(Rotary(), x)
    assert {one.label: (one.dtype, one.shape) for one in program.inputs}["freqs_cis"] == ("f32", (8, 2, 2))


def test_a_complex_buffer_may_be_replaced():
    found, expected = Rotary(), Rotary()

    def step_of(model):
        def step(x):
            model.freqs_cis.mul_(1j)
            return model(x)

        return step

    x = torch.randn(2, 8, 16)
    program, step = swt.capture(step_of(found), x), step_of(expected)
    for _ in range(2):
        torch.testing.assert_close(program.run(x, devices=1), step(x))
    torch.testing.assert_close(found.freqs_cis, expected.freqs_cis)


def test_what_no_program_has_of_complex_numbers_is_named():
    for refused, named in ((torch.asin, r"aten\.asin\.default: found complex numbers"), (torch.expm1, r"aten\.expm1\.default: found complex numbers")):
        with pytest.raises(sw.Unsupported, match=named):
            swt.capture(lambda z: refused(z * 2), Z)
