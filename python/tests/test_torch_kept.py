"""A captured step keeps the state of modules and optimizers from one call to the next. A change of anything
else is one clear error."""

import collections
import copy

import numpy
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn

import shardwise as sw
import shardwise.torch as swt
from test_torch_programs import batch, marked, mlp


def learner(extra):
    """Returns a step, and a function that gives all that it changes. `extra(model)` gives the last action of the step, and its state."""
    model = mlp()
    ends, kept = extra(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), ends(loss.detach())

    return step, lambda: [*model.state_dict().values(), *kept()]


def learn_alike(make, calls=0):
    """Checks that runs on one device and on eight are the steps of torch. `calls` of these come first."""
    (ours, our_kept), (cut, cut_kept), (theirs, their_kept) = learners = [make() for _ in range(3)]
    for step, _ in learners:
        for _ in range(calls):
            step(*batch())
    program, wide = swt.capture(ours, *batch()), marked(swt.capture(cut, *batch()), "data")
    torch.testing.assert_close(our_kept(), cut_kept())  # and are tensors with values: the capture has left none of its own
    for _ in range(3):
        expected = theirs(*batch())
        torch.testing.assert_close(program.run(*batch(), devices=1), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(wide.run(*batch(), mesh="data=8"), expected, rtol=1e-5, atol=1e-6)
    for kept in (our_kept, cut_kept):
        torch.testing.assert_close(kept(), their_kept(), rtol=1e-4, atol=1e-6)
    return program


def in_a_dict(update):
    def extra(model):
        shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

        def ends(_):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    update(shadow, name, p)

        return ends, shadow.values

    return extra


class Averages:
    def __init__(self, model):
        self.shadow, self.steps = [p.detach().clone() for p in model.parameters()], torch.zeros(())
        self.pair = torch.zeros(()), torch.ones(2)

    def update(self, model, loss):
        self.steps = self.steps + 1
        decay = torch.minimum(self.steps / (self.steps + 3), torch.tensor(0.9))
        for i, p in enumerate(model.parameters()):
            self.shadow[i] = decay * self.shadow[i] + (1 - decay) * p.detach()
        self.pair = self.pair[0] + loss, self.pair[1] * 2
        return self.pair[0] * decay


def in_an_object(model):
    averages = Averages(model)
    return lambda loss: averages.update(model, loss), lambda: [*averages.shadow, averages.steps, *averages.pair]


def in_a_variable(model):
    mean, last = torch.zeros(()), torch.zeros(3)

    def ends(loss):
        nonlocal mean
        mean = 0.9 * mean + 0.1 * loss
        last[1:] = last[:-1].clone()
        last[0].copy_(mean)
        return mean

    return ends, lambda: [mean, last]


def by_data(model):
    other = copy.deepcopy(model)

    def ends(_):
        for slow, p in zip(other.parameters(), model.parameters()):
            slow.data = slow.data * 0.9 + p.data * 0.1

    return ends, lambda: other.state_dict().values()


class Shadow(nn.Module):
    """Keeps averages of weights, a hidden state and a count in buffers."""

    def __init__(self, model):
        super().__init__()
        for name, p in model.named_parameters():
            self.register_buffer(name.replace(".", "_"), p.detach().clone())
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(4))

    @torch.no_grad()
    def update(self, model, loss):
        self.count += 1
        self.hidden = self.hidden + loss  # a new tensor in its place
        for name, p in model.named_parameters():
            getattr(self, name.replace(".", "_")).lerp_(p, 1 / self.count)
        return self.hidden * self.count


def in_buffers(model):
    shadow = Shadow(model)
    return lambda loss: shadow.update(model, loss), lambda: shadow.state_dict().values()


@pytest.mark.parametrize("extra", [in_buffers, by_data], ids=["buffers", "data"])
def test_averages_go_on_with_each_run(extra):
    learn_alike(lambda: learner(extra))


def test_what_a_step_keeps_is_called_as_its_variables():
    program = swt.capture(learner(in_buffers)[0], *batch())
    kinds = {one.label: one.kind for one in program.inputs}
    assert {"shadow.count", "shadow.hidden", "shadow.0_weight"} <= set(kinds)
    assert kinds["shadow.count"] == "parameter"


def test_state_that_a_step_takes_and_returns_needs_no_module():
    def step(x, hidden):
        made = torch.tanh(x + hidden)
        return made, made.detach()

    program, hidden = swt.capture(step, batch()[0], torch.zeros(6)), torch.zeros(6)
    made, hidden = program.run(batch()[0], hidden, devices=1)
    torch.testing.assert_close(made, step(batch()[0], torch.zeros(6))[0])


def in_a_queue(kind):
    def extra(model):
        last = kind([torch.zeros(()), torch.ones(()), torch.ones(())])

        def ends(loss):
            last.append(loss + last[0])
            if isinstance(last, list):
                del last[0]
            return torch.stack(list(last))

        return ends, lambda: last

    return extra


def in_a_default(model):
    def ends(loss, held={"sum": torch.zeros(())}):
        held["sum"] = held["sum"] + loss
        return held["sum"] * 2

    return ends, lambda: [ends.__defaults__[0]["sum"]]


NEEDED = "needed a parameter or buffer of a module \\(register_buffer, AveragedModel\\), "
NEEDED += "or an argument that the step returns"
HERE = "^capture: .*test_torch_kept.py:\\d+( \\(.*\\))?: "


@pytest.mark.parametrize(
    "extra, found",
    [
        (
            in_a_dict(lambda shadow, name, p: shadow[name].mul_(0.9).add_(p, alpha=0.1)),
            "a change of 'shadow.0.weight', a tensor that the step holds",
        ),
        (in_a_dict(lambda shadow, name, p: shadow[name].lerp_(p, 0.1)), "a change of 'shadow.0.weight'"),
        (
            in_a_dict(lambda shadow, name, p: shadow.update({name: shadow[name] * 0.9 + p * 0.1})),
            "that the step puts a tensor into 'shadow.0.weight'",
        ),
        (in_an_object, "that the step puts a tensor into '(averages.shadow.0|averages.steps)'"),
        (in_a_variable, "a change of 'last'"),
        (in_a_queue(list), "that the step puts a tensor into 'last.2'"),
        (in_a_queue(lambda items: collections.deque(items, 3)), "that the step puts a tensor into 'last.2'"),
        (in_a_default, "that the step puts a tensor into 'held.sum'"),
    ],
    ids=["in place", "lerp", "new", "object", "variable", "list", "deque", "default"],
)
def test_a_change_of_what_is_no_state_is_one_clear_error(extra, found):
    step, kept = learner(extra)
    before = [one.clone() for one in kept()]
    with pytest.raises(sw.Unsupported, match=f"{HERE}found {found}.*{NEEDED}"):
        swt.capture(step, *batch())
    torch.testing.assert_close(kept(), before)


def test_tensors_of_no_module_do_not_learn():
    w, b = torch.randn(6, 4, requires_grad=True), [torch.zeros(4, requires_grad=True)]

    def step(x, y):
        loss = (x @ w + b[0] - y).square().mean()
        loss.backward()
        with torch.no_grad():
            for one in (w, b[0]):
                one -= 0.1 * one.grad
                one.grad = None
        return loss.detach()

    with pytest.raises(
        sw.Unsupported, match=f"{HERE}found a change of 'w', a tensor that the step holds, {NEEDED}"
    ):
        swt.capture(step, *batch())
    assert w.grad is None and b[0].grad is None


def test_what_a_module_derives_anew_is_no_state():
    """spectral_norm computes such a weight: it begins as another name of the parameter's memory."""

    def make():
        torch.manual_seed(1)
        model = torch.nn.utils.spectral_norm(nn.Linear(6, 4))
        return lambda x, y: model(x).sum(), lambda: list(model.state_dict().values())

    learn_alike(make)


class Recurrent:
    """Keeps its hidden state in an attribute, that the first step makes."""

    def __init__(self):
        torch.manual_seed(1)
        self.cell, self.hidden, self.mask, self.seen, self.last, self.log = nn.GRUCell(6, 4), None, None, 0, 0.0, []

    def step(self, x, y):
        if self.mask is None:
            self.mask = torch.ones(4).cumsum(0)
        made = self.cell(x, self.hidden) * self.mask
        self.hidden, self.seen = made.detach(), self.seen + 1
        self.last = (made - y).square().mean().item()
        self.log.append(made)
        return made


def test_state_that_a_step_makes_is_refused():
    for hidden in (None, torch.zeros(8, 4)):
        one = Recurrent()
        one.hidden = hidden
        with pytest.raises(
            sw.Unsupported,
            match=f"{HERE}found that the step (puts a tensor into|changes) "
                  f"'(hidden|mask|seen|last)'.*{NEEDED}",
        ):
            swt.capture(one.step, *batch())
        assert (one.hidden is hidden, one.mask, one.seen, one.last, one.log) == (True, None, 0, 0.0, [])


def test_what_a_step_adds_to_a_list_or_a_dict_is_let_go():
    """Keeps the outputs of layers by hooks, and a log."""
    model, kept, log = mlp(), [], {}
    model[0].register_forward_hook(lambda module, inputs, output: kept.append(output.detach()))

    def step(x):
        kept.clear()
        log["loss"] = model(x).square().mean()
        return kept[0] * 2, log["loss"]

    found = swt.capture(step, batch()[0]).run(batch()[0], devices=1)
    assert (kept, log) == ([], {})
    torch.testing.assert_close(found, step(batch()[0]))


def test_numbers_that_a_step_changes_are_refused():
    count, mean = 0, 0.0

    def counts(x):
        nonlocal count
        count += 1
        return x * count

    def means(x):
        nonlocal mean
        mean = 0.9 * mean + x.mean().item()
        return x * mean

    own = {"number": numpy.int32(1)}

    def counts_in_numpy(x):
        own["number"] = own["number"] + 1
        return x * float(own["number"])

    for step, name in ((counts, "count"), (means, "mean"), (counts_in_numpy, "own.number")):
        with pytest.raises(
            sw.Unsupported,
            match=f"{HERE}found that the step changes '{name}', which is part of the program, {NEEDED}",
        ):
            swt.capture(step, batch()[0])
    assert (count, mean, own["number"]) == (0, 0.0, 1)


class Sometimes:
    """Each call differs from the call before."""

    def __init__(self):
        self.model, self.first, self.phase, self.pending, self.names, self.sizes = mlp(), True, "a", None, ["x", "y"], {"x": 1, "y": 2}

    def by_flag(self, x):
        made = self.model(x) * (2 if self.first else 3)
        self.first = False
        return made

    def by_name(self, x):
        made = self.model(x) * (2 if self.phase == "a" else 3)
        self.phase = "b"
        return made

    def by_none(self, x):
        made = self.model(x) * (2 if self.pending is None else 3)
        self.pending = "y"
        return made

    def by_values(self, x):
        self.names.pop(0), self.sizes.pop("x")
        self.first = False
        return self.model(x) * 2 if self.model(x).sum() > 0 else x

    def kept(self):
        return self.first, self.phase, self.pending, self.names, list(self.sizes.items())


@pytest.mark.parametrize(
    "name, found",
    [
        ("by_flag", "the step changes 'first', which is part of the program"),
        ("by_name", "the step changes 'phase'"),
        ("by_none", "the step changes 'pending'"),
        ("by_values", "the value of a tensor"),
    ],
)
def test_steps_that_are_others_the_next_time_are_refused_and_leave_nothing(name, found):
    one = Sometimes()
    with pytest.raises(sw.Unsupported, match=found):
        swt.capture(getattr(one, name), batch()[0])
    assert one.kept() == Sometimes().kept()
    if name == "by_flag":
        one.by_flag(batch()[0])
        torch.testing.assert_close(swt.capture(one.by_flag, batch()[0]).run(batch()[0], devices=1), one.by_flag(batch()[0]))


def test_a_capture_that_fails_leaves_the_same_objects():
    held = {"w": torch.zeros(6)}
    before = held["w"]

    def step(x):
        held["w"] = held["w"] + x[0]
        return x if held["w"].sum() > 0 else x * 2

    def counts(x, number=[0]):
        held["w"], number[0] = held["w"] + x[0], number[0] + 1
        return x * number[0]

    for one in (step, counts):
        with pytest.raises(sw.Unsupported):
            swt.capture(one, batch()[0])
        assert held["w"] is before


def test_what_a_run_could_not_keep_is_refused():
    flat = torch.zeros(10)
    parts = [flat[:5], flat[5:]]
    with pytest.raises(
        sw.Unsupported, match=f"{HERE}found a change of '(flat|parts.0)', a tensor that the step holds"
    ):
        swt.capture(lambda x: (parts[0].add_(x.sum()), flat.sum()), batch()[0])
    with pytest.raises(sw.Unsupported, match="found a change of 'flat', a tensor that the step holds"):
        swt.capture(lambda x: flat[:5].add_(x.sum()), batch()[0])
    hidden = iter([torch.zeros(8, 6)])
    with pytest.raises(sw.Unsupported, match="found a change of a tensor that the step holds, needed one of a module"):
        swt.capture(lambda x: next(hidden).add_(x), batch()[0])
    model = mlp()
    held = {"current": model[0].bias}
    with pytest.raises(sw.Unsupported, match="found another tensor in place of 0.bias in one of the places that hold it"):
        swt.capture(lambda x: held.update(current=held["current"] + 1) or model(x), batch()[0])
    p = mlp()
    with pytest.raises(sw.Unsupported, match=r"found .data of torch.float32 \[8, 6\] set to torch.float64 \[8, 6\]"):
        swt.capture(lambda x: setattr(p[0].weight, "data", p[0].weight.data.double()), batch()[0])


SWA = torch.optim.swa_utils


@pytest.mark.parametrize("options", [
    dict(), dict(multi_avg_fn=SWA.get_ema_multi_avg_fn(0.9), use_buffers=True), dict(multi_avg_fn=SWA.get_swa_multi_avg_fn()),
    dict(avg_fn=lambda averaged, new, count: averaged + (new - averaged) / (count + 2)),
], ids=["mean", "ema", "lists", "own"])
def test_averaged_models_go_on_with_each_run(options):
    def extra(model):
        model.insert(1, nn.BatchNorm1d(8))
        averaged = SWA.AveragedModel(model, **options)
        return lambda _: averaged.update_parameters(model), lambda: averaged.state_dict().values()

    learn_alike(lambda: learner(extra))


def test_a_scaler_is_refused():
    model, scaler = mlp(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        scaler.scale((model(x) - y).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    with pytest.raises(sw.Unsupported, match="capture: .*(scaler|the value|a number)"):
        swt.capture(step, *batch())


def test_operations_on_lists_take_a_number_for_all_or_a_tensor_of_them():
    def step(a, b, c):
        numbers = torch.tensor([2.0, 3.0])
        made = torch._foreach_addcdiv([a, b], [b, c], [c, c], numbers) + torch._foreach_addcmul([a, b], [b, c], [c, c], [2.0, 3.0])
        return [*made, *torch._foreach_maximum([a, b], 0.1), *torch._foreach_minimum([a, b], [0.1, 0.2]), *torch._foreach_lerp([a, b], [b, c], 0.3),
                *torch._foreach_pow(2.0, [a, b]), *torch._foreach_sub([a, b], [b, c], alpha=2), *torch._foreach_norm([a, b], float("inf"))]

    given = [one + 0.1 for one in torch.rand(3, 5)]
    torch.testing.assert_close(swt.capture(step, *given).run(*given, devices=1), step(*given))


def test_optimizers_of_single_parameters_step_in_hooks():
    def make():
        model = mlp()
        optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def stepped(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(stepped)

        def step(x, y):
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss.detach()

        return step, lambda: [*model.state_dict().values(), torch.tensor(len(optimizers))]

    learn_alike(make)
