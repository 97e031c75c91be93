#!/usr/bin/env python3
"""Tokens a second of examples/gpt --generate and of PyTorch: generate.py [--build DIR] [--batches 1 8 32] [--tokens N]

Trains a small GPT for a few steps, and both continue the same texts of different lengths from its checkpoint, greedily and
with a key-value cache, by turns, on one thread each. It fails if the tokens differ. The columns are milliseconds of a step
(the median), tokens a second and the ratio to PyTorch's. PyTorch runs eagerly, with scaled_dot_product_attention on a cache
that it writes in place.

Run it with a Python that has torch and numpy, and PYTHONPATH=BUILD/python/package; let nothing else run.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

LINE = b"And God said, Let there be light: and there was light. "


def torch_tokens(weights: dict[str, Any], heads: int, texts: list[bytes], count: int) -> tuple[list[list[int]], list[float]]:
    """The next `count` tokens of each text, and the seconds of each step."""
    import torch
    from torch.nn import functional as f

    layers, width = sum(name.endswith(".wq") for name in weights), weights["embed"].shape[1]
    length, rows = max(map(len, texts)), len(texts)
    padded = torch.tensor([[0] * (length - len(text)) + list(text) for text in texts])
    begins = torch.tensor([length - len(text) for text in texts])
    places = torch.arange(length + count)
    cache = [torch.zeros(2, rows, heads, length + count, width // heads) for _ in range(layers)]

    def forward(tokens: Any, first: int) -> Any:
        here = torch.arange(first, first + tokens.shape[1])
        h = weights["embed"][tokens] + weights["pos"][(here[None] - begins[:, None]).clamp(min=0)]
        seen = (places[None, None] <= here[None, :, None]) & (places[None, None] >= begins[:, None, None])
        mask = torch.where(seen, 0.0, -1e30)[:, None, :, : length + count]
        for i in range(layers):
            def w(name: str) -> Any:
                return weights[f"l{i}.{name}"]

            x = f.layer_norm(h, (width,), w("g1"), w("c1"))
            q, k, v = (f.linear(x, w("w" + one), w("b" + one)).view(rows, -1, heads, width // heads).transpose(1, 2) for one in "qkv")
            for stored, new in zip(cache[i], (k, v)):
                stored[:, :, first : first + tokens.shape[1]] = new
            y = f.scaled_dot_product_attention(q, cache[i][0], cache[i][1], attn_mask=mask)
            h = h + f.linear(y.transpose(1, 2).reshape(rows, -1, width), w("wo"), w("bo"))
            x = f.gelu(f.linear(f.layer_norm(h, (width,), w("g2"), w("c2")), w("w1"), w("b1")), approximate="tanh")
            h = h + f.linear(x, w("w2"), w("b2"))
        return f.linear(f.layer_norm(h[:, -1], (width,), weights["gf"], weights["cf"]), weights["head"]).argmax(-1)

    seconds, made = [], []
    with torch.inference_mode():
        tokens, first = padded, 0
        for _ in range(count):
            begin = time.perf_counter()
            following = forward(tokens, first)
            made.append(following.tolist())
            seconds.append(time.perf_counter() - begin)
            first, tokens = first + tokens.shape[1], following[:, None]
    return [list(text) for text in zip(*made)], seconds


def torch_weights(checkpoints: pathlib.Path) -> dict[str, Any]:
    """As torch.nn.functional.linear takes them: [out, in]."""
    import torch

    import shardwise as sw

    loaded = {name: torch.from_numpy(value) for name, value in sw.load(max(checkpoints.glob("step-*[0-9]"))).items() if not name.startswith(("m.", "v."))}
    return {name: value.T.contiguous() if name.split(".")[-1][0] in "wh" else value for name, value in loaded.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    # OpenBLAS is as free to choose its instructions as torch is.
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_bytes(LINE * 100)
        gpt = [options.build / "examples/gpt/gpt", "--mesh", "1", "--plan", "none", "--layers", options.layers, "--width",
               options.width, "--heads", options.heads, "--context", options.tokens + 64, "--checkpoints", folder / "steps"]
        train = [*gpt, "--tokens", folder / "text", "--steps", 20, "--batch", 4]
        subprocess.run([str(word) for word in train], check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        weights = torch_weights(folder / "steps")
        print(f"{'texts':>5} {'ms':>8} {'torch':>8} {'tokens/s':>9} {'torch':>9} {'ratio':>6}")
        for batch in options.batches:
            texts = [LINE[: 4 + 7 * i % 48] for i in range(batch)]
            command = [*gpt, "--new-tokens", options.tokens, "--json"]
            for text in texts:
                command += ["--generate", text.decode()]
            ours, theirs = [], []
            for _ in range(options.rounds):
                done = subprocess.run([str(word) for word in command], check=True, env=environment, capture_output=True)
                found = json.loads(done.stdout)
                tokens, seconds = torch_tokens(weights, options.heads, texts, options.tokens)
                if tokens != found["tokens"]:
                    sys.exit("the tokens differ from torch's")
                ours.append(found["step_seconds"])
                theirs.append(statistics.median(seconds[2:]))
            a, b = statistics.median(ours), statistics.median(theirs)
            ratio = statistics.median(y / x for x, y in zip(ours, theirs))
            print(f"{batch:5} {a * 1e3:8.2f} {b * 1e3:8.2f} {batch / a:9.0f} {batch / b:9.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
