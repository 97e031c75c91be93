"""The emulated device of shardwise.torch.spmd: lazy tensors do as torch's own, training loops learn as on the CPU, and are planned once."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn.functional as F
from torch import nn

import shardwise as sw
import shardwise.torch as swt
import shardwise.torch.spmd as spmd

DEVICE = spmd.xla_device()


@pytest.fixture(autouse=True)
def spmd_mode():
    spmd.use_spmd()


def mesh():
    return spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))


def same(found, expected, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=rtol, atol=atol)


def changed(x, change):
    change(x)
    return x


OPERATIONS = {
    "in place": lambda x: changed(x, lambda x: x.add_(1).mul_(x)),
    "in place through views": lambda x: changed(x, lambda x: (x[1:].mul_(2), x.t()[0].add_(1), x.view(-1)[3:5].zero_())),
    "in place through parts": lambda x: changed(x, lambda x: [part.mul_(n) for n, part in enumerate(x.chunk(3, 1))]),
    "set": lambda x: changed(x, lambda x: x.__setitem__((slice(None), 1), 7.0)),
    "set by mask": lambda x: changed(x, lambda x: x.__setitem__(x > 0, -1.0)),
    "by mask": lambda x: x[x > 0],
    "places": lambda x: (x > 0).nonzero(),
    "by index": lambda x: x[torch.tensor([2, 0])] + x[0],
    "sort": lambda x: x.sort(1).values + x.argsort(0),
    "parts": lambda x: torch.cat([part * n for n, part in enumerate(x.unbind(1))]),
    "out": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "made": lambda x: x + torch.arange(6, device=x.device) + torch.ones(6, device=x.device) + torch.full((6,), 3.0, device=x.device)
    + torch.eye(4, 6, device=x.device) + torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device) + torch.linspace(0, 1, 6, device=x.device),
    "made like it": lambda x: x.new_zeros(6) + torch.zeros_like(x) + x.new_tensor([1, 2, 3, 4, 5, 6]) + torch.empty_like(x).fill_(2),
    "numbers": lambda x: torch.full_like(x, x.sum().item()) * len(x.tolist()) if bool((x > -9).all()) else x,
    "other dtypes": lambda x: (x * 10).to(torch.int64).double() + x.bfloat16().float() + (x > 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_that_of_torch(name):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    same(OPERATIONS[name](x.to(DEVICE)), OPERATIONS[name](x.clone()))


def test_views_stay_views_over_steps():
    plain = torch.zeros(4, 4)
    x = plain.to(DEVICE)
    views = [(t[1], t.t()[2], t.split(2)[1]) for t in (x, plain)]
    spmd.mark_step()
    for of in views:
        of[0].add_(1)
        of[1].mul_(3)
        of[2].sub_(2)
    same(x, plain)
    spmd.mark_step()
    x[0], plain[0] = 5, 5
    for found, expected in zip(*views):
        same(found, expected)


def test_what_is_copied_over_is_seen_by_views_and_not_by_what_was_computed_before():
    x = torch.ones(3).to(DEVICE)
    before, view = x + 1, x[1:]
    assert (view * 2).tolist() == [2, 2]
    later, again = x * 5, x[:2]
    x.copy_(torch.tensor([7.0, 8, 9]))
    more = again + 1
    assert [before.tolist(), later.tolist(), view.tolist(), more.tolist()] == [[2, 2, 2], [5, 5, 5], [8, 9], [8, 9]]


def test_random_numbers_are_those_of_torch():
    def drawn(device):
        torch.manual_seed(5)
        x = torch.randn(3, 3, device=device)
        return [x, torch.rand(2, device=device), F.dropout(torch.ones(8, 8, device=device), 0.5), torch.rand_like(x),
                torch.randperm(5, device=device), torch.bernoulli(torch.full((4,), 0.5, device=device)),
                torch.randint(0, 9, (5,), device=device), nn.Linear(3, 2, device=device).weight, x.t().exponential_(),
                changed(torch.ones(4, device=device), lambda x: x.bernoulli_(torch.full((4,), 0.5, device=device))),
                nn.init.xavier_uniform_(torch.empty(3, 2, device=device))]

    for found, expected in zip(drawn(DEVICE), drawn("cpu")):
        same(found, expected)


def test_what_prints_and_is_looked_at_has_run():
    x = torch.ones(2, 2).to(DEVICE)
    assert repr(x + 1) == "tensor([[2., 2.],\n        [2., 2.]], device='lazy:0')" and f"{(x * 3)[0, 0].item():.1f}" == "3.0"
    assert (x + 2).numpy().tolist() == np.asarray(x + 2).tolist() == [[3, 3], [3, 3]] and torch.equal(x, x.clone())
    assert repr(nn.Linear(1, 1).to(DEVICE).weight).endswith("device='lazy:0', requires_grad=True)")


def test_only_what_is_alive_is_given_a_value():
    x = torch.ones(3).to(DEVICE)
    y = x + 1
    z = y * 2
    del y
    spmd.mark_step()
    assert z.tolist() == [4, 4, 4] and spmd.last_plan()._program.text.count("return %") == 1
    before = spmd.last_plan()
    spmd.mark_step()
    assert spmd.last_plan() is before


def test_a_module_goes_there_and_back():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    module = copy.deepcopy(plain).to(DEVICE)
    assert isinstance(module[0].weight, nn.Parameter) and module[0].weight.is_leaf and module[0].weight.device == DEVICE
    spmd.mark_sharding(module[0].weight, mesh(), (None, "model"))
    other = copy.deepcopy(module)
    assert other[0].weight.sharding_spec == module[0].weight.sharding_spec and isinstance(other[0].weight, nn.Parameter)
    other.load_state_dict({name: value.cpu() * 2 for name, value in module.state_dict().items()})
    back = other.cpu()
    assert type(back[0].weight) is nn.Parameter
    for name, value in back.state_dict().items():
        same(value, plain.state_dict()[name] * 2)
    same(module[0].weight, plain[0].weight)


def test_state_is_saved(tmp_path):
    """torch saves it as on the CPU; Shardwise does on any device."""
    module = nn.Linear(4, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 4).to(DEVICE)).sum().backward()
    optimizer.step()
    torch.save({"model": module.state_dict(), "optim": optimizer.state_dict()}, tmp_path / "state.pt")
    torch.save(module, tmp_path / "module.pt")
    other, third, fourth = nn.Linear(4, 3).to(DEVICE), nn.Linear(4, 3), torch.load(tmp_path / "module.pt", weights_only=False)
    found = torch.load(tmp_path / "state.pt")
    other.load_state_dict(found["model"])
    torch.optim.AdamW(other.parameters()).load_state_dict(found["optim"])
    swt.save(tmp_path / "a", {"model": module, "optim": optimizer})
    swt.load(tmp_path / "a", {"model": third, "optim": torch.optim.AdamW(third.parameters())})
    for one in (other, third, fourth):
        torch.testing.assert_close(one.weight.detach().cpu(), module.weight.detach().cpu(), rtol=0, atol=0)
    assert type(fourth.weight) is nn.Parameter and found["model"]["weight"].device.type == "cpu"


def learns(make, inputs, loss_of, optimizer, steps=3, marks=(), after=lambda module: None):
    """Trains as on the CPU: losses and weights are equal. Returns the module on the device."""
    torch.manual_seed(1)
    plain = make()
    module = copy.deepcopy(plain).to(DEVICE)
    after(module)
    for pattern, spec in marks:
        for name, p in module.named_parameters():
            if pattern in name:
                spmd.mark_sharding(p, mesh(), spec)
    both = [(module, optimizer(module.parameters())), (plain, optimizer(plain.parameters()))]
    for step in range(steps):
        batch, losses = inputs(), []
        for one, its in both:
            torch.manual_seed(step)
            on = [x.to(DEVICE) if one is module else x for x in batch]
            if one is module:
                for x in on:
                    spmd.mark_sharding(x, mesh(), ("data", *[None] * (x.dim() - 1)))
            its.zero_grad()
            loss = loss_of(one, *on)
            loss.backward()
            nn.utils.clip_grad_norm_(one.parameters(), 1.0)
            its.step()
            spmd.mark_step()
            losses.append(loss.detach().cpu())
        same(*losses)
    for name, value in plain.state_dict().items():
        same(module.state_dict()[name], value, rtol=1e-4, atol=2e-6)
    return module


def labelled(*shape, classes=3):
    return lambda: (torch.randn(*shape), torch.randint(0, classes, (shape[0],)))


def classes_of(module, x, y):
    return F.cross_entropy(module(x), y)


def sgd(p):
    return torch.optim.SGD(p, lr=0.1, momentum=0.9)


def adamw(p):
    return torch.optim.AdamW(p, lr=1e-3, eps=1e-4)


def test_dropout_learns():
    learns(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)), labelled(8, 4), classes_of, sgd,
           marks=[("0.weight", ("model", None)), ("3.weight", (None, "model"))])


def test_convolutions_and_running_statistics_learn():
    learns(lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                 nn.Linear(64, 3)), labelled(8, 3, 8, 8), classes_of, sgd, marks=[("0.weight", ("model", None, None, None))])


def test_attention_learns():
    learns(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: (torch.randn(8, 5, 8),),
           lambda module, x: module(x).square().mean(), adamw, marks=[("linear1.weight", ("model", None)), ("linear2.weight", (None, "model"))])


def test_recurrent_networks_learn():
    learns(lambda: nn.ModuleList([nn.Embedding(11, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 11)]),
           lambda: (torch.randint(0, 11, (8, 3)),), lambda m, x: F.cross_entropy(m[2](m[1](m[0](x))[0]).flatten(0, 1), x.flatten()), adamw, marks=[("0.weight", ("model", None))])


def hugging_face(name):
    """Returns the model in a tiny size, and its batch."""
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    words = dict(vocab_size=50, max_position_embeddings=32)
    makers = {
        "GPT2LMHeadModel": ("GPT2Config", dict(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)),
        "LlamaForCausalLM": ("LlamaConfig", {**sizes, **words, "num_key_value_heads": 1}),
        "BertForMaskedLM": ("BertConfig", {**sizes, **words}),
        "T5ForConditionalGeneration": ("T5Config", dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50,
                                                        decoder_start_token_id=0)),
        "ViTForImageClassification": ("ViTConfig", {**sizes, "image_size": 16, "patch_size": 4, "num_labels": 3}),
    }
    config, options = makers[name]
    make = lambda: getattr(transformers, name)(getattr(transformers, config)(**options))
    if name.startswith("ViT"):
        return make, lambda: (torch.randn(8, 3, 16, 16), torch.randint(0, 3, (8,)))
    return make, lambda: [torch.randint(1, 50, (8, 12))] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration",
                                  "ViTForImageClassification"])
def test_a_hugging_face_model_learns(name):
    """Weights that modules share are tied again on the device, as PyTorch/XLA needs it."""
    make, batch = hugging_face(name)
    learns(make, batch, lambda model, x, y: model(x, labels=y).loss, adamw, steps=2, after=lambda model: model.tie_weights(),
           marks=[("c_fc.weight", (None, "model")), ("up_proj.weight", ("model", None)), ("intermediate.dense.weight", ("model", None))])


@pytest.mark.parametrize("name", ["Adam", "NAdam", "RMSprop", "Adagrad", "Adamax"])
def test_optimizers_are_those_of_torch(name):
    learns(lambda: nn.Linear(4, 3), labelled(8, 4), classes_of, getattr(torch.optim, name), marks=[("weight", (None, "model"))])


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
def test_optimizers_may_work_on_lists(name):
    learns(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), labelled(8, 4), classes_of,
           lambda p: getattr(torch.optim, name)(p, lr=0.1, foreach=True), marks=[("0.weight", (None, "model"))])


def test_a_value_may_be_looked_at_within_a_step():
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    module, x = copy.deepcopy(plain).to(DEVICE), torch.randn(5, 4)
    for one in (plain, module):
        hidden = one[1](one[0](x.to(one[0].weight.device)))
        assert hidden.sum().item() < 100
        loss = one[2](hidden).square().sum()
        assert float(loss.detach()) > 0
        loss.backward()
    same(module[0].weight.grad, plain[0].weight.grad)


def test_a_gradient_may_be_derived():
    for device in (DEVICE, "cpu"):
        x = torch.arange(4.0, device=device).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.tolist() == [0, 6, 12, 18]


def test_complex_numbers_are_computed_and_marked():
    x, w = torch.randn(8, 4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    on = x.to(DEVICE)
    spmd.mark_sharding(on, mesh(), ("data", None))
    product = on * w.to(DEVICE)
    spmd.mark_step()
    same(product, x * w)
    same(torch.view_as_real(product), torch.view_as_real(x * w))
    assert product.sharding_spec == on.sharding_spec


def test_a_loop_is_planned_for_its_first_steps_alone():
    """The rate falls, and AdamW divides by other numbers each time: they become inputs."""
    module = nn.Linear(4, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    plans = []
    for _ in range(6):
        module(torch.ones(2, 4).to(DEVICE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        spmd.mark_step()
        plans.append(spmd.last_plan())
    assert plans[2] is plans[3] is plans[4] is plans[5] and plans[0] is not plans[1]
    assert any(one.label.startswith("number") for one in plans[5]._program.inputs)


def test_gradients_add_up_and_hooks_are_called():
    plain = nn.Linear(4, 4)
    module = copy.deepcopy(plain).to(DEVICE)
    for one, device in ((module, DEVICE), (plain, "cpu")):
        one.weight.register_hook(lambda gradient: gradient * 2)
        for n in range(3):
            one(torch.full((2, 4), n + 1.0, device=device)).square().sum().backward()
            spmd.mark_step()
        one.bias.data = one.bias.data - 0.1 * one.bias.grad
        one.bias.grad.zero_()
    for found, expected in ((module.weight.grad, plain.weight.grad), (module.bias, plain.bias), (module.bias.grad, plain.bias.grad)):
        same(found, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_that_of_torch(reentrant):
    from torch.utils.checkpoint import checkpoint

    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    module, x = copy.deepcopy(plain).to(DEVICE), torch.randn(2, 4)
    checkpoint(plain, x.requires_grad_(), use_reentrant=reentrant).sum().backward()
    checkpoint(module, x.detach().to(DEVICE).requires_grad_(), use_reentrant=reentrant).sum().backward()
    same(module[0].weight.grad, plain[0].weight.grad)


@pytest.mark.parametrize("call, told", [
    (lambda x: x + torch.ones(2, 2), "found a tensor on cpu, needed one on lazy:0"),
    (lambda x: torch.polygamma(1, x).cpu(), r"mark_step: found what no program has: aten.polygamma.default \(at test_seed_device.py:\d+\)"),
    (lambda x: x.unsqueeze_(0), "found a change of its shape in place"),
    (lambda x: setattr(x, "data", torch.ones(3)), r"found torch.float32\[3\], needed torch.float32\[2, 2\]"),
])
def test_what_is_refused(call, told):
    with pytest.raises((sw.InvalidArgument, sw.Unsupported), match=told):
        call(torch.eye(2).to(DEVICE))


def test_after_a_step_that_failed_weights_have_their_values():
    w = torch.eye(2).to(DEVICE)
    lost = torch.polygamma(1, w)
    w.add_(lost)
    with pytest.raises(sw.Unsupported, match="polygamma"):
        spmd.mark_step()
    assert w.tolist() == [[1, 0], [0, 1]] and (w + 1).tolist() == [[2, 1], [1, 2]]
    with pytest.raises(sw.InvalidArgument, match="its step failed: mark_step: found what no program has"):
        lost.cpu()


def test_a_plan_of_a_loop_tells_of_lines():
    """Scopes are the lines of the program."""
    w = torch.randn(6, 6).to(DEVICE).requires_grad_()
    x = torch.randn(8, 6).to(DEVICE)
    spmd.mark_sharding(x, mesh(), ("data", None))
    spmd.mark_sharding(w, mesh(), (None, "model"))
    (x @ w).square().sum().backward()
    spmd.mark_step()
    assert {one.scope.partition(":")[0] for one in spmd.last_plan().traffic} == {"test_seed_device.py"}
    assert w.grad.sharding_spec == w.sharding_spec and "test_seed_device.py" in spmd.last_plan().report()
