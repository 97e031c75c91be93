"""Random numbers of torch in programs: the program makes them from a key that each run draws from torch's generator."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import shardwise as sw
import shardwise.torch as swt
from test_torch_programs import MESHES, adamw, marked, step_with

ONES = torch.ones(200, 100)


def drawn(function, *operands, seed=1, **run):
    program = swt.capture(function, *(operands or (ONES,)))
    torch.manual_seed(seed)
    return program.run(*(operands or (ONES,)), **(run or {"devices": 1}))


def test_dropout_keeps_its_share_and_scales_it():
    for p in (0.1, 0.3, 0.9):
        found = drawn(lambda x: F.dropout(x, p))
        kept = found != 0
        share, spread = kept.float().mean().item(), math.sqrt(p * (1 - p) / ONES.numel())
        assert abs(share - (1 - p)) < 5 * spread
        torch.testing.assert_close(found[kept], torch.full((int(kept.sum()),), 1 / (1 - p)))
        rows = kept.float().mean(1)  # no row or column is the same as others
        assert rows.std() > 0.5 * math.sqrt(p * (1 - p) / 100) and kept.float().mean(0).std() > 0.5 * math.sqrt(p * (1 - p) / 200)


def test_the_gradient_has_the_mask_of_the_value():
    def step(x):
        x = x.detach().requires_grad_()
        y = F.dropout(x * 3, 0.4)
        return y, torch.autograd.grad(y.sum(), x)[0]

    value, gradient = drawn(step)
    torch.testing.assert_close(value, gradient)
    assert 0 < (value == 0).sum() < value.numel()


def test_what_is_computed_again_has_the_same_mask():
    def step(x):
        x = x.detach().requires_grad_()
        y = checkpoint(lambda a: F.dropout(F.dropout(a * 3, 0.4), 0.3), x, use_reentrant=False)
        z = F.dropout(y, 0.2)
        return z, torch.autograd.grad(z.sum(), x)[0]

    value, gradient = drawn(step)
    torch.testing.assert_close(value, gradient)
    assert abs((value != 0).float().mean().item() - 0.6 * 0.7 * 0.8) < 0.02


def test_each_draw_step_and_seed_has_numbers_of_its_own():
    program = swt.capture(lambda x: (torch.rand_like(x), torch.rand_like(x)), ONES)
    assert len({line.split("constant() ")[1] for line in program.text.splitlines() if "constant() " in line and "u64" in line}) == 2
    torch.manual_seed(1)
    runs = [program.run(ONES, devices=1) for _ in range(2)]
    torch.manual_seed(2)
    runs.append(program.run(ONES, devices=1))
    every = torch.stack([draw.flatten() for run in runs for draw in run])
    assert (torch.corrcoef(every) - torch.eye(6)).abs().max() < 0.05
    torch.manual_seed(1)
    for found, expected in zip(program.run(ONES, devices=1), runs[0]):
        assert torch.equal(found, expected)


def test_numbers_are_the_same_on_any_mesh():
    function = lambda x: F.dropout(x, 0.5)  # noqa: E731
    program = swt.capture(function, ONES).mark({"x": "data,model"})
    torch.manual_seed(1)
    assert torch.equal(program.run(ONES, mesh="data=4,model=3"), drawn(function))


def test_the_capture_says_so_and_leaves_torch_s_generator_alone():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    program = swt.capture(model, torch.ones(2, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert [(one.label, one.dtype, one.kind) for one in program.inputs][-1] == ("random_key", "u64", "array")
    assert " = random_bits(" in program.text
    for off in (lambda: model.eval(), lambda: setattr(model.train()[1], "p", 0.0)):
        off()
        program = swt.capture(model, torch.ones(2, 6))
        assert "random" not in program.text
        torch.manual_seed(3)
        program.run(torch.ones(2, 6), devices=1)
        assert torch.equal(torch.get_rng_state(), before)
    assert drawn(lambda x: F.dropout(x, 1.0)).sum() == 0


def test_a_file_takes_the_key_by_its_label(tmp_path):
    swt.capture(lambda x: F.dropout(x, 0.5), ONES).save(tmp_path / "step.swp")
    loaded = sw.programs.load(tmp_path / "step.swp")
    found = [loaded.run({"x": ONES.numpy(), "random_key": key}, devices=1)[0] for key in (5, np.uint64(2**63 + 5), 5)]
    assert (found[0] == found[2]).all() and 0.4 < (found[0] == found[1]).mean() < 0.6


class Fed(nn.Module):
    """Drops elements by given masks."""

    def __init__(self, p):
        super().__init__()
        self.p, self.masks = p, []

    def forward(self, x):
        return x * self.masks.pop(0) / (1 - self.p)


def model(dropout):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), dropout(0.3), nn.Linear(16, 16), dropout(0.2), nn.Linear(16, 4))


@pytest.mark.parametrize("kind", MESHES)
def test_a_model_learns_as_in_torch_if_that_is_given_the_masks(kind):
    own, fed = model(nn.Dropout).train(), model(Fed).train()
    masks = []
    for layer in (own[2], own[4]):
        layer.register_forward_hook(lambda module, inputs, output: masks.append((output.detach() != 0).float()))

    def loss_of(of, x, y):
        return (of(x) - y).square().mean()

    step, torch_step = step_with(own, adamw(own), loss_of), step_with(fed, adamw(fed), loss_of)

    def with_masks(x, y):
        masks.clear()
        return step(x, y), list(masks)

    x, y = torch.randn(8, 6), torch.randn(8, 4)
    plan, before = marked(swt.capture(with_masks, x, y), kind).plan(MESHES[kind]), None
    for _ in range(3):
        loss, found = plan.run(x, y)
        assert before is None or not torch.equal(before, found[0])
        before = found[0]
        fed[2].masks, fed[4].masks = [found[0]], [found[1]]
        torch.testing.assert_close(loss, torch_step(x, y), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.state_dict(), fed.state_dict(), rtol=1e-4, atol=2e-6)


# Each function, with the mean, deviation and bounds of its numbers.
CASES = {
    "rand": (torch.rand_like, 0.5, 12**-0.5, 0, 1), "rand of a shape": (lambda x: torch.rand(200, 100) * x, 0.5, 12**-0.5, 0, 1),
    "rand in f64": (lambda x: torch.rand_like(x, dtype=torch.float64), 0.5, 12**-0.5, 0, 1),
    "rand in bf16": (lambda x: torch.rand_like(x, dtype=torch.bfloat16), 0.5, 12**-0.5, 0, 1),
    "uniform": (lambda x: torch.empty_like(x).uniform_(2, 5), 3.5, 3 * 12**-0.5, 2, 5),
    "randn": (torch.randn_like, 0, 1, -6, 6), "randn in f64": (lambda x: torch.randn(200, 100, dtype=torch.float64) + x * 0, 0, 1, -7, 7),
    "normal in place": (lambda x: torch.empty_like(x).normal_(3, 2), 3, 2, -9, 15),
    "normal of tensors": (lambda x: torch.normal(x * 3, x * 2), 3, 2, -9, 15),
    "normal of numbers": (lambda x: torch.normal(3.0, 2.0, (200, 100)) + x * 0, 3, 2, -9, 15),
    "exponential": (lambda x: torch.empty_like(x).exponential_(0.5), 2, 2, 0, 40),
    "randint": (lambda x: torch.randint(3, 9, (200, 100)) + x * 0, 5.5, (35 / 12) ** 0.5, 3, 9),
    "randint like": (lambda x: torch.randint_like(x, 6), 2.5, (35 / 12) ** 0.5, 0, 6),
    "randint like between": (lambda x: torch.randint_like(x, -2, 4), 0.5, (35 / 12) ** 0.5, -2, 4),
    "bernoulli": (lambda x: torch.bernoulli(x * 0.3), 0.3, 0.21**0.5, 0, 2), "bernoulli of a number": (lambda x: torch.bernoulli(x, 0.3), 0.3, 0.21**0.5, 0, 2),
    "feature dropout": (lambda x: F.dropout1d(x.reshape(1000, 20, 1), 0.5).reshape(200, 100), 1, 1, 0, 3),
    "alpha dropout": (lambda x: F.alpha_dropout(torch.randn_like(x), 0.4, True), 0, 1, -6, 9),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_of_their_distribution(name):
    function, mean, deviation, least, most = CASES[name]
    found = drawn(function)
    expected = function(ONES)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    found = found.double()
    assert abs(found.mean().item() - mean) < 5 * deviation / math.sqrt(found.numel()) and abs(found.std().item() / deviation - 1) < 0.05
    assert least <= found.min() and found.max() < most
    if name in ("rand", "randn", "exponential"):
        torch.testing.assert_close(found.flatten().sort().values, expected.double().flatten().sort().values, rtol=0.2, atol=0.05)


def test_attention_has_dropout():
    q = torch.randn(1, 2, 8, 4)
    attention = lambda q, v: F.scaled_dot_product_attention(q, q, v, dropout_p=0.5)  # noqa: E731
    weights = drawn(attention, q, torch.eye(8).expand(1, 2, 8, 8))
    whole = F.scaled_dot_product_attention(q, q, torch.eye(8).expand(1, 2, 8, 8))
    kept = weights != 0
    assert 20 < kept.sum() < 108
    torch.testing.assert_close(weights[kept], 2 * whole[kept])


def test_what_is_not_drawn_is_refused_by_its_name():
    own = torch.Generator()
    with pytest.raises(sw.Unsupported, match=r"aten\.multinomial\.default \(at the step\)"):
        swt.capture(lambda x: torch.multinomial(x, 3), ONES)
    with pytest.raises(sw.Unsupported, match="found another generator, needed torch's default generator"):
        swt.capture(lambda x: torch.rand(3, generator=own) + x[0, 0], ONES)


def test_a_model_of_hugging_face_has_its_dropout():
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    config = transformers.GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2, use_cache=False)
    of = transformers.GPT2LMHeadModel(config).train()
    tokens = torch.randint(1, 48, (8, 8))
    step = step_with(of, adamw(of), lambda own, x: own(input_ids=x, labels=x).loss)
    program = swt.capture(step, tokens)
    # Dropout draws for embeddings; for attention, its projection and the mlp of each layer; and for the gradient of attention.
    assert program.text.count(" = random_bits(") == 1 + 2 * (3 + 1)
    torch.manual_seed(1)
    losses = [program.run(tokens, devices=1).item() for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1
