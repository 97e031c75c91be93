"""shardwise.jax.from_stablehlo: modules of StableHLO as programs, beside JAX and beside what capture makes of the same steps."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import io
import random
import re
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxlib.mlir.dialects import stablehlo

import jax_steps
import shardwise as sw
import shardwise.jax as swj
from jax_steps import abstract, from_text, on_host, trains_as_jax_does

S = jax.ShapeDtypeStruct
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def at(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


# ---- Whole models.


@pytest.mark.parametrize("remat", [False, True])
def test_a_gpt_in_a_scan_trains_as_in_jax(rng, remat):
    trains_as_jax_does(*jax_steps.stacked_gpt(rng, remat=remat), jax_steps.STACKED_PLANS, from_text)


@pytest.mark.parametrize("name", ["gpt", "flax_gpt", "moe", "vit", "resnet", "lstm"])
def test_models_train_as_in_jax(rng, name):
    if name != "gpt":
        pytest.importorskip("flax", reason="needs flax, which this environment has not")
        pytest.importorskip("optax", reason="needs optax, which this environment has not")
    plans = list(getattr(jax_steps, f"{name.removesuffix('_gpt').upper()}_PLANS").items())
    trains_as_jax_does(*getattr(jax_steps, name)(rng), dict([*plans[:2], plans[-1]]), from_text)


@pytest.mark.parametrize("name", ["gpt", "stacked_gpt"])
def test_inputs_scopes_and_loops_are_those_of_capture(rng, name):
    step, state, batches = getattr(jax_steps, name)(rng)
    ours, theirs = from_text(step, abstract(state), abstract(batches[0])), swj.capture(step, abstract(state), abstract(batches[0]))
    assert ours.inputs == theirs.inputs

    def scopes(program: Any) -> set[str]:
        return {line.partition("  # ")[2] for line in program.text.splitlines()}

    assert scopes(ours) == scopes(theirs) and "attention" in str(scopes(ours))
    for op in ("scan", "dot_general", "reduce_sum", "scatter_add", "take", "tanh"):
        assert ours.text.count(f" = {op}(") == theirs.text.count(f" = {op}("), op
    assert len(ours) < 1.1 * len(theirs)
    ours.mark(jax_steps.STACKED_TENSOR if name == "stacked_gpt" else jax_steps.GPT_TENSOR)
    theirs.mark(jax_steps.STACKED_TENSOR if name == "stacked_gpt" else jax_steps.GPT_TENSOR)
    assert ours.plan("model=4").wire_bytes == theirs.plan("model=4").wire_bytes


def loops(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        return jax.lax.scan(lambda a, r: (a + r, a * r), c, row.reshape(2, 3), reverse=True)

    c, inner = jax.lax.scan(outer, jnp.zeros(3), x)
    buffer = jax.lax.fori_loop(2, 7, lambda i, b: b.at[i].set(b[i - 1] + c), jnp.zeros((10, 3)))
    table = jnp.arange(5.0)
    sums = jax.lax.scan(lambda a, i: (a + table[i] * 2, (a, i)), 0.0, jnp.arange(5))
    return inner, buffer, sums, jax.vmap(lambda row: jax.lax.scan(lambda a, b: (a * b, a), 1.0, row)[1])(x)


def test_loops_in_loops_are_those_of_capture(rng):
    x = rng.normal(size=(4, 6)).astype(np.float32)
    ours, theirs = from_text(loops, x), swj.capture(loops, x)
    scans = [re.findall(r"= scan\(.*", program.text) for program in (ours, theirs)]
    assert scans[0] == scans[1] and len(scans[0]) == 5
    for found, expected in zip(ours.mark({"x": "d,-"}).run(x, devices=4), jax.tree.leaves(jax.jit(loops)(x))):
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def gradient(v: Any) -> Any:
        return jax.grad(lambda v: sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(loops(v)) if leaf.dtype == jnp.float32))(v)

    np.testing.assert_allclose(from_text(gradient, x).run(x, devices=1)[0], jax.jit(gradient)(x), rtol=2e-5, atol=1e-5)


# ---- Labels and kinds.


def decay(weights: Any, rate: Any, x: Any) -> Any:
    return [w - rate * x.sum() for w in weights], x * 2


def test_inputs_are_called_as_the_step_calls_them():
    weights, x = [S((4,), jnp.float32)] * 2, S((4,), jnp.float32)
    lowered = jax.jit(decay).lower(weights, 0.5, x)
    program = swj.from_stablehlo(lowered.as_text(debug_info=True))
    assert program.inputs == swj.capture(decay, weights, 0.5, x).inputs
    assert [(i.label, i.kind) for i in program.inputs] == [("weights/0", "parameter"), ("weights/1", "parameter"), ("rate", "loader"), ("x", "loader")]
    assert program.source("%5").startswith(f"{__file__}:") and "decay" in program.source("%5")
    plain = swj.from_stablehlo(lowered.as_text())
    assert [i.label for i in plain.inputs] == ["arg0", "arg1", "arg2", "arg3"] and re.fullmatch(r"line \d+", plain.source("%5"))
    named = swj.from_stablehlo(lowered.as_text(), names=["a", "b", "rate", "x"], kinds={"a": "optimizer", "x": "loader"})
    assert [(i.label, i.kind) for i in named.inputs] == [("a", "optimizer"), ("b", "parameter"), ("rate", "loader"), ("x", "loader")]
    for names in (["a"], ["a", "b", "a", "c"]):
        with pytest.raises(sw.InvalidArgument, match="read StableHLO: names: found"):
            swj.from_stablehlo(lowered.as_text(), names=names)


def test_what_is_donated_is_a_parameter():
    lowered = jax.jit(lambda a, b: (a + b.sum(), b.sum()), donate_argnums=0).lower(S((4,), jnp.float32), S((3,), jnp.float32))
    program = swj.from_stablehlo(lowered.as_text().replace("jax.result_info", "jax.other_info"))
    assert "tf.aliasing_output" in lowered.as_text()
    assert [i.kind for i in program.inputs] == ["parameter", "loader"]
    kept = swj.from_stablehlo(lowered.as_text(), kinds={"arg0": "loader"}).plan("d=1").peak_bytes
    assert program.plan("d=1").peak_bytes < kept + 16  # its memory is taken by what replaces it


def test_runs_take_pytrees_or_labels():
    program = from_text(decay, [S((4,), jnp.float32)] * 2, 0.5, S((4,), jnp.float32))
    ones = np.ones(4, np.float32)
    found = program.run([ones, ones * 3], np.float32(0.5), ones, devices=1)
    by_label = program.run({"x": ones, "weights/0": ones, "weights/1": ones * 3, "rate": np.float32(0.5)}, devices=1)
    for a, b, expected in zip(found, by_label, (ones * -1, ones, ones * 2)):
        assert np.array_equal(a, expected) and np.array_equal(b, expected)
    with pytest.raises(sw.InvalidArgument, match="run: found 3 arrays, needed 4: weights/0, weights/1, rate, x"):
        program.run([ones, ones], ones, devices=1)


def test_a_typed_key_is_its_data(rng):
    def step(key: Any, x: Any) -> Any:
        return x * jax.random.uniform(key, (4,))

    key, x = jax.random.key(3), np.ones(4, np.float32)
    program = from_text(step, key, x)
    assert [(i.label, i.dtype, i.shape) for i in program.inputs] == [("key", "u32", (2,)), ("x", "f32", (4,))]
    np.testing.assert_allclose(program.run(key, x, devices=1)[0], step(key, x), rtol=1e-6)
    with pytest.raises(sw.InvalidArgument, match="kinds: found 'data' for 'x', needed one of parameter, optimizer, loader"):
        swj.from_stablehlo(jax.jit(step).lower(key, x).as_text(debug_info=True), kinds={"x": "data"})


def test_a_program_is_a_file_that_needs_no_python(rng, tmp_path):
    table = rng.normal(size=(3, 5)).astype(np.float32)
    program = from_text(lambda x: x @ jnp.asarray(table), S((2, 3), jnp.float32))
    program.save(tmp_path / "step.swp")
    x = rng.normal(size=(2, 3)).astype(np.float32)
    again = sw.programs.load(tmp_path / "step.swp")
    assert (tmp_path / "step.swp.safetensors").exists() and again.text == program.text
    np.testing.assert_allclose(again.run({"x": x}, devices=1)[0], x @ table, rtol=1e-5)


# ---- Annotations.


def sharded(params: Any, batch: Any) -> Any:
    h = jax.lax.with_sharding_constraint(jnp.tanh(batch["x"] @ params["w"]), at("data", "model"))
    h = jax.lax.with_sharding_constraint(h.reshape(8, 4, 16), at(("data", "model")))
    total = jax.lax.with_sharding_constraint(h.sum(), at())
    return {"w": params["w"] * 2, "b": params["b"] + total}, h.mean()


SHARDED = jax.jit(sharded, out_shardings=({"w": at("model"), "b": None}, at()), donate_argnums=0)
EXAMPLE = ({"w": S((8, 16), jnp.float32, sharding=at(None, "model")), "b": S((), jnp.float32, sharding=at())},
           {"x": S((32, 8), jnp.float32, sharding=at("data"))})


def test_annotations_of_shardy_are_the_marks_of_capture():
    text = SHARDED.lower(*EXAMPLE).as_text(debug_info=True)
    assert "sdy.sharding_constraint" in text
    assert swj.from_stablehlo(text).text == swj.capture(SHARDED, *EXAMPLE).text


def test_annotations_of_gspmd_are_the_marks_of_capture():
    with jax.enable_x64(False):
        before = jax.config.jax_use_shardy_partitioner
        jax.config.update("jax_use_shardy_partitioner", False)
        try:
            text = SHARDED.lower(*EXAMPLE).as_text(debug_info=True)
        finally:
            jax.config.update("jax_use_shardy_partitioner", before)
    assert "@Sharding" in text and "<=[4,2]T(1,0)" in text
    expected = swj.capture(SHARDED, *EXAMPLE).text
    assert swj.from_stablehlo(text, mesh="data=4,model=2").text == expected
    assert swj.from_stablehlo(text).text == expected.replace("data", "axis_0").replace("model", "axis_1")
    with pytest.raises(sw.Unsupported, match=r"params/w: found the sharding {devices=\[1,2,4\].*, needed one of whole axes of data=8: mesh= says"):
        swj.from_stablehlo(text, mesh="data=8")


def test_decompositions_have_the_bits_of_the_module():
    """64, whatever JAX has switched on now."""
    a = np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]])

    def factors(x: Any) -> Any:
        return jnp.linalg.cholesky(x), jnp.linalg.qr(x), jax.lax.linalg.lu(x)

    with jax.enable_x64(True):
        text, expected = jax.jit(factors).lower(a).as_text(), on_host(jax.tree.leaves(factors(a)))
    for ours, theirs in zip(swj.from_stablehlo(text).run(a, devices=1), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-15)


def annotated(text: str, devices: int = 8) -> str:
    return (f'module attributes {{mhlo.num_partitions = {devices} : i32}} {{\n  func.func @main(%a: tensor<16x16xf32> {{mhlo.sharding = "{text}"}}) '
            f'-> tensor<16x16xf32> {{\n    return %a : tensor<16x16xf32>\n  }}\n}}\n')


@pytest.mark.parametrize(("text", "mesh", "mark"), [
    ("{devices=[4,2]<=[8]}", "data=4,model=2", "data,model"),
    ("{devices=[2,4]<=[4,2]T(1,0)}", "data=4,model=2", "model,data"),
    ("{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", "data=4,model=2", "data,-"),
    ("{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}", "data=4,model=2", "-,model"),
    ("{devices=[8,1]<=[8]}", "data=4,model=2", "data+model,-"),
    ("{devices=[8,1]<=[4,2]T(1,0)}", "data=4,model=2", "model+data,-"),
    ("{devices=[8,1]0,2,4,6,1,3,5,7}", "data=4,model=2", "model+data,-"),
    ("{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}", "a=2,b=2,c=2", "b,-"),
    ("{devices=[4,1,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}", "a=2,b=2,c=2", "c+a,-"),
    ("{devices=[2,1,4]<=[8] last_tile_dims={replicated}}", "a=2,b=4", "a,-"),
    ("{replicated}", "data=8", "-,-"),
    ("{unknown}", "data=8", None),
])
def test_texts_of_gspmd_are_read_over_a_mesh(text, mesh, mark):
    assert [i.mark for i in swj.from_stablehlo(annotated(text), mesh=mesh).inputs] == [mark]
    alone = swj.from_stablehlo(annotated(text))
    if mark and set(mark) - set("-,"):  # over axes of its own it is the same placement
        sizes = {"axis_0": 2, "axis_1": 2, "axis_2": 2}
        axes = sorted({axis for axis in re.findall(r"\w+", alone.inputs[0].mark or "")})
        assert axes and set(axes) <= set(sizes)


def test_a_mesh_of_gspmd_is_as_coarse_as_its_texts():
    def program(*texts: str) -> list[str | None]:
        arguments = ", ".join(f'%a{n}: tensor<16x16xf32> {{mhlo.sharding = "{text}"}}' for n, text in enumerate(texts))
        return [i.mark for i in swj.from_stablehlo(f"func.func @main({arguments}) -> tensor<16x16xf32> {{\n  return %a0 : tensor<16x16xf32>\n}}").inputs]

    assert program("{devices=[8,1]<=[8]}") == ["axis_0,-"]
    assert program("{devices=[8,1]<=[8]}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}") == ["axis_0+axis_1,-", "axis_0,-"]
    assert program("{devices=[4,2]<=[8]}", "{devices=[2,4]<=[4,2]T(1,0)}") == ["axis_0,axis_1", "axis_1,axis_0"]
    with pytest.raises(sw.InvalidArgument, match="which cut no mesh along its axes, needed mesh="):
        program("{devices=[2,1,3]<=[6] last_tile_dim_replicate}", "{devices=[3,1,2]<=[6] last_tile_dim_replicate}")


@pytest.mark.parametrize(("annotation", "mark"), [
    ('[{"data"}, {}]', "data,-"), ('[{"data", "model"}, {?}]', "data+model,-"), ("[{?}, {?}]", None), ("[{}, {?}]", "-,-"),
    ('[{"model", ?}, {"data"}p1], replicated={}', "model,data"),
])
def test_annotations_of_shardy_by_hand(annotation, mark):
    text = f'''sdy.mesh @m = <["data"=4, "model"=2]>
    func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@m, {annotation.replace(", replicated={}", "")}>}}) -> tensor<8x8xf32> {{
      return %a : tensor<8x8xf32>
    }}'''
    assert [i.mark for i in swj.from_stablehlo(text).inputs] == [mark]


def test_operations_of_shardy():
    text = '''sdy.mesh @m = <["data"=4]>
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = sdy.reshard %a <@m, [{"data"}]> : tensor<8xf32>
      %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<8xf32>
      sdy.sharding_group %1 group_id=1 : tensor<8xf32>
      %2 = sdy.named_computation<"foo">(%1) (%arg1: tensor<8xf32>) {
        %3 = stablehlo.negate %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}]>]>} : tensor<8xf32>
        sdy.return %3 : tensor<8xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      return %2 : tensor<8xf32>
    }'''
    program = swj.from_stablehlo(text)
    assert [i.mark for i in program.inputs] == ["data"] and program.text.splitlines()[-2] == "%2 = identity(%1) : f32[8] marked -"
    assert np.array_equal(program.run(np.arange(8, dtype=np.float32), devices=4)[0], -np.arange(8))
    manual = '''sdy.mesh @m = <["data"=4]>
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = sdy.manual_computation(%a) in_shardings=[<@m, [{"data"}]>] out_shardings=[<@m, [{"data"}]>] manual_axes={"data"} (%b: tensor<2xf32>) {
        sdy.return %b : tensor<2xf32>
      } : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }'''
    assert np.array_equal(swj.from_stablehlo(manual).run(np.arange(8, dtype=np.float32), mesh="data=4")[0], np.arange(8))
    partly = manual.replace('["data"=4]', '["data"=4, "model"=2]').replace('[{"data"}]>] out', '[{"data", "model"}]>] out')
    with pytest.raises(sw.Unsupported, match="sdy.manual_computation: found the axes model beside those of the region, needed a region of all axes"):
        swj.from_stablehlo(partly)


def test_annotations_that_no_mark_says_are_refused():
    text = '''sdy.mesh @m = <["data"=4]>
    func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"data":(1)2}]>}) -> tensor<8xf32> {
      return %a : tensor<8xf32>
    }'''
    with pytest.raises(sw.Unsupported, match="arg0: found #sdy.sharding.*needed whole axes of the mesh"):
        swj.from_stablehlo(text)
    for said in ("{maximal device=0}", "{manual}", "{devices=[4,1,2]<=[8] last_tile_dims={manual}}"):
        with pytest.raises(sw.Error, match="sharding"):
            swj.from_stablehlo(annotated(said))


# ---- Forms of a module.


def forms(lowered: Any) -> dict[str, Any]:
    text, module = lowered.as_text(debug_info=True), lowered.compiler_ir("stablehlo")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(file=bytecode)
    artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version(), True)
    return {"text": text, "bytecode": bytecode.getvalue(), "artifact": artifact}


def test_text_bytecode_artifact_and_files_are_one_program(tmp_path):
    found = forms(SHARDED.lower(*EXAMPLE))
    expected = swj.from_stablehlo(found["text"])
    for name, form in found.items():
        assert swj.from_stablehlo(form).text == expected.text, name
        path = tmp_path / f"{name}.mlir"
        path.write_bytes(form.encode() if isinstance(form, str) else form)
        for one in (path, str(path)):
            program = swj.from_stablehlo(one)
            assert program.text == expected.text and program.source("%3") == expected.source("%3")


def test_what_jax_exports_computes_what_the_step_computes(rng):
    step, state, batches = jax_steps.stacked_gpt(rng)
    exported = jax.export.export(jax.jit(step))(abstract(state), abstract(batches[0]))
    program = swj.from_stablehlo(exported.mlir_module_serialized)
    found = program.run(on_host(state), on_host(batches[0]), devices=1)
    theirs = jax.tree.leaves(jax.jit(step)(state, batches[0]))
    assert jax_steps.worst(found, [np.asarray(x) for x in theirs]) < 1e-3 and "scan(" in program.text


TORCH_XLA = '''module @IrToHlo.18 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<4xf32> {mhlo.sharding = "{replicated}"}, %arg1: tensor<4x3xf32> {mhlo.sharding = "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"}, %arg2: tensor<2x3xf32>) -> tuple<tensor<2x4xf32>> {
    %0 = stablehlo.transpose %arg1, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>, xla_shape = "f32[3,4]{0,1}"} : (tensor<4x3xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.dot_general %arg2, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
    %3 = stablehlo.add %1, %2 : tensor<2x4xf32>
    %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    RETURN
  }
}
'''


def test_a_module_of_torch_xla(rng):
    of_tuple = TORCH_XLA.replace("RETURN", "%5 = stablehlo.tuple %4 : tuple<tensor<2x4xf32>>\n    return %5 : tuple<tensor<2x4xf32>>")
    plain = TORCH_XLA.replace("RETURN", "return %4 : tensor<2x4xf32>").replace("tuple<tensor<2x4xf32>> {", "tensor<2x4xf32> {")
    bias, weight, x = (rng.normal(size=shape).astype(np.float32) for shape in ((4,), (4, 3), (2, 3)))
    for text in (of_tuple, plain):
        program = swj.from_stablehlo(text, names=["bias", "weight", "x"], mesh="model=2,data=4")
        assert [i.mark for i in program.inputs] == ["-", "model,-", None] and " marked -,model" in program.text
        np.testing.assert_allclose(program.run(bias, weight, x, mesh="model=2,data=4")[0], x @ weight.T + bias, rtol=1e-5)


# ---- What is refused.


def test_all_that_no_program_has_is_named_with_its_place():
    def step(x: Any) -> Any:
        with jax.named_scope("layer0"):
            a = jnp.linalg.eigh(x)[1]
        with jax.named_scope("layer1/attention"):
            return jnp.tanh(jnp.fft.fft(a)).real + jnp.linalg.eigh(a)[1] + jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x)

    text = jax.jit(step).lower(S((4, 4), jnp.float32)).as_text(debug_info=True)
    with pytest.raises(sw.Unsupported) as refused:
        swj.from_stablehlo(text)
    told = str(refused.value)
    assert told.startswith("read StableHLO: found what no program has: ") and __file__ in told
    assert "in layer0" in told and "in layer1/attention" in told
    for what in ("tanh: found complex numbers (at", "custom_call: @lapack_ssyevd_ffi (2, first at", "while: how many steps it takes"):
        assert what in told, told


def test_a_shape_that_depends_on_data_has_its_line():
    text = """module {
  func.func @main(%a: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    %1 = stablehlo.dynamic_reshape %0, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
    return %0 : tensor<4xf32>
  }
}"""
    with pytest.raises(sw.Unsupported, match=r"read StableHLO: line 4: found the shape of tensor<\?xf32>, which depends on data"):
        swj.from_stablehlo(text)
    with pytest.raises(sw.Unsupported, match=r"line 2 \(arg2\): found the shape of tensor<\*xi32>"):
        swj.from_stablehlo(text.replace("%a: tensor<4xf32>, %n: tensor<1xi32>", "%a: tensor<4xf32>, %n: tensor<1xi32>, %m: tensor<*xi32>"))
    exported = jax.export.export(jax.jit(lambda x: x * 2))(S(jax.export.symbolic_shape("b, 3"), jnp.float32))
    with pytest.raises(sw.Unsupported, match=r"tensor<\?x3xf32>, which depends on data"):
        swj.from_stablehlo(exported.mlir_module_serialized)


RECURSIVE = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n %0 = func.call @main(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>\n}"


def calls(levels: int, each: int) -> str:
    functions = [f"func.func private @f{levels}(%a: tensor<f32>) -> tensor<f32> {{\n return %a : tensor<f32>\n}}"]
    for n in range(levels):
        lines = [f"%{k} = func.call @f{n + 1}(%{k - 1 if k else 'a'}) : (tensor<f32>) -> tensor<f32>" for k in range(each)]
        functions.append(f"func.func {'private @f' + str(n) if n else '@main'}(%a: tensor<f32>) -> tensor<f32> {{\n" + "\n".join(lines)
                         + f"\n return %{each - 1} : tensor<f32>\n}}")
    return "\n".join(functions)


LOOPED = """func.func @main(%a: tensor<f32>) -> tensor<f32> {
  %n = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %n, %v = %a) : tensor<i32>, tensor<f32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %w = func.call @g(%v) : (tensor<f32>) -> tensor<f32>
    %j = stablehlo.add %i, %n : tensor<i32>
    stablehlo.return %j, %w : tensor<i32>, tensor<f32>
  }
  return %r#1 : tensor<f32>
}
"""


@pytest.mark.parametrize(("module", "error", "message"), [
    ("garbage {", sw.InvalidArgument, "line 1: custom op 'garbage' is unknown"),
    ("module {\n  func.func @main() {\n    stablehlo.nothing\n  }\n}", sw.InvalidArgument, "line 3: custom op 'stablehlo.nothing' is unknown"),
    ("module {\n}", sw.InvalidArgument, "found 0 functions and none called main"),
    ("module {", sw.InvalidArgument, "needed a module of StableHLO"),
    ("", sw.NotFound, "found no file ''"),
    ("no/such.mlir", sw.NotFound, "found no file 'no/such.mlir'"),
    (b"", sw.InvalidArgument, "found 0 functions"),
    (b"ML\xefR", sw.InvalidArgument, "bytecode that MLIR does not read"),
    (b"ML\xefR\x0dStableHLO_v1.0.0\x00", sw.InvalidArgument, "bytecode that MLIR does not read"),
    (b"\xff\xfe", sw.InvalidArgument, "neither bytecode of MLIR nor text in UTF-8"),
    ("module {" * 100_000, sw.InvalidArgument, "more than 256 brackets in each other"),
    ('module {} loc("\\FF")', sw.InvalidArgument, "needed text in UTF-8"),
    (5, sw.InvalidArgument, "found a int, needed the text"),
    (RECURSIVE, sw.Unsupported, "@main calls itself"),
    (calls(40, 2), sw.Unsupported, "found more than 100000 calls"),
    (LOOPED + calls(40, 2).replace("func.func @main", "func.func private @g"), sw.Unsupported, "found more than 100000 calls"),
    (calls(3000, 1), sw.Unsupported, "deeper than Python goes"),
    ("func.func private @main(tensor<2xf32>)\n", sw.InvalidArgument, "found no body of @main"),
    ("func.func @main(%a: tensor<9223372036854775807x9xf32>) -> tensor<9223372036854775807x9xf32> {\n return %a : tensor<9223372036854775807x9xf32>\n}",
     sw.InvalidArgument, "needed fewer than 2\\^62 elements"),
    ("func.func @main(%a: !stablehlo.token) -> !stablehlo.token {\n return %a : !stablehlo.token\n}", sw.InvalidArgument, "needed a tensor"),
    ("func.func @main(%a: tensor<2xi4>) -> tensor<2xi4> {\n return %a : tensor<2xi4>\n}", sw.InvalidArgument, "found the dtype i4"),
    ('func.func @main() -> tensor<9xf32> {\n %0 = stablehlo.constant dense<"0x00000000ff"> : tensor<9xf32>\n return %0 : tensor<9xf32>\n}', sw.InvalidArgument,
     "line 2: "),
])
def test_what_is_no_step_is_one_error(module, error, message):
    with pytest.raises(error, match=message):
        swj.from_stablehlo(module)


def test_one_number_everywhere_takes_no_memory():
    text = ("func.func @main(%a: tensor<f32>) -> tensor<f32> {\n %0 = stablehlo.constant dense<1.5> : tensor<1000000x1000000xf32>\n"
            " %1 = stablehlo.slice %0 [0:1, 0:1] : (tensor<1000000x1000000xf32>) -> tensor<1x1xf32>\n %2 = stablehlo.reshape %1 : (tensor<1x1xf32>) -> tensor<f32>\n"
            " %3 = stablehlo.add %a, %2 : tensor<f32>\n return %3 : tensor<f32>\n}")
    assert swj.from_stablehlo(text).run(np.float32(1), devices=1)[0] == 2.5


def test_damaged_modules_never_end_the_process():
    """Of text in this process; of bytecode a few: each takes one of its own."""
    found = forms(SHARDED.lower(*EXAMPLE))
    for seed in range(300):
        draw = random.Random(seed)
        whole = found["text"].encode() if seed % 30 else draw.choice([found["bytecode"], found["artifact"]])
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 5, 20])):
            damaged = damaged or bytearray(whole)
            at_byte = draw.randrange(len(damaged))
            how = draw.randrange(4)
            if how == 0:
                damaged[at_byte] = draw.randrange(256)
            elif how == 1:
                del damaged[at_byte:at_byte + draw.randrange(1, 50)]
            elif how == 2:
                damaged[at_byte:at_byte] = damaged[draw.randrange(len(damaged)):][:draw.randrange(1, 50)]
            else:
                damaged = damaged[:at_byte]
        try:
            swj.from_stablehlo(bytes(damaged))
        except sw.Error as error:
            assert "read StableHLO: " in str(error), seed
