"""shardwise.torch.pipeline: values, gradients and losses of the layers one after the other, in torch and in programs."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn
from torch.nn import functional as F

import shardwise as sw
import shardwise.torch as swt

LAYERS, ROWS, WIDTH = 4, 24, 4


def whole(*shape, seed=1):
    """Returns whole numbers as floats, which any order of sums adds alike."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def clamped(h, layer):
    return torch.clamp(h @ layer["w"] + layer["b"] + h, -3, 3)


def clamped_params(layers=LAYERS, width=WIDTH):
    return {"w": whole(layers, width, width), "b": whole(layers, width, seed=2)}


class Layers(nn.Module):
    """Stacked layers, one after the other, or as a pipeline if it has stages."""

    def __init__(self, block, params, stages=0, micro_batches=0):
        super().__init__()
        self.params = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in params.items()})
        self.block, self.stages, self.micro_batches = block, stages, micro_batches

    def forward(self, x):
        params = dict(self.params.items())
        if self.stages:
            return swt.pipeline(self.block, params, x, stages=self.stages, micro_batches=self.micro_batches)
        for number in range(len(next(iter(params.values())))):
            x = self.block(x, {name: value[number] for name, value in params.items()})
        return x


def step_of(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x, weights):
        loss = (model(x) * weights).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def captured(model, x, weights, mesh):
    program = swt.capture(step_of(model), x, weights)
    cut = {i.label: ",".join(["stage" if i.kind == "parameter" else "data", *["-"] * (len(i.shape) - 1)]) for i in program.inputs
           if i.kind == "parameter" and "stage" in mesh or i.kind == "loader" and "data" in mesh}
    return program.mark(cut)


def agree(block, params, stages, micro_batches, meshes, x, weights, close=None):
    """The losses of two steps and the weights are those of the layers one after the other."""
    def trained(model, run):
        return [run(x, weights).detach() for _ in range(2)], [p.detach().clone() for p in model.parameters()]

    def same(ours, theirs):
        torch.testing.assert_close(ours, theirs, **(close or {"rtol": 0, "atol": 0}))

    plain = Layers(block, params)
    expected = trained(plain, step_of(plain))
    piped = Layers(block, params, stages, micro_batches)
    same(trained(piped, step_of(piped)), expected)
    for mesh in meshes:
        model = Layers(block, params, stages, micro_batches)
        same(trained(model, captured(model, x, weights, mesh).plan(mesh).run), expected)


@pytest.mark.parametrize("stages, micro_batches, layers, meshes", [
    (1, 1, 4, ["stage=1"]), (1, 6, 2, ["data=2,stage=1"]), (4, 6, 4, ["stage=4", "stage=3", "data=2,stage=4"]),
    (2, 3, 4, ["stage=2", "stage=4"]), (2, 2, 6, ["data=4,stage=2"]), (4, 12, 8, ["stage=4,data=2"])])
def test_values_and_gradients_are_those_of_the_layers(stages, micro_batches, layers, meshes):
    agree(clamped, clamped_params(layers), stages, micro_batches, meshes, whole(ROWS, WIDTH, seed=3), whole(ROWS, WIDTH, seed=4))


def test_the_gradient_of_x_and_trees():
    def block(x, layer):
        h = clamped(x["h"], {"w": layer[0], "b": layer[1]})
        return {"h": h, "all": [x["all"][0] + h]}

    params = list(clamped_params().values())
    made = []
    for is_piped in (False, True):
        x = whole(ROWS, WIDTH).requires_grad_()
        tree = {"h": x, "all": [torch.zeros(ROWS, WIDTH)]}
        if is_piped:
            tree = swt.pipeline(block, params, tree, stages=2, micro_batches=4)
        else:
            for number in range(LAYERS):
                tree = block(tree, [one[number] for one in params])
        (gradient,) = torch.autograd.grad((tree["all"][0] * whole(ROWS, WIDTH, seed=5)).sum(), x)
        made.append([tree["h"], tree["all"][0], gradient])
    assert all(torch.equal(ours, theirs) and theirs.any() for theirs, ours in zip(*made))


def test_bubbles_add_nothing_to_the_gradients_of_a_block_that_divides():
    def block(h, layer):
        return (h / h.norm(dim=-1, keepdim=True)) @ layer["w"] + layer["b"]

    torch.manual_seed(3)
    params = {"w": torch.randn(4, 4, 4), "b": torch.randn(4, 4)}
    agree(block, params, 4, 6, ["stage=4"], whole(ROWS, WIDTH) + 0.5, torch.randn(ROWS, WIDTH), {"rtol": 1e-4, "atol": 1e-5})


# ---- A transformer.

HEADS, CONTEXT = 2, 8


def attends(h, p):
    """A block of a transformer, for rows [rows, positions, width]."""
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (F.layer_norm(h, h.shape[-1:], p["ln1"]) @ p["qkv"]).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    h = h + mixed @ p["out"]
    return h + F.gelu(F.layer_norm(h, h.shape[-1:], p["ln2"]) @ p["up"]) @ p["down"]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap has no rule for attention on a CPU
def test_a_transformer_trains_as_in_torch():
    torch.manual_seed(5)
    shapes = {"ln1": (8,), "qkv": (8, 24), "out": (8, 8), "ln2": (8,), "up": (8, 32), "down": (32, 8)}
    params = {name: torch.randn(4, *shape) * 0.3 for name, shape in shapes.items()}
    x, weights = torch.randn(8, CONTEXT, 8), torch.randn(8, CONTEXT, 8) / 64
    agree(attends, params, 4, 4, ["stage=4", "data=2,stage=4"], x, weights, {"rtol": 1e-4, "atol": 1e-5})


# ---- Plans.


@pytest.mark.parametrize("stages, micro_batches", [(4, 6), (4, 12), (2, 4)])
def test_each_trip_sends_the_rows_of_a_micro_batch_over_each_border(stages, micro_batches):
    x, weights = whole(ROWS, WIDTH), whole(ROWS, WIDTH, seed=2)
    # The first trip shifts copies of rows that all stages have, so it sends nothing.
    shifted, part = (micro_batches + stages - 2) * (ROWS // micro_batches) * 4 * WIDTH, ROWS // stages * 4 * WIDTH
    for mesh, replicas in ((f"stage={stages}", 1), (f"data=2,stage={stages}", 2)):
        model = Layers(clamped, clamped_params(), stages, micro_batches)
        # The result goes from the last stage to the others once, in parts.
        plan = captured(model, x, weights, mesh).plan(mesh)
        assert plan.wire_bytes["collective-permute", "stage"] == (2 * shifted + part) // replicas
        assert {axes for collective, axes in plan.wire_bytes if collective != "all-reduce"} == {"stage"}


def test_a_pipeline_needs_less_memory_than_the_layers_one_after_the_other():
    x, weights = whole(64, 128), whole(64, 128, seed=2)
    for mesh in ("stage=4", "data=2,stage=4"):
        plain, piped = (captured(Layers(clamped, clamped_params(8, 128), *sizes), x, weights, mesh).plan(mesh)
                        for sizes in ((), (4, 8)))
        assert piped.peak_bytes < 0.9 * plain.peak_bytes


# ---- Bad input.


@pytest.mark.parametrize("changed, told", [
    ({"stages": 3}, "found 3 stages for 4 layers, needed a number that divides them"),
    ({"stages": 4, "micro_batches": 5}, "found 5 micro-batches of a batch of 24, needed a number that divides it"),
    ({"stages": 4, "micro_batches": 3}, "found 3 micro-batches for 4 stages, needed as many or more"),
    ({"params": {}}, "found no tensor in params, needed one or more"),
    ({"params": {"w": torch.zeros(4, 4, 4), "b": torch.zeros(3, 4)}},
     "found params['b'] of shape [3, 4], needed 4 along dim 0, as params['w'] has"),
    ({"x": torch.tensor(1.0)}, "found x of shape [], needed a dim to go along"),
    ({"x": "tokens"}, "found x of str, needed a tensor"),
    ({"block": lambda h, layer: h @ layer["w"][:, :3]}, "found a block that gives x as float32[6, 3], needed float32[6, 4] as it gets it"),
    ({"block": lambda h, layer: h.bfloat16()}, "found a block that gives x as bfloat16[6, 4], needed float32[6, 4] as it gets it"),
    ({"block": lambda h, layer: (h, h)}, "found a block that gives x[0], x[1], needed x as it gets it")])
def test_bad_input_is_one_clear_error(changed, told):
    given = {"block": clamped, "params": clamped_params(), "x": whole(ROWS, WIDTH), "stages": 2, "micro_batches": 4} | changed
    with pytest.raises(sw.InvalidArgument) as raised:
        swt.pipeline(given.pop("block"), given.pop("params"), given.pop("x"), **given)
    assert str(raised.value) == f"pipeline: {told}"
