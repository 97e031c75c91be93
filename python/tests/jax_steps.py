"""Training steps for test_jax_models.py: state, loss = step(state, batch), with a state and batches to begin with."""

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

Step = Callable[[Any, Any], tuple[Any, Any]]
WIDTH, HEADS, CONTEXT, VOCABULARY, BATCH = 16, 4, 8, 24, 8


def tokens(rng: np.random.Generator, count: int) -> list[Any]:
    def batch() -> Any:
        text = rng.integers(0, VOCABULARY, (BATCH, CONTEXT + 1)).astype(np.int32)
        return {"tokens": text[:, :-1], "targets": text[:, 1:]}

    return [batch() for _ in range(count)]


# ---- A GPT in plain JAX, with AdamW by hand.


def gpt_params(rng: np.random.Generator, layers: int = 2) -> Any:
    def normal(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * 0.2).astype(np.float32)

    def block() -> Any:
        return {"ln1": {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)},
                "ln2": {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)},
                "q": normal(WIDTH, WIDTH), "k": normal(WIDTH, WIDTH), "v": normal(WIDTH, WIDTH), "o": normal(WIDTH, WIDTH),
                "up": normal(WIDTH, 4 * WIDTH), "up_bias": normal(4 * WIDTH), "down": normal(4 * WIDTH, WIDTH), "down_bias": normal(WIDTH)}

    return {"embed": normal(VOCABULARY, WIDTH), "pos": normal(CONTEXT, WIDTH), "head": normal(WIDTH, VOCABULARY),
            **{f"layer{n}": block() for n in range(layers)}}


def layernorm(x: Any, p: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def attention(x: Any, p: Any) -> Any:
    batch, context, width = x.shape
    q, k, v = (jnp.reshape(x @ p[name], (batch, context, HEADS, width // HEADS)) for name in "qkv")
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / (width // HEADS) ** 0.5
    mask = jnp.tril(jnp.ones((context, context), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(x.shape) @ p["o"]


def gpt_loss(params: Any, batch: Any) -> Any:
    x = params["embed"][batch["tokens"]] + params["pos"]
    for n in range(sum(name.startswith("layer") for name in params)):
        p = params[f"layer{n}"]
        with jax.named_scope(f"layer{n}/attention"):
            x = x + attention(layernorm(x, p["ln1"]), p)
        with jax.named_scope(f"layer{n}/mlp"):
            x = x + jax.nn.gelu(layernorm(x, p["ln2"]) @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]
    logits = x @ params["head"]
    scores = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return scores.mean()


def adamw(params: Any, grads: Any, opt: Any, rate: float = 1e-2) -> Any:
    count = opt["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt["mu"], grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, opt["nu"], grads)
    scale = jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda w, m, v: w - rate * (scale * m / (jnp.sqrt(v) + 1e-8) + 0.01 * w), params, mu, nu)
    return params, {"mu": mu, "nu": nu, "count": count}


def gpt_step(state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(gpt_loss)(state["params"], batch)
    params, opt = adamw(state["params"], grads, state["opt"])
    return {"params": params, "opt": opt}, loss


def gpt(rng: np.random.Generator) -> tuple[Step, Any, list[Any]]:
    params = gpt_params(rng)
    zeros = jax.tree.map(np.zeros_like, params)
    return gpt_step, {"params": params, "opt": {"mu": zeros, "nu": zeros, "count": np.float32(0)}}, tokens(rng, 3)


def _both(marks: dict[str, str]) -> dict[str, str]:
    """Of weights, and of the optimizer's state that belongs to them."""
    return {f"*/{name}": spec for name, spec in marks.items()}


TEXT = {"batch/tokens": "{0},-", "batch/targets": "{0},-"}
GPT_TENSOR = _both({**{name: "-,model" for name in ("q", "k", "v", "up")}, "up_bias": "model", "o": "model,-", "down": "model,-"})
GPT_FSDP = {"*/up": "-,fsdp", "*/down": "fsdp,-", "*/up_bias": "fsdp", "*/ln*": "fsdp", "*/down_bias": "fsdp",
            **_both({name: "fsdp,-" for name in ("q", "k", "v", "o", "head", "embed", "pos")})}


def over(axis: str) -> dict[str, str]:
    return {pattern: spec.format(axis) for pattern, spec in TEXT.items()}


GPT_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "fsdp=8": {**over("fsdp"), **GPT_FSDP},
             "model=4": {**GPT_TENSOR, "*": "-"}, "data=4,model=2": {**over("data"), **GPT_TENSOR}}
