"""Training steps of Llama-like models in plain JAX, to be captured and planned: abstract arrays, nothing is computed.

A step follows the source of a measurement: the values kept for the gradient, the dtypes of weights, gradients
and optimizer state, and the cuts of the batch, the sequence, weights and heads (over the axes data and
model).
"""
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

QUERIES = 128  #: per block of attention, which a fused kernel keeps on the chip


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    tied: bool = False  #: the head is the embedding
    gated: bool = True  #: silu(x w1) * (x w3); else relu(x w1)

    @property
    def parameters(self) -> int:
        head = self.width // self.heads
        layer = self.width * head * (2 * self.heads + 2 * self.kv_heads) + (2 + self.gated) * self.width * self.hidden + 2 * self.width
        return self.layers * layer + (2 - self.tied) * self.vocab * self.width + self.width


@dataclasses.dataclass(frozen=True)
class Job:
    """One way to train it. recompute: "none", "full" (each layer) or "products" (every second product is kept, as
    torchtitan's selective checkpointing has it). state: "fsdp" (f32 weights and AdamW cut over data; bf16 copies are gathered),
    or "zero1" (bf16 weights and f32 gradient sums on each data rank; f32 master weights and AdamW cut over data)."""

    batch: int  #: sequences of one micro-batch, of all data ranks together
    sequence: int
    recompute: str
    state: str
    micro_batches: int = 1
    sequence_cut: bool = True  #: between products, the sequence is cut over model
    loss_parts: int = 1  #: the head and the loss are computed for a part of the sequence after the other


def _mesh() -> Mesh:
    """Only the names of its axes go into a captured program."""
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))


def _cut(x: jax.Array, *entries: str | None) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(_mesh(), PartitionSpec(*entries)))


@jax.checkpoint  # a kernel: it keeps its input alone
def _rmsnorm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * (10000.0 ** (-jnp.arange(half) / half))
    cos, sin = (f(angles).astype(x.dtype)[None, :, None, :] for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal. A block of queries after the other, and again in the gradient: in memory are q, k, v and the result, as with a
    fused kernel. It computes all scores, a kernel those that the mask leaves."""
    batch, sequence, heads, head = q.shape
    groups = k.shape[2]
    blocks = sequence // QUERIES
    q = jnp.moveaxis(q.reshape(batch, blocks, QUERIES, groups, heads // groups, head), 1, 0)

    @jax.checkpoint
    def block(number: jax.Array, some: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", some, k, preferred_element_type=jnp.float32) * head**-0.5
        rows = number * QUERIES + jnp.arange(QUERIES)
        scores = jnp.where(rows[:, None] >= jnp.arange(sequence)[None, :], scores, -1e30)
        return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores, -1).astype(v.dtype), v)

    _, out = jax.lax.scan(lambda carry, one: (carry, block(*one)), 0, (jnp.arange(blocks), q))
    return jnp.moveaxis(out, 0, 1).reshape(batch, sequence, heads, head)


def _layer(sizes: Sizes, job: Job, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    batch, sequence, width = x.shape
    between = ("data", "model" if job.sequence_cut else None, None)
    h = _cut(_rmsnorm(x, w["norm1"]), "data", None, None)

    def by_columns(h: jax.Array, name: str) -> jax.Array:
        return _cut(h @ w[name], "data", None, "model")

    def heads(name: str, count: int) -> jax.Array:
        return by_columns(h, name).reshape(batch, sequence, count, width // sizes.heads)

    q, k = checkpoint_name(heads("wq", sizes.heads), "kept"), heads("wk", sizes.kv_heads)
    v = checkpoint_name(heads("wv", sizes.kv_heads), "kept")
    out = checkpoint_name(_attention(_rotated(q), _rotated(k), v), "kept")
    x = x + _cut(out.reshape(batch, sequence, width) @ w["wo"], *between)
    h = _cut(_rmsnorm(x, w["norm2"]), "data", None, None)
    if sizes.gated:
        h = jax.nn.silu(checkpoint_name(by_columns(h, "w1"), "kept")) * by_columns(h, "w3")
    else:
        h = jax.nn.relu(by_columns(h, "w1"))
    return x + _cut(h @ w["w2"], *between)


def _loss(sizes: Sizes, job: Job, params: dict[str, Any], ids: jax.Array, targets: jax.Array) -> jax.Array:
    between = ("data", "model" if job.sequence_cut else None, None)
    x = _cut(params["embedding"][ids], *between)
    layer = lambda x, w: _layer(sizes, job, x, w)  # noqa: E731
    if job.recompute == "full":
        layer = jax.checkpoint(layer)
    elif job.recompute == "products":
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("kept"))
    for number in range(sizes.layers):
        with jax.named_scope(f"layers/{number}"):
            x = layer(x, params["layers"][number])
    x = _cut(_rmsnorm(x, params["norm"]), "data", None, None)
    head = params["embedding"].T if sizes.tied else params["head"]

    def of(x: jax.Array, targets: jax.Array) -> jax.Array:
        logits = _cut(x @ head, "data", None, "model").astype(jnp.float32)
        taken = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - taken).sum()

    with jax.named_scope("loss"):
        if job.loss_parts == 1:
            return of(x, targets) / targets.size
        parts = [jnp.moveaxis(one.reshape(one.shape[0], job.loss_parts, -1, *one.shape[2:]), 1, 0) for one in (x, targets)]
        total, _ = jax.lax.scan(lambda sum, one: (sum + jax.checkpoint(of)(*one), None), jnp.float32(0), tuple(parts))
        return total / targets.size


def _shapes(sizes: Sizes) -> dict[str, Any]:
    head, d, f = sizes.width // sizes.heads, sizes.width, sizes.hidden
    layer = {"norm1": (d,), "norm2": (d,), "wq": (d, sizes.heads * head), "wk": (d, sizes.kv_heads * head),
             "wv": (d, sizes.kv_heads * head), "wo": (sizes.heads * head, d), "w1": (d, f), "w2": (f, d)}
    if sizes.gated:
        layer["w3"] = (d, f)
    tree: dict[str, Any] = {"embedding": (sizes.vocab, d), "norm": (d,), "layers": [layer] * sizes.layers}
    return tree if sizes.tied else tree | {"head": (d, sizes.vocab)}


def _adamw(w: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return w - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * w), m, v


def captured(sizes: Sizes, job: Job, *, looped: bool = False) -> Any:
    """The program, with its marks. looped: all micro-batches, one after the other, in place of the last one alone."""
    import shardwise.jax as swj

    def arrays(dtype: Any) -> Any:
        return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, dtype), _shapes(sizes), is_leaf=lambda x: isinstance(x, tuple))

    wide = arrays(jnp.float32)
    tokens = jax.ShapeDtypeStruct((job.batch, job.sequence), jnp.int32)
    state = {"m": wide, "v": wide}
    half = lambda tree: jax.tree.map(lambda w: w.astype(jnp.bfloat16), tree)  # noqa: E731

    def update(master: Any, grads: Any, opt_state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        new = jax.tree.map(_adamw, master, grads, opt_state["m"], opt_state["v"])
        pick = lambda i: jax.tree.map(lambda one: one[i], new, is_leaf=lambda x: isinstance(x, tuple))  # noqa: E731
        return pick(0), {"m": pick(1), "v": pick(2)}

    def fsdp(params: Any, opt_state: Any, ids: jax.Array, targets: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: _loss(sizes, job, half(p), ids, targets))(params)
        return *update(params, grads, opt_state), loss

    def zero1(params: Any, opt_state: Any, ids: jax.Array, targets: jax.Array) -> Any:
        """The last micro-batch: its gradients go to the sums of those before it."""
        loss, grads = jax.value_and_grad(lambda p: _loss(sizes, job, p, ids, targets))(params)
        sums = jax.tree.map(lambda s, g: s + g.astype(jnp.float32), opt_state["sums"], grads)
        master, new = update(opt_state["master"], sums, opt_state)
        return half(master), new | {"master": master, "sums": sums}, loss

    def all_of(params: Any, opt_state: Any, ids: jax.Array, targets: jax.Array) -> Any:
        def micro(sums: Any, one: tuple[jax.Array, jax.Array]) -> Any:
            loss, grads = jax.value_and_grad(lambda p: _loss(sizes, job, p, *one))(params)
            return jax.tree.map(lambda s, g: s + g.astype(jnp.float32), sums, grads), loss

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        sums, losses = jax.lax.scan(micro, zeros, (ids, targets))
        master, new = update(opt_state["master"], sums, opt_state)
        return half(master), new | {"master": master}, losses.mean()

    kinds = {"opt_state/*": "optimizer"}
    if job.state == "fsdp":
        program = swj.capture(fsdp, wide, state, tokens, tokens, kinds=kinds)
    elif looped:
        more = jax.ShapeDtypeStruct((job.micro_batches, *tokens.shape), jnp.int32)
        program = swj.capture(all_of, arrays(jnp.bfloat16), state | {"master": wide}, more, more, kinds=kinds)
    else:
        program = swj.capture(
            zero1, arrays(jnp.bfloat16), state | {"master": wide, "sums": wide}, tokens, tokens, kinds=kinds
        )
    return program.mark(_marks(program, job, looped))


def _marks(program: Any, job: Job, looped: bool) -> dict[str, str]:
    """Rows and columns as Megatron cuts them over model; the other dim over data, where state is cut over data."""
    columns = {"wq", "wk", "wv", "w1", "w3", "head"}
    marks: dict[str, str] = {}
    for one in program.inputs:
        path = one.label.split("/")
        name = path[-1]
        over_data = job.state == "fsdp" or path[min(1, len(path) - 1)] in ("m", "v", "master")
        data = "data" if over_data else "-"
        if one.label in ("ids", "targets"):
            marks[one.label] = "-,data,-" if looped else "data,-"
        elif name.startswith("norm"):
            marks[one.label] = data
        else:
            marks[one.label] = f"{data},model" if name in columns else f"model,{data}"
    return marks
