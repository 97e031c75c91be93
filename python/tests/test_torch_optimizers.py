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
    """Compares with torch, in all bits but a few: 1 - 0.999 has half of its bits in f32."""
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
    """Returns a model, its scheduler, and a step that calls the scheduler at its end."""
    model = mlp()
    optimizer = optimizer_of(model.parameters())
    return model, schedule(optimizer), step_of(model, optimizer)


@pytest.mark.parametrize(
    "schedule, optimizer",
    [
        (lambda o: RATES.StepLR(o, 2, 0.1), lambda p: torch.optim.AdamW(p, lr=1e-2)),
        (
            lambda o: RATES.CosineAnnealingLR(o, 5),
            lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
        ),
        (
            lambda o: RATES.SequentialLR(o, [RATES.LinearLR(o, 0.5), RATES.ExponentialLR(o, 0.9)], [2]),
            lambda p: torch.optim.SGD(p, lr=0.1),
        ),
        (lambda o: RATES.ExponentialLR(o, 0.5), lambda p: torch.optim.Adafactor(p, lr=0.1)),
        (
            lambda o: RATES.OneCycleLR(o, 0.1, 10, cycle_momentum=False),
            lambda p: torch.optim.SGD([{"params": [one]} for one in p], lr=0.1),
        ),
    ],
    ids=["adamw", "tensor", "sequential", "adafactor", "groups"],
)
def test_each_run_reads_the_rates(schedule, optimizer):
    (ours, rates, step), (theirs, other_rates, torch_step) = (scheduled(schedule, optimizer) for _ in range(2))
    program = swt.capture(step, *batch())
    assert "lr" in [one.label for one in program.inputs]
    for _ in range(4):
        torch.testing.assert_close(program.run(*batch(), devices=1), torch_step(*batch()), rtol=1e-5, atol=1e-6)
        rates.step()
        other_rates.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rates.get_last_lr(), other_rates.get_last_lr())
    torch.testing.assert_close(step(*batch()), torch_step(*batch()), rtol=1e-5, atol=1e-6)


def test_a_rate_that_is_a_number_is_that_of_the_run():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    program = swt.capture(step_of(model, optimizer), *batch())
    before = model[0].weight.detach().clone()
    program.run(*batch(), devices=1)
    assert torch.equal(model[0].weight, before)
    optimizer.param_groups[0]["lr"] = 0.1
    program.run(*batch(), devices=1)
    assert not torch.equal(model[0].weight, before)


def test_other_numbers_of_an_optimizer_are_those_of_the_capture():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    _, rates, step = scheduled(lambda o: RATES.OneCycleLR(o, 0.1, 10), sgd)
    program = swt.capture(step, *batch())
    program.run(*batch(), devices=1)
    rates.step()
    with pytest.raises(
        sw.InvalidArgument,
        match=r"run: found momentum=0\.\d+ of SGD, needed 0\.95, which is part of the program",
    ):
        program.run(*batch(), devices=1)


def with_model(body, optimizer_of=lambda p: torch.optim.SGD(p, lr=0.1)):
    """Returns a step with the loss, the model and the optimizer of `body`."""
    model = mlp()
    optimizer = optimizer_of(model.parameters())
    rest = body(model, optimizer)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss, rest()

    return step


def test_a_step_that_sets_a_rate_is_refused():
    rates = []

    def scheduled_inside(model, optimizer):
        rates.append(RATES.ExponentialLR(optimizer, 0.5))
        return lambda: (optimizer.step(), optimizer.zero_grad(), rates[0].step()) and 0

    def decays(model, optimizer):
        def rest():
            optimizer.step()
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5

        return rest

    for body in (scheduled_inside, decays):
        with pytest.raises(
            sw.Unsupported,
            match=r"capture: .*test_torch_optimizers.py:\d+: found a learning rate that the step sets, "
            r"needed one .* between runs",
        ):
            swt.capture(with_model(body), *batch())
    assert rates[0].last_epoch == 0


class Counting(torch.optim.SGD):
    """Counts its steps in numbers of Python's."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                p.data.add_(p.grad, alpha=-group["lr"] / state["count"])


def test_numbers_of_an_optimizer_that_the_step_changes_are_refused():
    def plain(model, optimizer):
        return lambda: (optimizer.step(), optimizer.zero_grad()) and 0

    with pytest.raises(sw.Unsupported, match="found that the step changes the number 'count' of Counting, .* needed a tensor"):
        swt.capture(with_model(plain, lambda p: Counting(p, lr=0.1)), *batch())


def test_an_optimizer_that_is_not_found_is_one_clear_error():
    """An iterator holds the optimizer, and the capture does not look into iterators."""

    def hides(model, optimizer):
        one = iter([optimizer])
        return lambda: (next(one).step(), model.zero_grad()) and 0

    with pytest.raises(sw.InvalidArgument, match=r"found a step of SGD that the step's variables do not hold, needed uses=\[.., optimizer\]"):
        swt.capture(with_model(hides), *batch())


@pytest.mark.parametrize("held, use", [
    (lambda model: frozenset(model.parameters()), lambda ps: torch.nn.utils.clip_grad_norm_(ps, 0.1)),
    (lambda model: {model[0].weight}, lambda weights: sum(weight.square().sum() for weight in weights)),
    (lambda model: model[0].weight.detach().T, lambda weight: weight.square().sum()),
], ids=["clipped", "set", "view"])
def test_parameters_from_elsewhere_than_their_module_are_refused(held, use):
    """The step would see the capture's parameters there, and no gradients."""

    def elsewhere(model, optimizer):
        mine = held(model)
        return lambda: (use(mine), optimizer.step(), optimizer.zero_grad()) and 0

    step = with_model(elsewhere)
    with pytest.raises(sw.Unsupported, match=r"found \d.(weight|bias), or its gradient, from elsewhere than its module"):
        swt.capture(step, *batch())
    model = step.__closure__[0].cell_contents
    assert all(p.grad is None for p in model.parameters())


def test_a_run_in_another_mode_is_one_clear_error():
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.5))
    x = batch()[0]
    model.eval()
    program = swt.capture(model, x)
    torch.testing.assert_close(program.run(x, devices=1), model(x))
    model.train()
    with pytest.raises(sw.InvalidArgument, match=r"run: found Sequential in the mode train\(\), needed eval\(\), as at the capture"):
        program.run(x, devices=1)
    sets = swt.capture(lambda x: model.eval()(x), x)
    model.train()
    torch.testing.assert_close(sets.run(x, devices=1), model.eval()(x))
