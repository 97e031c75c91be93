"""Compares examples/convnet with a ResNet of the same sizes in JAX, on the same meshes, by turns: convnet.py [--build DIR] [--rounds N]

The columns are milliseconds of a step, by the clock and of the processor, and the ratio to C++'s. JAX's weights and images are
random ones: the time of a step does not depend on them. JAX takes no uneven cuts of a step's arguments, so
rows of 28 are cut over 2 or 4 devices.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MESHES = {"data=8": "batch", "data=4,space=2": "both", "data=2,space=4": "both"}
WIDTH, IMAGE, BATCH = 16, 28, 128


def jax_step(mesh_text: str, steps: int) -> None:
    """Prints the two times of a step."""
    sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in mesh_text.split(","))}
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(tuple(sizes.values())), tuple(sizes))
    rng = np.random.default_rng(0)
    layers = {"stem": (1, WIDTH, 3)}
    width = WIDTH
    for stage in range(3):
        out = WIDTH << stage
        layers |= {f"s{stage}.conv0": (width, out, 3), f"s{stage}.conv1": (out, out, 3)}
        if stage:
            layers[f"s{stage}.shortcut"] = (width, out, 1)
        width = out
    params = {"head": rng.normal(size=(width, 10)).astype("f4") * 0.1, "head.bias": np.zeros(10, "f4")}
    statistics_ = {}
    for name, (inputs, outputs, kernel) in layers.items():
        params[name] = rng.normal(size=(outputs, inputs, kernel, kernel)).astype("f4") * (2 / (outputs * kernel**2)) ** 0.5
        params |= {f"{name}.gain": np.ones(outputs, "f4"), f"{name}.bias": np.zeros(outputs, "f4")}
        statistics_ |= {f"{name}.mean": np.zeros(outputs, "f4"), f"{name}.variance": np.ones(outputs, "f4")}

    def loss_of(p, running, image, label):
        new = {}

        def layer(x, name, stride, relu):
            kernel = p[name].shape[-1]
            x = jax.lax.conv_general_dilated(x, p[name], (stride, stride), [(kernel // 2,) * 2] * 2)
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
            new[f"{name}.mean"] = 0.9 * running[f"{name}.mean"] + 0.1 * mean
            new[f"{name}.variance"] = 0.9 * running[f"{name}.variance"] + 0.1 * variance
            scale = p[f"{name}.gain"] * jax.lax.rsqrt(variance + 1e-5)
            x = (x - mean[:, None, None]) * scale[:, None, None] + p[f"{name}.bias"][:, None, None]
            return jax.nn.relu(x) if relu else x

        x = layer((image.astype(jnp.float32)[:, None] / 255 - 0.286) / 0.353, "stem", 2, True)
        for stage in range(3):
            stride = 2 if stage else 1
            y = layer(layer(x, f"s{stage}.conv0", stride, True), f"s{stage}.conv1", 1, False)
            x = jax.nn.relu(y + (layer(x, f"s{stage}.shortcut", stride, False) if stage else x))
        scores = jax.nn.log_softmax(x.mean((2, 3)) @ p["head"] + p["head.bias"])
        return -jnp.take_along_axis(scores, label[:, None], 1).mean(), new

    def step(p, velocity, running, image, label):
        (loss, running), grads = jax.value_and_grad(loss_of, has_aux=True)(p, running, image, label)
        velocity = {name: 0.9 * velocity[name] + grads[name] for name in p}
        return {name: p[name] - 0.05 * velocity[name] for name in p}, velocity, running, loss

    whole = NamedSharding(mesh, PartitionSpec())
    images = NamedSharding(mesh, PartitionSpec("data", "space" if "space" in sizes else None))
    state = [jax.device_put(one, whole) for one in (params, {k: np.zeros_like(v) for k, v in params.items()}, statistics_)]
    batches = [(jax.device_put(rng.integers(0, 256, (BATCH, IMAGE, IMAGE)).astype("u1"), images),
                jax.device_put(rng.integers(0, 10, BATCH).astype("i4"), NamedSharding(mesh, PartitionSpec("data")))) for _ in range(4)]
    compiled = jax.jit(step, donate_argnums=(0, 1, 2), out_shardings=(whole,) * 4)
    clock, processor = [], []
    for number in range(steps + 2):
        before, own = time.perf_counter(), time.process_time()
        *state, loss = compiled(*state, *batches[number % 4])
        float(loss)
        clock.append(time.perf_counter() - before)
        processor.append(time.process_time() - own)
    print(json.dumps([1e3 * statistics.median(times[2:]) for times in (clock, processor)]))


def main() -> None:
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    from captured import of_ours

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    print(f"{'mesh':16} {'':5} {'ms':>8} {'x C++':>6} {'cpu ms':>8} {'x C++':>6}")
    for mesh, plan in MESHES.items():
        ours, jax = [], []
        for _ in range(options.rounds):
            command = [str(options.build / "examples/convnet/convnet"), "--mesh", mesh, "--plan", plan, "--json"]
            ours.append(of_ours(command, 2, 2 + options.steps))
            command = [sys.executable, __file__, "--jax", mesh, str(options.steps)]
            jax.append(tuple(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)))
        for name, found in (("C++", ours), ("JAX", jax)):
            ms, cpu = (statistics.median(one[i] for one in found) for i in (0, 1))
            ratio, of_cpu = (statistics.median(a[i] / b[i] for a, b in zip(found, ours)) for i in (0, 1))
            print(f"{mesh:16} {name:5} {ms:8.1f} {ratio:6.2f} {cpu:8.1f} {of_cpu:6.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--jax"]:
        jax_step(sys.argv[2], int(sys.argv[3]))
    else:
        main()
