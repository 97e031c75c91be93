"""shardwise.jax.capture: steps of JAX as programs, which compute on any mesh what JAX computes on one device."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pathlib
import re
import subprocess
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import shardwise as sw
import shardwise.jax as swj
from shardwise._capture.jax.ops import rules as _primitives
from jax_steps import abstract, trains_as_jax_does

S = jax.ShapeDtypeStruct
PACKAGE = pathlib.Path(str(sw._core.__file__)).parent


# ---- A multi-layer perceptron.


def mlp_loss(params: Any, x: Any, y: Any) -> Any:
    with jax.named_scope("hidden"):
        h = jax.nn.gelu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    with jax.named_scope("head"):
        logits = h @ params["head"]["kernel"] + params["head"]["bias"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def mlp_step(params: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(mlp_loss)(params, batch["x"], batch["y"])
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), loss


def mlp_params(rng: np.random.Generator) -> Any:
    def dense(rows: int, columns: int) -> Any:
        return {"kernel": (rng.normal(size=(rows, columns)) / rows**0.5).astype(np.float32),
                "bias": rng.normal(size=columns).astype(np.float32)}

    return {"hidden": dense(12, 32), "head": dense(32, 8)}


def mlp_batches(rng: np.random.Generator, count: int = 3) -> list[Any]:
    return [{"x": rng.normal(size=(16, 12)).astype(np.float32), "y": rng.integers(0, 8, 16).astype(np.int32)} for _ in range(count)]


DATA = {"batch/x": "data,-", "batch/y": "data", "params/*": "-"}
TENSOR = {"params/hidden/kernel": "-,model", "params/hidden/bias": "model", "params/head/kernel": "model,-", "*": "-"}
MLP_PLANS: dict[str, Any] = {
    "data=1": {},
    "data=8": DATA,
    "model=8": TENSOR,
    "data=4,model=2": {"batch/x": "data,-", "batch/y": "data", **TENSOR},
    "fsdp=8": {"batch/x": "fsdp,-", "batch/y": "fsdp", "*/kernel": "-,fsdp", "*/bias": "fsdp"},
    "data=3,model=2": {"batch/x": "data,-", "batch/y": "data", **TENSOR},  # uneven
}


def test_an_mlp_trains_as_in_jax(rng):
    trains_as_jax_does(mlp_step, mlp_params(rng), mlp_batches(rng), MLP_PLANS)


def test_inputs_have_paths_kinds_and_types(rng):
    program = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0])
    assert [(i.label, i.kind, i.dtype, i.shape) for i in program.inputs] == [
        ("params/head/bias", "parameter", "f32", (8,)), ("params/head/kernel", "parameter", "f32", (32, 8)),
        ("params/hidden/bias", "parameter", "f32", (32,)), ("params/hidden/kernel", "parameter", "f32", (12, 32)),
        ("batch/x", "loader", "f32", (16, 12)), ("batch/y", "loader", "i32", (16,))]
    assert "  # hidden\n" in program.text and " backward  # head\n" in program.text
    assert len(program) == len(program.text.splitlines()) - 1


def test_the_text_is_lean(rng):
    """No gradient of a weight is transposed into another tensor, nothing is broadcast twice, and there is no operation that nothing needs."""
    lines = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0]).text.splitlines()
    made = {line.split()[0]: line.split("(")[0].split()[-1] for line in lines[:-1]}
    used = {operand: line for line in lines for operand in re.findall(r"%\d+", line)[line.startswith("%"):]}
    assert "transpose" not in made.values() and set(made) == set(used)
    for line in lines[:-1]:
        name, *operands = re.findall(r"%\d+", line)
        assert made[name] not in ("broadcast", "reshape") or made[operands[0]] != made[name], line
        assert "reduce_sum(" not in line or not re.search(r": f32\[1, ", line), line


def test_scopes_are_those_that_the_step_opens():
    def step(x: Any) -> Any:
        with jax.named_scope("outer"), jax.named_scope("inner"):
            return jax.checkpoint(lambda y: jnp.einsum("ij,kj->ik", jnp.sin(y), y))(x).sum()

    def gradient(x: Any) -> Any:
        with jax.named_scope("train"):
            return jax.grad(step)(x)

    lines = swj.capture(gradient, S((4, 3), jnp.float32)).text.splitlines()[1:-1]
    assert {line.partition("  # ")[2] for line in lines if "dot_general" in line or "cos" in line} == {"train/outer/inner"}


def test_a_product_that_is_needed_as_it_is_stays():
    def step(x: Any, w: Any) -> Any:
        y = x @ w
        return y, y.T

    x, w = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((3, 2), np.float32)
    for ours, theirs in zip(swj.capture(step, x, w).run(x, w, devices=1), step(x, w)):
        np.testing.assert_allclose(ours, theirs)


def test_names_may_hold_anything():
    key = 'a "b"\\c\n\x01é/d'

    def step(params: Any) -> Any:
        with jax.named_scope('q "r"\\s # t'):
            return params[key] * 2

    program = swj.capture(step, {key: 3.0})
    assert [one.label for one in program.inputs] == [f"params/{key}"]
    assert program.text.splitlines()[2].endswith('  # q \\"r\\"\\\\s # t')
    assert program.run({key: 4.0}, devices=1) == 8


# ---- Marks.


def test_shardings_of_the_example_and_constraints_are_marks(rng):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    def at(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def step(params: Any, batch: Any) -> Any:
        batch = {**batch, "x": jax.lax.with_sharding_constraint(batch["x"], at("data"))}
        return mlp_step(params, batch)

    params = abstract(mlp_params(rng))
    params["hidden"]["kernel"] = S((12, 32), jnp.float32, sharding=at(None, "model"))
    params["head"]["kernel"] = jax.device_put(np.zeros((32, 8), np.float32), at("model", None))
    program = swj.capture(step, params, mlp_batches(rng)[0])
    marks = {i.label: i.mark for i in program.inputs}
    assert marks == {"params/hidden/kernel": "-,model", "params/head/kernel": "model,-", "batch/x": "data,-",
                     "params/hidden/bias": None, "params/head/bias": None, "batch/y": None}
    # An output that replaces a weight is cut as the weight is.
    assert [line.count("marked -,model") for line in program.text.splitlines() if "f32[12, 32]" in line].count(1) == 2
    plan = program.plan({"data": 4, "model": 2})
    assert str(plan.spec("params/hidden/bias")) == "model" and str(plan.spec("batch/y")) == "data"
    assert plan.mesh == sw.Mesh("data=4,model=2")


def test_shardings_of_jit_are_marks(rng):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    step = jax.jit(mlp_step, in_shardings=({"hidden": None, "head": whole}, rows))
    marks = {i.label: i.mark for i in swj.capture(step, mlp_params(rng), mlp_batches(rng)[0]).inputs}
    given = jax.jit(lambda x: jnp.sin(x), out_shardings=rows)
    assert swj.capture(given, S((8, 4), jnp.float32)).text.splitlines()[-2].endswith("marked data,-")
    assert (marks["batch/x"], marks["batch/y"], marks["params/head/kernel"]) == ("data,-", "data", "-,-")
    assert marks["params/hidden/kernel"] is None


def test_a_tensor_may_have_one_mark_after_another():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    def step(x: Any) -> Any:
        for spec in (P("data"), P("data"), P(None, "model"), P(None, "model")):
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
        return x

    program = swj.capture(step, S((8, 4), jnp.float32))
    assert [line.split("marked ")[1].split()[0] for line in program.text.splitlines()[:-1]] == ["data,-", "-,model"]
    assert program.plan("data=4,model=2").traffic  # moves the tensor from one cut to the other


def test_explicit_axes_and_device_put_are_marks():
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Explicit,))
    rows = NamedSharding(mesh, P("data"))
    for step in (lambda x: jax.sharding.reshard(jnp.sin(x), P("data")), lambda x: jax.device_put(jnp.sin(x), rows)):
        with jax.set_mesh(mesh):
            program = swj.capture(step, S((8, 4), jnp.float32))
            assert program.text.splitlines()[-2].endswith("marked data,-"), program.text
            given = swj.capture(step, S((8, 4), jnp.float32, sharding=rows))
        assert given.inputs[0].mark == "data,-" and "reshard" not in given.text
    with pytest.raises(sw.Unsupported, match=r"sharding_constraint: found .*, needed an axis or None for each dim"):
        auto = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data", P.UNCONSTRAINED))
        swj.capture(lambda x: jax.lax.with_sharding_constraint(x, auto), S((8, 4), jnp.float32))


def test_marks_by_patterns_are_specs_of_any_form(rng):
    program = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0])
    found = program.mark({"params/head/*": "-", "*/kernel": sw.PartitionSpec(None, "model"), "batch/x": ("data", None)})
    assert found is program
    assert {i.label: i.mark for i in program.inputs} == {
        "params/head/bias": "-", "params/head/kernel": "-,-", "params/hidden/kernel": "-,model", "params/hidden/bias": None,
        "batch/x": "data,-", "batch/y": None}
    with pytest.raises(sw.NameNotFound, match='found no input that "parms/\\*" matches, needed one: the program has params/head/bias'):
        program.mark({"parms/*": "-"})
    with pytest.raises(sw.InvalidArgument, match="params/head/bias"):
        program.mark({"params/*": "-,model"})
    with pytest.raises(sw.NameNotFound, match='found axis "model" in spec "-,model", needed one of mesh "data=8"'):
        program.plan("data=8")


# ---- Plans.


def test_a_plan_says_what_a_run_needs_and_sends(rng):
    program = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0]).mark(DATA)
    plan = program.plan("data=8")
    weights = 4 * (12 * 32 + 32 + 32 * 8 + 8)
    # The gradients and the loss are combined: two halves of a ring, and 7 of 8 parts.
    assert plan.wire_bytes == {("all-reduce", "data"): 2 * 7 * (weights + 4) // 8}
    assert sum(plan.bytes_by_kind.values()) == plan.peak_bytes and plan.bytes_by_kind["parameter"] == weights
    assert all(one.is_asked_for and one.axes == ("data",) for one in plan.traffic)
    cut = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0]).mark(TENSOR).plan("model=8")
    assert {(one.collective, one.scope) for one in cut.traffic} == {("all-reduce", "head")}
    assert plan.fits is None
    assert program.plan("data=8", capacity=plan.peak_bytes).fits
    tight = program.plan("data=8", capacity=plan.peak_bytes - 1)
    assert tight.fits is False and "it fits with" in tight.report()
    with pytest.raises(sw.ResourceExhausted):
        tight.run(mlp_params(rng), mlp_batches(rng)[0])
    program.plan("data=8", capacity=plan.peak_bytes).run(mlp_params(rng), mlp_batches(rng)[0])
    assert "data" in plan.explain("batch/x")
    with pytest.raises(sw.NameNotFound, match="params/head/kernel"):
        plan.explain("params/head/kernal")
    with pytest.raises(sw.NameNotFound):
        plan.spec("params")
    product = next(line.split()[0] for line in program.text.splitlines() if "dot_general" in line)
    line = f"{__file__}:{mlp_loss.__code__.co_firstlineno + 2}:"
    assert program.source(product).startswith(line) and f"  from {line}" in plan.explain(product)
    assert program.source(0) == ""
    with pytest.raises(sw.InvalidArgument, match="found '%999', needed an operation from %0 to %"):
        plan.explain("%999")


def test_the_report_is_the_page_of_the_command(rng, tmp_path):
    program = swj.capture(mlp_step, mlp_params(rng), mlp_batches(rng)[0]).mark(MLP_PLANS["data=4,model=2"])
    program.save(tmp_path / "step.swp")
    loaded = sw.programs.load(tmp_path / "step.swp")
    assert loaded.text == program.text
    page = loaded.plan("data=4,model=2", capacity=1 << 20).report(machine="h100-80gb")
    done = subprocess.run([PACKAGE / "bin" / "shardwise", "plan", tmp_path / "step.swp", "--mesh", "data=4,model=2", "--memory", "1MiB",
                           "--device", "h100-80gb"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (page, 0)
    with pytest.raises(sw.InvalidArgument, match='found the machine "h300", needed one of tpu-v4, h100-80gb'):
        program.plan("data=4,model=2").report(machine="h300")


# ---- Runs.


def test_a_program_of_a_file_runs_by_labels(rng, tmp_path):
    params, batch = mlp_params(rng), mlp_batches(rng)[0]
    program = swj.capture(mlp_step, params, batch).mark(DATA)
    program.save(tmp_path / "step.swp")
    loaded = sw.programs.load(tmp_path / "step.swp")
    values = {"params/hidden/kernel": params["hidden"]["kernel"], "params/hidden/bias": params["hidden"]["bias"],
              "params/head/kernel": params["head"]["kernel"], "params/head/bias": params["head"]["bias"],
              "batch/x": batch["x"], "batch/y": batch["y"]}
    found = loaded.run(values, devices=8)
    for a, b in zip(found, jax.tree.leaves(program.run(params, batch, mesh="data=8"))):
        assert a.tobytes() == b.tobytes()
    with pytest.raises(sw.InvalidArgument, match="found no batch/y, needed an array for each input"):
        loaded.run({**{k: v for k, v in values.items() if k != "batch/y"}}, devices=8)
    with pytest.raises(sw.InvalidArgument, match="needed one mapping of labels to arrays"):
        loaded.run(params, batch, devices=8)


def test_values_are_kept_bit_for_bit(rng):
    """Arrays of any dtype and layout pass through devices that hold parts of them."""
    arrays = {d: rng.integers(0, 256, size=(8, 6, 8), dtype=np.uint8).view(d) for d in ("f4", "f2", "i1", "u4", "i2")}
    arrays["bf16"] = np.asarray(jnp.asarray(rng.normal(size=(8, 6)), jnp.bfloat16))
    arrays["bool"] = rng.integers(0, 2, size=(8, 3)).astype(bool)
    arrays["f4"] = np.asfortranarray(arrays["f4"])
    program = swj.capture(lambda x: {"same": x, "first": jax.tree.map(lambda v: v[::-1], x)}, arrays)
    program.mark({"x/bf16": "-,d", "x/bool": "d,-", "x/*": "-,d,-"})
    found = program.run(arrays, devices=8)
    for name, array in arrays.items():
        assert found["same"][name].tobytes() == array.tobytes() and found["first"][name].tobytes() == array[::-1].tobytes()


def test_keys_are_arguments_and_results():
    def step(key: Any, x: Any) -> Any:
        key, own = jax.random.split(key)
        return key, x * jax.random.bernoulli(own, 0.5, x.shape)

    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        x = np.arange(24, dtype=np.float32).reshape(8, 3)
        program = swj.capture(step, key, x)
        assert [(i.label, i.dtype, i.shape) for i in program.inputs] == [("key", "u32", (2,)), ("x", "f32", (8, 3))]
        (found_key, found), (expected_key, expected) = program.mark({"x": "d,-"}).run(key, x, devices=8), step(key, x)
        assert found_key.dtype == expected_key.dtype and found.tobytes() == np.asarray(expected).tobytes()
        assert (jax.random.uniform(found_key, (3,)) == jax.random.uniform(expected_key, (3,))).all()


def test_numpy_s_own_types_are_those_of_jax(rng):
    """They have 32 bits, as JAX's default is."""
    x, ids = rng.normal(size=(8, 3)), rng.integers(0, 8, 4)
    program = swj.capture(lambda x, i, scale: x[i] * scale, x, ids, 2)
    assert [(i.label, i.dtype) for i in program.inputs] == [("x", "f32"), ("i", "i32"), ("scale", "i32")]
    found = program.run(x, ids, 3, devices=2)
    assert found.dtype == np.float32 and np.allclose(found, x[ids] * 3)
    with jax.enable_x64(True):
        program = swj.capture(lambda x: x * 2, x)
        assert program.inputs[0].dtype == "f64" and (program.run(x, devices=2) == x * 2).all()


def test_arguments_that_do_not_fit_are_named(rng):
    params, batch = mlp_params(rng), mlp_batches(rng)[0]
    program = swj.capture(mlp_step, params, batch).mark(MLP_PLANS["data=4,model=2"])
    wrong = {**batch, "x": batch["x"].astype(np.float16)}
    with pytest.raises(sw.InvalidArgument, match=r"run: batch/x: found float16\[16, 12\], needed float32\[16, 12\]"):
        program.run(params, wrong, mesh="data=4,model=2")
    with pytest.raises(sw.InvalidArgument, match="run: found arguments of the tree"):
        program.run(params, mesh="data=4,model=2")
    with pytest.raises(sw.InvalidArgument, match="run: found neither, needed devices= or mesh="):
        program.run(params, batch)
    with pytest.raises(sw.InvalidArgument, match="run: found devices=8 and marks over the axes .*, needed mesh="):
        program.run(params, batch, devices=8)
    program.run(params, batch, devices=1)


# ---- Refusals.


def test_all_that_is_not_supported_is_named_at_once():
    def step(x: Any) -> Any:
        y = jnp.linalg.eig(x @ x.T)[0]
        z = jax.lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2, x)
        unused = jnp.linalg.eig(x)[0]  # noqa: F841 - nothing needs it
        return y, z, jax.lax.bessel_i0e(x[0]) + jax.lax.bessel_i0e(x[1])

    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(step, S((4, 4), jnp.float32))
    message = str(raised.value)
    first = step.__code__.co_firstlineno
    assert message.startswith("capture: found what no program has: ")
    for told in ("eig: found a decomposition that", f"eigh or svd (at {__file__}:{first + 1}", "while: how many steps it takes is known only when it runs, needed a loop of "
                 "a fixed length: jax.lax.scan over", f"after its end (at {__file__}:{first + 2}", f"bessel_i0e (2, first at {__file__}:{first + 4}"):
        assert told in message, message


@pytest.mark.parametrize("name, function", {
    "eig": jnp.linalg.eig, "schur": jax.scipy.linalg.schur, "random_gamma": lambda x: jax.random.gamma(jax.random.key(0), x),
    "polygamma": lambda x: jax.scipy.special.polygamma(1, x),
    "ragged_dot_general": lambda x: jax.vmap(jax.lax.ragged_dot)(x[None], x[None, None], jnp.array([[4]])), "tanh: found complex numbers": lambda x: jnp.tanh((x + 1j) * x),
    "scatter: found a function that is applied": lambda x: x.at[jnp.array([1, 2])].apply(jnp.sin),
    "pure_callback": lambda x: jax.pure_callback(lambda a: a, S((4, 4), jnp.float32), x),
}.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_not_there_yet_is_refused_by_its_name(name, function):
    """The list of docs/capture_jax.md, with `while` in test_jax_loops.py."""
    with pytest.raises(sw.Unsupported, match=rf"capture: .*\b{name}\b") as raised:
        swj.capture(function, S((4, 4), jnp.float32))
    assert "_random.py" not in str(raised.value)


def test_what_is_printed_is_left_out():
    assert swj.capture(lambda x: (jax.debug.print("{}", x), x)[1], S((4,), jnp.float32)).text.count("=") == 2


def test_erfc_is_zero_earlier_than_in_xla():
    """The numbers of docs/capture_jax.md."""
    x = np.float32(5)
    assert swj.capture(jax.lax.erfc, x).run(x, devices=1) == 0 and float(jax.lax.erfc(x)) == pytest.approx(1.5e-12, rel=0.05)


def test_what_remat_computes_again_stays():
    function = lambda x: jnp.sin(jnp.sin(x)).sum()  # noqa: E731
    for of, sines in ((function, 2), (jax.checkpoint(function), 3)):
        text = swj.capture(jax.value_and_grad(of), S((4,), jnp.float32)).text
        assert text.count(" = sin(") == sines, text


def test_an_array_that_the_step_holds_is_written_once(rng):
    table = jnp.asarray(rng.normal(size=(6, 6)).astype("f4"))
    inner = jax.jit(lambda x: x @ table)

    def step(x: Any) -> Any:
        for _ in range(30):
            x = inner(x)
        return x + table

    program = swj.capture(step, S((6, 6), jnp.float32))
    assert program.text.count(" = literal(") == 1
    x = rng.normal(size=(6, 6)).astype("f4")
    np.testing.assert_allclose(program.run(x, devices=1), step(x), rtol=1e-4)


def test_an_example_that_is_no_tree_of_arrays_is_refused():
    for example, message in (("x", "capture: a: found a str, needed an array"),
                             (S((3,), jnp.int4), "capture: a: found the dtype int4, needed one that programs have")):
        with pytest.raises(sw.InvalidArgument, match=message):
            swj.capture(lambda a: a, example)
    with pytest.raises(sw.InvalidArgument, match="kinds: found 'weights' for 'a', needed one of parameter, optimizer, loader"):
        swj.capture(lambda a: a, 1.0, kinds={"a": "weights"})


def test_what_the_program_s_own_checks_refuse_has_its_line():
    def step(x: Any) -> Any:
        return x.astype(jnp.float32) * 2

    with pytest.raises(sw.Unsupported) as raised:
        swj.capture(step, S((3,), jnp.float8_e4m3fn))
    line = step.__code__.co_firstlineno + 1
    assert str(raised.value).startswith(f"capture: {__file__}:{line}:") and ": convert_element_type: convert(%0 f8_e4m3fn[3]): " in str(raised.value)
    assert swj.capture(lambda x: x, S((3,), jnp.float8_e4m3fn)).inputs[0].dtype == "f8_e4m3fn"  # only moved


def test_kinds_are_told_by_what_comes_back_and_by_patterns():
    def step(state: Any, w: Any, x: Any) -> Any:
        return {**state, "step": state["step"] + 1}, w + x.sum()

    example = ({"step": 0, "opt_state": {"mu": 1.0}, "params": 2.0}, S((3,), jnp.float32), S((4,), jnp.float32))
    kinds = {i.label: i.kind for i in swj.capture(step, *example).inputs}
    assert kinds == {
        "state/step": "parameter",
        "state/opt_state/mu": "parameter",
        "state/params": "parameter",
        "w": "parameter",
        "x": "loader",
    }
    kinds = {i.label: i.kind for i in swj.capture(step, *example, kinds={"x": "parameter", "state/*": "loader"}).inputs}
    assert kinds["x"] == "parameter" and kinds["state/params"] == "loader" and kinds["w"] == "parameter"


def test_a_parameter_that_a_rule_does_not_know_is_refused(monkeypatch):
    """A later JAX may have such a primitive."""
    monkeypatch.setitem(_primitives.UNREAD, "argmax", "")
    with pytest.raises(
        sw.Unsupported,
        match=r"argmax: found the parameter index_dtype=.*, "
        r"needed those that its rule knows \(at .*test_jax_programs",
    ):
        swj.capture(lambda x: jnp.argmax(x), S((4,), jnp.float32))


def test_names_of_arguments_tell_no_kind():
    """A batch may hold "v" and "step"."""
    def step(weights: Any, batch: Any, opt: Any) -> Any:
        return [w - (batch["v"] * opt).sum() for w in weights], batch["step"]

    array, names = S((4,), jnp.float32), ("v", "m", "mu", "count", "params")
    batch = {"step": S((), jnp.int32), **dict.fromkeys(names, array)}
    kinds = {i.label: i.kind for i in swj.capture(step, [array, array], batch, array).inputs}
    assert kinds == {
        "weights/0": "parameter",
        "weights/1": "parameter",
        "opt": "loader",
        "batch/step": "loader",
        **{f"batch/{name}": "loader" for name in names},
    }
    plan = swj.capture(step, [array, array], batch, array).plan("d=1")
    assert plan.bytes_by_kind.get("optimizer", 0) == 0


def test_state_that_comes_back_deeper_or_beside_data_is_state():
    array, number = S((4,), jnp.float32), S((), jnp.float32)
    state = {"w": array, "b": number}

    def step(held: Any, more: Any, x: Any) -> Any:
        return x.sum(), ({"state": jax.tree.map(lambda w: w * x.sum(), held["state"])}, more)

    kinds = {
        i.label: i.kind
        for i in swj.capture(step, {"state": state, "batch": array}, [array, number], array).inputs
    }
    assert kinds == {
        "held/batch": "loader",
        "held/state/w": "parameter",
        "held/state/b": "parameter",
        "more/0": "parameter",
        "more/1": "parameter",
        "x": "loader",
    }


def test_the_state_of_optax_is_the_optimizers():
    optax = pytest.importorskip("optax")
    tx, params = optax.adam(1e-3), {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}

    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(lambda p: (x @ p["w"] + p["b"]).sum())(params)
        updates, state = tx.update(grads, state)
        return optax.apply_updates(params, updates), state

    kinds = {i.label: i.kind for i in swj.capture(step, params, tx.init(params), jnp.ones((2, 4))).inputs}
    assert {kind for label, kind in kinds.items() if label.startswith("state/")} == {"optimizer"} and kinds[
        "x"
    ] == "loader"
    assert kinds["params/w"] == kinds["params/b"] == "parameter"


def test_what_has_the_type_of_a_result_by_chance_is_data():
    def step(layers: Any, lr: Any, x: Any, y: Any) -> Any:
        return [w - lr * (x - y).sum() for w in layers], lr * 2, {"y": x}

    array = S((4,), jnp.float32)
    kinds = {i.label: i.kind for i in swj.capture(step, [array, array], 0.1, array, array).inputs}
    assert kinds == {"layers/0": "parameter", "layers/1": "parameter", "lr": "loader", "x": "loader", "y": "loader"}
    kinds = {i.label: i.kind for i in swj.capture(lambda x, w: {"y": x[0], "w": w + x}, array, array).inputs}
    assert kinds == {"x": "loader", "w": "parameter"}
    assert swj.capture(lambda x, w: w + x[0], S((2, 4), jnp.float32), array).inputs[1].kind == "parameter"
