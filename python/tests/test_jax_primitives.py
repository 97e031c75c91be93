"""Compares each primitive that shardwise.jax.capture knows with JAX: on one device, and with operands cut over several."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import shardwise.jax as swj  # noqa: F401 - its own rules are there with it
from jax_steps import computes_as_jax_does
from shardwise._capture.jax.ops import rules as _primitives

RNG = np.random.default_rng(3)
F = RNG.normal(size=(8, 6)).astype(np.float32)
G = RNG.normal(size=(8, 6)).astype(np.float32)
T = RNG.normal(size=(4, 6, 5)).astype(np.float32)
POSITIVE = np.abs(F) + 0.1
UNIT = np.tanh(F)
I = RNG.integers(-50, 50, (8, 6)).astype(np.int32)
J = RNG.integers(-5, 5, (8, 6)).astype(np.int32)
U = RNG.integers(0, 2**32, (8, 6), dtype=np.uint32)
B = RNG.integers(0, 2, (8, 6)).astype(bool)
C = RNG.integers(0, 2, (8, 6)).astype(bool)
IDS = np.array([[0, 3], [7, 2], [5, 5]], np.int32)  # all inside 8
WILD = np.array([[0, -1, 3], [9, -30, 5]], np.int32)  # some outside
SQUARE = (F[:4, :4] + 2 * np.eye(4)).astype("f4")
SPECIAL = np.array([[1, np.nan, -0.0, 0.0, np.inf, -np.inf, 1, -3]] * 2, np.float32)
KEY = np.array([7, 2**31 + 5], np.uint32)
IMAGE = RNG.normal(size=(4, 8, 8, 3)).astype(np.float32)
KERNEL = RNG.normal(size=(3, 3, 3, 6)).astype(np.float32)


def at_places(combination: str, mode: str | None = None) -> Any:
    return lambda x, u: getattr(x.at[WILD, :], combination)(u, mode=mode)


def grad_of(function: Any) -> Any:
    """Returns the gradient of a weighted sum by all operands."""
    def weighted(*args: Any) -> Any:
        y = function(*args)
        return (y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum()

    return jax.grad(weighted, tuple(range(function.__code__.co_argcount)))


def conv(**options: Any) -> Any:
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def averaged(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def recurrent(x: Any, h: Any) -> Any:
    def one(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry * 0.5 + row)
        return carry, carry * 2

    last, all_of_them = lax.scan(one, h, x)
    return last + all_of_them.sum(0)


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y, x - y, x * y, x / y, lax.rem(x, y), jnp.maximum(x, y), jnp.minimum(x, y), x // 1), (F, G)),
    "compare": (lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= y), (I, J)),
    "unary": (lambda x: (-x, abs(x), jnp.sign(x), jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jnp.tanh(x), jax.nn.sigmoid(x), lax.erf(x),
                         jnp.cbrt(x), jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.arctan(x), jnp.floor(x), jnp.ceil(x), lax.erfc(x),
                         jnp.isfinite(x), jnp.square(x), x**3, x**-2), (F,)),
    "positive": (lambda x: (jnp.log(x), jnp.log1p(x), jnp.sqrt(x), lax.rsqrt(x), x**1.5, lax.pow(x, 3)), (POSITIVE,)),
    "groups of rows": (lambda x, w, n: jax.value_and_grad(lambda x, w: (lax.ragged_dot(x, w, n) ** 2).sum(), (0, 1))(x, w),
                       (F, RNG.normal(size=(3, 6, 4)).astype(np.float32), np.array([5, 0, 2], np.int32))),
    "gammas": (lambda x: (lax.lgamma(x * 4), lax.digamma(x * 4 + 0.1), lax.lgamma(jnp.floor(x)), lax.acosh(1.5 + x * x), lax.lgamma(x.astype("float16"))), (F,)),
    "unit": (lambda x: (lax.erf_inv(x), jnp.arctan2(x, 1 - x), jnp.arcsin(x), jnp.arccos(x), lax.atanh(x), lax.acosh(1.1 + x * x)), (UNIT,)),
    "hyperbolic": (lambda x: (jnp.sinh(x), jnp.cosh(x)), (F,)),
    "hyperbolic far away": (lambda x: (jnp.sinh(x), jnp.cosh(x), jnp.arcsinh(x)),
                            (np.array([88.9, -88.9, 90, -90, 3e38, 0, -0.0, 1e-6, -1e-6, 1, -1, 9.5, np.inf, -np.inf], "f4"),)),
    "round": (lambda x: (lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), lax.round(x), 1 / lax.round(x)),
              (np.array([.5, 1.5, 2.5, -.5, -1.5, .2, -.2, .49999997, -.49999997, 8388609, -8388609, 4194304.5, np.inf, np.nan], "f4"),)),
    "clamp": (lambda x: (jnp.clip(x, -1, 1), lax.clamp(0, I, 9)), (F,)),
    "integers": (lambda x, y: (x + y, x * y, lax.div(x, y), lax.rem(x, y), x & y, x | y, x ^ y, ~x, x << 3, x >> 2,
                               lax.shift_right_logical(x, 3), lax.population_count(x)), (I, J)),
    "unsigned": (lambda x: (x * np.uint32(2654435761), x >> 5, x << 7, x ^ np.uint32(2**32 - 1)), (U,)),
    "booleans": (lambda x, y: (x & y, x | y, x ^ y, ~x, x.any(1), x.all(0), x.sum(0), jnp.where(x, y, ~y)), (B, C)),
    "converts": (lambda x, y: (x.astype("i1"), x.astype("u4"), y.astype("i4"), y.astype(jnp.bfloat16), x.astype("f4"), x.astype(bool),
                               lax.bitcast_convert_type(y, jnp.int32), lax.reduce_precision(y, 8, 7)), (I, F)),
    "select": (lambda c, x, y: (jnp.where(c, x, y), jnp.where(c, x, 1.0), lax.select_n(jnp.asarray(2), x, y, x * y),
                                lax.select_n(c.astype("i4"), x, y), lax.select_n(c, x)), (B, F, G)),
    "layout": (lambda x: (x.reshape(2, 15, 4), x.transpose(2, 0, 1), x[1:3, ::2, 1], x[::-1], jnp.flip(x, (0, 2)), x[:, None], x.ravel(),
                          jnp.concatenate([x, x * 2], 1), jnp.stack([x, x]), jnp.tile(x, (2, 1, 3)), jnp.repeat(x, 2, 1), jnp.roll(x, 1, 0),
                          jnp.split(x, [1, 4], 1), jnp.broadcast_to(x[0], (3, 6, 5)), jnp.swapaxes(x, 0, 1), jnp.squeeze(x[:1])), (T,)),
    "pad": (lambda x: (jnp.pad(x, 2), lax.pad(x, 1.5, [(-1, 2, 1), (0, -2, 0)]), lax.pad(x, x[0, 0], [(1, 0, 2), (0, 1, 0)])), (F,)),
    "leaves": (lambda x: (x + jnp.arange(6), jnp.eye(6) + x[:6], jnp.ones((3, 2)), x * np.array([[1], [-2], [3], [4], [5], [6], [7], [8]], "f4"),
                          jnp.tril(jnp.ones((6, 6), bool)), jnp.linspace(0, 1, 5)), (F,)),
    "reductions": (lambda x: (x.sum(), x.sum(1), x.max((0, 2)), x.min(0), x.prod(1), x.mean(2), x.var(0), jnp.argmax(x, 1), jnp.argmin(x, 0),
                              jax.nn.logsumexp(x, 1), jax.nn.softmax(x)), (T,)),
    "special": (lambda x: (x.max(1), x.min(0), jnp.argmax(x, 1), jnp.sort(x), jnp.argsort(x, stable=True), jnp.sign(x)), (SPECIAL,)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 0), lax.cummin(x, 1, reverse=True), lax.cumlogsumexp(x, 1),
                              lax.cumsum(x, 0, reverse=True), lax.associative_scan(jnp.add, x)), (F,)),
    "sort": (lambda x, y: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.sort((y, x), num_keys=2), lax.top_k(x, 3), jnp.median(x, 1)), (F, J)),
    "products": (lambda x, y: (x @ y.T, jnp.einsum("ij,kj->ik", x, y), x @ y[0], jnp.einsum("ij,ij->i", x, y), jnp.outer(x[0], y[1])), (F, G)),
    "batched product": (lambda x: (jnp.einsum("bij,bkj->bik", x, x), jnp.einsum("bij,cij->bcj", x, x)), (T,)),
    "mixed products": (lambda x, y: (lax.dot(x, y.T, preferred_element_type="f4"), x @ y.astype("f4").T,
                                     lax.dot(x.astype("i1"), y.T.astype("i1"), preferred_element_type="i4")),
                       (np.asarray(jnp.asarray(F, jnp.bfloat16)), np.asarray(jnp.asarray(G, jnp.bfloat16)))),
    "take": (lambda x: (x[IDS], x[WILD], x[WILD, WILD], x[:, WILD[0]], jnp.take(x, WILD, 0, mode="clip"), jnp.take(x, WILD, 1, mode="fill"), x[3], x[-2, 1],
                        jnp.take(x, WILD[1], 0, mode="wrap"), x[IDS, IDS % 6], x[jnp.arange(8), J[:, 0]], x[IDS[:, 0], 1:3], x[:, 0]), (F,)),
    "take along": (lambda x, i: (jnp.take_along_axis(x, i % 6, 1), jnp.take_along_axis(x, i[:2] % 8, 0)), (F, I)),
    "take with windows": (lambda x: jax.vmap(lambda row, i: lax.dynamic_slice(row, (i, 0), (2, 3)))(x, jnp.array([0, 3, 1, 9])), (T,)),
    "take in batches": (lambda x: jax.vmap(lambda a, i: a[i, 2 - i])(x, jnp.array([0, 1, 2, 1])), (T,)),
    "integers by ids": (lambda x: (jnp.take(x, WILD, 0, mode="fill"), x.at[WILD].max(3)), (I,)),
    "dynamic": (lambda x, i: (lax.dynamic_slice(x, (i, 2), (3, 4)), lax.dynamic_update_slice(x, x[:2] * 2, (i, 1)), lax.dynamic_index_in_dim(x, i),
                              x[i], x.at[i].set(0.0), x.at[i, 2].add(1.0), x.at[i + 9].set(5.0)), (F, np.int32(5))),
    **{f"at {how} {mode}": (at_places(how, mode), (F, RNG.normal(size=(2, 3, 6)).astype("f4")))
       for how in ("set", "add", "subtract", "multiply", "min", "max") for mode in (None, "clip")},
    "scatter several": (lambda x, u: (x.at[IDS, IDS - 2].add(u), x.at[IDS[:, 0], :].add(1.0), x.at[:, IDS[0]].set(2.0),
                                      x.at[jnp.arange(3), IDS[:, 0]].set(u[:, 0]), x.at[1:3, 2].set(7.0)), (F, RNG.normal(size=(3, 2)).astype("f4"))),
    "segments": (lambda x, i: (jax.ops.segment_sum(x, i, 4), jax.ops.segment_max(x, i, 4)), (F, np.array([0, 2, 2, 1, 3, 0, 0, 9], "i4"))),
    "gradient of take": (grad_of(lambda x: x[IDS]), (F,)),
    "gradient of take in batches": (grad_of(lambda x: jnp.take_along_axis(x, np.abs(J), 1)), (F,)),
    "gradient of take several": (grad_of(lambda x: x[jnp.arange(8), J[:, 0]]), (F,)),
    "gradient of the least by clipped ids": (grad_of(lambda x, u: x.at[WILD[1]].min(u, mode="clip")), (F, G[:3])),
    "gradient of dynamic": (grad_of(lambda x: lax.dynamic_slice(x, (3, 1), (4, 2))), (F,)),
    "gradient of windows": (grad_of(lambda x: jax.vmap(lambda row, i: lax.dynamic_slice(row, (i, 0), (2, 3)))(x, jnp.array([0, 3, 1, 9]))), (T,)),
    "gradient of sort": (grad_of(lambda x: jnp.sort(x, 0) + lax.top_k(x, 6)[0]), (F,)),
    "convolution": (conv(window_strides=(1, 1), padding="SAME"), (IMAGE, KERNEL)),
    "convolution with strides": (grad_of(lambda x, k: conv(window_strides=(2, 2), padding="SAME")(x, k)), (IMAGE, KERNEL)),
    "convolution in groups": (grad_of(lambda x, k: conv(window_strides=(1, 1), padding="VALID", feature_group_count=3, rhs_dilation=(2, 1))(x, k)),
                              (IMAGE, KERNEL[:, :, :1])),
    "convolution transposed": (lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), (IMAGE, KERNEL)),
    "pooling": (lambda x: (pooled(x), averaged(x)), (IMAGE,)),
    "gradient of pooling": (lambda x: (grad_of(pooled)(x), grad_of(averaged)(x)), (IMAGE,)),
    "scan": (grad_of(recurrent), (T, T[0] * 0)),
    "scan backwards": (lambda x: lax.scan(lambda c, r: (c + r, c), x[0] * 0, x, reverse=True), (T,)),
    "scan of nothing": (lambda x: lax.scan(lambda c, r: (c + r, c), x[0] * 0, x[:0]), (T,)),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x), (F,)),
    "cond": (lambda x, i: (lax.cond(x[0, 0] > 0, lambda y: y * 2, lambda y: -y, x), lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x)), (F, np.int32(7))),
    "gradient of cond": (grad_of(lambda x: lax.cond(x[0, 0] > 0, lambda y: jnp.sin(y) * y, lambda y: y * y, x)), (F,)),
    "switch below": (lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), (F, np.int32(-3))),
    "calls": (lambda x: (jax.jit(jnp.sin)(x), jax.checkpoint(jnp.sin)(x), jax.nn.relu(x), jax.nn.silu(x), lax.stop_gradient(x)), (F,)),
    "gradient of calls": (grad_of(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x) + jax.nn.relu(x) + jax.nn.silu(x)), (F,)),
    "attention": (lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True), (IMAGE,)),
    "searchsorted": (lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]), (F,)),
    "searchsorted after": (lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1], side="right"), (F,)),
    "left as they are": (lambda x: (jnp.copy(x), checkpoint_name(x, "x"), lax.optimization_barrier(x), jax.device_put(x, jax.devices()[0])), (F,)),
    "least of windows": (lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (1, 2), "SAME"), (F,)),
    "random": (lambda k: (jax.random.normal(k, (8, 3)), jax.random.bernoulli(k, 0.3, (8,)), jax.random.randint(k, (5,), 0, 9),
                          jax.random.split(k, 3), jax.random.fold_in(k, 7), jax.random.bits(k, (8,), "uint8"), jax.random.permutation(k, 8)), (KEY,)),
    "typed keys": (lambda k: (jax.random.normal(jax.random.split(jax.random.wrap_key_data(k), 4)[2], (8,)),
                              jax.vmap(lambda key: jax.random.uniform(key, (3,)))(jax.random.split(jax.random.key(5), 4)),
                              jax.random.key_data(jax.random.split(jax.random.clone(jax.random.wrap_key_data(k)), (2, 3)).T)), (KEY,)),
    "keys of XLA's generator": (lambda k: (jax.random.normal(rbg(k), (8, 4)), jax.random.uniform(jax.random.split(rbg(k), 3)[1], (3, 5)),
                                           jax.random.bits(rbg(k), (2, 3), "uint8"), jax.random.bits(rbg(k), (), "uint16"),
                                           jax.random.key_data(jax.random.fold_in(rbg(k), 3)), jax.random.normal(jax.random.key(5, impl="unsafe_rbg"), (6,))),
                                (KEY,)),
    "generators": (lambda s: [lax.rng_bit_generator(s, shape, dtype, lax.RandomAlgorithm[f"RNG_{name}"]) for name in ("DEFAULT", "PHILOX", "THREE_FRY")
                              for shape, dtype in (((), "uint32"), ((8, 6), "uint32"), ((3, 5), "uint32"), ((5, 5), "uint32"), ((3, 2, 4), "uint16"), ((7,), "uint8"))],
                   (np.array([2**32 - 1, 7, 2**32 - 2, 2**32 - 1], "u4"),)),
    "bits of other widths": (lambda x: (lax.bitcast_convert_type(x, "uint8"), lax.bitcast_convert_type(x.reshape(-1, 2).astype("bfloat16"), "int32"),
                                        lax.bitcast_convert_type(lax.bitcast_convert_type(x, "int16"), "float32")), (F,)),
    "stacked and taken apart": (grad_of(lambda x, y: jnp.stack([jnp.sin(x), y], 1) * jnp.stack([y, x], 1)), (F, G)),
    "rows": (lambda x: [row * place for place, row in enumerate(lax.unstack(x, axis=1))], (F,)),
    "columns": (lambda x: (jnp.column_stack(x), lax.reshape(x, (6, 8), (1, 0)), lax.reshape(x, (48,), (1, 0))), (F,)),
    "next numbers": (lambda x, y: (jnp.nextafter(x, y), jnp.nextafter(y, x), jnp.nextafter(x, x), jnp.nextafter(jnp.float32(1), y)),
                     (SPECIAL, SPECIAL[:, ::-1].copy())),
    "cut normal": (lambda k: jax.random.truncated_normal(k, -2.0, 2.0, (8, 3)), (KEY,)),
    "of a platform": (lambda x: (jnp.diag(x[:, :6]), lax.platform_dependent(x, tpu=jnp.sin, cpu=jnp.cos, default=jnp.tan),
                                 lax.platform_dependent(x, tpu=jnp.sin, default=jnp.tanh)), (F[:6],)),
    "the largest, as a TPU finds them": (lambda x: (lax.approx_max_k(x, 3), lax.approx_min_k(x, 2, reduction_dimension=0)), (F,)),
    "counted while": (lambda x: (lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1]) + c[0]), (0, x)),
                                 lax.while_loop(lambda c: 2 <= c[1], lambda c: (c[0] * 0.5, c[1] - 3), (x, 9)),
                                 lax.while_loop(lambda c: c[0] > 5, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))), (F,)),
    "solved by hand": (grad_of(lambda x, b: lax.custom_linear_solve(lambda v: v * (2 + x[0, 0] ** 2), b, lambda _, w: w / (2 + x[0, 0] ** 2),
                                                                    lambda _, w: w / (2 + x[0, 0] ** 2))), (F, G)),
    "decompositions": (lambda a, b: (jnp.linalg.cholesky(a @ a.T + jnp.eye(4)), lax.linalg.cholesky(-a @ a.T), jnp.linalg.solve(a, b.T), jnp.linalg.qr(b),
                                     jnp.linalg.qr(b.T, mode="complete"), lax.linalg.lu(b), jnp.linalg.slogdet(a), jax.scipy.linalg.lu(b.T)), (SQUARE, F[:, :4])),
    "decompositions in a batch": (lambda a, b: (lax.linalg.triangular_solve(a, b, lower=True), jnp.linalg.inv(a), lax.linalg.householder_product(a, b[:, 0]),
                                                lax.linalg.lu_pivots_to_permutation(lax.linalg.lu(a)[1], 5)),
                                  (np.stack([SQUARE, SQUARE.T]), np.stack([G[:4, :4]] * 2))),
    "eigenvalues and singular values": (lambda a: ((lambda w, v: (w, (v * w) @ v.T))(*jnp.linalg.eigh(a @ a.T)), jnp.linalg.svd(a, compute_uv=False)), (SQUARE,)),
    "decompositions of nothing": (lambda a: (jnp.linalg.cholesky(a[:0, :0]), [(lax.linalg.lu(x), jnp.linalg.qr(x, mode="complete")) for x in (a[:0], a[:, :0])],
                                             lax.linalg.triangular_solve(a, a[:, :0], left_side=True)), (SQUARE,)),
    "gradients of decompositions": (grad_of(lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a @ a.T + jnp.eye(4)), b.T) + jnp.linalg.qr(b)[1].sum()),
                                    (SQUARE, F[:, :4])),
    "outputs": (lambda x, y: (x, y, x, jnp.ones((4, 2)), x + y), (F, G)),
    "empty": (lambda x: (x.sum(0), x + 1, jnp.concatenate([x, jnp.ones((2, 3))])), (np.zeros((0, 3), "f4"),)),
    "numbers": (lambda x: (jnp.where(x > 0, jnp.nan, x) * 2, 1 / jnp.where(x > 0, -0.0, 0.0), x + np.float32(1e-45), x - np.float32(3e38)), (F,)),
}


def rbg(key: Any) -> Any:
    return jax.random.wrap_key_data(jnp.concatenate([key, key + 1]), impl="rbg")


def same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            half = a.dtype.itemsize < 4
            np.testing.assert_allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), rtol=2e-2 if half else 2e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_is_what_jax_computes(name):
    computes_as_jax_does(*CASES[name], same)


def test_no_rule_is_without_a_case():
    """The tests above have each primitive that JAX still has."""
    met: set[str] = set()

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            met.add(equation.primitive.name)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                walk(inner)

    for function, args in CASES.values():
        walk(jax.make_jaxpr(function)(*args).jaxpr)
    elsewhere = {"sharding_constraint", "reshard"}  # in test_jax_programs.py
    elsewhere |= {"shard_map", "pvary", "psum", "pmax", "pmin"}  # in test_jax_shard_map.py
    elsewhere |= {"dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"}  # in test_jax_attention.py
    elsewhere |= {"iota_2x32_shape", "threefry2x32"}  # which the random ones are made of
    assert set(_primitives.RULES) - met - elsewhere == set() and elsewhere - set(_primitives.RULES) == set()
