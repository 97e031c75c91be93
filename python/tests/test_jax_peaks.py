"""Compares peaks of plans with those of JAX: gradients that a Python loop over micro-batches adds up."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

import shardwise.jax as swj

CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
VIEWS = ("reshape", "squeeze", "expand_dims")


class Storage:
    def __init__(self, aval: Any) -> None:
        self.bytes, self.last = aval.size * aval.dtype.itemsize, -1


def storages(atoms: Any, of: dict[Any, Storage]) -> list[Storage]:
    return list({id(of[x]): of[x] for x in atoms if not isinstance(x, Literal)}.values())


def operations(jaxpr: Any, of: dict[Any, Storage], steps: list[Any]) -> None:
    """Appends (read, made) for each operation that eager JAX carries out. A reshape takes no memory."""
    for one in jaxpr.eqns:
        if one.primitive.name in CALLS:
            closed = one.params.get("jaxpr") or one.params["call_jaxpr"]
            inner = getattr(closed, "jaxpr", closed)
            inside = {v: Storage(v.aval) for v in inner.constvars}
            for own, given in zip(inner.invars, one.invars):
                inside[own] = Storage(own.aval) if isinstance(given, Literal) else of[given]
            operations(inner, inside, steps)
            for own, given in zip(one.outvars, inner.outvars):
                of[own] = Storage(own.aval) if isinstance(given, Literal) else inside[given]
        elif one.primitive.name in VIEWS and not isinstance(one.invars[0], Literal):
            of[one.outvars[0]] = of[one.invars[0]]
        else:
            read = storages(one.invars, of)
            of.update((v, Storage(v.aval)) for v in one.outvars)
            steps.append((read, storages(one.outvars, of)))


def eager_peak(step: Any, *example: Any) -> int:
    """Returns the bytes that are alive at the fullest operation if each array goes after its last use. Arguments stay."""
    jaxpr = jax.make_jaxpr(step)(*example).jaxpr
    of = {v: Storage(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars)}
    held, steps = storages(of, of), []
    operations(jaxpr, of, steps)
    for at, (read, made) in enumerate(steps):
        for one in (*read, *made):
            one.last = at
    for one in (*held, *storages(jaxpr.outvars, of)):
        one.last = len(steps)
    now = peak = sum(one.bytes for one in held)
    for at, (read, made) in enumerate(steps):
        now += sum(one.bytes for one in made)
        peak = max(peak, now)
        now -= sum(one.bytes for one in {id(x): x for x in (*read, *made)}.values() if one.last == at)
    return peak


def struct(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def hidden(p: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ p["a"] + p["b"]) @ p["c"] + p["d"]


def deep(p: Any, x: Any) -> Any:
    for i in range(6):
        x = jnp.tanh(x @ p[f"w{i}"])
    return x


SHAPES = {
    hidden: {"a": (256, 512), "b": (512,), "c": (512, 256), "d": (256,)},
    deep: {f"w{i}": (256, 256) for i in range(6)},
}


@pytest.mark.parametrize("devices", (1, 8))
@pytest.mark.parametrize("adds", ("returned", "sgd"))
@pytest.mark.parametrize("model", (hidden, deep))
def test_micro_batches_need_no_more_than_in_jax(model, adds, devices):
    """On 8 devices each has all parameters and an eighth of each micro-batch."""

    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(model(p, x) ** 2)

    def returned(p: Any, x: Any) -> Any:
        total = jax.grad(loss)(p, x[0])
        for i in range(1, len(x)):
            total = jax.tree.map(jnp.add, total, jax.grad(loss)(p, x[i]))
        return total

    def sgd(p: Any, x: Any) -> Any:
        return jax.tree.map(lambda a, g: a - 0.1 * g / len(x), p, returned(p, x))

    step = {"returned": returned, "sgd": sgd}[adds]
    parameters = {name: struct(*shape) for name, shape in SHAPES[model].items()}
    for count, rows in ((1, 64), (4, 64), (8, 64), (16, 64), (4, 1024)):
        program = swj.capture(step, parameters, struct(count, rows, 256)).mark({"x": "-,data,-"})
        planned = program.plan(f"data={devices}").peak_bytes
        eager = eager_peak(step, parameters, struct(count, rows // devices, 256))
        # A program adds each gradient to its sum when it is made; eager JAX makes all of them first.
        assert 0.85 * eager <= planned <= 1.05 * eager, (count, rows)
