"""Operations of StableHLO as programs: those that JAX makes of its primitives beside JAX, and others beside XLA."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import random
import re
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lib import xla_client  # nothing public compiles a module
from jaxlib.mlir import ir

import shardwise as sw
import shardwise.jax as swj
from jax_steps import from_text
from shardwise.jax import _hlo_bytecode, _hlo_module, _hlo_writer
from test_jax_primitives import CASES, same

RNG = np.random.default_rng(7)


# ---- What JAX makes of its primitives.


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_is_what_jax_computes(name):
    function, args = CASES[name]
    jitted = jax.jit(function, keep_unused=True)
    theirs = jax.tree.map(np.asarray, jitted(*args))
    text = jitted.lower(*args).as_text()

    def run(program: Any, **devices: Any) -> Any:
        return jax.tree.unflatten(jax.tree.structure(theirs), program.run(*args, **devices))

    program = swj.from_stablehlo(text)
    same(run(program, devices=1), theirs)
    dim = max(np.ndim(arg) for arg in args) - 1
    cut = {i.label: ",".join("d" if d == dim else "-" for d in range(len(i.shape))) for i in program.inputs if len(i.shape) > dim}
    same(run(program.mark(cut), mesh="d=4"), theirs)


# Of two arrays of 8 x 6, continuous: rounding, which differs by devices, changes no element by much.
STEPS: list[Any] = [
    lambda x, y: jnp.sin(x) * y, lambda x, y: x @ y.T @ x / 8, lambda x, y: jnp.concatenate([x[:3], y[3:]]), lambda x, y: jnp.cumsum(x, 0) / 4 + y,
    lambda x, y: x[::-1] + y[:, ::-1], lambda x, y: x.at[jnp.array([1, 1, 7])].add(y[:3]), lambda x, y: x[jnp.array([0, 2, 2, 1, 7, 5, 3, 9])] - y,
    lambda x, y: jax.nn.softmax(x) + y, lambda x, y: x.max(1, keepdims=True) * y, lambda x, y: jnp.roll(x, 2, 1) + jnp.tril(y),
    lambda x, y: jnp.pad(x, ((1, 0), (0, 2)))[:-1, 2:] + y, lambda x, y: lax.scan(lambda c, r: (jnp.tanh(c + r), c), x[0], y)[1] + x,
    lambda x, y: lax.fori_loop(1, 4, lambda i, v: v * 0.5 + x[i], y), lambda x, y: lax.cond(x[0, 0] > 5, jnp.sin, jnp.cos, y) + x,
    lambda x, y: jnp.einsum("ij,kj->ik", x, y) @ y / 8, lambda x, y: x.reshape(4, 12).T.reshape(8, 6) + y, lambda x, y: jax.nn.gelu(x) - jax.nn.relu(y),
    lambda x, y: jnp.take_along_axis(x, jnp.arange(48).reshape(8, 6) % 6, 1) * y, lambda x, y: lax.dynamic_update_slice(x, y[:2, :3], (3, 2)),
    lambda x, y: lax.map(lambda r: r[0] * r[1], (x, y)), lambda x, y: jax.checkpoint(lambda v: jnp.sin(v) * jnp.cos(v))(x) + y]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_compute_what_jax_computes(seed):
    """Of ten steps, each of two of the arrays so far, and with their gradients."""
    draw = random.Random(seed)
    steps = [(draw.choice(STEPS), draw.random(), draw.random()) for _ in range(10)]

    def value(x: Any, y: Any) -> Any:
        arrays = [x, y]
        for step, a, b in steps:
            arrays.append(jnp.tanh(step(arrays[int(a * len(arrays))], arrays[int(b * len(arrays))])))
        return sum(array.sum() for array in arrays), arrays[-1]

    def both(x: Any, y: Any) -> Any:
        return jax.value_and_grad(value, (0, 1), has_aux=True)(x, y)

    args = tuple(np.random.default_rng(seed).normal(size=(2, 8, 6)).astype(np.float32))
    theirs = jax.tree.map(np.asarray, jax.jit(both)(*args))
    for mesh, cut in (("d=1", {}), ("d=4", {"x": "d,-"}), ("d=3,m=2", {"x": "d,-", "y": "-,m"})):
        program = from_text(both, *args).mark(cut)
        for ours, expected in zip(program.run(*args, mesh=mesh), jax.tree.leaves(theirs)):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4, err_msg=mesh)


# ---- What StableHLO says, by XLA.

_NUMPY = {"f32": np.float32, "i32": np.int32, "ui32": np.uint32, "i1": np.bool_, "i64": np.int64, "ui64": np.uint64, "ui8": np.uint8}


SPECIAL = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf], np.float32)


def drawn(kind: str) -> np.ndarray:
    """Of "4x3xf32": small numbers, of which some are equal; of 16 some are none."""
    *extents, dtype = kind.split("x")
    values = RNG.integers(0, 9, [int(n) for n in extents]) - 4 * (dtype[0] != "u")
    made = np.asarray(values % 2 == 1 if dtype == "i1" else values / 2 if dtype[0] == "f" else values, _NUMPY[dtype])
    return np.where(RNG.integers(0, 3, made.shape) == 0, RNG.choice(SPECIAL, made.shape), made) if extents == ["16"] else made


def compiled(text: str) -> Any:
    """By XLA, for one device: a function of arrays."""
    with _hlo_bytecode.context():
        made = jax.extend.backend.get_backend().compile_and_load(ir.Module.parse(text), xla_client.DeviceList(tuple(jax.devices()[:1])),
                                                                 xla_client.CompileOptions())

    def run(args: list[np.ndarray]) -> list[np.ndarray]:
        with jax.enable_x64(True):
            given = [jax.device_put(x, jax.devices()[0]) for x in args]
        return [np.asarray(parts[0]) for parts in made.execute_sharded(given).disassemble_into_single_device_arrays()]

    return run


def function(inputs: str, results: str, body: str) -> str:
    kinds = ", ".join(f"%{chr(97 + n)}: tensor<{kind}>" for n, kind in enumerate(inputs.split()))
    outputs = ", ".join(f"tensor<{kind}>" for kind in results.split())
    names = ", ".join(f"%r{n}" for n in range(len(results.split()))) if "%r0" in body else "%r#0, %r#1" if "%r:2" in body else "%r"
    return f"func.func @main({kinds}) -> ({outputs}) {{\n{body}\nreturn {names} : {outputs}\n}}"


def two(kind: str, op: str) -> str:
    """A body of two numbers."""
    return f"({{\n^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>):\n%z = {op} %x, %y : tensor<{kind}>\nstablehlo.return %z : tensor<{kind}>\n}})"


def compared(kind: str, direction: str, how: str) -> str:
    return (f"({{\n^bb0(%x: tensor<{kind}>, %y: tensor<{kind}>, %i: tensor<i32>, %j: tensor<i32>):\n%z = stablehlo.compare {direction}, %x, %y, {how} : "
            f"(tensor<{kind}>, tensor<{kind}>) -> tensor<i1>\nstablehlo.return %z : tensor<i1>\n}})")


def gathered(dims: str, sizes: str, kinds: str) -> str:
    return f'%r = "stablehlo.gather"(%a, %b) <{{dimension_numbers = #stablehlo.gather<{dims}>, slice_sizes = array<i64: {sizes}>}}> : {kinds}'


def scattered(dims: str, op: str, kinds: str) -> str:
    return f'%r = "stablehlo.scatter"(%a, %b, %c) <{{scatter_dimension_numbers = #stablehlo.scatter<{dims}>}}> {two("f32", op)} : {kinds}'


def loop(condition: str, step: str, start: int, limit: int, body: str = "stablehlo.add %v, %v") -> str:
    """Of a counter %i and a carried %v of 3xf32."""
    return f"""%s = stablehlo.constant dense<{start}> : tensor<i32>
%n = stablehlo.constant dense<{limit}> : tensor<i32>
%k = stablehlo.constant dense<{step}> : tensor<i32>
%r:2 = stablehlo.while(%i = %s, %v = %a) : tensor<i32>, tensor<3xf32>
cond {{
  %c = stablehlo.compare {condition} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}} do {{
  %w = {body} : tensor<3xf32>
  %j = stablehlo.add %i, %k : tensor<i32>
  stablehlo.return %j, %w : tensor<i32>, tensor<3xf32>
}}"""


def stacked(slices: str, update: str, source: str = "a", added: str = "%u") -> str:
    """A loop of 4 that goes through %a, of 4x3xf32, and changes %b, of the same shape, at these indices of the trip %i. source: "v" if
    it goes through what it changes."""
    return f"""%zero = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%three = stablehlo.constant dense<3> : tensor<i32>
%four = stablehlo.constant dense<4> : tensor<i32>
%all:3 = stablehlo.while(%i = %zero, %v = %b, %u = %c) : tensor<i32>, tensor<4x3xf32>, tensor<1x3xf32>
cond {{
  %t = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %t : tensor<i1>
}} do {{
  %back = stablehlo.subtract %three, %i : tensor<i32>
  %p = stablehlo.dynamic_slice %{source}, %{slices}, %zero, sizes = [1, 3] : (tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
  {"%top = stablehlo.slice %v [0:1, 0:3] : (tensor<4x3xf32>) -> tensor<1x3xf32>" if added == "%top" else ""}
  %q = stablehlo.add %p, {added} : tensor<1x3xf32>
  %w = stablehlo.dynamic_update_slice %v, %q, %{update}, %zero : (tensor<4x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x3xf32>
  %j = stablehlo.add %i, %one : tensor<i32>
  stablehlo.return %j, %w, %q : tensor<i32>, tensor<4x3xf32>, tensor<1x3xf32>
}}
%r0 = stablehlo.add %all#1, %a : tensor<4x3xf32>
%r1 = stablehlo.add %all#0, %zero : tensor<i32>"""


def case_of(branches: int) -> str:
    inside = ", ".join(f"{{\n%x{n} = stablehlo.constant dense<{n}.0> : tensor<3xf32>\n%y{n} = stablehlo.add %b, %x{n} : tensor<3xf32>\n"
                       f"stablehlo.return %y{n} : tensor<3xf32>\n}}" for n in range(branches))
    return f'%r = "stablehlo.case"(%a) ({inside}) : (tensor<i32>) -> tensor<3xf32>'


def window(op: str, attributes: str, result: str, start: str = "0.0", kind: str = "5x6xf32") -> str:
    return (f'%s = stablehlo.constant dense<{start}> : tensor<f32>\n%r = "stablehlo.reduce_window"(%a, %s) <{{{attributes}}}> {two("f32", op)} : '
            f'(tensor<{kind}>, tensor<f32>) -> tensor<{result}>')


HAND: dict[str, tuple[str, str, str]] = {
    "arithmetic": ("3x4xf32 3x4xf32", "3x4xf32", "%x = stablehlo.atan2 %a, %b : tensor<3x4xf32>\n%y = stablehlo.round_nearest_afz %x : tensor<3x4xf32>\n"
                   "%t = stablehlo.tan %y : tensor<3x4xf32>\n%z = stablehlo.logistic %t : tensor<3x4xf32>\n%r = stablehlo.clamp %b, %z, %a : tensor<3x4xf32>"),
    "sums of booleans": ("6xi1 6xi1", "6xi1 6xi1 6xi1 6xi1", "\n".join(f"%r{n} = stablehlo.{op} %a, %b : tensor<6xi1>"
                                                                         for n, op in enumerate(("add", "multiply", "maximum", "minimum")))),
    "of one number": ("i1 f32 5xf32 5xf32", "5xf32", "%x = stablehlo.select %a, %c, %d : tensor<i1>, tensor<5xf32>\n"
                      "%r = stablehlo.clamp %b, %x, %b : (tensor<f32>, tensor<5xf32>, tensor<f32>) -> tensor<5xf32>"),
    "broadcast of dims in another order": ("2x3xf32", "3x4x2xf32", "%r = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (tensor<2x3xf32>) -> tensor<3x4x2xf32>"),
    "broadcast in front": ("3xf32", "2x3xf32", '%r = "stablehlo.broadcast"(%a) <{broadcast_sizes = array<i64: 2>}> : (tensor<3xf32>) -> tensor<2x3xf32>'),
    "chlo": ("5xf32 5xf32", "5xf32 5xf32 5xi1 5xi1 5xi1", "%s = \"chlo.constant_like\"(%a) <{value = 0.25 : f32}> : (tensor<5xf32>) -> tensor<5xf32>\n%t = chlo.tan %s : tensor<5xf32> -> tensor<5xf32>\n"
             "%u = stablehlo.divide %a, %b : tensor<5xf32>\n%r0 = stablehlo.multiply %t, %a : tensor<5xf32>\n%r1 = chlo.square %b : tensor<5xf32> -> tensor<5xf32>\n"
             "%r2 = chlo.is_inf %u : tensor<5xf32> -> tensor<5xi1>\n%r3 = chlo.is_pos_inf %u : tensor<5xf32> -> tensor<5xi1>\n%r4 = chlo.is_neg_inf %u : tensor<5xf32> -> tensor<5xi1>"),
    "tuples": ("3xf32 3xf32", "3xf32 3xf32", "%t = stablehlo.tuple %a, %b : tuple<tensor<3xf32>, tensor<3xf32>>\n%r0 = stablehlo.get_tuple_element %t[1] : "
               "(tuple<tensor<3xf32>, tensor<3xf32>>) -> tensor<3xf32>\n%r1 = stablehlo.add %a, %r0 : tensor<3xf32>"),
    "batch norm": ("2x3x4xf32 3xf32 3xf32", "2x3x4xf32 3xf32 3xf32", "%r0, %r1, %r2 = \"stablehlo.batch_norm_training\"(%a, %b, %c) <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> : "
                   "(tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)"),
    "batch norm at last": ("2x4x3xf32 3xf32 3xf32 3xf32 3xf32", "2x4x3xf32", "%v = stablehlo.multiply %e, %e : tensor<3xf32>\n%r = \"stablehlo.batch_norm_inference\"(%a, %b, %c, %d, %v) "
                           "<{epsilon = 1.0e-3 : f32, feature_index = 2 : i64}> : (tensor<2x4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x4x3xf32>"),
    "gradient of batch norm": ("2x3x4xf32 3xf32 3xf32 2x3x4xf32", "2x3x4xf32 3xf32 3xf32", "%o, %m, %v = \"stablehlo.batch_norm_training\"(%a, %b, %c) <{epsilon = 1.0e-3 : f32, feature_index = 1 "
                               ": i64}> : (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)\n%r0, %r1, %r2 = \"stablehlo.batch_norm_grad\""
                               "(%a, %b, %m, %v, %d) <{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}> : (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, "
                               "tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>, tensor<3xf32>, tensor<3xf32>)"),
    "dot": ("2x3xf32 3xf32", "2xf32", "%r = stablehlo.dot %a, %b : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>"),
    "constants": ("3xf32", "3xf32", "%x = stablehlo.constant dense<[1.0, 0x7F800000, -2.5]> : tensor<3xf32>\n%r = stablehlo.maximum %a, %x : tensor<3xf32>"),
    "extent of a dim": ("2x3xf32", "i32", '%r = "stablehlo.get_dimension_size"(%a) <{dimension = 1 : i64}> : (tensor<2x3xf32>) -> tensor<i32>'),
    "pad by an operand": ("2x3xf32 f32", "3x6xf32", "%r = stablehlo.pad %a, %b, low = [-1, 1], high = [2, 0], interior = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x6xf32>"),
    "reduce with a start": ("4x3xf32 f32", "3xf32", f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 0>}}> {two("f32", "stablehlo.add")} : '
                            "(tensor<4x3xf32>, tensor<f32>) -> tensor<3xf32>"),
    "reduce of booleans": ("4x3xi1 i1", "3xi1", f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 0>}}> {two("i1", "stablehlo.or")} : '
                           "(tensor<4x3xi1>, tensor<i1>) -> tensor<3xi1>"),
    "maximum of what is nothing": ("4x0xf32 f32", "4xf32", f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 1>}}> {two("f32", "stablehlo.maximum")} : '
                                   "(tensor<4x0xf32>, tensor<f32>) -> tensor<4xf32>"),
    "windows with gaps": ("5x6xf32", "7x3xf32", window("stablehlo.add", "window_dimensions = array<i64: 3, 2>, window_strides = array<i64: 1, 2>, "
                          "base_dilations = array<i64: 2, 1>, window_dilations = array<i64: 1, 3>, padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>", "7x3xf32")),
    "least of windows": ("5x6xf32", "3x6xf32", window("stablehlo.minimum", "window_dimensions = array<i64: 3, 1>", "3x6xf32", "0x7F800000")),
    "cumulative": ("5x6xf32", "5x6xf32", window("stablehlo.multiply", "window_dimensions = array<i64: 5, 1>, padding = dense<[[0, 4], [0, 0]]> : tensor<2x2xi64>", "5x6xf32", "1.0")),
    "almost cumulative": ("5x6xf32", "5x6xf32", window("stablehlo.add", "window_dimensions = array<i64: 5, 1>, padding = dense<[[2, 2], [0, 0]]> : tensor<2x2xi64>", "5x6xf32")),
    "gather of vectors in front": ("5x4x3xf32 2x6xi32", "6x3xf32", gathered("offset_dims = [1], collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 0",
                                   "1, 1, 3", "(tensor<5x4x3xf32>, tensor<2x6xi32>) -> tensor<6x3xf32>")),
    "gather by single indices": ("5x4xf32 6xui32", "2x6x4xf32", gathered("offset_dims = [0, 2], start_index_map = [0], index_vector_dim = 1",
                                 "2, 4", "(tensor<5x4xf32>, tensor<6xui32>) -> tensor<2x6x4xf32>")),
    "gather in batches": ("3x5xf32 2x3xi32", "2x3xf32", gathered("collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [1], "
                          "start_index_map = [1], index_vector_dim = 2", "1, 1", "(tensor<3x5xf32>, tensor<2x3xi32>) -> tensor<2x3xf32>")),
    "gather in batches by vectors in front": ("3x5xf32 1x2x3xi32", "2x3xf32", gathered("collapsed_slice_dims = [1], operand_batching_dims = [0], "
                                              "start_indices_batching_dims = [2], start_index_map = [1], index_vector_dim = 0", "1, 1", "(tensor<3x5xf32>, tensor<1x2x3xi32>) -> tensor<2x3xf32>")),
    "scatter in batches by vectors in front": ("3x5xf32 1x2x3xi32 2x3xf32", "3x5xf32", scattered("inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [2], "
                                               "scatter_dims_to_operand_dims = [1], index_vector_dim = 0", "stablehlo.add", "(tensor<3x5xf32>, tensor<1x2x3xi32>, tensor<2x3xf32>) -> tensor<3x5xf32>")),
    "scatter of vectors in front": ("5x4xf32 2x6xi32 6xf32", "5x4xf32", scattered("inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 0",
                                    "stablehlo.add", "(tensor<5x4xf32>, tensor<2x6xi32>, tensor<6xf32>) -> tensor<5x4xf32>")),
    "scatter of windows": ("5x4xf32 3xi32 3x2x4xf32", "5x4xf32", scattered("update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
                           "stablehlo.maximum", "(tensor<5x4xf32>, tensor<3xi32>, tensor<3x2x4xf32>) -> tensor<5x4xf32>")),
    "scatter of differences": ("5xf32 4x1xi32 4xf32", "5xf32", scattered("inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
                               "stablehlo.subtract", "(tensor<5xf32>, tensor<4x1xi32>, tensor<4xf32>) -> tensor<5xf32>")),
    "convolution of a reversed kernel": ("2x7x3xf32 4x3x5xf32", "2x6x5xf32", "%r = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = "
                                         "{pad = [[1, 1]], reverse = [true]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x7x3xf32>, tensor<4x3x5xf32>) -> tensor<2x6x5xf32>"),
    "pooling backwards": ("4x6xf32 2x3xf32", "4x6xf32", "%s = stablehlo.constant dense<0.0> : tensor<f32>\n%r = \"stablehlo.select_and_scatter\"(%a, %b, %s) <{window_dimensions = "
                          "array<i64: 2, 2>, window_strides = array<i64: 2, 2>}> ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%z = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) "
                          "-> tensor<i1>\nstablehlo.return %z : tensor<i1>\n}, {\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%z = stablehlo.add %x, %y : tensor<f32>\nstablehlo.return %z : "
                          "tensor<f32>\n}) : (tensor<4x6xf32>, tensor<2x3xf32>, tensor<f32>) -> tensor<4x6xf32>"),
    **{f"sort {how} {direction}": ("3x7xf32 3x7xi32", "3x7xf32 3x7xi32", f'%r:2 = "stablehlo.sort"(%a, %b) <{{dimension = 1 : i64, is_stable = true}}> {compared("f32", direction, how)} : '
                                   "(tensor<3x7xf32>, tensor<3x7xi32>) -> (tensor<3x7xf32>, tensor<3x7xi32>)")
       for direction in ("LT", "GT") for how in ("FLOAT", "TOTALORDER")},
    **{f"Cholesky's factor, {lower}": ("4x4xf32", "4x4xf32", "%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>\n%p = stablehlo.dot %a, %t : "
                                       "(tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>\n%u = stablehlo.iota dim = 0 : tensor<4x4xi32>\n%v = stablehlo.iota dim = 1 : tensor<4x4xi32>\n"
                                       "%e = stablehlo.compare EQ, %u, %v : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>\n%d = stablehlo.convert %e : (tensor<4x4xi1>) -> tensor<4x4xf32>\n"
                                       f"%s = stablehlo.add %p, %d : tensor<4x4xf32>\n%r = stablehlo.cholesky %s, lower = {lower} : tensor<4x4xf32>") for lower in ("true", "false")},
    "triangular solve": ("4x4xf32 4x3xf32", "4x3xf32", "%u = stablehlo.iota dim = 0 : tensor<4x4xi32>\n%v = stablehlo.iota dim = 1 : tensor<4x4xi32>\n"
                         "%e = stablehlo.compare EQ, %u, %v : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>\n%d = stablehlo.convert %e : (tensor<4x4xi1>) -> tensor<4x4xf32>\n"
                         "%n = stablehlo.constant dense<9.0> : tensor<4x4xf32>\n%w = stablehlo.multiply %d, %n : tensor<4x4xf32>\n%s = stablehlo.add %w, %a : tensor<4x4xf32>\n"
                         '%r = "stablehlo.triangular_solve"(%s, %b) <{left_side = true, lower = false, unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>}> : '
                         "(tensor<4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>"),
    "case": ("i32 3xf32", "3xf32", case_of(3)),
    "case of two": ("i32 3xf32", "3xf32", case_of(2)),
    "if": ("i1 3xf32", "3xf32", '%r = "stablehlo.if"(%a) ({\n%x = stablehlo.negate %b : tensor<3xf32>\nstablehlo.return %x : tensor<3xf32>\n}, {\nstablehlo.return %b : tensor<3xf32>\n}) : '
           "(tensor<i1>) -> tensor<3xf32>"),
    "while below": ("3xf32", "i32 3xf32", loop("LT, %i, %n", "3", -2, 9)),
    "while at most": ("3xf32", "i32 3xf32", loop("LE, %i, %n", "1", 1, 3)),
    "while down": ("3xf32", "i32 3xf32", loop("GT, %i, %n", "-2", 5, -2)),
    "while down to": ("3xf32", "i32 3xf32", loop("LE, %n, %i", "-1", 3, 0)),
    "while another": ("3xf32", "i32 3xf32", loop("NE, %i, %n", "2", 0, 6)),
    "while never": ("3xf32", "i32 3xf32", loop("LT, %i, %n", "1", 5, 5)),
    **{f"stacked {slices} {update}": ("4x3xf32 4x3xf32 1x3xf32", "4x3xf32 i32", stacked(slices, update))
       for slices, update in (("i", "i"), ("back", "back"), ("i", "back"), ("back", "i"), ("i", "one"), ("one", "i"), ("zero", "three"))},
    **{f"stacked {slices} {update} {source} {added}": ("4x3xf32 4x3xf32 1x3xf32", "4x3xf32 i32", stacked(slices, update, source, added))
       for slices, update, source, added in (("i", "i", "v", "%u"), ("i", "i", "a", "%top"), ("back", "i", "v", "%u"), ("back", "back", "v", "%top"))},
    **{f"bits by {name} {kind}": ("2xui64", f"2xui64 {kind}", f"%r:2 = stablehlo.rng_bit_generator %a, algorithm = {name} : (tensor<2xui64>) -> (tensor<2xui64>, "
                                  f"tensor<{kind}>)") for name in ("DEFAULT", "THREE_FRY") for kind in ("6xui64", "3x8xui64", "3xi64", "8x4xi32")},
    **{f"compare {direction} in order": ("16xf32 16xf32", "16xi1", f"%r = stablehlo.compare {direction}, %a, %b, TOTALORDER : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xi1>")
       for direction in ("EQ", "NE", "LT", "LE", "GT", "GE")},
}


@pytest.mark.parametrize("name", HAND)
def test_is_what_xla_computes(name):
    """With operands drawn anew, and each input cut over two devices along each of its dims."""
    inputs, results, body = HAND[name]
    text = function(inputs, results, body)
    program, expected_of = swj.from_stablehlo(text), compiled(text)
    for draw in range(6):
        args = [drawn(kind) for kind in inputs.split()]
        theirs = expected_of(args)
        cuts: list[dict[str, str]] = [{}]
        cuts += [] if draw else [{i.label: ",".join("d" if d == dim else "-" for d in range(len(i.shape)))} for i in program.inputs for dim in range(len(i.shape))]
        for cut in cuts:
            found = swj.from_stablehlo(text).mark(cut).run(*args, mesh="d=2")
            for ours, expected in zip(found, theirs):
                if expected.dtype.kind in "biu":
                    np.testing.assert_array_equal(ours.view(expected.dtype), expected, str(cut))  # XLA gives signed bits as unsigned
                else:
                    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=3e-6, err_msg=str(cut))


def test_loops_by_slices_are_scans_of_slices():
    """Forward and back; a mixture takes slices by the counter, and is still a scan."""
    for (slices, update), (through, is_reverse) in {("i", "i"): (1, False), ("back", "back"): (1, True), ("i", "back"): (1, False), ("one", "zero"): (0, False)}.items():
        text = swj.from_stablehlo(function("4x3xf32 4x3xf32 1x3xf32", "4x3xf32 i32", stacked(slices, update))).text
        line = next(one for one in text.splitlines() if " = scan(" in one)
        assert f"xs=[{through}]" in line and (" reverse" in line) == is_reverse, line
        assert ("dynamic_update_slice" in text) == (slices != update), text


@pytest.mark.parametrize(("inputs", "results", "body", "reason"), [
    ("3xf32", "3xf32", "%r = stablehlo.cholesky %a : tensor<3xf32>", "line 2: "),
    ("3xf32 i32", "i32 3xf32", loop("LT, %i, %b", "1", 0, 0), "while: how many steps it takes"),
    ("3xf32", "i32 3xf32", loop("LT, %n, %i", "1", 1, 0), "while: how many steps it takes"),
    ("3xf32", "i32 3xf32", loop("NE, %i, %n", "2", 0, 5), "while: how many steps it takes"),
    ("3xf32", "i32 3xf32", loop("LT, %i, %n", "1", 1, 9).replace("stablehlo.add %i, %k", "stablehlo.add %i, %i"), "while: how many steps it takes"),
    ("4xi32 i32", "i32", f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 0>}}> {two("i32", "stablehlo.xor")} : (tensor<4xi32>, tensor<i32>) -> tensor<i32>',
     "reduce: found a body of xor"),
    ("4xf32 f32", "f32", f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 0>}}> {two("f32", "stablehlo.subtract")} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>',
     "reduce: found the combination sub"),
    ("5x6xf32", "3x6xf32", window("stablehlo.add", "window_dimensions = array<i64: 3, 1>", "3x6xf32", "1.0"), "reduce_window: found a value to begin with"),
    ("3x7xf32 3x7xi32", "3x7xf32 3x7xi32", f'%r:2 = "stablehlo.sort"(%a, %b) <{{dimension = 1 : i64}}> {compared("f32", "LE", "FLOAT")} : '
     "(tensor<3x7xf32>, tensor<3x7xi32>) -> (tensor<3x7xf32>, tensor<3x7xi32>)", "sort: found another comparison"),
    ("3xui64", "3xui64 3xui32", "%r:2 = stablehlo.rng_bit_generator %a, algorithm = PHILOX : (tensor<3xui64>) -> (tensor<3xui64>, tensor<3xui32>)",
     "rng_bit_generator: found u32 of a state of u64[3], needed integers of a state of two u64"),
    ("2xui64", "2xui64 3xf32", "%r:2 = stablehlo.rng_bit_generator %a, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xf32>)",
     "rng_bit_generator: found f32 of a state"),
    ("4xf32", "4xf32", '%r = stablehlo.custom_call @SPMDFullToShardShape(%a) : (tensor<4xf32>) -> tensor<4xf32>', "custom_call: a step says what each device does"),
    ("4xcomplex<f32>", "4xcomplex<f32>", "%r = stablehlo.tanh %a : tensor<4xcomplex<f32>>", "tanh: found complex numbers"),
    ("4xcomplex<f32> complex<f32>", "complex<f32>", '%r = "stablehlo.reduce"(%a, %b) <{dimensions = array<i64: 0>}> ' + two("complex<f32>", "stablehlo.multiply")
     + " : (tensor<4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>", "reduce: found the combination mul of complex numbers, needed a sum"),
])
def test_what_has_no_rule_says_why(inputs, results, body, reason):
    with pytest.raises(sw.Error, match=re.escape(reason)):
        swj.from_stablehlo(function(inputs, results, body))


def test_numbers_of_small_dtypes_keep_their_bits():
    import ml_dtypes

    for kind, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16), ("f8E4M3FN", ml_dtypes.float8_e4m3fn), ("i1", np.bool_),
                        ("ui8", np.uint8), ("i64", np.int64)):
        for written in ("dense<[1.0, -2.5, 0.0625]>", "dense<[1.0, 1.0, 1.0]>", "dense<[3.0, -0.0, 448.0]>"):
            numbers = [float(word) for word in re.findall(r"-?\d+\.\d+", written)]
            if kind[0] in "ui":
                numbers = [int(abs(n)) % (2 if kind == "i1" else 256) for n in numbers]
                written = f"dense<[{', '.join(str(bool(n)).lower() if kind == 'i1' else str(n) for n in numbers)}]>"
            text = f"func.func @main() -> tensor<3x{kind}> {{\n%x = stablehlo.constant {written} : tensor<3x{kind}>\nreturn %x : tensor<3x{kind}>\n}}"
            (found,) = swj.from_stablehlo(text).run(devices=1)
            assert found.dtype == dtype and found.tobytes() == np.array(numbers, dtype).tobytes(), written
    many = np.arange(300).astype(ml_dtypes.bfloat16)  # printed as bits
    program = from_text(lambda x: x + jax.numpy.asarray(many), np.zeros(300, ml_dtypes.bfloat16))
    assert np.array_equal(program.run(np.zeros(300, ml_dtypes.bfloat16), devices=1)[0], many)


def test_no_rule_is_without_a_case():
    met: set[str] = set()

    def walk(text: str) -> None:
        with _hlo_bytecode.context():
            met.update(op.name for op in _hlo_writer.operations_of(ir.Module.parse(text).operation))

    for step, args in CASES.values():
        walk(jax.jit(step).lower(*args).as_text())
    for hand in HAND.values():
        walk(function(*hand))
    elsewhere = {"sdy.sharding_constraint", "stablehlo.custom_call", "stablehlo.composite", "sdy.reshard", "sdy.propagation_barrier", "sdy.sharding_group", "sdy.named_computation",
                 "sdy.manual_computation"}  # in test_stablehlo.py
    elsewhere |= {f"stablehlo.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute", "partition_id")}  # in test_jax_shard_map.py
    assert _hlo_module and set(_hlo_writer.RULES) - met - elsewhere == set()
