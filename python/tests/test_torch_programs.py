"""shardwise.torch.capture: training steps of torch as programs, planned and run on emulated devices."""

import copy
import re

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn

import shardwise as sw
import shardwise.torch as swt
from shardwise._capture.torch.ops.rules import RULES

MESHES = {"one": "data=1", "data": "data=8", "fsdp": "data=8", "tensor": "data=4,model=2"}


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


def batch(rows=8):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 4, generator=generator)


def step_of(model, optimizer):
    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)  # so that Adam does not divide rounding errors by nearly 0


def marked(program, kind):
    """Returns marks that cut batches over data, and weights and their state too (fsdp), or over another axis (tensor)."""
    marks = {}
    for one in program.inputs:
        rank = len(one.shape)
        if one.kind == "loader":
            marks[one.label] = ",".join(["data", *["-"] * (rank - 1)])
        elif kind == "fsdp" and rank:
            marks[one.label] = ",".join("data" if d == one.shape.index(max(one.shape)) else "-" for d in range(rank))
        elif kind == "tensor" and rank > 1:
            marks[one.label] = ",".join(["model", *["-"] * (rank - 1)])
    return program.mark(marks)


def agree(make, optimizer_of, loss_of, arguments, kind, steps=3):
    """The losses and the weights are those of torch."""
    models = [make() for _ in range(2)]
    found, expected = (step_with(model, optimizer_of(model), loss_of) for model in models)
    plan = marked(swt.capture(found, *arguments), kind).plan(MESHES[kind])
    for _ in range(steps):
        torch.testing.assert_close(plan.run(*arguments), expected(*arguments), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=2e-6)


def step_with(model, optimizer, loss_of):
    def step(*arguments):
        loss = loss_of(model, *arguments)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("kind", MESHES)
def test_a_step_on_a_mesh_is_that_of_torch(kind):
    agree(mlp, adamw, lambda model, x, y: (model(x) - y).square().mean(), batch(), kind)


def test_inputs_are_called_as_the_module_calls_them():
    model = mlp()
    program = swt.capture(step_of(model, adamw(model)), *batch())
    kinds = {one.label: one.kind for one in program.inputs}
    assert kinds["0.weight"] == kinds["3.bias"] == "parameter"
    assert kinds["exp_avg.0.weight"] == kinds["3.bias.step"] == "optimizer"
    assert kinds["x"] == kinds["y"] == "loader"
    assert kinds["lr"] == "optimizer" and len(kinds) == 6 * 4 + 1 + 2
    assert ' backward  # 3' in program.text and "# optimizer" in program.text and "# 2" in program.text


def test_a_linear_layer_multiplies_by_the_weight_itself():
    """A transposed copy would be gathered, and kept, in place of the weight."""
    model = mlp()
    text = swt.capture(step_of(model, adamw(model)), *batch()).text
    assert text.count("dot_general(") == 5 and "transpose(" not in text


def test_attention_is_cut_by_heads_and_nothing_of_it_is_gathered():
    """Torch numbers samples and heads in one dim for its products; a cut of that would be one of samples alone."""
    def attend(x, w):
        q, k, v = ((x @ one).view(4, 8, 4, 2).transpose(1, 2) for one in w)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 8, 8)

    x, w = torch.randn(4, 8, 8), [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    program = swt.capture(attend, x, w).mark({"x": "data,-,-", "w.*": "-,model"})
    plan = program.plan("data=2,model=4")
    assert {one.collective for one in plan.traffic} <= {"all-gather"} and sum(one.tensors for one in plan.traffic) <= 1  # only the result is gathered
    assert torch.allclose(plan.run(x, w), attend(x, w), atol=1e-5)


def test_a_loss_over_many_classes_needs_no_places_of_all_of_them():
    model = nn.Linear(4, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, labels):
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    text = swt.capture(step, torch.randn(32, 4), torch.randint(0, 1000, (32,))).text
    places = re.findall(r"= iota\(\).* : (\w+)\[(.*?)\]", text)
    assert ("i64", "1000") in places and all("," not in shape for _, shape in places)


def test_a_captured_step_leaves_everything_as_it_was():
    model = mlp()
    optimizer = adamw(model)
    before, parameters = copy.deepcopy(model.state_dict()), list(model.parameters())
    swt.capture(step_of(model, optimizer), *batch())
    assert all(now is then and now.grad is None for now, then in zip(model.parameters(), parameters))
    assert optimizer.param_groups[0]["params"][0] is parameters[0] and not optimizer.state
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_step_may_go_on_in_torch():
    models = mlp(), mlp()
    steps = [step_of(model, adamw(model)) for model in models]
    program = swt.capture(steps[0], *batch())
    program.run(*batch(), devices=1)
    steps[0](*batch())
    program.run(*batch(), devices=1)
    for _ in range(3):
        steps[1](*batch())
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-4, atol=1e-6)


def test_a_comparison_is_in_the_dtype_of_its_own_operands():
    def step(x, y):
        n = x.mean().item()
        m = y > 3
        return x > n, m, n <= x

    given = torch.tensor([3.5, 3.0, 3.4]), torch.tensor([1, 5, 2])
    assert [x.tolist() for x in swt.capture(step, *given).run(*given, devices=1)] == [x.tolist() for x in step(*given)]


def test_a_number_that_the_step_takes_from_a_tensor_is_computed():
    model = mlp()

    def step(x, y):
        loss = (model(x) - y).square().mean()
        return x * loss.item(), {"loss": loss.item(), "half": 1 - loss.item() / 2}

    found, expected = swt.capture(step, *batch()).run(*batch(), devices=1), step(*batch())
    assert isinstance(found[1]["loss"], float)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clear", [lambda o: o.zero_grad(), lambda o: o.zero_grad(set_to_none=False)], ids=["none", "zero"])
def test_gradients_may_be_cleared_before_the_step(clear):
    models = mlp(), mlp()

    def of(model):
        optimizer = adamw(model)

        def step(x, y):
            clear(optimizer)
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    program, expected = swt.capture(of(models[0]), *batch()), of(models[1])
    for _ in range(2):
        torch.testing.assert_close(program.run(*batch(), devices=1), expected(*batch()), rtol=1e-5, atol=1e-6)


def test_gradients_that_the_next_step_would_add_to_are_refused():
    model = mlp()

    def step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    with pytest.raises(sw.InvalidArgument, match=r"found gradients that the step leaves to the next one \(.* has one\), .*zero_grad\(\)"):
        swt.capture(step, *batch())


def test_each_gradient_may_be_cleared_before_it_is_derived():
    """The step clears and derives the gradients of two models, one after the other."""
    def of():
        torch.manual_seed(1)
        makes, judges = nn.Linear(6, 4), nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (makes, judges)]

        def step(x, y):
            optimizers[1].zero_grad(set_to_none=False)
            made = makes(x)
            found = (judges(y) - judges(made.detach())).square().mean()
            found.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            wanted = judges(made).square().mean()
            wanted.backward()
            optimizers[0].step()
            return found, wanted

        return step, nn.ModuleList([makes, judges])

    (ours, own), (theirs, other) = of(), of()
    program = swt.capture(ours, *batch())
    for _ in range(2):
        torch.testing.assert_close(program.run(*batch(), devices=1), theirs(*batch()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.state_dict(), other.state_dict(), rtol=1e-5, atol=1e-6)


def test_functions_that_change_gradients_are_called():
    def make():
        model = mlp()
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)
        model[3].bias.register_post_accumulate_grad_hook(lambda parameter: (parameter.grad.mul_(2), None)[1])
        model[2].register_full_backward_hook(lambda module, of_inputs, of_results: (of_inputs[0] * 3,))
        return model

    agree(make, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), lambda model, x, y: (model(x) - y).square().mean(), batch(), "data")


HELD: tuple[nn.Parameter, ...] = ()


def test_parameters_may_be_held_by_variables_containers_and_objects():
    """An object that clips gradients holds parameters so."""
    class Clipper:
        def __init__(self, model):
            self.parameters, self.by_name, self.last = list(model.parameters()), dict(model.named_parameters()), model[3].bias

        def __call__(self):
            nn.utils.clip_grad_norm_(self.parameters, 0.1)
            self.by_name["0.weight"].grad.mul_(0.5)
            self.last.grad.mul_(2)

    def of():
        model = mlp()
        optimizer, clip = torch.optim.SGD(model.parameters(), lr=0.1), Clipper(model)
        first, pairs = model[0].weight, (1, (model[0].bias, model[3].weight))
        model.own = (model[3].bias,)
        global HELD
        HELD = (model[0].bias,)

        def step(x, y):
            loss = (model(x) - y).square().mean()
            loss.backward()
            clip()
            first.grad.mul_(3)
            nn.utils.clip_grad_norm_(pairs[1], 0.01)
            model.own[0].grad.mul_(3)
            HELD[0].grad.mul_(5)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, clip, step

    ours, clip, step = of()
    program = swt.capture(step, *batch())
    assert clip.parameters[0] is ours[0].weight and clip.last is ours[3].bias and ours.own[0] is clip.last and HELD[0] is ours[0].bias
    theirs, _, torch_step = of()
    for _ in range(2):
        torch.testing.assert_close(program.run(*batch(), devices=1), torch_step(*batch()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)


class Trainer:
    def __init__(self):
        self.model, self.loss = mlp(), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, pair):
        total = 0
        for x, y in zip(pair["x"].chunk(2), pair["y"].chunk(2)):
            loss = self.loss(self.model(x), y) / 2
            loss.backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": total, "norm": norm, "parts": 2}


def test_a_step_may_be_a_method_and_arguments_and_results_trees():
    found, expected = Trainer(), Trainer()
    pair = dict(zip("xy", batch()))
    program = swt.capture(found.step, pair)
    assert [one.label for one in program.inputs][-2:] == ["pair.x", "pair.y"]
    torch.testing.assert_close(program.run(pair, devices=1), expected.step(pair), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.model.state_dict(), expected.model.state_dict())
    with pytest.raises(sw.InvalidArgument, match="run: found arguments of the tree"):
        program.run(*batch(), devices=1)


def test_numbers_and_tensors_that_the_step_holds_are_part_of_the_program():
    table = torch.arange(24.0).reshape(4, 6) ** 2
    program = swt.capture(lambda x, scale: (x[:4] * table * scale, x[0] + table.bfloat16()), batch()[0], 3)
    for found, expected in zip(program.run(batch()[0], 3, devices=1), (batch()[0][:4] * table * 3, batch()[0][0] + table.bfloat16())):
        torch.testing.assert_close(found, expected)
    with pytest.raises(sw.InvalidArgument, match="run: found the argument 4, needed 3, which is part of the program"):
        program.run(batch()[0], 4, devices=1)
    with pytest.raises(sw.InvalidArgument, match="run: found the argument 1.5, needed a tensor"):
        program.run(1.5, 3, devices=1)


def test_several_modules_are_told_apart_by_their_variables():
    generator, critic = nn.Linear(6, 4), nn.Linear(4, 1)
    program = swt.capture(lambda x: critic(generator(x)), batch()[0])
    assert {one.label for one in program.inputs} == {"generator.weight", "generator.bias", "critic.weight", "critic.bias", "x"}


def test_modules_that_the_step_does_not_hold_are_said_to_be_used():
    model = mlp()
    registry = type("Registry", (), {"__slots__": ("model",)})()
    registry.model = model
    program = swt.capture(lambda x: registry.model(x), batch()[0], uses=[model])
    assert "0.weight" in {one.label for one in program.inputs}


def test_a_module_is_its_forward_pass_and_buffers_are_updated():
    found, expected = (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)) for _ in range(2))
    expected.load_state_dict(found.state_dict())
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(swt.capture(found, images).run(images, devices=1), expected(images), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-6)


def test_a_model_on_the_meta_device_is_planned():
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(50_000, 8192), nn.Linear(8192, 50_000, bias=False))
    model[1].weight = model[0].weight  # tied
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = torch.zeros(8, 16, dtype=torch.int64, device="meta")
    program = swt.capture(step, tokens)
    program.mark({"*0.weight": "data,-", "tokens": "data,-"})
    assert program.plan("data=8").bytes_by_kind["parameter"] == 50_000 * 8192 * 4 // 8
    with pytest.raises(sw.InvalidArgument, match=r"0\.weight: found a tensor on the meta device, needed one with values"):
        program.run(tokens, mesh="data=8")


def test_what_no_program_has_is_named_at_once_with_its_modules(monkeypatch):
    class Strange(nn.Module):
        def forward(self, x):
            return torch.special.i1(x) + torch.special.i0(x)

    model = nn.Sequential(nn.Linear(6, 6), Strange(), nn.Sequential(Strange()))
    with pytest.raises(sw.Unsupported) as caught:
        swt.capture(model, batch()[0])
    monkeypatch.setitem(RULES, "round", lambda build, out, x: x)
    with pytest.raises(sw.Unsupported, match=r"aten\.round\.decimals: found other arguments than its rule knows"):
        swt.capture(lambda x: x.round(decimals=2), batch()[0])
    assert "aten.special_i1.default (2, first at 1)" in str(caught.value)
    assert "aten.i0.default (2, first at 1)" in str(caught.value)


def test_what_depends_on_values_is_refused_with_its_line():
    def step(x):
        return x[x > 0]

    def other(x):
        return x * 2 if x.sum() > 0 else x

    for refused, what in ((step, "a shape that depends on values"), (other, "the value of a tensor")):
        with pytest.raises(sw.Unsupported, match=rf"test_torch_programs\.py:\d+ \(return x.*found {what}"):
            swt.capture(refused, batch()[0])


def test_numbers_that_the_step_makes_itself_are_known():
    """Values that the step computes from no input may be bounds of a slice, and decide a branch."""
    outside = torch.tensor(3)

    def step(x):
        length = torch.tensor(5)
        places = torch.zeros(3, dtype=torch.long)
        places[1] = 4
        view = places[1]
        view.add_(torch.ceil(torch.log2(torch.tensor(5.0))).int())
        first, second = torch.split(x, torch.tensor([2, 6]).tolist())
        assert torch.arange(4).max() > 2 and int(places[1]) == 7
        return x[6 - length:6 + length], x[:int(outside)] * outside, first, second, x[:places[1]], x * torch.tensor(0.5).item()

    x = torch.arange(24.0).reshape(8, 3)
    program = swt.capture(step, x)
    torch.testing.assert_close(program.run(x, devices=1), step(x))
    assert "convert" not in program.text and "reduce" not in program.text

    def by_input(x, y):
        kept = torch.tensor(1)
        kept.add_(y.long())  # no longer known
        return x[:int(kept)]

    with pytest.raises(sw.Unsupported, match="found the value of a tensor"):
        swt.capture(by_input, x, torch.tensor(2.0))


def test_a_mask_that_the_step_makes_itself_is_known():
    mask = swt.capture(lambda x: -x if torch.ones(64, 64).tril().bool().any(1).all() else x, torch.ones(3))
    assert mask.run(torch.ones(3), devices=1).tolist() == [-1, -1, -1]


def test_what_has_no_program_is_one_clear_error():
    matrix = torch.eye(4) * 2
    for step, told in ((torch.linalg.eigvals, "linalg_eig"), (torch.special.bessel_j0, "special_bessel_j0"),
                       (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "cond"),
                       (lambda x: (f"{x.sum().item():.2f}", x)[1], r"test_torch_programs.py:\d+ .*found a number that only a run knows")):
        with pytest.raises(sw.Unsupported, match=f"^capture: .*{told}"):
            swt.capture(step, matrix)


def test_elements_that_a_view_does_not_have_are_not_taken_from_it():
    for function in (lambda x: torch.as_strided(x[:, :3], (8, 6), (6, 1)), lambda x: torch.as_strided(x[1:], (7, 6), (6, 1), 0)):
        with pytest.raises(sw.Unsupported, match=r"aten\.as_strided\.default: as_strided of size \[\d, 6\] and stride \[6, 1\]"):
            swt.capture(function, batch()[0])


@pytest.mark.parametrize("function, named", [(lambda n: n // 2, "floor"), (lambda n: n % 2, "mod"), (abs, "abs"), (round, "round"),
                                             (lambda n: n > 1, "gt")])
def test_what_no_program_has_of_a_number_is_named(function, named):
    for step in (lambda x: function(x.sum().item()), lambda x: x * function(x.sum().item())):
        with pytest.raises(sw.Unsupported, match=f"capture: found what no program has: {named} of a number"):
            swt.capture(step, batch()[0])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_dtypes_that_are_not_computed_with_may_be_there(dtype):
    held = torch.arange(4.0).to(dtype)
    model = nn.Linear(6, 4)
    model.register_buffer("held", held.clone())
    program = swt.capture(lambda x, y: (model(x), y, held, torch.ones(2).to(torch.float32)), batch()[0], held)
    for found, expected in zip(program.run(batch()[0], held, devices=1), (model(batch()[0]), held, held, torch.ones(2)), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found.to(torch.complex64), expected.to(torch.complex64))
    if not dtype.is_complex:
        with pytest.raises(sw.Unsupported, match="capture: the step: aten.*needed a type that is computed with"):
            swt.capture(lambda y: y.to(torch.float32) + 1, held)


def test_dtypes_that_no_program_has_are_refused_with_their_tensor():
    bits = torch.zeros(3, dtype=torch.uint8).view(torch.bits8)
    with pytest.raises(sw.InvalidArgument, match=r"capture: y: found the dtype torch\.bits8, needed one that programs have"):
        swt.capture(lambda x, y: x, batch()[0], bits)
    with pytest.raises(sw.Unsupported, match=r"a tensor that the step holds: found the dtype torch\.bits8"):
        swt.capture(lambda x: (x, bits), batch()[0])


def test_parameters_must_be_of_a_module():
    weight = nn.Parameter(torch.zeros(6, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(sw.InvalidArgument, match=r"found a parameter of shape \[6, 4\] of SGD that is in no module of the step"):
        swt.capture(lambda x: (x @ weight, optimizer.step()), batch()[0])


def test_a_recurrent_network_and_an_encoder_are_those_of_torch():
    for make, width in ((lambda: nn.LSTM(6, 4, batch_first=True), 4), (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), 6)):
        def loss_of(model, x, y):
            made = model(x[None])
            return (made[0] if isinstance(made, tuple) else made).square().sum() * y.sum()

        agree(lambda: (torch.manual_seed(3), make())[1], lambda model: torch.optim.SGD(model.parameters(), lr=1e-3), loss_of, batch(3), "one")


# Models of Hugging Face, as they are.

SMALL = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False, attn_implementation="eager")


def gpt2(transformers):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2,
        use_cache=False, attn_implementation="eager"))


def llama(transformers):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def mixtral(transformers, experts="grouped_mm"):
    config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    config._experts_implementation = experts
    return transformers.MixtralForCausalLM(config)


def t5(transformers):
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=48, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, dropout_rate=0, decoder_start_token_id=0, pad_token_id=0,
        use_cache=False))


def resnet(transformers):
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3))


@pytest.mark.parametrize("kind, make", [("fsdp", gpt2), ("tensor", llama), ("data", mixtral), ("one", t5), ("data", resnet)],
                         ids=["gpt2", "llama", "mixtral", "t5", "resnet"])
def test_a_model_of_hugging_face_learns_as_in_torch(kind, make):
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")

    def build():
        torch.manual_seed(4)
        return make(transformers).train()

    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 48, (8, 8), generator=generator)
    if make is resnet:
        images, labels = torch.randn(8, 3, 16, 16, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        agree(build, adamw, lambda model, x, y: model(pixel_values=x, labels=y).loss, (images, labels), kind, steps=2)
    else:
        agree(build, adamw, lambda model, x: model(input_ids=x, labels=x).loss, (tokens,), kind, steps=2)


def test_experts_that_are_looked_up_by_value_are_refused():
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    model = mixtral(transformers, "eager")
    with pytest.raises(sw.Unsupported, match="found a shape that depends on values"):
        swt.capture(lambda x: model(input_ids=x, labels=x).loss, torch.ones(2, 8, dtype=torch.int64))


def test_micro_batches_of_a_loop_add_their_gradients_as_they_are_made():
    """Two gradients of the weight are alive at most: the sum so far, and the next."""
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def gradients(count):
        def step(x):
            for i in range(count):
                model(x[i]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return swt.capture(step, torch.zeros(count, 2, 64)).plan("data=1").bytes_by_kind["gradient"]

    assert [gradients(count) // (64 * 64 * 4) for count in (1, 4, 8, 16)] == [1, 2, 2, 2]
