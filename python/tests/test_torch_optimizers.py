"""Optimizers and schedulers in captured steps: their numbers are those of torch."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from test_torch_programs import agree, batch, mlp, step_of

RATES = torch.optim.lr_scheduler


@pytest.mark.parametrize("optimizer", [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), eps=1e-4, amsgrad=True), lambda p: torch.optim.RMSprop(p, centered=True),
    lambda p: torch.optim.Adagrad(p, lr_decay=0.1), lambda p: torch.optim.NAdam(p, lr=0.01, eps=1e-4), lambda p: torch.optim.Rprop(p, lr=0.01),
    lambda p: torch.optim.Adafactor(p, lr=0.01),
], ids=["sgd", "momentum", "adam", "rmsprop", "adagrad", "nadam", "rprop", "adafactor"])
def test_optimizers_are_those_of_torch(optimizer):
    agree(mlp, lambda model: optimizer(model.parameters()), lambda model, x, y: (model(x) - y).abs().mean(), batch(), "fsdp")


def test_a_rate_that_is_a_tensor_is_an_input():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.0))
    program = swt.capture(step_of(model, optimizer), *batch())
    before = model[0].weight.detach().clone()
    program.run(*batch(), devices=1)
    assert torch.equal(model[0].weight, before)
    optimizer.param_groups[0]["lr"].fill_(0.1)
    program.run(*batch(), devices=1)
    assert not torch.equal(model[0].weight, before)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adamax", "Adagrad", "RMSprop", "Adadelta"])
def test_optimizers_count_steps_in_double(name):
    """As those of torch, to all bits but a few: 1 - 0.999 has half of its bits in f32."""
    models = [mlp().double() for _ in range(2)]
    given = [x.double() for x in batch()]
    ours, theirs = (step_of(model, getattr(torch.optim, name)(model.parameters(), lr=1e-2)) for model in models)
    plan = swt.capture(ours, *given).plan("data=2")
    for _ in range(3):
        torch.testing.assert_close(plan.run(*given), theirs(*given), rtol=1e-12, atol=0)


def test_state_whose_first_values_are_not_known_is_refused():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.1)
    with pytest.raises(sw.Unsupported, match="found SGD without state, .* needed one that has made a step"):
        swt.capture(step_of(model, optimizer), *batch())
    step_of(model, optimizer)(*batch())
    swt.capture(step_of(model, optimizer), *batch())


def test_an_optimizer_that_derives_by_itself_is_refused():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(sw.Unsupported, match="found LBFGS, whose step needs more than gradients .*, needed an optimizer that steps by them alone"):
        swt.capture(lambda x: optimizer.step(lambda: model(x).sum()), batch()[0])


def scheduled(schedule, optimizer_of):
    model = mlp()
    optimizer = optimizer_of(model.parameters())
    scheduler = schedule(optimizer)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    return model, scheduler, step


@pytest.mark.parametrize("schedule, optimizer", [
    (lambda o: RATES.StepLR(o, 2, 0.1), lambda p: torch.optim.AdamW(p, lr=1e-2)),
    (lambda o: RATES.CosineAnnealingLR(o, 5), lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9)),
    (lambda o: RATES.SequentialLR(o, [RATES.LinearLR(o, 0.5), RATES.ExponentialLR(o, 0.9)], [2]), lambda p: torch.optim.SGD(p, lr=0.1)),
], ids=["adamw", "tensor", "sequential"])
def test_each_run_calls_the_scheduler(schedule, optimizer):
    (ours, rates, step), (theirs, other_rates, torch_step) = (scheduled(schedule, optimizer) for _ in range(2))
    program = swt.capture(step, *batch())
    assert rates.last_epoch == 0 and "lr" in [one.label for one in program.inputs]
    for _ in range(4):
        torch.testing.assert_close(program.run(*batch(), devices=1), torch_step(*batch()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rates.get_last_lr(), other_rates.get_last_lr())
    torch.testing.assert_close(step(*batch()), torch_step(*batch()), rtol=1e-5, atol=1e-6)


def test_schedulers_that_no_program_follows_are_refused():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    with pytest.raises(sw.Unsupported, match="found OneCycleLR that sets momentum, .* needed cycle_momentum=False"):
        swt.capture(scheduled(lambda o: RATES.OneCycleLR(o, 0.1, 10), sgd)[2], *batch())
    model, scheduler, _ = scheduled(RATES.ReduceLROnPlateau, sgd)
    with pytest.raises(sw.Unsupported, match=r"found ReduceLROnPlateau.step\(\) of a value"):
        swt.capture(lambda x: scheduler.step(model(x).sum()), batch()[0])
    hidden = iter([scheduler])
    with pytest.raises(sw.InvalidArgument, match=r"found a ReduceLROnPlateau that the step's variables do not hold, needed uses="):
        swt.capture(lambda x: next(hidden).step(), batch()[0])
