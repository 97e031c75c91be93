"""torch.compile(.., backend="shardwise"): compiled functions run as programs on emulated devices."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn

import shardwise.torch.spmd as spmd
from shardwise._capture.torch import backend as _backend

OPTIONS = {"mesh": "data=4,model=2", "marks": {"*0.weight": "model,-", "*2.weight": "-,model", "x": "data,-", "y": "data"}}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step_of(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def test_a_compiled_step_learns_as_the_step():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = copy.deepcopy(plain)
    compiled, expected = torch.compile(step_of(model), backend="shardwise", options=OPTIONS, dynamic=False), step_of(plain)
    for _ in range(4):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        torch.testing.assert_close(compiled(x, y), expected(x, y), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=2e-6)


def test_marks_reach_the_graph(monkeypatch):
    plans = []
    plan = _backend.Program.plan
    monkeypatch.setattr(_backend.Program, "plan", lambda self, mesh: plans.append(plan(self, mesh)) or plans[-1])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model_of = torch.compile(lambda x: model(x), backend="shardwise", options=OPTIONS, dynamic=False)
    model_of(torch.randn(8, 4)).sum().backward()
    forward, backward = plans
    marks = {one.label.rpartition(".")[0][-1:] + "." + one.label.rpartition(".")[2]: one.mark for one in forward._program.inputs}
    assert marks["0.weight"] == "model,-" and marks["2.weight"] == "-,model" and marks[".x"] == "data,-" and marks["0.bias"] is None
    assert forward.mesh.shape == {"data": 4, "model": 2} and any(one.mark == "data,-" for one in backward._program.inputs)


def test_what_no_program_has_and_wrong_options():
    for call, options, told in ((torch.special.bessel_j0, None, "found what no program has"), (torch.exp, {"axes": 1}, "needed some of mesh, marks")):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=told):
            torch.compile(call, backend="shardwise", options=options)(torch.ones(4, 4))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="needed dynamic=False"):
        torch.compile(lambda x: x + 1, backend="shardwise", dynamic=True)(torch.ones(4))


def test_tensors_of_the_emulated_device_are_left_to_it():
    x = torch.ones(2, 3).to(spmd.xla_device())
    total = torch.compile(lambda x: (x @ x.t()).relu().sum(), backend="shardwise")(x)
    assert total.device == spmd.xla_device() and total.item() == 12
