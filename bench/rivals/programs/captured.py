"""Compares the rivals' GPT captured from PyTorch and JAX, the one written in C++, and JAX's own: captured.py SCRIPTS

SCRIPTS is the folder of the rivals' programs (run.py says which). All take the same weights and batches, on the same mesh,
by turns; the columns are milliseconds of a step, by the clock and of the processor, and the ratio to C++'s. A step of the
processor is the time of a process for many steps less that for few, which excludes planning.

--layers 12 --width 768 --heads 12 --batch 8 --meshes fsdp=8 --steps 3 are the sizes of GPT-2 small, with bytes as tokens.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np


def spec_of(common: Any, arguments: Any, name: str, shape: tuple[int, ...]) -> str:
    """The cut that the rivals give a weight, and its optimizer state."""
    spec = common.param_spec(arguments, common.parse_mesh(arguments.mesh), name, shape)
    return ",".join(axis or "-" for axis in spec) if shape else '""'


def from_torch(_: pathlib.Path, common: Any, arguments: Any) -> tuple[Any, dict[str, np.ndarray]]:
    import torch
    import torch_model

    import shardwise.torch as swt

    weights, data = torch_model.arrays(arguments)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in weights.items():
                self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(value))

        def forward(self, x: Any, y: Any) -> Any:
            return torch_model.forward(arguments, {name: getattr(self, name.replace(".", "_")) for name in weights}, x, y)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), common.LR["gpt"], (common.BETA1, common.BETA2), common.EPS, common.DECAY)

    def step(x: Any, y: Any) -> Any:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    program = swt.capture(step, *data[0])
    inputs = {name.replace(".", "_"): value.numpy() for name, value in weights.items()}
    for i, (x, y) in enumerate(data):
        inputs |= {f"x{i}": x.numpy(), f"y{i}": y.numpy()}
    plain = {name.replace(".", "_"): name for name in weights}
    return marked(common, arguments, program, lambda label: plain.get(label.split(".")[-1])), inputs


def from_jax(scripts: pathlib.Path, common: Any, arguments: Any) -> tuple[Any, dict[str, np.ndarray]]:
    import jax
    import jax.numpy as jnp

    import shardwise.jax as swj

    # Its functions are the rivals' own: those above "host = ", where that program begins to run.
    path = scripts / "jax_programs.py"
    names: dict[str, Any] = {"__name__": "jax_programs", "__doc__": ""}
    given, sys.argv = sys.argv, [str(path), "--program", "gpt", "--mesh", "1"]
    for key in ("layers", "width", "batch"):
        if getattr(arguments, key, None):
            sys.argv += [f"--{key}", str(getattr(arguments, key))]
    exec(compile(path.read_text().split("\nhost = ")[0], str(path), "exec"), names)
    sys.argv = given
    weights = common.init(arguments)
    shapes = {name: jax.ShapeDtypeStruct(value.shape, jnp.float32) for name, value in weights.items()}
    batches = common.batches(arguments)
    rows = jax.ShapeDtypeStruct(batches[0][0].shape, jnp.int32)
    state = {"m": shapes, "v": shapes, "t": jax.ShapeDtypeStruct((), jnp.float32)}

    def step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        return names["step"](params, opt_state, x, y)

    program = swj.capture(step, shapes, state, rows, rows, kinds={"opt_state/*": "optimizer"})
    inputs = {f"params/{name}": value for name, value in weights.items()}
    for i, (x, y) in enumerate(batches):
        inputs |= {f"x{i}": x.astype(np.int32), f"y{i}": y.astype(np.int32)}
    return marked(common, arguments, program, lambda label: label.split("/")[-1]), inputs


def marked(common: Any, arguments: Any, program: Any, weight_of: Any) -> Any:
    """Marks like the rivals: the batch, each weight and its optimizer state."""
    batch = "+".join(common.batch_axes(common.parse_mesh(arguments.mesh))) or "-"
    weights = common.init(arguments)
    marks = {}
    for one in program.inputs:
        name = weight_of(one.label)
        if one.kind == "loader":
            marks[one.label] = ",".join([batch, *["-"] * (len(one.shape) - 1)])
        elif name in weights and weights[name].shape == one.shape:
            marks[one.label] = spec_of(common, arguments, name, one.shape)
    return program.mark(marks)


def write(scripts: pathlib.Path, front_end: str, mesh: str, folder: pathlib.Path, sizes: list[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """The program with its marks, and its inputs: weights and batches as everybody has them, other state as zeros."""
    import safetensors.numpy

    sys.path.insert(0, str(scripts))
    import common

    arguments = common.arguments("").parse_args(["--program", "gpt", "--mesh", mesh, *sizes])
    program, inputs = (from_torch if front_end == "torch" else from_jax)(scripts, common, arguments)
    for one in program.inputs:
        if one.label not in inputs and f"{one.label}0" not in inputs:
            inputs[one.label] = np.zeros(one.shape, {"f32": "f4", "i64": "i8", "i32": "i4"}[one.dtype])
    paths = folder / f"{front_end}.swp", folder / f"{front_end}.safetensors"
    program.save(paths[0])
    safetensors.numpy.save_file({name: np.array(value, order="C") for name, value in inputs.items()}, paths[1])
    return paths


def of_ours(command: list[str], few: int, many: int) -> tuple[float, float]:
    """ms of a step, by the clock as the longer run prints it, and of the processor."""
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    processor, printed = [], ""
    for steps in (few, many):
        with tempfile.TemporaryFile("w+") as output:
            child = subprocess.Popen([*command, "--steps", str(steps)], stdout=output, env=environment, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status  # it has been waited for
            if status != 0:
                sys.exit(f"{' '.join(command)}: status {status}")
            output.seek(0)
            printed = output.read()
        processor.append(usage.ru_utime + usage.ru_stime)
    return float(json.loads(printed)["step_seconds"]) * 1e3, (processor[1] - processor[0]) / (many - few) * 1e3


def of_jax(command: list[str], few: int, many: int) -> tuple[float, float]:
    """As its program measures it."""
    done = subprocess.run([*command, "--steps", str(many - few)], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {row["metric"]: float(row["value"]) for row in rows}
    return found["step"], found["processor time per step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--meshes", nargs="+", default=["data=8", "fsdp=8", "data=4,model=2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--heads", type=int, default=4)
    options, sizes = parser.parse_known_args()
    sys.path.insert(0, str(options.scripts.resolve()))
    import common
    import run

    common.HEADS = options.heads
    few, many = 2, 2 + options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rival = folder / "jax_programs.py"
        rival.write_text(f"import sys\nsys.path.insert(0, {str(options.scripts.resolve())!r})\nimport common\n"
                         f"common.HEADS = {options.heads}\n" + (options.scripts / "jax_programs.py").read_text())
        print(f"{'mesh':16} {'':14} {'ms':>8} {'x C++':>6} {'cpu ms':>8} {'x C++':>6}")
        for mesh in options.meshes:
            of_rival = common.arguments("").parse_args(["--program", "gpt", "--mesh", mesh, *sizes])
            run.write_arrays(options.scripts, "gpt", folder, sizes)
            gpt = [options.build / "examples/gpt/gpt", "--mesh", mesh, "--plan", run.plan_of(mesh), "--json", "--heads", options.heads,
                   "--weights", folder / "gpt_weights.safetensors", "--tokens", folder / "gpt_tokens.safetensors",
                   "--layers", of_rival.layers, "--width", of_rival.width or common.WIDTH, "--batch", of_rival.batch or common.BATCH["gpt"]]
            commands: dict[str, tuple[list[Any], Any]] = {"C++": (gpt, of_ours)}
            for front_end in ("torch", "jax"):
                inside = folder / front_end
                inside.mkdir(exist_ok=True)
                program, inputs = write(options.scripts, front_end, mesh, inside, sizes)
                commands[f"from {front_end}"] = ([options.build / "bench/captured_bench", "--mesh", mesh, "--program", program,
                                                  "--inputs", inputs], of_ours)
            commands["JAX"] = ([sys.executable, rival, "--program", "gpt", "--mesh", mesh, *sizes], of_jax)
            found: dict[str, list[tuple[float, float]]] = {one: [] for one in commands}
            for _ in range(options.rounds):
                for one, (command, measure) in commands.items():
                    found[one].append(measure([str(word) for word in command], few, many))
            for one in commands:
                ms, cpu = (statistics.median(value[i] for value in found[one]) for i in (0, 1))
                ratio, of_cpu = (statistics.median(a[i] / b[i] for a, b in zip(found[one], found["C++"])) for i in (0, 1))
                print(f"{mesh:16} {one:14} {ms:8.1f} {ratio:6.2f} {cpu:8.1f} {of_cpu:6.2f}", flush=True)


if __name__ == "__main__":
    main()
