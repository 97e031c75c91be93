"""Compares programs on other meshes, with other marks, with a smaller batch; and explains the cut of a tensor."""

import numpy as np
import pytest

import shardwise as sw

# A tracer records two layers and a step of gradient descent so.
TEXT = """\
%0 = input() "x" : f32[4096, 256] marked data,- kind=loader
%1 = input() "w1" : f32[256, 1024] marked -,model kind=parameter
%2 = input() "w2" : f32[1024, 256] kind=parameter
%3 = dot_general(%0, %1) "bi,ih->bh" : f32[4096, 1024]  # layer0
%4 = tanh(%3) : f32[4096, 1024]  # layer0
%5 = dot_general(%4, %2) "bh,ho->bo" : f32[4096, 256]  # layer1
%6 = dot_general(%4, %5) "bh,bo->ho" : f32[1024, 256] backward  # layer1
%7 = constant() 0.1 : f32[1024, 256]  # optimizer
%8 = mul(%6, %7) : f32[1024, 256]  # optimizer
%9 = sub(%2, %8) : f32[1024, 256]  # optimizer
return %9
"""
MACHINE = "h100-80gb"


@pytest.fixture
def program(tmp_path):
    (tmp_path / "step.swp").write_text(TEXT)
    return sw.programs.load(tmp_path / "step.swp")


def test_meshes_are_all_factorings(program):
    found = program.meshes(8, machine=MACHINE)
    assert {one.mesh for one in found} == {"data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"}
    assert [one.cost.seconds for one in found] == sorted(one.cost.seconds for one in found)
    for one in found:
        plan = program.plan(one.mesh)
        assert one.cost.peak_bytes == plan.peak_bytes and one.cost.wire_bytes == sum(plan.wire_bytes.values())
        assert one.cost.bound_by in ("compute", "memory", "wire") and one.fits and not one.refused
    least = min(one.cost.peak_bytes for one in found)
    assert [one.fits for one in program.meshes(8, capacity=least)] == [True, False, False, False]
    with pytest.raises(sw.InvalidArgument, match="found 4097 devices, needed 1 to 4096"):
        program.meshes(4097)
    with pytest.raises(sw.InvalidArgument, match="needed one of tpu-v4, h100-80gb"):
        program.meshes(8, machine="abacus")


def test_search_gives_marks_that_mark_takes(program):
    before = program.plan("data=4,model=2").peak_bytes
    found = program.search("data=4,model=2", MACHINE)
    assert program.plan("data=4,model=2").peak_bytes == before  # the program keeps its marks
    assert found.is_exact and found.fits and found.plans >= 3
    assert program.mark(found.marks).plan("data=4,model=2").peak_bytes == found.cost.peak_bytes
    assert found.cost.seconds <= min(cost.seconds for cost in found.hand_made.values())
    assert {"data", "fsdp", "tensor over model", "as marked"} <= set(found.hand_made)
    less = program.search("data=4,model=2", MACHINE, capacity=found.cost.peak_bytes - 1)
    assert less.cost.peak_bytes < found.cost.peak_bytes and less.cost.seconds >= found.cost.seconds


def test_a_search_over_devices_finds_the_mesh_too(program):
    found = program.search(devices=8, machine=MACHINE)
    meshes = program.meshes(8, MACHINE, search=True)
    assert {one.mesh for one in meshes} == {"data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"}
    for one in meshes:  # a search on that mesh finds the same
        assert one.searched == program.search(one.mesh, MACHINE) and one.cost == one.searched.cost
        assert one.cost.seconds >= found.cost.seconds
    assert found == meshes[0].searched
    assert program.mark(found.marks).plan(found.mesh).peak_bytes == found.cost.peak_bytes
    for wrong in ({"devices": 8}, {"machine": MACHINE}, {"mesh": "data=8", "devices": 8, "machine": MACHINE}):
        with pytest.raises(sw.InvalidArgument, match='needed a mesh or devices=, and the machine of the times: search\\("data=4'):
            program.search(**wrong)
    with pytest.raises(sw.InvalidArgument, match="found a search without a machine, needed the machine"):
        program.meshes(8, search=True)


def test_a_search_over_devices_needs_no_marks_and_has_two_axes(tmp_path):
    for marks, axes in ((" marked -,-", ("data", "model")), (" marked rows,-", ("rows", "data")), (" marked -,data", ("data", "model"))):
        (tmp_path / "step.swp").write_text(
            f'%0 = input() "x" : f32[64, 32]{marks} kind=loader\n%1 = input() "w" : f32[32, 16] kind=parameter\n'
            '%2 = dot_general(%0, %1) "bi,ih->bh" : f32[64, 16]\nreturn %2\n')
        meshes = sw.programs.load(tmp_path / "step.swp").meshes(4, MACHINE, search=True)
        assert {one.mesh for one in meshes} == {f"{axes[0]}={size},{axes[1]}={4 // size}" for size in (1, 2, 4)}


def test_why_names_the_mark(program):
    plan = program.plan("data=4,model=2")
    assert '  dim 1 by model: because the mark of "w1" as -,model' in plan.why("%4")
    with pytest.raises(sw.NameNotFound, match='found no input "w3", needed one of w1, w2'):
        plan.why("w3")


def test_why_not_tells_costs_and_marks_that_would_bring_it(program):
    plan = program.plan("data=4,model=2")
    answer = plan.why_not("w1", "data,-", machine=MACHINE)
    assert (answer.now, answer.wanted) == ("-,model", "data,-")
    assert answer.against[:2] == ['dim 0 is whole: because the mark of "w1" as -,model',
                                  'dim 1 by model: because the mark of "w1" as -,model']
    assert all(one.startswith("two wishes then at ") for one in answer.against[2:])
    assert answer.cost_now.peak_bytes == plan.peak_bytes
    assert answer.cost_wanted.peak_bytes == program.mark({"w1": "data,-"}).plan("data=4,model=2").peak_bytes
    # w2 is cut by its rows as w1 by its columns. The plan keeps the marks that it was made with.
    for edit in plan.why_not("w2", "-,data").edits:
        assert str(program.mark({"w1": "-,model", **edit.marks}).plan("data=4,model=2").spec("w2")) == "-,data"
    same = plan.why_not("w2", sw.PartitionSpec("model", None))
    assert same.now == same.wanted and same.cost_now is None and same.edits == []
    with pytest.raises(sw.NameNotFound, match="rows"):
        plan.why_not("w1", "rows,-")


def test_changes_fit(program):
    plan = program.plan("data=2,model=4")
    small = program.plan("data=2,model=4", capacity=plan.peak_bytes - 1)
    changes = small.changes(MACHINE)
    assert changes.batch_refused == "" and {one.kind for one in changes.found} == {"marks", "mesh", "batch", "recompute"}
    by_kind = {one.kind: one for one in changes.found}
    assert by_kind["batch"].fits and by_kind["batch"].batch == 4094 and by_kind["batch"].cost.peak_bytes < plan.peak_bytes
    assert by_kind["mesh"].cost.peak_bytes == program.plan(by_kind["mesh"].mesh).peak_bytes
    assert program.mark(by_kind["marks"].marks).plan("data=2,model=4").peak_bytes == by_kind["marks"].cost.peak_bytes
    with pytest.raises(sw.InvalidArgument, match="needed one: what has to fit"):
        plan.changes()


def test_storage_is_that_of_the_state(program):
    plan = program.plan("data=4,model=2")
    storage = plan.storage
    assert (storage.parameter_bytes, storage.optimizer_bytes, storage.input_bytes) == (2 << 20, 0, 4 << 20)
    assert storage.device_bytes == 1 << 20
    text = plan.report(MACHINE, save_rate=1e6)
    assert "checkpoint: 2.00 MiB, saved in 2.1 s at 1.00 MB/s (modelled); an asynchronous save holds 1.00 MiB" in text
    assert "modelled" not in plan.report()


def llama(layers):
    transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
            num_key_value_heads=8, max_position_embeddings=64, use_cache=False, attn_implementation="eager"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        tokens = torch.zeros(16, 64, dtype=torch.int64)

    def step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return swt.capture(step, tokens)


# These are Megatron's marks.
TENSOR = {"tokens": "data,-", **{f"*{name}.weight": "model,-" for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj",
                                                                         "embed_tokens", "lm_head")},
          **{f"*{name}.weight": "-,model" for name in ("o_proj", "down_proj")}}


def test_a_search_of_a_captured_llama_is_no_worse_than_megatron():
    program = llama(2).mark(TENSOR)
    mesh = "model=2,data=4"  # the program names them in this order
    marked = next(one for one in program.meshes(8, machine=MACHINE) if one.mesh == mesh)
    found = program.search(mesh, MACHINE)
    assert found.hand_made["as marked"] == marked.cost and found.cost.seconds <= marked.cost.seconds
    assert program.mark(found.marks).plan(mesh).peak_bytes == found.cost.peak_bytes
    # Layers that repeat are decided once.
    assert any("layers.*." in pattern for pattern in found.marks) and not any("layers.0" in pattern for pattern in found.marks)


def test_a_search_into_less_memory_fits():
    program = llama(2).mark({"tokens": "data,-"})
    whole = program.plan("data=8").peak_bytes
    found = program.search("data=8", MACHINE, whole // 2)
    assert found.fits and found.cost.peak_bytes <= whole // 2


def test_a_captured_llama_says_why_and_what_would_fit():
    program = llama(2).mark(TENSOR)
    plan = program.plan("data=4,model=2")
    text = plan.why("exp_avg.model.layers.0.mlp.up_proj.weight")
    assert 'dim 0 by model: because the mark of "exp_avg.model.layers.0.mlp.up_proj.weight" as model,-' in text
    small = program.plan("data=4,model=2", capacity=plan.peak_bytes * 3 // 4)
    changes = small.changes(MACHINE)
    batch = next(one for one in changes.found if one.kind == "batch")
    assert batch.fits and batch.batch in (4, 8, 12)
    again = next(one for one in changes.found if one.kind == "recompute")
    assert again.text == "recompute the 2 blocks model/layers/* for the gradient" and again.cost.peak_bytes < plan.peak_bytes
    assert 0 < batch.cost.peak_bytes <= plan.peak_bytes * 3 // 4


@pytest.mark.parametrize("name, mesh", [("moe", "expert=4"), ("resnet", "data=8"), ("stacked_gpt", "model=4")])
def test_a_search_is_no_worse_than_the_plan_that_people_write(name, mesh):
    """It fits the memory that the hand-made plan needs, without knowing that plan."""
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import jax_steps
    import shardwise.jax as swj

    step, state, batches = getattr(jax_steps, name)(np.random.default_rng(1))
    plans = {"moe": jax_steps.MOE_PLANS, "resnet": jax_steps.RESNET_PLANS, "stacked_gpt": jax_steps.STACKED_PLANS}[name]
    program = swj.capture(
        step, jax_steps.abstract(state), jax_steps.abstract(batches[0]), kinds={"state/opt/*": "optimizer"}
    )
    found_without = program.search(mesh, MACHINE)
    axis, size = mesh.split("=")
    (hand,) = program.mark(plans[mesh]).meshes(int(size), machine=MACHINE)
    assert hand.mesh == mesh and found_without.cost.seconds <= hand.cost.seconds
    program = swj.capture(
        step, jax_steps.abstract(state), jax_steps.abstract(batches[0]), kinds={"state/opt/*": "optimizer"}
    )
    found = program.search(mesh, MACHINE, hand.cost.peak_bytes)
    assert found.fits and found.cost.seconds <= hand.cost.seconds
    assert program.mark(found.marks).plan(mesh).peak_bytes == found.cost.peak_bytes <= hand.cost.peak_bytes
