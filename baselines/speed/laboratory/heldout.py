"""Models that no list, tactic or test of the search was made with, to hold the search against.

Each is a whole step with Adam, written for itself: none takes its layers from the models of
`partitioning`, whose names and shapes tactics know.
B: batch, T: time, N: nodes or tokens, D: features, A: parts of a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ....partitioning.models.example import DATA_AND_MODEL, Example
from ....partitioning.models.optimizers import adam
from ....partitioning.models.training import initial_state, supervised

Tree = Any


@dataclasses.dataclass(frozen=True)
class Extents:
    """The sizes of a model.

    Attributes:
      batch: examples of a step; graphs for the network of graphs.
      width: features of what runs through a model.
      hidden: features inside of a block.
      length: steps of time, tokens, or nodes of a graph.
      blocks: how often a block comes.
      classes: how many there are to tell apart, or rows of a table.
    """

    batch: int = 16
    width: int = 8
    hidden: int = 16
    length: int = 8
    blocks: int = 2
    classes: int = 8


def make(name: str, **sizes: Any) -> Example:
    """The model of that name of `MODELS`, with the given fields of `Extents`."""
    config = Extents(**sizes)
    init, loss, make_batch = MODELS[name](config)
    optimizer = adam()
    return Example(
        name,
        supervised(loss, optimizer),
        initial_state(init, optimizer),
        make_batch,
        DATA_AND_MODEL,
        config,
    )


def _weights(key: jax.Array, /, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Arrays scaled by all their dimensions but the last; vectors stay small."""
    found = {}
    for i, (name, shape) in enumerate(shapes.items()):
        values = jax.random.normal(jax.random.fold_in(key, i), shape)
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        found[name] = values * (0.1 if len(shape) == 1 else fan_in**-0.5)
    return found


def _centred(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def film(c: Extents) -> tuple[Callable[..., Any], ...]:
    """Clips of images: convolutions, attention over time, then a net with one gate."""

    def init(key: jax.Array) -> Tree:
        return _weights(
            key, near=(3, 3, 3, c.width), far=(3, 3, c.width, c.width),
            seen=(4 * c.width, c.hidden), query=(c.hidden, c.hidden), key=(c.hidden, c.hidden),
            value=(c.hidden, c.hidden), gate=(2 * c.hidden, c.hidden),
            fresh=(2 * c.hidden, c.hidden), told=(c.hidden, c.classes),
        )  # fmt: skip

    def strided(x: jax.Array, w: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.nn.gelu(lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=dims))

    def loss(p: Tree, batch: Tree) -> jax.Array:
        frames = batch["frames"]  # [B, T, 8, 8, 3]
        x = strided(strided(frames.reshape(-1, *frames.shape[2:]), p["near"]), p["far"])
        x = jnp.tanh(x.reshape(c.batch, c.length, -1) @ p["seen"])
        scores = jnp.einsum("btd,bsd->bts", x @ p["query"], x @ p["key"]) / c.hidden**0.5
        x = x + jax.nn.softmax(scores) @ (x @ p["value"])

        def turn(state: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            both = jnp.concatenate([state, now], axis=-1)
            gate = jax.nn.sigmoid(both @ p["gate"])
            state = gate * state + (1 - gate) * jnp.tanh(both @ p["fresh"])
            return state, state

        _, states = lax.scan(turn, jnp.zeros((c.batch, c.hidden)), x.swapaxes(0, 1))
        return _cross_entropy(states @ p["told"], batch["labels"].T)

    def make_batch(key: jax.Array) -> Tree:
        shape = (c.batch, c.length)
        return {
            "frames": jax.random.normal(key, (*shape, 8, 8, 3)),
            "labels": jax.random.randint(key, shape, 0, c.classes),
        }

    return init, loss, make_batch


def molecules(c: Extents) -> tuple[Callable[..., Any], ...]:
    """Graphs whose nodes attend to their neighbours: softmax and sums over segments."""
    nodes, edges = c.batch * c.length, 4 * c.batch * c.length

    def init(key: jax.Array) -> Tree:
        blocks = {
            f"round{i}": _weights(
                jax.random.fold_in(key, i), sent=(c.width, c.hidden), got=(c.width, c.hidden),
                weigh=(c.hidden, 1), out=(c.hidden, c.width),
            )
            for i in range(c.blocks)
        }  # fmt: skip
        return {**blocks, "end": _weights(key, read=(c.width, 1))}

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x, source, target = batch["atoms"], batch["source"], batch["target"]
        for i in range(c.blocks):
            block = p[f"round{i}"]
            sent = (x @ block["sent"])[source]
            scores = (jax.nn.leaky_relu(sent + (x @ block["got"])[target]) @ block["weigh"])[:, 0]
            top = lax.stop_gradient(jax.ops.segment_max(scores, target, nodes))
            share = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0)[target])
            of_all = jax.ops.segment_sum(share, target, nodes)
            heard = jax.ops.segment_sum(sent * share[:, None], target, nodes)
            x = x + jax.nn.relu(heard / (of_all[:, None] + 1e-6)) @ block["out"]
        energy = jax.ops.segment_sum(_centred(x) @ p["end"]["read"], batch["graph"], c.batch)
        return jnp.mean(jnp.square(energy[:, 0] - batch["energy"]))

    def make_batch(key: jax.Array) -> Tree:
        keys = jax.random.split(key, 4)
        start = jnp.repeat(jnp.arange(c.batch) * c.length, 4 * c.length)
        return {
            "atoms": jax.random.normal(keys[0], (nodes, c.width)),
            "source": start + jax.random.randint(keys[1], (edges,), 0, c.length),
            "target": start + jax.random.randint(keys[2], (edges,), 0, c.length),
            "graph": jnp.repeat(jnp.arange(c.batch), c.length),
            "energy": jax.random.normal(keys[3], (c.batch,)),
        }

    return init, loss, make_batch


def mixer(c: Extents) -> tuple[Callable[..., Any], ...]:
    """Tokens mixed by products over their places, then over their features, in turn."""

    def init(key: jax.Array) -> Tree:
        return [
            _weights(
                jax.random.fold_in(key, i), across=(c.length, 2 * c.length),
                back=(2 * c.length, c.length), wide=(c.width, c.hidden), thin=(c.hidden, c.width),
                told=(c.width, c.classes),
            )
            for i in range(c.blocks)
        ]  # fmt: skip

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["patches"]  # [B, N, D]
        for block in p:
            mixed = jax.nn.gelu(jnp.einsum("bnd,nh->bhd", _centred(x), block["across"]))
            x = x + jnp.einsum("bhd,hn->bnd", mixed, block["back"])
            x = x + jax.nn.gelu(_centred(x) @ block["wide"]) @ block["thin"]
        return _cross_entropy(x.mean(1) @ p[-1]["told"], batch["labels"])

    def make_batch(key: jax.Array) -> Tree:
        return {
            "patches": jax.random.normal(key, (c.batch, c.length, c.width)),
            "labels": jax.random.randint(key, (c.batch,), 0, c.classes),
        }

    return init, loss, make_batch


def selective(c: Extents) -> tuple[Callable[..., Any], ...]:
    """Selective state spaces: a recurrence that its inputs steer, as an associative scan
    (https://arxiv.org/abs/2312.00752)."""
    parts = 4

    def init(key: jax.Array) -> Tree:
        blocks = [
            _weights(
                jax.random.fold_in(key, i), into=(c.width, 2 * c.hidden), mixed=(4, c.hidden),
                pace=(c.hidden, c.hidden), write=(c.hidden, parts), read=(c.hidden, parts),
                decay=(c.hidden, parts), out=(c.hidden, c.width),
            )
            for i in range(c.blocks)
        ]  # fmt: skip
        return {"blocks": blocks, **_weights(key, words=(c.classes, c.width))}

    def block(p: Tree, x: jax.Array) -> jax.Array:
        x, gate = jnp.split(x @ p["into"], 2, axis=-1)  # [B, T, D] each
        padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
        near = [padded[:, i : i + c.length] * p["mixed"][i] for i in range(4)]
        x = jax.nn.silu(near[0] + near[1] + near[2] + near[3])
        pace = jax.nn.softplus(x @ p["pace"])[..., None]
        kept = jnp.exp(-pace * jnp.exp(p["decay"]))  # [B, T, D, A]
        fresh = pace * (x @ p["write"])[:, :, None] * x[..., None]

        def joined(a: Any, b: Any) -> Any:
            return a[0] * b[0], a[1] * b[0] + b[1]

        _, states = lax.associative_scan(joined, (kept, fresh), axis=1)
        y = jnp.einsum("btda,bta->btd", states, x @ p["read"])
        return (y * jax.nn.silu(gate)) @ p["out"]

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = p["words"][batch["words"]]
        for weights in p["blocks"]:
            x = x + block(weights, _centred(x))
        return _cross_entropy(_centred(x) @ p["words"].T, batch["next"])

    def make_batch(key: jax.Array) -> Tree:
        words = jax.random.randint(key, (c.batch, c.length + 1), 0, c.classes)
        return {"words": words[:, :-1], "next": words[:, 1:]}

    return init, loss, make_batch


def towers(c: Extents) -> tuple[Callable[..., Any], ...]:
    """Two towers, one over a table of items, told apart by all pairs of the batch."""

    def init(key: jax.Array) -> Tree:
        keys = jax.random.split(key)
        asked = _weights(keys[0], first=(c.width, c.hidden), second=(c.hidden, c.width))
        items = _weights(keys[1], table=(c.classes, c.width), turned=(c.width, c.width))
        return {"asked": asked, "items": items}

    def loss(p: Tree, batch: Tree) -> jax.Array:
        asked = jax.nn.relu(batch["asked"] @ p["asked"]["first"]) @ p["asked"]["second"]
        found = p["items"]["table"][batch["items"]].mean(1) @ p["items"]["turned"]
        logits = _centred(asked) @ _centred(found).T  # [B, B]
        own = jnp.arange(c.batch)
        return _cross_entropy(logits, own) + _cross_entropy(logits.T, own)

    def make_batch(key: jax.Array) -> Tree:
        return {
            "asked": jax.random.normal(key, (c.batch, c.width)),
            "items": jax.random.randint(key, (c.batch, c.length), 0, c.classes),
        }

    return init, loss, make_batch


MODELS: dict[str, Callable[[Extents], tuple[Callable[..., Any], ...]]] = {
    "film": film,
    "molecules": molecules,
    "mixer": mixer,
    "selective": selective,
    "towers": towers,
}
#: Extents at which each is more than a test.
LARGER: dict[str, dict[str, Any]] = {
    "film": {"batch": 256, "width": 64, "hidden": 1024, "length": 16, "classes": 256},
    "molecules": {"batch": 512, "width": 256, "hidden": 1024, "length": 32, "blocks": 3},
    "mixer": {"batch": 128, "width": 1024, "hidden": 4096, "length": 256, "classes": 1024},
    "selective": {"batch": 32, "width": 1024, "hidden": 2048, "length": 512, "classes": 16384},
    "towers": {"batch": 4096, "width": 512, "hidden": 2048, "classes": 65536},
}
