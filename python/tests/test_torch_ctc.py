"""The loss of connectionist temporal classification in captured steps, and checks that such models begin with."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F

import shardwise as sw
import shardwise.torch as swt

TIMES, COUNT, CLASSES, LABELS = 9, 8, 4, 4


def example(blank, seed):
    """Returns labels that repeat, targets of no length, and targets too long for their inputs."""
    generator = torch.Generator().manual_seed(seed)
    targets = (blank + torch.randint(1, 3, (COUNT, LABELS), generator=generator)) % CLASSES
    lengths, target_lengths = (torch.randint(low, high, (COUNT,), generator=generator) for low, high in ((0, TIMES + 1), (0, LABELS + 1)))
    lengths[0], target_lengths[:2], target_lengths[2] = TIMES, torch.tensor([LABELS, 0]), LABELS
    return torch.randn(TIMES, COUNT, CLASSES, generator=generator), targets, lengths, target_lengths


def loss_of(form, **options):
    def step(x, targets, lengths, target_lengths):
        x = x.detach().requires_grad_()
        if form == "selected":  # as transformers have it
            mask = torch.arange(LABELS) < target_lengths[:, None]
            targets = torch.where(mask, targets, -100)
            targets = targets.masked_select(targets >= 0)
        loss = F.ctc_loss((x * 2).log_softmax(-1), targets, lengths, target_lengths, **options)
        return loss, torch.autograd.grad(loss.sum(), x)[0]

    return step


@pytest.mark.parametrize("form, blank, reduction, zero_infinity", [("padded", 0, "mean", True), ("padded", 3, "none", False), ("flat", 1, "sum", True),
                                                                  ("selected", 0, "mean", True)])
def test_the_loss_and_its_gradient_are_those_of_torch(form, blank, reduction, zero_infinity):
    x, targets, lengths, target_lengths = example(blank, seed=5)
    if form == "flat":
        targets = torch.cat([row[:n] for row, n in zip(targets, target_lengths)])
    given = x, targets, lengths, target_lengths
    step = loss_of(form, blank=blank, reduction=reduction, zero_infinity=zero_infinity)
    program, expected = swt.capture(step, *given), step(*given)
    torch.testing.assert_close(program.run(*given, devices=1), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    targets_mark = "data" if form == "flat" else "data,-"
    program.mark({"x": "-,data,-", "targets": "-" if form == "flat" else targets_mark, "*lengths": "data"})
    torch.testing.assert_close(program.run(*given, mesh="data=8"), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_loss_is_a_loop_over_time():
    step = loss_of("padded")
    lines = [swt.capture(step, torch.zeros(times, 2, 4), torch.ones(2, 3, dtype=torch.int64), torch.tensor([4, 3]), torch.tensor([3, 1])).text.count("\n")
             for times in (5, 50)]
    assert lines[0] == lines[1]


def test_nothing_else_may_be_done_with_as_many_elements_as_values_say():
    for step in (lambda x: x.masked_select(x > 0) * 2, lambda x: x * x.masked_select(x > 0).numel(), lambda x: x.masked_select(x > 0)):
        with pytest.raises(sw.Unsupported, match="^capture: .*(a shape that depends on values|what no program has)"):
            swt.capture(step, torch.randn(3))


def checked(x):
    if x.max() > 3:
        raise ValueError("large")
    if not (x > -9).all():
        raise ValueError("small")
    assert torch.isfinite(x).all()
    assert not x.isnan().any().item(), "no numbers"
    torch._check_tensor_all(x.sum() > 0)
    return x * 2


def test_checks_pass_if_they_are_assumed_to_and_a_plan_lists_them():
    first = checked.__code__.co_firstlineno
    said = [f"test_torch_ctc.py:{first + line}" for line in (1, 3, 5, 6, 7)]
    program = swt.capture(checked, torch.ones(3), assume=said)
    assert torch.equal(program.run(torch.full((3,), 4.0), devices=1), torch.full((3,), 8.0))
    page = program.plan("d=1").report()
    assert (
        page.count("test_torch_ctc.py:") == 5
        and f"{__file__}:{first + 1} (if x.max() > 3:)" in page.partition("assumed to pass:")[2]
    )
    by_text = ["test_torch_ctc.py:x.max() > 3", "test_torch_ctc.py:(x > -9).all()", *said[2:]]
    assert swt.capture(checked, torch.ones(3), assume=by_text).text == program.text
    for number, place in enumerate(said):
        with pytest.raises(
            sw.Unsupported,
            match=rf"^capture: .*{place} \(.*found the value of a tensor, .*assume=\[\"{place}\"\]$",
        ):
            swt.capture(checked, torch.ones(3), assume=said[:number] + said[number + 1:])
    with pytest.raises(sw.InvalidArgument, match=r"assume: found \['model.py'\], needed a file and a line"):
        swt.capture(checked, torch.ones(3), assume=["model.py"])


def test_a_check_that_is_caught_or_that_does_more_is_the_users_to_assume():
    def step(x):
        try:
            if x.max() > 3:
                raise ValueError("large")
        except ValueError:
            return x * 2
        if not torch.isfinite(x).all():
            x = torch.clamp(x, min=-1, max=1)
        return x

    with pytest.raises(sw.Unsupported, match=r"^capture: .*test_torch_ctc.py:\d+ \(if x.max"):
        swt.capture(step, torch.ones(3))
    program = swt.capture(
        step, torch.ones(3), assume=["test_torch_ctc.py:if x.max() > 3:", "test_torch_ctc.py:isfinite(x)"]
    )
    assert torch.equal(program.run(torch.full((3,), 2.0), devices=1), torch.full((3,), 2.0))


def test_checks_of_torch_itself_are_assumed_by_its_lines_or_by_the_steps():
    def step(x):
        return x + torch.distributions.Normal(x, x.exp(), validate_args=True).log_prob(x)

    with pytest.raises(sw.Unsupported, match="found the value of a tensor"):
        swt.capture(step, torch.ones(3))
    for said in (
        ["distribution.py:bool(torch._is_all_true(valid))"],
        ["test_torch_ctc.py:torch.distributions.Normal"],
    ):
        torch.testing.assert_close(
            swt.capture(step, torch.ones(3), assume=said).run(torch.ones(3), devices=1), step(torch.ones(3))
        )


def test_state_that_the_step_makes_larger_is_refused():
    class Grows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(1))

        def forward(self, x):
            if len(self.table) < len(x):
                self.table = torch.arange(float(len(x)))
            return x + self.table[:len(x), None]

    model = Grows()

    def step(x):
        return model(x)

    with pytest.raises(sw.Unsupported, match=r"^capture: table: found that the step makes it \[3\], it is \[1\], needed"):
        swt.capture(step, torch.ones(3, 2))
    step(torch.ones(3, 2))
    swt.capture(step, torch.ones(3, 2))


def test_what_depends_on_values_is_refused():
    def branch(x):
        if x.max() > 3:
            return x
        return x * 2

    def part(x):
        if bool(x.max() > 3) == bool(x.min() > 3):
            raise ValueError("both")
        return x

    for step in (branch, part):
        with pytest.raises(sw.Unsupported, match=r"^capture: .*test_torch_ctc.py:\d+ \(if .*found the value of a tensor"):
            swt.capture(step, torch.ones(3))
