"""Compares a pipeline of stacked layers, captured from JAX, with JAX's own run of the same function on 8 devices, by turns:
pipelines.py [--build DIR] [--rounds N]

The columns are milliseconds of a step, by the clock and of the processor, the ratio to JAX's, and the megabytes that a device
sends in a step, as plans and XLA's collectives say (rings; in a loop, times its trips). Both have the weights cut over "stage",
and the batch over "data". The losses of 20 steps are compared, too.
"""
import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

MESHES = {"stage=8": 8, "data=2,stage=4": 4}
LAYERS, WIDTH, ROWS, MICRO_BATCHES, RATE = 16, 256, 1024, 16, 1e-3
LOSSES = 20
#: By collective, the bytes that a device sends in a ring of n, as a multiple of those of its result.
WIRE = {"all-reduce": lambda n: 2 * (n - 1) / n, "all-gather": lambda n: (n - 1) / n, "reduce-scatter": lambda n: n - 1,
        "all-to-all": lambda n: (n - 1) / n, "collective-permute": lambda _: 1}


def problem(stages: int) -> tuple[Any, Any, list[Any]]:
    """Returns the step, the weights and batches."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import shardwise.jax as swj

    rng = np.random.default_rng(0)
    params = {"w": (rng.normal(size=(LAYERS, WIDTH, WIDTH)) / WIDTH**0.5).astype("f4"), "b": np.zeros((LAYERS, WIDTH), "f4")}
    batches = [tuple(rng.normal(size=(ROWS, WIDTH)).astype("f4") for _ in range(2)) for _ in range(4)]

    def block(h: Any, layer: Any) -> Any:
        return jnp.tanh(h @ layer["w"] + layer["b"]) + h

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            made = swj.pipeline(block, params, x, stages=stages, micro_batches=MICRO_BATCHES, axis="stage")
            return ((made - y) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), loss

    return step, params, batches


def jax_step(mesh_text: str, steps: int) -> None:
    """Prints the two times of a step, the bytes and the losses."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in mesh_text.split(","))}
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(sizes.values())), tuple(sizes))
    step, params, batches = problem(MESHES[mesh_text])
    of_stage, of_data = (NamedSharding(mesh, PartitionSpec(*([axis] if axis in sizes else []))) for axis in ("stage", "data"))
    params = jax.device_put(params, of_stage)
    given = [jax.device_put(batch, of_data) for batch in batches]
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(of_stage, NamedSharding(mesh, PartitionSpec()))).lower(params, *given[0]).compile()
    clock, processor, losses = [], [], []
    for number in range(max(steps, LOSSES) + 2):
        before, own = time.perf_counter(), time.process_time()
        params, loss = compiled(params, *given[number % 4])
        losses.append(float(loss))
        clock.append(time.perf_counter() - before)
        processor.append(time.process_time() - own)
    print(json.dumps({"ms": [1e3 * statistics.median(times[2:]) for times in (clock, processor)], "bytes": sent_bytes(compiled.as_text()),
                      "losses": losses[:LOSSES]}))


def group_size(line: str) -> int:
    """Returns the devices in a group of a collective of XLA: [2,4]<=[8], {{0,1},{2,3}}, mesh['a'=2,'b'=4] {'a'}; 0 for pairs."""
    if of_axes := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", of_axes[1]))
        return math.prod(int(sizes[axis]) for axis in of_axes[2].split(","))
    group = re.search(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})", line)
    return int(group[1] or group[2].count(",") + 1) if group else 0


def sent_bytes(hlo: str) -> float:
    """Returns the bytes that a device sends in XLA's program."""
    bodies = {name: body for name, body in re.findall(r"^(?:ENTRY )?%([\w.\-]+) \([^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL)}
    entry = re.search(r"^ENTRY %([\w.\-]+)", hlo, re.MULTILINE)
    assert entry

    def of(body: str) -> float:
        total = 0.0
        for line in bodies[body].splitlines():
            found = re.search(rf" = (.*?) ({'|'.join(WIRE)})(?:-start)?\(", line)
            if found:
                result = sum(4 * eval("*".join(dims.split(",")) or "1") for dims in re.findall(r"f32\[([\d,]*)\]", found[1]))
                total += result * WIRE[found[2]](group_size(line))
            if " while(" in line:
                inner, trips = re.search(r"body=%([\w.\-]+)", line), re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                assert inner and trips, line
                total += int(trips[1]) * of(inner[1])
            elif inner := re.search(r" (?:call|fusion)\(.*(?:to_apply|calls)=%([\w.\-]+)", line):
                total += of(inner[1])
        return total

    return of(entry[1])


def write(mesh: str, folder: pathlib.Path) -> tuple[list[str], float]:
    """Writes the captured program and its inputs. Returns the words for captured_bench, and the bytes that a device sends."""
    import safetensors.numpy

    import shardwise.jax as swj

    step, params, batches = problem(MESHES[mesh])
    program = swj.capture(step, params, *batches[0])
    program.mark({"params/w": "stage,-,-", "params/b": "stage,-", **({"x": "data,-", "y": "data,-"} if "data" in mesh else {})})
    inputs = {f"params/{name}": value for name, value in params.items()}
    for number, batch in enumerate(batches):
        inputs |= {f"{name}{number}": value for name, value in zip("xy", batch)}
    program.save(folder / "pipeline.swp")
    safetensors.numpy.save_file(inputs, folder / "pipeline.safetensors")
    words = ["--mesh", mesh, "--program", str(folder / "pipeline.swp"), "--inputs", str(folder / "pipeline.safetensors")]
    return words, sum(program.plan(mesh).wire_bytes.values())


def main() -> None:
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from captured import of_ours

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    print(f"{'mesh':16} {'':5} {'ms':>8} {'x JAX':>6} {'cpu ms':>8} {'x JAX':>6} {'MB sent':>8} {'loss off by':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for mesh in MESHES:
            words, sent = write(mesh, pathlib.Path(folder))
            command = [str(options.build / "bench/captured_bench"), *words]
            losses = json.loads(subprocess.run([*command, "--steps", str(LOSSES)], capture_output=True, text=True, check=True).stdout)["losses"]
            ours, rows = [], []
            for _ in range(options.rounds):
                ours.append(of_ours(command, 2, 2 + options.steps))
                rival = [sys.executable, __file__, "--jax", mesh, str(options.steps)]
                rows.append(json.loads(subprocess.run(rival, capture_output=True, text=True, check=True).stdout))
            off = max(abs(float.fromhex(a) - b) / abs(b) for a, b in zip(losses, rows[0]["losses"], strict=True))
            jax = [tuple(row["ms"]) for row in rows]
            for name, found, by, text in (("ours", ours, sent, f"{off:12.1e}"), ("JAX", jax, rows[0]["bytes"], "")):
                ms, cpu = (statistics.median(one[i] for one in found) for i in (0, 1))
                ratio, of_cpu = (statistics.median(a[i] / b[i] for a, b in zip(found, jax)) for i in (0, 1))
                print(f"{mesh:16} {name:5} {ms:8.1f} {ratio:6.2f} {cpu:8.1f} {of_cpu:6.2f} {by / 1e6:8.2f} {text}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--jax"]:
        jax_step(sys.argv[2], int(sys.argv[3]))
    else:
        main()
