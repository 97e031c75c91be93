"""Compares peaks of plans of shardwise.torch.spmd with torch's: gradients of micro-batches add up on 8 devices.

Eager is a loop that is written for one of the devices. `data`: it has all parameters and an eighth of the
rows, and an all-reduce is in place. `fsdp`: it has an eighth of each parameter, too, gathers a weight for
each product and drops it after that, and scatters a gradient when it is made. `model`: a quarter of the rows,
and half of each weight, by columns and rows in turn."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from test_peaks import Live  # noqa: E402

import shardwise.torch.spmd as xs  # noqa: E402

ROWS, WIDTH = 256, 128


def hidden() -> Any:
    first, second = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
    return torch.nn.Sequential(first, torch.nn.GELU(), second)


def deep() -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))


def gathered(shard: Any) -> Any:
    return shard.repeat(8, *[1] * (shard.dim() - 1))


def scattered(gradient: Any) -> Any:
    return gradient[:len(gradient) // 8].clone()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, gathered(weight), gathered(bias))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_bias, of_weight = scattered(gradient.sum(0)), scattered(gradient.t() @ x)
        return gradient @ gathered(weight) if ctx.needs_input_grad[0] else None, of_weight, of_bias


class Sharded(torch.nn.Module):
    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(scattered(linear.weight.data))
        self.bias = torch.nn.Parameter(scattered(linear.bias.data))

    def forward(self, x: Any) -> Any:
        return Product.apply(x, self.weight, self.bias)


def half(linear: Any, by_columns: bool) -> Any:
    width, depth = linear.weight.shape
    return torch.nn.Linear(depth, width // 2) if by_columns else torch.nn.Linear(depth // 2, width)


def linears(model: Any) -> list[Any]:
    return [one for one in model if isinstance(one, torch.nn.Linear)]


def of_one_device(model: Any, cut: str) -> Any:
    order = linears(model)
    if cut == "fsdp":
        return torch.nn.Sequential(*(Sharded(one) if one in order else one for one in model))
    if cut == "model":
        halves = {one: half(one, number % 2 == 0) for number, one in enumerate(order)}
        return torch.nn.Sequential(*(halves.get(one, one) for one in model))
    return model


def mark(model: Any, cut: str, mesh: Any) -> None:
    for number, one in enumerate(linears(model)):
        if cut == "fsdp":
            xs.mark_sharding(one.weight, mesh, ("data", None))
            xs.mark_sharding(one.bias, mesh, ("data",))
        elif cut == "model":
            xs.mark_sharding(one.weight, mesh, ("model", None) if number % 2 == 0 else (None, "model"))
            if number % 2 == 0:
                xs.mark_sharding(one.bias, mesh, ("model",))


def step_of(model: Any, adds: str) -> tuple[Any, list[Any]]:
    """Returns the step, and the tensors that it holds besides its argument once it has been made."""
    parameters = list(model.parameters())
    optimizers = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    optimizer = optimizers[adds](parameters, lr=0.1) if adds in optimizers else None

    def step(x: Any) -> Any:
        for i in range(len(x)):
            (model(x[i]).square().mean() / len(x)).backward()
        gradients = [one.grad for one in parameters]
        if optimizer is not None:
            optimizer.step()
            gradients = []
        model.zero_grad()
        return gradients

    if optimizer is not None:
        step(torch.zeros(1, 8, WIDTH).to(parameters[0].device))
        xs.mark_step()
    state = [] if optimizer is None else [one for held in optimizer.state.values() for one in held.values()]
    return step, parameters + [one for one in state if isinstance(one, torch.Tensor)]


def eager_peak(make: Any, cut: str, count: int, adds: str) -> int:
    step, held = step_of(of_one_device(make(), cut), adds)
    x = torch.zeros(count, ROWS // (4 if cut == "model" else 8), WIDTH)
    with Live([*held, x]) as live:
        step(x)
    return live.peak


def planned_peak(make: Any, cut: str, count: int, adds: str) -> int:
    xs.use_spmd()
    mesh = xs.Mesh(np.arange(8), (4, 2) if cut == "model" else (8, 1), ("data", "model"))
    model = make().to(xs.xla_device())
    mark(model, cut, mesh)
    step, _ = step_of(model, adds)
    x = torch.zeros(count, ROWS, WIDTH).to(xs.xla_device())
    xs.mark_sharding(x, mesh, (None, "data", None))
    held = step(x)
    xs.mark_step()
    del held
    return xs.last_plan().peak_bytes


CASES = (("data", hidden, "returned"), ("data", deep, "sgd"), ("fsdp", hidden, "adamw"),
         ("fsdp", deep, "sgd"), ("model", hidden, "returned"))


@pytest.mark.parametrize(("cut", "make", "adds"), CASES)
def test_micro_batches_need_no_more_than_in_torch(cut, make, adds):
    found = {count: planned_peak(make, cut, count, adds) / eager_peak(make, cut, count, adds)
             for count in (1, 4, 8, 16)}
    assert all(0.8 <= one <= 1.05 for one in found.values()), found
