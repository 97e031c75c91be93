"""Training steps of JAX, state, loss = step(state, batch), with a state and batches to begin with; and whether their programs
train as they do."""

from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise.jax as swj

Step = Callable[[Any, Any], tuple[Any, Any]]
WIDTH, HEADS, CONTEXT, VOCABULARY, BATCH = 16, 4, 8, 24, 8


def on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), tree)


def worst(ours: Any, theirs: Any) -> float:
    """Returns the largest difference, divided by the largest element of the leaf."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    found = 0.0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if a.size:
            found = max(found, float(np.max(np.abs(a - b)) / max(1e-30, float(np.max(np.abs(b))))))
    return found


def computes_as_jax_does(function: Callable[..., Any], args: Any, same: Callable[[Any, Any], None]) -> None:
    """same(ours, theirs): of its program on one device, and with the operands cut over four, in each dim."""
    theirs = on_host(jax.jit(function)(*args))
    program = swj.capture(function, *args)
    same(program.run(*args, devices=1), theirs)
    for dim in range(max(np.ndim(arg) for arg in args)):
        cut = {i.label: ",".join("d" if d == dim else "-" for d in range(len(i.shape))) for i in program.inputs if len(i.shape) > dim}
        same(swj.capture(function, *args).mark(cut).run(*args, mesh="d=4"), theirs)


def trains_as_jax_does(step: Step, state: Any, batches: list[Any], plans: dict[str, Any]) -> None:
    """state, loss = step(state, batch), three times: on one device by JAX, and by its program on each mesh under its marks."""
    theirs, losses = state, []
    for batch in batches:
        theirs, loss = jax.jit(step)(theirs, batch)
        losses.append(float(loss))
    for mesh, marks in plans.items():
        plan = swj.capture(step, abstract(state), abstract(batches[0])).mark(marks).plan(mesh)
        ours = on_host(state)
        for batch, loss in zip(batches, losses):
            leaves = jax.tree.leaves(plan.run(ours, on_host(batch)))
            ours, found = jax.tree.unflatten(jax.tree.structure((state, 0)), leaves)
            assert float(found) == pytest.approx(loss, rel=1e-5), mesh
        assert worst(ours, on_host(theirs)) < 1e-4, mesh


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
    """Returns marks of weights, and of their optimizer state."""
    return {f"*/{name}": spec for name, spec in marks.items()}


TEXT = {"batch/tokens": "{0},-", "batch/targets": "{0},-"}
GPT_TENSOR = _both({**{name: "-,model" for name in ("q", "k", "v", "up")}, "up_bias": "model", "o": "model,-", "down": "model,-"})
GPT_FSDP = {"*/up": "-,fsdp", "*/down": "fsdp,-", "*/up_bias": "fsdp", "*/ln*": "fsdp", "*/down_bias": "fsdp",
            **_both({name: "fsdp,-" for name in ("q", "k", "v", "o", "head", "embed", "pos")})}


def over(axis: str) -> dict[str, str]:
    return {pattern: spec.format(axis) for pattern, spec in TEXT.items()}


GPT_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "fsdp=8": {**over("fsdp"), **GPT_FSDP},
             "model=4": {**GPT_TENSOR, "*": "-"}, "data=4,model=2": {**over("data"), **GPT_TENSOR}}


# ---- The same with all blocks in one scan, or written out one by one.


def stacked_gpt_loss(params: Any, batch: Any, is_scanned: bool, remat: bool) -> Any:
    def block(x: Any, p: Any) -> Any:
        with jax.named_scope("attention"):
            x = x + attention(layernorm(x, p["ln1"]), p)
        with jax.named_scope("mlp"):
            return x + jax.nn.gelu(layernorm(x, p["ln2"]) @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"], None

    block = jax.checkpoint(block) if remat else block
    x = params["embed"][batch["tokens"]] + params["pos"]
    if is_scanned:
        x, _ = jax.lax.scan(block, x, params["blocks"])
    else:
        for n in range(params["blocks"]["q"].shape[0]):
            x, _ = block(x, jax.tree.map(lambda w: w[n], params["blocks"]))
    logits = x @ params["head"]
    scores = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    return scores.mean()


def stacked_gpt(rng: np.random.Generator, is_scanned: bool = True, layers: int = 3, remat: bool = False) -> tuple[Step, Any, list[Any]]:
    params = gpt_params(rng, layers)
    blocks = [params.pop(f"layer{n}") for n in range(layers)]
    params["blocks"] = jax.tree.map(lambda *each: np.stack(each), *blocks)
    zeros = jax.tree.map(np.zeros_like, params)

    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(stacked_gpt_loss)(state["params"], batch, is_scanned, remat)
        params, opt = adamw(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt}, loss

    return step, {"params": params, "opt": {"mu": zeros, "nu": zeros, "count": np.float32(0)}}, tokens(rng, 3)


STACKED_TENSOR = {pattern: f"-,{spec}" for pattern, spec in GPT_TENSOR.items()}
STACKED_FSDP = {"*/head": "fsdp,-", "*/embed": "fsdp,-", "*/pos": "fsdp,-", "*/ln*": "-,fsdp", "*/up": "-,-,fsdp", "*/down": "-,fsdp,-",
                "*/up_bias": "-,fsdp", "*/down_bias": "-,fsdp", **_both({name: "-,fsdp,-" for name in ("q", "k", "v", "o")})}
STACKED_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "fsdp=8": {**over("fsdp"), **STACKED_FSDP},
                 "model=4": {**STACKED_TENSOR, "*": "-"}, "data=4,model=2": {**over("data"), **STACKED_TENSOR}}


# ---- The same with flax and optax.


def flax_step(model: Any, loss_of: Any, transform: Any) -> Step:
    """Makes state, loss = step(state, batch) with the arrays of flax's TrainState."""
    import optax

    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda params: loss_of(model, params, batch))(state["params"])
        updates, opt_state = transform.update(grads, state["opt_state"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state, "step": state["step"] + 1}, loss

    return step


def flax_state(model: Any, transform: Any, *example: Any) -> Any:
    params = jax.jit(model.init)(jax.random.PRNGKey(0), *example)["params"]
    state = {"params": params, "opt_state": transform.init(params), "step": np.int32(0)}
    return jax.tree.map(np.asarray, state)


def adamw_with_clip() -> Any:
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))


def text_loss(model: Any, params: Any, batch: Any) -> Any:
    import optax

    logits = model.apply({"params": params}, batch["tokens"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()


def flax_gpt(rng: np.random.Generator, remat: bool = False) -> tuple[Step, Any, list[Any]]:
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
            # A bias of keys changes nothing: its gradient is only rounding, which Adam would follow.
            attention = nn.MultiHeadDotProductAttention(HEADS, use_bias=False, name="attention")
            x = x + attention(nn.LayerNorm(name="ln1")(x), mask=mask)
            h = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="ln2")(x)))
            return x + nn.Dense(WIDTH, name="down")(h)

    class Gpt(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens)
            x = x + nn.Embed(CONTEXT, WIDTH, name="pos")(jnp.arange(tokens.shape[1]))
            for n in range(2):
                x = (nn.remat(Block) if remat else Block)(name=f"layer{n}")(x)
            return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm(name="ln")(x))

    model, transform, batches = Gpt(), adamw_with_clip(), tokens(rng, 3)
    return flax_step(model, text_loss, transform), flax_state(model, transform, batches[0]["tokens"]), batches


FLAX_TENSOR = {"*/attention/out/kernel": "model,-,-", "*/attention/*/kernel": "-,model,-",
               "*/up/kernel": "-,model", "*/up/bias": "model", "*/down/kernel": "model,-"}
FLAX_FSDP = {"*/attention/out/kernel": "-,-,fsdp", "*/attention/*/kernel": "fsdp,-,-",
             "*/kernel": "fsdp,-", "*/embedding": "-,fsdp", "*/bias": "-", "*/scale": "fsdp"}
FLAX_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "fsdp=8": {**over("fsdp"), **FLAX_FSDP},
              "model=4": {**FLAX_TENSOR, "*": "-"}, "data=2,model=4": {**over("data"), **FLAX_TENSOR}}


# ---- A mixture of experts: each token goes to its two best of four, by one-hot products (GShard).


def moe(rng: np.random.Generator) -> tuple[Step, Any, list[Any]]:
    from flax import linen as nn

    experts, best, capacity = 4, 2, 6

    class Moe(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            up = self.param("up", nn.initializers.lecun_normal(), (experts, WIDTH, 2 * WIDTH))
            down = self.param("down", nn.initializers.lecun_normal(), (experts, 2 * WIDTH, WIDTH))
            gates = nn.softmax(nn.Dense(experts, use_bias=False, name="router")(x))
            weights, chosen = jax.lax.top_k(gates, best)
            choice = jax.nn.one_hot(chosen, experts)  # batch, token, which, expert
            place = (jnp.cumsum(choice.reshape(x.shape[0], -1, experts), axis=1).reshape(choice.shape) - 1) * choice
            kept = choice * (place < capacity)
            slot = jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)
            combine = jnp.einsum("btke,btkc,btk->btec", kept, slot, weights)
            inside = jnp.einsum("btec,btd->ebcd", (combine > 0).astype(x.dtype), x)
            h = nn.gelu(jnp.einsum("ebcd,edf->ebcf", inside, up))
            return jnp.einsum("btec,ebcd->btd", combine, jnp.einsum("ebcf,efd->ebcd", h, down))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens)
            x = x + Moe(name="moe")(nn.LayerNorm(name="ln")(x))
            return nn.Dense(VOCABULARY, use_bias=False, name="head")(x)

    import optax

    model, transform, batches = Model(), optax.adamw(1e-2), tokens(rng, 3)
    return flax_step(model, text_loss, transform), flax_state(model, transform, batches[0]["tokens"]), batches


MOE_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "expert=4": {"*/moe/up": "expert,-,-", "*/moe/down": "expert,-,-", "*": "-"},
             "data=2,expert=4": {**over("data"), "*/moe/up": "expert,-,-", "*/moe/down": "expert,-,-"},
             "fsdp=8": {**over("fsdp"), "*/moe/up": "-,fsdp,-", "*/moe/down": "-,fsdp,-", "*/embedding": "-,fsdp", "*/kernel": "fsdp,-"}}


# ---- Pictures.


def pictures(rng: np.random.Generator, count: int) -> list[Any]:
    return [{"image": rng.normal(size=(8, 8, 8, 3)).astype(np.float32), "label": rng.integers(0, 5, 8).astype(np.int32)}
            for _ in range(count)]


def label_loss(logits: Any, batch: Any) -> Any:
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def vit(rng: np.random.Generator) -> tuple[Step, Any, list[Any]]:
    from flax import linen as nn

    class Vit(nn.Module):
        @nn.compact
        def __call__(self, image: Any) -> Any:
            x = nn.Conv(WIDTH, (4, 4), (4, 4), name="patches")(image).reshape(image.shape[0], -1, WIDTH)
            first = self.param("class", nn.initializers.normal(0.02), (1, 1, WIDTH))
            x = jnp.concatenate([jnp.tile(first, (x.shape[0], 1, 1)), x], axis=1)
            x = x + self.param("pos", nn.initializers.normal(0.02), (1, x.shape[1], WIDTH))
            x = x + nn.MultiHeadDotProductAttention(HEADS, use_bias=False, name="attention")(nn.LayerNorm(name="ln1")(x))
            h = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(name="ln2")(x)))
            return nn.Dense(5, name="head")((x + nn.Dense(WIDTH, name="down")(h))[:, 0])

    import optax

    model, transform, batches = Vit(), optax.adamw(1e-2), pictures(rng, 3)
    step = flax_step(model, lambda m, params, batch: label_loss(m.apply({"params": params}, batch["image"]), batch), transform)
    return step, flax_state(model, transform, batches[0]["image"]), batches


IMAGES = {"batch/image": "data,-,-,-", "batch/label": "data"}
VIT_PLANS = {"data=1": {}, "data=8": {**IMAGES, "*": "-"}, "data=2,model=4": {**IMAGES, **FLAX_TENSOR}}


def resnet(rng: np.random.Generator) -> tuple[Step, Any, list[Any]]:
    import optax
    from flax import linen as nn

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, image: Any) -> Any:
            def norm(x: Any, name: str) -> Any:
                return nn.BatchNorm(use_running_average=False, name=name)(x)

            x = nn.relu(norm(nn.Conv(8, (3, 3), use_bias=False, name="stem")(image), "norm"))
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for n in range(2):
                h = nn.relu(norm(nn.Conv(8, (3, 3), (1 + n, 1 + n), use_bias=False, name=f"conv{n}a")(x), f"norm{n}a"))
                h = norm(nn.Conv(8, (3, 3), use_bias=False, name=f"conv{n}b")(h), f"norm{n}b")
                if n:
                    x = nn.Conv(8, (1, 1), (2, 2), use_bias=False, name="shortcut")(x)
                x = nn.relu(h + x)
            return nn.Dense(5, name="head")(x.mean((1, 2)))

    model, transform, batches = ResNet(), optax.sgd(0.05, momentum=0.9, nesterov=True), pictures(rng, 3)
    variables = jax.jit(model.init)(jax.random.PRNGKey(0), batches[0]["image"])

    def loss_of(params: Any, batch_stats: Any, batch: Any) -> Any:
        logits, changed = model.apply({"params": params, "batch_stats": batch_stats}, batch["image"], mutable=["batch_stats"])
        return label_loss(logits, batch), changed["batch_stats"]

    def step(state: Any, batch: Any) -> Any:
        (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"], state["batch_stats"], batch)
        updates, opt_state = transform.update(grads, state["opt_state"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "batch_stats": batch_stats, "opt_state": opt_state}, loss

    return step, jax.tree.map(np.asarray, {**variables, "opt_state": transform.init(variables["params"])}), batches


RESNET_PLANS = {"data=1": {}, "data=8": {**IMAGES, "*": "-"}, "data=2,height=2": {"batch/image": "data,height,-,-", "batch/label": "data"},
                "data=2,model=4": {**IMAGES, "*/head/kernel": "-,-", "*/kernel": "-,-,-,model"}}


# ---- A recurrent net by scan, with dropout.


def lstm(rng: np.random.Generator) -> tuple[Step, Any, list[Any]]:
    import optax
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens)
            x = nn.RNN(nn.OptimizedLSTMCell(WIDTH), name="rnn")(x)
            return nn.Dense(VOCABULARY, name="head")(nn.Dropout(0.25, deterministic=False)(x))

    model, transform, batches = Model(), optax.rmsprop(1e-2), tokens(rng, 3)
    variables = jax.jit(model.init)({"params": jax.random.key(0), "dropout": jax.random.key(1)}, batches[0]["tokens"])

    def loss_of(params: Any, key: Any, batch: Any) -> Any:
        logits = model.apply({"params": params}, batch["tokens"], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    def step(state: Any, batch: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(7), state["step"])
        loss, grads = jax.value_and_grad(loss_of)(state["params"], key, batch)
        updates, opt_state = transform.update(grads, state["opt_state"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state, "step": state["step"] + 1}, loss

    state = {"params": variables["params"], "opt_state": transform.init(variables["params"]), "step": np.int32(0)}
    return step, jax.tree.map(np.asarray, state), batches


LSTM_PLANS = {"data=1": {}, "data=8": {**over("data"), "*": "-"}, "fsdp=8": {**over("fsdp"), "*/embedding": "-,fsdp", "*/kernel": "fsdp,-"}}
