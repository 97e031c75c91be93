"""What a captured step keeps from one call to the next beside modules and optimizers: averages, counts and hidden states in its variables."""

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
    """A step, and a function that gives all that it changes. `extra(model)` gives what the step does at its end, and what that keeps."""
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
    """Runs on one device and on eight are the steps of torch. `calls` of these come first."""
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


@pytest.mark.parametrize("extra", [
    in_a_dict(lambda shadow, name, p: shadow[name].mul_(0.9).add_(p, alpha=0.1)), in_a_dict(lambda shadow, name, p: shadow[name].lerp_(p, 0.1)),
    in_a_dict(lambda shadow, name, p: shadow.update({name: shadow[name] * 0.9 + p * 0.1})), in_an_object, in_a_variable, by_data,
], ids=["in place", "lerp", "new", "object", "variable", "data"])
def test_averages_go_on_with_each_run(extra):
    learn_alike(lambda: learner(extra))


def test_what_a_step_keeps_is_called_as_its_variables():
    program = swt.capture(learner(in_an_object)[0], *batch())
    kinds = {one.label: one.kind for one in program.inputs}
    assert {"averages.steps", "shadow.0", "averages.pair.1"} <= set(kinds) and kinds["averages.steps"] == "parameter"


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


@pytest.mark.parametrize("extra", [in_a_queue(list), in_a_queue(lambda items: collections.deque(items, 3)), in_a_default], ids=["list", "deque", "default"])
def test_queues_and_defaults_go_on_with_each_run(extra):
    learn_alike(lambda: learner(extra))


@pytest.mark.parametrize("own", [nn.Parameter, lambda w: w.requires_grad_()], ids=["parameter", "leaf"])
def test_tensors_that_learn_by_others_in_their_places_learn_on(own):
    def make():
        torch.manual_seed(1)
        held = {"w": own(torch.randn(6, 4)), "b": own(torch.zeros(4))}

        def step(x, y):
            loss = (x @ held["w"] + held["b"] - y).square().mean()
            for (name, one), gradient in zip(list(held.items()), torch.autograd.grad(loss, list(held.values()))):
                held[name] = own((one - 0.1 * gradient).detach())
            return loss.detach()

        def kept():
            assert all(one.requires_grad and type(one) is type(own(torch.ones(1))) for one in held.values())
            return [one.detach() for one in held.values()]

        return step, kept

    learn_alike(make)


def test_what_is_put_in_place_of_a_tensor_changes_no_other_name_of_it():
    """As of the weight that spectral_norm computes, which begins as another name of the parameter's memory."""

    def make():
        torch.manual_seed(1)
        model, zeros = torch.nn.utils.spectral_norm(nn.Linear(6, 4)), torch.zeros(4)
        held = {"hidden": zeros}

        def step(x, y):
            held["hidden"] = held["hidden"] + model(x).mean(0).detach()
            return held["hidden"] + zeros

        return step, lambda: [*model.state_dict().values(), model.weight.detach(), held["hidden"], zeros]

    learn_alike(make)


def test_tensors_of_no_module_may_learn():
    def make():
        torch.manual_seed(1)
        w, b = torch.randn(6, 4, requires_grad=True), [torch.zeros(4, requires_grad=True)]

        def step(x, y):
            loss = (x @ w + b[0] - y).square().mean()
            loss.backward()
            with torch.no_grad():
                for one in (w, b[0]):
                    one -= 0.1 * one.grad
                    one.grad = None
            return loss.detach()

        return step, lambda: [w.detach(), b[0].detach()]

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


def test_state_that_the_first_step_makes_is_refused_and_then_there():
    with pytest.raises(sw.Unsupported, match=r"found state that the first step makes \(hidden\), needed a step that has been made"):
        swt.capture(Recurrent().step, *batch())

    def make():
        one = Recurrent()
        return one.step, lambda: [one.hidden] if one.hidden is not None else []

    learn_alike(make, calls=1)


def test_what_no_later_step_reads_is_left_as_it_was():
    """A count, a log, and a value that is made once are no state."""
    one = Recurrent()
    program = swt.capture(lambda x, y: (setattr(one, "hidden", None), one.step(x, y))[1], *batch())
    assert (one.hidden, one.mask, one.seen, one.last, one.log) == (None, None, 0, 0.0, [])
    torch.testing.assert_close(program.run(*batch(), devices=1), Recurrent().step(*batch()))


def test_numbers_that_a_step_counts_and_computes_with_are_refused():
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
        with pytest.raises(sw.Unsupported, match=f"found that the step changes the number '{name}', which is part of the program, needed a tensor"):
            swt.capture(step, batch()[0])
    assert (count, mean, own["number"]) == (0, 0.0, 1)


class Sometimes:
    """Each call is another step than the one before."""

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


@pytest.mark.parametrize("name, found", [
    ("by_flag", "the step changes 'first' to False, by which it is another step, needed one that is the same each time"),
    ("by_name", "the step changes 'phase' to 'b'"), ("by_none", "the step changes 'pending' to 'y'"), ("by_values", "the value of a tensor"),
])
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
    with pytest.raises(sw.Unsupported, match=r"found a change of parts\.0, which shares its memory with flat, needed one that has its own"):
        swt.capture(lambda x: (parts[0].add_(x.sum()), flat.sum()), batch()[0])
    sizes = {"x": torch.zeros(2)}
    with pytest.raises(sw.Unsupported, match=r"found 'sizes\.x', which the step takes and puts another Tensor in place of, needed tensors of the same shapes"):
        swt.capture(lambda x: sizes.update(x=torch.cat([sizes["x"], x[0]])), batch()[0])
    assert sizes["x"].shape == (2,)
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


def scaled(first, optimizers_of):
    """A step that keeps to finite gradients. Its scale grows each second step, and begins with `first`."""

    def make():
        model = mlp()
        optimizers, scaler = optimizers_of(model), torch.amp.GradScaler("cpu", init_scale=first, backoff_factor=2.0**-20, growth_interval=2)

        def step(x, y):
            with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                loss = 8 * (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizers[0])
            nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            return loss.detach(), scaler.get_scale()

        def kept():
            states = [value for optimizer in optimizers for state in optimizer.state_dict()["state"].values() for value in state.values() if value is not None]
            return [*model.state_dict().values(), *states, *(torch.tensor(value) for value in scaler.state_dict().values())]

        return step, kept

    return make


def test_operations_on_lists_take_a_number_for_all_or_a_tensor_of_them():
    def step(a, b, c):
        numbers = torch.tensor([2.0, 3.0])
        made = torch._foreach_addcdiv([a, b], [b, c], [c, c], numbers) + torch._foreach_addcmul([a, b], [b, c], [c, c], [2.0, 3.0])
        return [*made, *torch._foreach_maximum([a, b], 0.1), *torch._foreach_minimum([a, b], [0.1, 0.2]), *torch._foreach_lerp([a, b], [b, c], 0.3),
                *torch._foreach_pow(2.0, [a, b]), *torch._foreach_sub([a, b], [b, c], alpha=2), *torch._foreach_norm([a, b], float("inf"))]

    given = [one + 0.1 for one in torch.rand(3, 5)]
    torch.testing.assert_close(swt.capture(step, *given).run(*given, devices=1), step(*given))


@pytest.mark.parametrize("first", [2.0**10, 2.0**126], ids=["small", "infinite at first"])
def test_a_scaler_leaves_out_steps_with_infinite_gradients(first):
    learn_alike(scaled(first, lambda model: [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]))


def test_each_optimizer_of_a_scaler_has_its_own_check():
    learn_alike(scaled(2.0**20, lambda model: [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[3].parameters(), lr=0.1)]))


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
