"""shardwise.jax.pipeline: values, gradients and losses of the layers one after the other, in JAX and in programs."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import jax_steps
import shardwise as sw
import shardwise.jax as swj
from jax_steps import abstract, on_host, worst

RNG = np.random.default_rng(8)
LAYERS, ROWS, WIDTH = 4, 24, 4


def whole(*shape: int) -> np.ndarray:
    """Returns whole numbers as floats, which any order of sums adds alike."""
    return RNG.integers(-2, 3, shape).astype(np.float32)


def params_of(layers: int = LAYERS, width: int = WIDTH) -> Any:
    return {"w": whole(layers, width, width), "b": whole(layers, width)}


def clamped(h: Any, layer: Any) -> Any:
    return jnp.clip(h @ layer["w"] + layer["b"] + h, -3, 3)


def by_layer(block: Any) -> Any:
    return lambda params, x: jax.lax.scan(lambda h, layer: (block(h, layer), None), x, params)[0]


def piped(block: Any, stages: int, micro_batches: int, axis: str | None = None) -> Any:
    return lambda params, x: swj.pipeline(block, params, x, stages=stages, micro_batches=micro_batches, axis=axis)


def with_gradients(function: Any) -> Any:
    """Returns a function that returns y and the gradients of a weighted sum of it."""
    def step(params: Any, x: Any, weights: Any) -> Any:
        def total(params: Any, x: Any) -> Any:
            y = function(params, x)
            return sum((leaf * weights).sum() for leaf in jax.tree.leaves(y)), y

        (_, y), gradients = jax.value_and_grad(total, (0, 1), has_aux=True)(params, x)
        return y, gradients

    return step


def marks(mesh: str) -> dict[str, str]:
    own = {"stage": {"params/w": "stage,-,-", "params/b": "stage,-"}, "model": {"params/w": "stage,-,model", "params/b": "stage,model"},
           "data": {"x": "data,-", "weights": "data,-"}}
    return {pattern: spec for axis, specs in own.items() if axis in mesh for pattern, spec in specs.items()}


def same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("stages, micro_batches, layers, meshes", [
    (1, 1, 4, ["stage=1"]), (1, 6, 2, ["data=2,stage=1"]), (4, 6, 4, ["stage=4", "stage=3", "stage=2", "data=2,stage=4"]),
    (2, 3, 4, ["stage=2", "stage=4"]), (2, 2, 6, ["data=4,stage=2"]), (4, 12, 8, ["stage=4,data=2", "data=2,stage=2,model=2"])])
def test_values_and_gradients_are_those_of_the_layers(stages, micro_batches, layers, meshes):
    args = params_of(layers), whole(ROWS, WIDTH), whole(ROWS, WIDTH)
    expected = on_host(jax.jit(with_gradients(by_layer(clamped)))(*args))
    assert all(leaf.any() for leaf in jax.tree.leaves(expected))
    step = with_gradients(piped(clamped, stages, micro_batches))
    same(jax.jit(step)(*args), expected)
    for mesh in meshes:
        same(swj.capture(step, *args).mark(marks(mesh)).plan(mesh).run(*args), expected)


def test_x_and_params_may_be_trees():
    def block(x: Any, layer: Any) -> Any:
        h, (total,) = x
        h = clamped(h, layer[0])
        return h, [total + h * layer[1]]

    args = (params_of(), np.arange(1, LAYERS + 1)), (whole(ROWS, WIDTH), [np.zeros((ROWS, WIDTH), np.int32) * 1.0])
    same(piped(block, 2, 4)(*args), on_host(by_layer(block)(*jax.tree.map(jnp.float32, args))))


def test_bubbles_add_nothing_to_the_gradients_of_a_block_that_divides():
    def block(h: Any, layer: Any) -> Any:
        return (h / jnp.linalg.norm(h, axis=-1, keepdims=True)) @ layer["w"] + layer["b"]

    args = {"w": RNG.normal(size=(4, 4, 4)).astype("f4"), "b": RNG.normal(size=(4, 4)).astype("f4")}, whole(ROWS, WIDTH) + 0.5, whole(ROWS, WIDTH)
    expected, step = on_host(jax.jit(with_gradients(by_layer(block)))(*args)), with_gradients(piped(block, 4, 6))
    for found in (jax.jit(step)(*args), swj.capture(step, *args).mark(marks("stage")).run(*args, mesh="stage=4")):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


# ---- Plans.


def training(function: Any) -> Any:
    def step(params: Any, x: Any, weights: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: (function(p, x) * weights).sum())(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), loss

    return step


@pytest.mark.parametrize("stages, micro_batches", [(4, 6), (4, 12), (2, 4)])
def test_each_trip_sends_the_rows_of_a_micro_batch_over_each_border(stages, micro_batches):
    row = 4 * WIDTH
    shifted, part = (micro_batches + stages - 1) * (ROWS // micro_batches) * row, ROWS // stages * row
    args, function = (params_of(), whole(ROWS, WIDTH), whole(ROWS, WIDTH)), piped(clamped, stages, micro_batches)
    for mesh, replicas in ((f"stage={stages}", 1), (f"data=2,stage={stages}", 2)):
        for step, times in ((lambda params, x, weights: function(params, x) * weights, 1), (training(function), 2)):
            plan = swj.capture(step, *args).mark(marks(mesh)).plan(mesh)
            # The result goes from the last stage to the others once, in parts.
            assert plan.wire_bytes["collective-permute", "stage"] == (times * shifted + part) // replicas
            assert {axes for collective, axes in plan.wire_bytes if collective != "all-reduce"} == {"stage"}


def test_a_pipeline_needs_less_memory_than_the_layers_one_after_the_other():
    args = params_of(8, 64), whole(64, 64), whole(64, 64)
    for mesh in ("stage=4", "data=2,stage=4"):
        cut = marks(mesh)
        peaks = [swj.capture(training(function), *args).mark(cut).plan(mesh).peak_bytes
                 for function in (by_layer(clamped), piped(clamped, 4, 8), piped(jax.checkpoint(clamped), 4, 8))]
        assert peaks == sorted(peaks, reverse=True) and peaks[1] < 0.5 * peaks[0] and peaks[2] < 0.9 * peaks[1]
        whole_weights = swj.capture(training(by_layer(clamped)), *args).mark(marks(mesh.partition("stage")[0])).plan(mesh).peak_bytes
        assert peaks[1] < 0.5 * whole_weights


def test_the_text_does_not_grow_with_the_micro_batches():
    def lines(micro_batches: int) -> int:
        return len(swj.capture(training(piped(clamped, 4, micro_batches)), params_of(), whole(ROWS, WIDTH), whole(ROWS, WIDTH)).text.splitlines())

    assert lines(4) == lines(12)


def test_a_block_may_have_marks():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "stage"))

    def block(h: Any, layer: Any) -> Any:
        return jax.lax.with_sharding_constraint(clamped(h, layer), NamedSharding(mesh, P("data")))

    args = params_of(), whole(ROWS, WIDTH), whole(ROWS, WIDTH)
    program = swj.capture(with_gradients(piped(block, 4, 6, "stage")), *args)
    assert f"f32[4, {ROWS // 6}, {WIDTH}] marked stage,data,-" in program.text
    expected = with_gradients(by_layer(clamped))(*args)
    same(program.mark(marks("stage")).run(*args, mesh="data=2,stage=4"), expected)


# ---- A GPT. The oracle is JAX on 8 devices.


def gpt_steps(stages: int, micro_batches: int) -> tuple[Any, Any, Any, list[Any]]:
    """Returns the step with a pipeline, the step with a scan over layers, the state and batches."""
    def block(h: Any, p: Any) -> Any:
        h = h + jax_steps.attention(jax_steps.layernorm(h, p["ln1"]), p)
        return h + jax.nn.gelu(jax_steps.layernorm(h, p["ln2"]) @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            h = params["embed"][batch["tokens"]] + params["pos"]
            h = swj.pipeline(jax.checkpoint(block), params["blocks"], h, stages=stages, micro_batches=micro_batches)
            scores = jax.nn.log_softmax(h @ params["head"])
            return -jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1).mean()

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        params, opt = jax_steps.adamw(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt}, loss

    of_layers, state, batches = jax_steps.stacked_gpt(np.random.default_rng(3), layers=4)
    return step, of_layers, state, batches


def test_a_gpt_trains_as_in_jax_on_eight_devices():
    step, of_layers, state, batches = gpt_steps(4, 4)
    on = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "stage"))
    places = jax.tree_util.tree_map_with_path(
        lambda path, _: NamedSharding(on, P("stage") if "blocks" in jax.tree_util.keystr(path) else P()), state)
    theirs = jax.jit(step, in_shardings=(places, NamedSharding(on, P("data"))), out_shardings=(places, NamedSharding(on, P())))
    on_eight, of_scan, losses = state, state, []
    for batch in batches:
        on_eight, loss = theirs(on_eight, batch)
        of_scan, one_by_one = jax.jit(of_layers)(of_scan, batch)
        losses.append(float(loss))
        assert losses[-1] == pytest.approx(float(one_by_one), rel=1e-5)
    for mesh in ("stage=4", "data=2,stage=4"):
        program = swj.capture(step, abstract(state), abstract(batches[0]))
        axes = {i.label: "stage" if "/blocks/" in i.label else "data" if "data" in mesh and i.kind == "loader" else "-"
                for i in program.inputs}
        plan = program.mark({i.label: ",".join([axes[i.label], *["-"] * (len(i.shape) - 1)]) for i in program.inputs if i.shape}).plan(mesh)
        assert ("collective-permute", "stage") in plan.wire_bytes
        ours = on_host(state)
        for batch, expected in zip(batches, losses):
            ours, loss = plan.run(ours, on_host(batch))
            assert float(loss) == pytest.approx(expected, rel=1e-5)
        assert worst(ours, on_host(on_eight)) < 1e-4


# ---- Bad input.


@pytest.mark.parametrize("changed, told", [
    ({"stages": 3}, "found 3 stages for 4 layers, needed a number that divides them"),
    ({"stages": 0}, "found 0 stages for 4 layers, needed a number that divides them"),
    ({"stages": 4, "micro_batches": 5}, "found 5 micro-batches of a batch of 24, needed a number that divides it"),
    ({"stages": 4, "micro_batches": 3}, "found 3 micro-batches for 4 stages, needed as many or more"),
    ({"stages": 2.0}, "found stages=2.0, needed an int"),
    ({"params": {}}, "found no tensor in params, needed one or more"),
    ({"params": {"w": np.zeros((4, 4, 4), "f4"), "b": np.zeros((3, 4), "f4")}},
     "found params['w'] of shape [4, 4, 4], needed 3 along dim 0, as params['b'] has"),
    ({"params": {"w": np.float32(0), "b": np.zeros((4, 4), "f4")}}, "found params['w'] of shape [], needed a dim to go along"),
    ({"block": lambda h, layer: h @ layer["w"][:, :3]}, "found a block that gives x as float32[6, 3], needed float32[6, 4] as it gets it"),
    ({"block": lambda h, layer: h.astype(jnp.bfloat16)}, "found a block that gives x as bfloat16[6, 4], needed float32[6, 4] as it gets it"),
    ({"block": lambda h, layer: (h, h)}, "found a block that gives x[0], x[1], needed x as it gets it")])
def test_bad_input_is_one_clear_error(changed, told):
    given = {"block": clamped, "params": params_of(), "x": whole(ROWS, WIDTH), "stages": 2, "micro_batches": 4} | changed
    with pytest.raises(sw.InvalidArgument) as raised:
        swj.pipeline(given.pop("block"), given.pop("params"), given.pop("x"), **given)
    assert str(raised.value) == f"pipeline: {told}"
