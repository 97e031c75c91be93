"""Loops and branches of JAX in programs: a scan is a scan, a cond is a cond, and they compute what JAX computes."""

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
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jax_steps
import shardwise as sw
import shardwise.jax as swj
from jax_steps import abstract, on_host, trains_as_jax_does, worst
from shardwise._programs import text as _program_text

S = jax.ShapeDtypeStruct
RNG = np.random.default_rng(5)
X = RNG.normal(size=(8, 6)).astype(np.float32)
T = RNG.normal(size=(4, 6, 5)).astype(np.float32)


# ---- A GPT with all its layers in one scan.


@pytest.mark.parametrize("remat", [False, True])
def test_a_gpt_in_a_scan_trains_as_in_jax(rng, remat):
    trains_as_jax_does(*jax_steps.stacked_gpt(rng, remat=remat), jax_steps.STACKED_PLANS)


def test_the_text_does_not_grow_with_the_layers(rng):
    step, state, batches = jax_steps.stacked_gpt(rng, layers=48)
    program = swj.capture(step, abstract(state), abstract(batches[0])).mark(jax_steps.STACKED_PLANS["data=4,model=2"])
    small_step, small, _ = jax_steps.stacked_gpt(rng, layers=2)
    small_text = swj.capture(small_step, abstract(small), abstract(batches[0])).text
    assert program.text.count(" = scan(") == small_text.count(" = scan(") == 2
    assert len(program.text.splitlines()) == len(small_text.splitlines())
    plan = program.plan("data=4,model=2")
    assert plan.bytes_by_kind["parameter"] > 48 * 4 * (4 * 16 * 16 + 2 * 16 * 64) / 2
    assert {scope for one in plan.traffic for scope in one.scope.split("/")} >= {"attention", "mlp"}
    ours, loss = plan.run(on_host(state), on_host(batches[0]))
    theirs, expected = jax.jit(step)(state, batches[0])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("mesh", ["data=1", "data=8", "fsdp=8", "data=4,model=2"])
def test_layers_in_a_scan_and_written_out_give_the_same(mesh):
    losses, states = [], []
    for is_scanned in (True, False):
        step, state, batches = jax_steps.stacked_gpt(np.random.default_rng(7), is_scanned)
        program = swj.capture(step, abstract(state), abstract(batches[0])).mark(jax_steps.STACKED_PLANS[mesh])
        assert (" = scan(" in program.text) == is_scanned
        plan = program.plan(mesh)
        for batch in batches:
            state, loss = plan.run(on_host(state), on_host(batch))
            losses.append(float(loss))
        states.append(state)
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)
    assert worst(*states) < 1e-4


def test_a_plan_of_a_scan_says_what_a_run_needs(rng):
    step, state, batches = jax_steps.stacked_gpt(rng)
    program = swj.capture(step, abstract(state), abstract(batches[0])).mark(jax_steps.STACKED_PLANS["data=8"])
    peak = program.plan("data=8").peak_bytes
    program.plan("data=8", capacity=peak).run(on_host(state), on_host(batches[0]))
    with pytest.raises(sw.ResourceExhausted):
        program.plan("data=8", capacity=peak - 1).run(on_host(state), on_host(batches[0]))


# ---- All features of scans and conds.


def of_grad(function: Any) -> Any:
    def total(*args: Any) -> Any:
        return sum((y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)).sum() for y in jax.tree.leaves(function(*args)))

    return jax.grad(total, tuple(range(function.__code__.co_argcount)))


def with_consts(w: Any, x: Any) -> Any:
    """The loop has a matrix from outside, two carries, one a count, and two outputs."""
    def one(carry: Any, row: Any) -> Any:
        (h, count), scaled = carry, row @ w
        h = jnp.tanh(h + scaled * (1 + count))
        return (h, count + 1), {"h": h, "row": row * 2}

    (h, _), all_of_them = lax.scan(one, (jnp.zeros((6, 5)), 0.0), x)
    return h, all_of_them


def in_each_other(x: Any) -> Any:
    def outer(total: Any, row: Any) -> Any:
        inner, parts = lax.scan(lambda c, v: (c * 0.5 + v, c.sum()), total[0], row)
        return total + inner, parts

    return lax.scan(outer, x[0] * 0, x)


def of_both(x: Any) -> Any:
    """Has a branch in a loop, and a loop in a branch."""
    def one(c: Any, row: Any) -> Any:
        c = lax.cond(row.sum() > 0, lambda a: jnp.sin(a + row), lambda a: a * 2, c)
        return c, lax.switch((row[0, 0] * 3).astype(jnp.int32), [jnp.cos, lambda a: a, jnp.tanh], row)

    last, rows = lax.scan(one, x[0], x, reverse=True)
    return lax.cond(last[0, 0] > 0, lambda a: lax.scan(lambda c, r: (c + r, None), a[0], a)[0], lambda a: a[1], rows)


def drawn(x: Any) -> Any:
    keys = jax.random.split(jax.random.key(3), 4)
    return lax.scan(lambda key, pair: (jax.random.split(key)[0], pair[1] * jax.random.bernoulli(pair[0], 0.5, (6, 5))),
                    jax.random.key(7), (keys, x))[1]


def until_still(x: Any) -> Any:
    """Ends before 40 trips: after one for x of zeros."""
    return lax.while_loop(lambda c: (c[0] < 40) & (jnp.abs(c[1] - c[2]).max() > 0.01), lambda c: (c[0] + 1, jnp.tanh(c[1] * 0.3 + x), c[1]), (0, x * 0, x + 1))


def solved(x: Any) -> Any:
    return jax.scipy.sparse.linalg.cg(lambda v: x @ (x.T @ v) + v, x[:, 0], maxiter=20)[0]


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "until it is still": (until_still, (X,)),
    "solved": (of_grad(solved), (X,)),
    "with consts": (with_consts, (RNG.normal(size=(5, 5)).astype("f4"), T)),
    "gradient with consts": (of_grad(with_consts), (RNG.normal(size=(5, 5)).astype("f4"), T)),
    "backwards": (of_grad(lambda x: lax.scan(lambda c, r: (jnp.sin(c) + r, c * r), x[0] * 0, x, reverse=True)), (T,)),
    "in each other": (in_each_other, (T,)),
    "gradient in each other": (of_grad(in_each_other), (T,)),
    "of both": (of_both, (T,)),
    "gradient of both": (of_grad(of_both), (T,)),
    "without xs": (of_grad(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=5)), (X,)),
    "without a carry": (of_grad(lambda x: lax.scan(lambda _, r: (None, r * r), None, x)[1]), (T,)),
    "of constants": (lambda x: lax.scan(lambda c, r: (c + r + x, (jnp.ones(3), r)), jnp.zeros((8, 6)), jnp.zeros((3, 6))), (X,)),
    "the input comes back": (lambda x: lax.scan(lambda c, r: ((c[1], c[0]), (r, r, c[0])), (x[0], x[1]), x), (T,)),
    "of no trip": (of_grad(lambda x: lax.scan(lambda c, r: (c * r, c), x[0], x[:0])), (T,)),
    "in a batch": (of_grad(lambda x: jax.vmap(lambda row: lax.scan(lambda c, v: (jnp.tanh(c + v), c), row[0], row)[0])(x)), (T,)),
    "remat": (of_grad(lambda x: lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(jnp.sin(c + r)), None)), x[0], x)[0]), (T,)),
    "of forty branches": (lambda i: lax.switch(i, [lambda a, n=n: a * 0 + n * n for n in range(40)], i), (np.int32(33),)),
    "of a derived branch": (of_grad(lambda x: lax.cond(x[0, 0] > 0, lambda a: jnp.sin(a), lambda a: a * a, x)), (X,)),
    "of integers": (lambda x: lax.fori_loop(0, 7, lambda i, c: c * 3 + i, x), (np.arange(6, dtype=np.int32),)),
    "random": (drawn, (T,)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_or_branch_is_what_jax_computes(name):
    function, args = CASES[name]
    theirs = jax.tree.map(np.asarray, jax.jit(function)(*args))
    program = swj.capture(function, *args)
    assert " = scan(" in program.text or " = cond(" in program.text
    cuts = [{}] + [{i.label: ",".join("d" if d == dim else "-" for d in range(len(i.shape))) for i in program.inputs if len(i.shape) > dim}
                   for dim in range(max(np.ndim(arg) for arg in args))]
    for cut in cuts:
        ours = swj.capture(function, *args).mark(cut).run(*args, mesh="d=4")
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_a_branch_that_is_not_taken_is_not_computed():
    program = swj.capture(lambda x: lax.cond(x[0, 0] > 0, jnp.sin, lambda a: a @ a.T @ a, x), X)
    top, _, bodies = program.text.partition(" = cond(")
    assert "sin(" not in top and "dot_general(" not in top and bodies.count("dot_general(") == 2 and bodies.count("} else {") == 1


def test_marks_and_scopes_in_a_body_count():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, P("data"))

    def step(x: Any) -> Any:
        def one(c: Any, _: Any) -> Any:
            with jax.named_scope("turn"):
                return lax.with_sharding_constraint(jnp.sin(c), rows), None

        return lax.scan(one, x, None, length=3)[0]

    program = swj.capture(step, S((8, 4), jnp.float32))
    assert "  %1 = sin(%0) : f32[8, 4]  # turn\n  %2 = identity(%1) : f32[8, 4] marked data,-  # turn\n" in program.text
    assert str(program.plan("data=8").spec("x")) == "data,-"


def test_what_is_refused_in_a_body_has_its_line_if_it_is_needed():
    def step(x: Any) -> Any:
        def one(c: Any, r: Any) -> Any:
            unused = jnp.linalg.eig(c)[0]  # noqa: F841 - nothing needs it
            return c + r, lax.bessel_i0e(c)

        return lax.scan(one, x[0], x)

    first = step.__code__.co_firstlineno
    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(step, S((4, 3, 3), jnp.float32))
    assert f"bessel_i0e (at {__file__}:{first + 3}" in str(raised.value) and "eig" not in str(raised.value)
    assert swj.capture(lambda x: step(x)[0] * 2, S((4, 3, 3), jnp.float32)).text.count(" = scan(") == 1


def test_what_the_program_s_own_checks_refuse_in_a_body_has_its_line():
    def step(x: Any) -> Any:
        return lax.scan(lambda c, r: (c + r.astype(jnp.float32), None), jnp.zeros(3), x)[0]

    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(step, S((2, 3), jnp.float8_e4m3fn))
    assert str(raised.value).startswith(f"capture: {__file__}:{step.__code__.co_firstlineno + 1}:") and ": convert_element_type: convert(" in str(raised.value)


@pytest.mark.parametrize("loop", [lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2, x), lambda x, n: lax.while_loop(lambda c: c.sum() < n, jnp.sin, x)],
                         ids=["fori", "while"])
def test_a_loop_whose_length_the_run_says_is_one_clear_error(loop):
    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(loop, S((3,), jnp.float32), S((), jnp.int32))
    told = "while: how many steps it takes is known only when it runs, needed a loop of a fixed length: jax.lax.scan over the most steps that it may take, with jnp.where for those after its end (at "
    assert str(raised.value).startswith(f"capture: found what no program has: {told}{__file__}:")


def test_a_while_that_may_end_earlier_is_a_scan_of_its_limit():
    program = swj.capture(until_still, X)
    for x in (X, X * 0):
        trips, *theirs = jax.jit(until_still)(x)
        assert 0 < int(trips) < 40
        ours = program.run(x, devices=1)
        assert int(ours[0]) == int(trips)
        np.testing.assert_allclose(ours[1:], theirs, rtol=1e-5, atol=1e-6)
    assert "length=[40]" in program.text and " = cond(" in program.text

    def long(x: Any) -> Any:
        return lax.while_loop(lambda c: (c[0] < 10_001) & (c[1].sum() < 9), lambda c: (c[0] + 1, c[1] * 2), (0, x))

    with pytest.raises(sw.Unsupported, match="while: how many steps it takes is known only when it runs"):
        swj.capture(long, X)


def test_a_while_that_carries_its_limit_and_its_step_is_a_scan():
    def step(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < c[2], lambda c: (c[3] + c[0], c[1] * 2 + c[0], c[2], c[3]), (1, x, 10, 4))

    program = swj.capture(step, X)
    assert " = scan(" in program.text and "length=[3]" in program.text
    for ours, theirs in zip(program.run(X, devices=1), step(X)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("test, first, step", [
    (lambda n: n < np.int8(120), np.int8(0), np.int8(57)), (lambda n: n < 2_000_000_000, np.int32(0), np.int32(1_500_000_001)),
    (lambda n: n < np.uint8(100), np.uint8(10), np.uint8(255)), (lambda n: (n >= np.uint8(0)) & (n < np.uint8(9)), np.uint8(5), np.uint8(255))])
def test_a_while_whose_counter_begins_again_at_the_other_end_is_refused(test, first, step):
    """JAX goes on with the counter wrapped in its dtype: -85 after 57, 114."""

    def loop(x):
        return lax.while_loop(lambda c: test(c[0]), lambda c: (c[0] + step, c[1] + 1), (first, x))[1]

    with pytest.raises(sw.Unsupported, match="while: how many steps it takes is known only when it runs"):
        swj.capture(loop, X)


@pytest.mark.parametrize("body", [lambda c: (c[0] * 2, c[1]), lambda c: (c[0] - 1, c[1]), lambda c: (c[0] + c[1], c[1] - 1)])
def test_a_while_whose_counter_does_not_step_evenly_to_its_limit_is_refused(body):
    with pytest.raises(sw.Unsupported, match="while: how many steps it takes"):
        swj.capture(lambda x: lax.while_loop(lambda c: c[0] < 5, body, (1, 3))[0] + x, X)


def test_an_array_that_bodies_hold_is_written_once_in_each():
    table = jnp.asarray(X[:6])
    program = swj.capture(lambda x: lax.scan(lambda c, r: (jax.jit(lambda a: a @ table + table[0])(c) + r, None), x[0] @ table, x)[0], T[:, :, :1] * X[0])
    assert program.text.count(" = literal(") <= 2
    x = T[:, :, :1] * X[0]
    expected = lax.scan(lambda c, r: (c @ table + table[0] + r, None), x[0] @ table, x)[0]
    np.testing.assert_allclose(program.run(x, devices=1), expected, rtol=1e-4, atol=1e-5)


def test_operations_of_bodies_are_counted(monkeypatch):
    assert _program_text.MOST_NODES == 10**6  # as docs/planning.md says
    monkeypatch.setattr(_program_text, "MOST_NODES", 40)

    def step(x: Any) -> Any:
        return lax.scan(lambda c, _: (sum((jnp.sin(c) for _ in range(30)), c), None), x, None, length=10**6)[0]

    with pytest.raises(sw.Unsupported, match=rf"capture: {__file__}:\d+.*: found more than 40 operations, needed at most that many"):
        swj.capture(step, S((4,), jnp.float32))
