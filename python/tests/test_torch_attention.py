"""Attention in captured steps of torch: scores live while they are computed with, in the forward pass and again for the gradient."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F
from torch import nn
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as by_another_name
from torch.utils.checkpoint import checkpoint

import shardwise.torch as swt
from shardwise._capture.torch.fused_attention import FusedAttention
from test_torch_programs import MESHES, adamw, marked, step_with

BATCH, WIDTH, HEADS, CLASSES = 2, 32, 4, 24
FLOAT = 4  # bytes


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout).transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers, dropout=0.0, again=None):
        super().__init__()
        torch.manual_seed(1)
        self.again = again
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(layers))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x) if self.again is None else checkpoint(layer, x, use_reentrant=self.again == "reentrant")
        return self.head(x)


def step_of(model):
    return step_with(model, adamw(model), lambda model, ids: F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def ids_of(length):
    return torch.randint(0, CLASSES, (BATCH, length), generator=torch.Generator().manual_seed(3))


def captured(layers, length, dropout=0.0, again=None):
    return swt.capture(step_of(GPT(layers, dropout, again)), ids_of(length))


def growth(length, dropout=0.0):
    """Returns the bytes at the peak for one layer more, by kind."""
    one, two = (captured(layers, length, dropout).plan("data=1").bytes_by_kind for layers in (1, 2))
    return {kind: two[kind] - one[kind] for kind in two if kind != "gaps"}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_layer_keeps_nothing_of_the_length_squared(dropout):
    length = 256
    found = growth(length, dropout)
    # Kept are q, k, v and the result; inputs and outputs of the MLP's two products; the centred and the normalized input of
    # each norm, and two numbers for each of its rows.
    kept = BATCH * length * (WIDTH * (4 + 8 + 4) + 4) * FLOAT
    assert (found["activation"], found["gradient"]) == (kept, 0)
    assert kept < BATCH * HEADS * length * length * FLOAT  # the bytes of the scores
    assert growth(2 * length, dropout)["activation"] == 2 * kept


def test_scores_of_one_layer_are_there_at_a_time():
    """Scores and their gradient are two tensors. A kernel has none."""
    length = 256
    program = captured(2, length)
    largest = program.plan("data=1", attention="written").to_json()["memory"]["largest"]
    scores = BATCH * HEADS * length * length * FLOAT
    assert [one["bytes"] for one in largest[:3]] == [scores, scores, largest[2]["bytes"]] and largest[2]["bytes"] < scores
    assert all(one["bytes"] < scores for one in program.plan("data=1").to_json()["memory"]["largest"])


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_values_are_those_of_scores_that_are_kept_bit_for_bit(monkeypatch, dropout):
    found = []
    for keeps in (False, True):
        if keeps:
            monkeypatch.setattr(FusedAttention, "traced", lambda fused: sdpa_kernel(list(fused.TRACED)))
        model, ids = GPT(2, dropout), ids_of(16)
        program = swt.capture(step_of(model), ids)
        torch.manual_seed(4)
        losses = [program.run(ids, devices=1) for _ in range(3)]
        found.append((len(program), torch.stack(losses), model.state_dict()))
    (length, *values), (shorter, *expected) = found
    assert length > shorter
    torch.testing.assert_close(values, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "again"), [("one", None), ("fsdp", None), ("tensor", None), ("data", "reentrant"), ("tensor", "not reentrant")])
def test_a_step_is_that_of_torch(kind, again):
    models, ids = (GPT(2, again=again), GPT(2)), ids_of(8)
    found, expected = (step_of(model) for model in models)
    plan = marked(swt.capture(found, ids), kind).plan(MESHES[kind])
    for _ in range(3):
        torch.testing.assert_close(plan.run(ids), expected(ids), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=2e-6)


def test_a_checkpoint_around_attention_keeps_no_more():
    peaks = {again: captured(2, 64, 0.1, again).plan("data=1").peak_bytes for again in (None, "reentrant", "not reentrant")}
    assert peaks["reentrant"] == peaks["not reentrant"] < peaks[None]


def test_attention_may_be_called_by_names_and_without_a_gradient():
    q = torch.randn(1, 2, 8, 4)
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    program = swt.capture(lambda q, mask: F.scaled_dot_product_attention(query=q, key=q, value=q, attn_mask=mask), q, mask)
    torch.testing.assert_close(program.run(q, mask, devices=1), F.scaled_dot_product_attention(q, q, q, mask))

    def step(q, mask):
        leaf = q.detach().requires_grad_()
        F.scaled_dot_product_attention(query=leaf, key=leaf, value=leaf, attn_mask=mask).square().sum().backward()
        return leaf.grad

    torch.testing.assert_close(swt.capture(step, q, mask).run(q, mask, devices=1), step(q, mask))
    with torch.no_grad():
        assert swt.capture(nn.MultiheadAttention(8, 2), q.reshape(4, 2, 8), q.reshape(4, 2, 8), q.reshape(4, 2, 8)).text.count("exp(") == 1
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_attention_by_another_name_of_a_module_computes_its_scores_again():
    def step(q):
        leaf = q.detach().requires_grad_()
        made = by_another_name(leaf, leaf, leaf)
        return made, torch.autograd.grad(made.sum(), leaf)

    assert swt.capture(step, torch.randn(1, 2, 8, 4)).text.count("exp(") == 2
    assert by_another_name is torch._C._nn.scaled_dot_product_attention
