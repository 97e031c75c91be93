"""Complex numbers in captured steps of JAX: pairs of real tensors in a program, JAX's values on one and on several devices."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import shardwise as sw
import shardwise.jax as swj
from jax_steps import computes_as_jax_does, trains_as_jax_does

RNG = np.random.default_rng(11)
F, G = RNG.normal(size=(8, 6)).astype("f4"), RNG.normal(size=(8, 6)).astype("f4")
C = (F + 1j * G).astype("c8")
D = (G - 2j * F).astype("c8")
HUGE = (C * np.float32(1e20)).astype("c8")
TABLE = np.exp(1j * np.outer(np.arange(8), 0.5 ** np.arange(3))).astype("c8")  # of rotary embeddings


def rotated(x: Any, table: Any) -> Any:
    pairs = lax.complex(x[:, ::2], x[:, 1::2]) * table
    return jnp.stack([jnp.real(pairs), jnp.imag(pairs)], -1).reshape(x.shape)


def grad_of(function: Any) -> Any:
    """Returns the gradient of a real number by all operands."""
    def weighted(*args: Any) -> Any:
        y = function(*args)
        return jnp.sum((jnp.real(y) + 2 * jnp.imag(y)) * jnp.cos(jnp.arange(y.size, dtype="f4")).reshape(y.shape))

    return jax.grad(weighted, tuple(range(function.__code__.co_argcount)))


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "parts": (lambda x, y: (jnp.real(lax.complex(x, y)), jnp.imag(lax.complex(x, y)), jnp.real(x), jnp.imag(x), lax.complex(x, jnp.float32(2))), (F, G)),
    "in and out": (lambda c, d: (c, c + d, c - d, -c, c * d, c / d, jnp.conj(c), c * 2j, d + 1, c == d, c != c[::-1]), (C, D)),
    "of one number": (lambda c: (jnp.abs(c), jnp.angle(c), jnp.exp(c), jnp.log(c), jnp.sqrt(c), jnp.sign(c), c**2, c**-3, jnp.square(c)), (C,)),
    "powers": (lambda c, x: (c ** jnp.arange(6), c ** (0.5 - 1j), x ** (c * 0.5), (c * 0) ** x, (c * 0) ** (x * 0), lax.rsqrt(c), jnp.sin(c), jnp.cos(c)),
               (C, np.abs(F) + 0.5)),
    "size": (lambda c: jnp.abs(c * jnp.array([0, 1, 1e-3, 1, 1, 1], "c8")), (HUGE,)),
    "layout": (lambda c: (c.T, c[::2, 1:3], c[::-1], jnp.pad(c, 1, constant_values=2j), jnp.concatenate([c, c * 1j]), jnp.stack([c, c]), c.reshape(4, 12),
                          jnp.where(c.real > 0, c, 1j), jnp.broadcast_to(c[0], (3, 6)), c.sum(0), jnp.cumsum(c, 1), jnp.mean(c)), (C,)),
    "by index": (lambda c: (c[jnp.array([1, 7, 1])], c.at[jnp.array([0, 3])].set(1j), c.at[jnp.array([2, 2])].add(c[:2]),
                            lax.dynamic_slice(c, (1, 2), (3, 3))), (C,)),
    "product": (lambda c, d: (c @ d.T, jnp.einsum("ij,ij->i", c, jnp.conj(d))), (C, D)),
    "product with real ones": (lambda c, x: (c @ x.T, x @ c.T), (C, F)),
    "scan": (lambda c: lax.scan(lambda h, x: (h * 0.5j + x, (h, x.real)), c[0], c), (C,)),
    "associative scan": (lambda c, d: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (c / 2, d)), (C, D)),
    "cond": (lambda c: lax.cond(c[0, 0].real > 0, lambda x: x * 1j, jnp.conj, c), (C,)),
    "while": (lambda c: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5j), (0, c))[1], (C,)),
    "conversions": (lambda x, c: (x.astype("c8"), x * 1j, c.astype("f4"), lax.iota("c8", 5)), (F, C)),
    "rotary": (lambda x: rotated(x, jnp.exp(1j * jnp.outer(jnp.arange(8), 0.5 ** jnp.arange(3)))), (F,)),
    "rotary by a table that the step holds": (lambda x: rotated(x, jnp.asarray(TABLE)), (F,)),
    "rotary by a table that is given": (rotated, (F, TABLE)),
    "viewed": (lambda x: x.view("c8") * 1j, (F,)),
    "random": (lambda k: jax.random.normal(k, (8, 3), "c8"), (np.array([7, 9], "u4"),)),
    "Fourier transforms": (lambda c, x: (jnp.fft.fft(c), jnp.fft.ifft(c, axis=0), jnp.fft.fft2(x), jnp.fft.ifft2(c), jnp.fft.fftn(c[None])), (C, F)),
    "of real numbers": (lambda x: (jnp.fft.rfft(x), jnp.fft.rfft(x[:, :5]), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.irfft(jnp.fft.rfft(x[:, :5]), n=5),
                                   jnp.fft.rfft2(x), jnp.fft.irfft2(jnp.fft.rfft2(x)), jnp.fft.rfft(x, n=1), jnp.fft.irfft(jnp.fft.rfft(x), n=9)), (F,)),
    "mixed by Fourier": (grad_of(lambda x: jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real), (F,)),
    "a long convolution": (grad_of(lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x, n=12) * jnp.fft.rfft(y, n=12), n=12)[:, :6]), (F, G)),
    **{f"gradient of {name}": (grad_of(function), args) for name, (function, args) in {
        "rotary": (lambda x, t: rotated(x, t), (F, TABLE)), "a quotient": (lambda c, d: c / d, (C, D)), "a size": (lambda c: jnp.abs(c), (C,)),
        "functions": (lambda c: jnp.exp(c) + jnp.log(c) * jnp.sqrt(c) + c**3, (C,)), "a product": (lambda c, d: c @ d.T, (C, D)),
        "a product with real ones": (lambda c, x: c @ x.T, (C, F)),
        "a scan": (lambda c: lax.scan(lambda h, x: (h * 0.5j + x, h), c[0], c)[1], (C,)), "places": (lambda c: c[jnp.array([1, 7, 1])].T, (C,)),
    }.items()},
}


def same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_is_what_jax_computes(name):
    computes_as_jax_does(*CASES[name], same)


def test_many_complex_numbers_that_a_step_holds():
    many = (np.arange(300) * (1 - 2j)).astype("c8")
    found = swj.capture(lambda x: x * jnp.asarray(many), np.ones(300, "f4")).run(
        np.ones(300, "f4"), devices=1
    )
    np.testing.assert_array_equal(found, many)


def test_a_step_with_rotary_embeddings_of_complex_numbers_trains_as_jax_does():
    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"] @ params["in"]
        rotate = jax.vmap(lambda one: rotated(one, jnp.exp(1j * jnp.outer(jnp.arange(8), params["angles"]))))
        scores = jax.nn.softmax(rotate(x) @ jnp.swapaxes(rotate(x @ params["k"]), 1, 2))
        return jnp.mean((scores @ x @ params["out"] - batch["x"]) ** 2)

    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

    params = {name: RNG.normal(size=shape).astype("f4") * 0.3 for name, shape in (("in", (6, 6)), ("k", (6, 6)), ("out", (6, 6)), ("angles", (3,)))}
    batches = [{"x": RNG.normal(size=(8, 8, 6)).astype("f4")} for _ in range(3)]
    trains_as_jax_does(step, params, batches, {"data=1": {}, "data=8": {"batch/x": "data,-,-"},
                                               "data=4,model=2": {"batch/x": "data,-,-", "*/in": "-,model", "*/out": "model,-"}})


def test_a_complex_input_is_a_real_one_with_a_last_dim_of_2_unless_it_is_only_moved():
    program = swj.capture(lambda c, d: (c * 2, d), C, D)
    assert [(i.dtype, i.shape) for i in program.inputs] == [("f32", (8, 6, 2)), ("c64", (8, 6))]
    doubled, moved = program.run(C, D, devices=1)
    np.testing.assert_array_equal(doubled, C * 2)
    np.testing.assert_array_equal(moved, D)


def test_what_complex_numbers_lack_is_one_error():
    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(lambda c: (jnp.tanh(c), jnp.tanh(c * 2), jnp.cumprod(c, 0)), C)
    assert f"tanh: found complex numbers (2, first at {__file__}:" in str(raised.value) and "cumprod: found complex numbers (at " in str(raised.value)
