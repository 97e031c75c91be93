"""Steps of JAX that change modules of flax.nnx in place, as under nnx.jit: their programs change them so, too."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")
pytest.importorskip("flax", reason="needs flax, which this environment has not")
pytest.importorskip("optax", reason="needs optax, which this environment has not")

import jax
import numpy as np
import optax
from flax import nnx

import shardwise as sw
import shardwise.jax as swj
from jax_steps import worst


class Mlp(nnx.Module):
    """One layer is used twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.norm = nnx.Linear(6, 6, rngs=rngs), nnx.BatchNorm(6, use_bias=False, rngs=rngs)
        self.second, self.drop, self.head = self.first, nnx.Dropout(0.2, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.drop(nnx.relu(self.norm(self.second(nnx.gelu(self.first(x)))))))


def model_and_optimizer() -> Any:
    made = Mlp(nnx.Rngs(0, dropout=1))
    return made, nnx.Optimizer(made, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def step(model: Any, optimizer: Any, batch: Any) -> Any:
    def loss_of(one: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(one(batch["x"]), batch["y"]).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def batch_of(rng: np.random.Generator) -> Any:
    return {"x": rng.normal(size=(8, 6)).astype(np.float32), "y": rng.integers(0, 3, 8).astype(np.int32)}


def test_a_run_changes_the_modules_as_the_step_does(rng):
    ours, theirs = model_and_optimizer(), model_and_optimizer()
    program = swj.capture(nnx.jit(step), *ours, batch_of(rng))
    assert swj.capture(step, *ours, batch_of(rng)).text.splitlines()[-1].count("%") == program.text.splitlines()[-1].count("%")
    kinds = {one.label: one.kind for one in program.inputs}
    assert kinds["model/first/kernel/value"] == "parameter" and kinds["optimizer/opt_state/0/trace/first/kernel/value"] == "optimizer"
    assert not any("second" in label for label in kinds) and kinds["batch/x"] == "loader"
    plan = program.mark({"batch/x": "data,-", "batch/y": "data", "*/first/kernel/*": "-,model"}).plan("data=4,model=2")
    compiled = nnx.jit(step)
    for _ in range(3):
        batch = batch_of(rng)
        assert plan.run(*ours, batch) == pytest.approx(float(compiled(*theirs, batch)), rel=1e-5)
    states = [jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(both, nnx.Not(nnx.RngKey)))) for both in (ours, theirs)]
    assert worst(*states) < 1e-4 and ours[0].second is ours[0].first and int(ours[0].drop.rngs.count[...]) == 3


def test_what_a_step_leaves_as_it_is_is_no_result(rng):
    model, _ = model_and_optimizer()
    model.eval()
    x = batch_of(rng)["x"]
    program = swj.capture(nnx.jit(lambda model, x: model(x)), model, x)
    assert program.text.splitlines()[-1].count("%") == 1
    np.testing.assert_allclose(program.run(model, x, devices=1), model(x), rtol=1e-5, atol=1e-6)


def test_a_variable_that_the_step_adds_is_one_clear_error(rng):
    def adds(model: Any, x: Any) -> Any:
        model.seen = nnx.Variable(x)
        return x

    with pytest.raises(sw.InvalidArgument, match="capture: found that the step adds the variable seen/value to a module, needed modules whose"):
        swj.capture(adds, model_and_optimizer()[0], batch_of(rng)["x"])


def test_a_module_in_another_mode_is_one_clear_error(rng):
    """A program has one mode, as train() or eval() sets it."""
    model, _ = model_and_optimizer()
    x = batch_of(rng)["x"]
    model.train()
    program = swj.capture(lambda model, x: model(x), model, x)
    program.run(model, x, devices=1)
    model.eval()
    with pytest.raises(sw.InvalidArgument, match=r"run: found drop/deterministic = True, before False; .* needed modules as they were at the capture"):
        program.run(model, x, devices=1)

    def evaluates(model: Any, x: Any) -> Any:
        model.eval()
        return model(x)

    swj.capture(evaluates, model, x)
    model.train()
    with pytest.raises(sw.InvalidArgument, match="capture: found a step that changes a module to drop/deterministic = True, before False"):
        swj.capture(evaluates, model, x)
