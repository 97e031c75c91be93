"""Captures shard_map as one program: the work of each device, with its collectives."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardwise as sw
import shardwise.jax as swj

MESH = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(8, 4)).astype("f4"), RNG.normal(size=(4, 8)).astype("f4")
UP, DOWN = RNG.normal(size=(4, 16)).astype("f4"), RNG.normal(size=(16, 4)).astype("f4")
TURN = [(n, (n + 1) % 4) for n in range(4)]


def mapped(body, in_specs, out_specs, **options):
    return jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs, **options)


def of_each_kind(x, w):
    y = lax.psum(x @ w, "model")
    return (y, lax.ppermute(y, "data", TURN), lax.pmean(y.mean(), "data"), lax.psum_scatter(y, "data", scatter_dimension=1, tiled=True),
            lax.all_to_all(y, "data", 1, 0, tiled=True), lax.all_gather(y, "data", tiled=True)[:2] + lax.axis_index("data") + lax.pmax(y, "data") - lax.pmin(y, "data"))


def in_a_ring(q, k):
    """Rotates parts of k, as ring attention does."""

    def turn(held, _):
        total, part = held
        return (total + jnp.exp(q @ part.T / 9).sum(1, keepdims=True), lax.ppermute(part, "data", TURN)), None

    zero = lax.pcast(jnp.zeros((q.shape[0], 1)), "data", to="varying")
    return lax.scan(turn, (zero, k), None, length=4)[0][0]


feed_forward = mapped(lambda x, up, down: lax.psum(jnp.tanh(x @ up) @ down, "model"), (P("data"), P(None, "model"), P("model", None)), P("data"))

CASES = {
    "no collective": (mapped(lambda x: x * 2, P("data", "model"), P("data", "model")), (X,)),
    "collectives": (mapped(of_each_kind, (P("data", "model"), P("model", None)), (P("data"), P("data"), P(), P("data"), P(None, "data"), P("data"))), (X, W)),
    "feed forward": (feed_forward, (X, UP, DOWN)),
    "gradient": (jax.grad(lambda *given: (feed_forward(*given) ** 2).sum(), (0, 1, 2)), (X, UP, DOWN)),
    "ring": (mapped(in_a_ring, (P("data"), P("data")), P("data")), (X, X * 0.5)),
    "two axes of a dim": (mapped(lambda x: x + lax.psum(x, ("data", "model")) + lax.axis_index(("data", "model")), P(("data", "model")), P(("data", "model"))), (X,)),
    "unchecked": (mapped(lambda x: (x.sum(0, keepdims=True), lax.all_gather(x, "data").mean((0, 1))), P("data"), (P("data"), P()), check_vma=False), (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_jax_computes(name):
    """Runs on its own mesh, on another, and on one device."""
    function, args = CASES[name]
    theirs = jax.tree.leaves(jax.jit(function)(*args))
    program = swj.capture(function, *args)
    for mesh in ("data=4,model=2", "data=2,model=4", "data=1,model=1"):
        for ours, expected in zip(jax.tree.leaves(program.run(*args, mesh=mesh)), theirs, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-5, err_msg=mesh)


def test_its_collectives_are_those_of_the_plan():
    sent = swj.capture(feed_forward, X, UP, DOWN).plan("data=4,model=2").traffic
    assert [(one.collective, one.axes) for one in sent] == [("all-reduce", ("model",))]
    assert not swj.capture(*CASES["no collective"][:1], X).plan("data=4,model=2").traffic


def test_collectives_that_a_capture_lacks_are_one_error():
    several = mapped(lambda x: lax.all_gather(x, ("data", "model"), tiled=True).sum() * x, P(("data", "model")), P(("data", "model")))
    with pytest.raises(sw.Unsupported, match=r"shard_map: found a collective that vmap does not know \(axis size doesn't match\), needed one over one axis"):
        swj.capture(several, X)
    shifted = mapped(lambda x: lax.ppermute(x, "data", [(0, 2)]), P("data"), P("data"))
    with pytest.raises(sw.Unsupported, match=r"shard_map: found a collective that vmap does not know .*, and a ppermute of all its devices"):
        swj.capture(shifted, X)
