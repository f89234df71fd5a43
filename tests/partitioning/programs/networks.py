"""Networks as other libraries' users write them: modules, recurrences, experts and caches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .program import Program, Tree, integers, normal, trained, weights

BATCH, LENGTH, WIDTH = 16, 6, 8


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["weight", "bias"],
    meta_fields=["activation", "bits"],
)
@dataclasses.dataclass(frozen=True)
class Layer:
    """A module that is a pytree: its activation is static, its bias may be missing."""

    weight: Any
    bias: Any
    activation: Callable[[jax.Array], jax.Array]
    bits: int = 32

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.weight @ x
        return self.activation(y if self.bias is None else y + self.bias)


def filtered_modules() -> Program:
    """Modules are pytrees, written for one example; some leaves are not trained."""
    layers = (
        Layer(weights(0, 12, WIDTH), normal(1, 12), jax.nn.gelu),
        Layer(weights(2, 4, 12), None, jnp.tanh),
    )

    def step(model: Any, batch: Tree) -> Any:
        trainable = jax.tree.map(lambda x: x if x.ndim == 2 else None, model)
        frozen = jax.tree.map(lambda x: None if x.ndim == 2 else x, model)

        def combine(trainable: Any) -> Any:
            return jax.tree.map(
                lambda a, b: b if a is None else a, trainable, frozen, is_leaf=lambda x: x is None
            )

        def loss(trainable: Any) -> jax.Array:
            first, second = combine(trainable)
            return jnp.square(jax.vmap(lambda x: second(first(x)))(batch["x"]) - batch["y"]).mean()

        value, grads = jax.value_and_grad(loss)(trainable)
        moved = jax.tree.map(lambda p, g: p - 0.1 * g, trainable, grads)
        return combine(moved), {"loss": value, "layers": len(model)}

    return Program(step, layers, {"x": normal(3, BATCH, WIDTH), "y": normal(4, BATCH, 4)})


@jax.tree_util.register_pytree_with_keys_class
class Variable:
    """A leaf with a kind, as state trees hold them."""

    def __init__(self, value: Any, kind: str):
        self.value, self.kind = value, kind

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("value"), self.value),), self.kind

    @classmethod
    def tree_unflatten(cls, kind: str, children: Any) -> Any:
        return cls(*children, kind)


def state_tree() -> Program:
    """Variables of several kinds in one tree: parameters, statistics, and a count of draws."""
    state = {
        "dense": {"kernel": Variable(weights(0, WIDTH, WIDTH), "param")},
        "norm": {"mean": Variable(np.zeros(WIDTH, np.float32), "stats")},
        "dropout": {"count": Variable(np.uint32(3), "count")},
    }

    def step(state: Tree, batch: Tree) -> Any:
        def forward(kernel: jax.Array) -> Any:
            h = batch["x"] @ kernel
            mean = h.mean(0)
            key = jax.random.fold_in(jax.random.key(0), state["dropout"]["count"].value)
            h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), (h - mean) / 0.8, 0)
            return jnp.square(h - batch["x"]).mean(), mean

        kernel = state["dense"]["kernel"].value
        (value, mean), grad = jax.value_and_grad(forward, has_aux=True)(kernel)
        old = state["norm"]["mean"].value
        return {
            "dense": {"kernel": Variable(kernel - 0.1 * grad, "param")},
            "norm": {"mean": Variable(0.9 * old + 0.1 * mean, "stats")},
            "dropout": {"count": Variable(state["dropout"]["count"].value + 1, "count")},
        }, value

    return Program(step, state, {"x": normal(1, BATCH, WIDTH)})


def batch_statistics() -> Program:
    """A convolutional classifier that normalises by the batch and keeps running statistics."""
    params = {
        "kernel": weights(0, 3, 3, 2, WIDTH),
        "scale": np.ones(WIDTH, np.float32),
        "head": weights(1, WIDTH, 5),
    }
    stats = {"mean": np.zeros(WIDTH, np.float32), "var": np.ones(WIDTH, np.float32)}

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        h = lax.conv_general_dilated(
            batch["image"], params["kernel"], (2, 2), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        mean, var = h.mean((0, 1, 2)), h.var((0, 1, 2))
        h = jax.nn.relu((h - mean) * lax.rsqrt(var + 1e-5) * params["scale"])
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = jax.nn.log_softmax(h.mean((1, 2)) @ params["head"])
        now = {"mean": mean, "var": var}
        kept = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["stats"], now)
        return -jnp.take_along_axis(logits, batch["label"][:, None], 1).mean(), {"stats": kept}

    batch = {"image": normal(2, BATCH, 8, 8, 2), "label": integers(3, 5, BATCH)}
    return trained(loss, params, batch, stats=stats)


def gated_recurrence() -> Program:
    """A GRU whose turns are recomputed, over sequences that end early."""
    params = {"in": weights(0, 4, 3 * WIDTH), "rec": weights(1, WIDTH, 3 * WIDTH)}

    def loss(params: Tree, batch: Tree) -> jax.Array:
        @functools.partial(
            jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        )
        def turn(h: jax.Array, now: Any) -> Any:
            x, valid = now
            a, b = jnp.split(x @ params["in"], [2 * WIDTH], -1)
            c, d = jnp.split(h @ params["rec"], [2 * WIDTH], -1)
            reset, update = jnp.split(jax.nn.sigmoid(a + c), 2, -1)
            new = update * h + (1 - update) * jnp.tanh(b + reset * d)
            return jnp.where(valid[:, None], new, h), None

        start = jnp.zeros((batch["x"].shape[0], WIDTH), batch["x"].dtype)
        valid = jnp.arange(LENGTH) < batch["length"][:, None]
        h, _ = lax.scan(turn, start, (batch["x"].swapaxes(0, 1), valid.T))
        return jnp.square(h).mean()

    batch = {"x": normal(2, BATCH, LENGTH, 4), "length": integers(3, LENGTH + 1, BATCH)}
    return trained(loss, params, batch)


def selective_scan() -> Program:
    """Mamba's block: a depthwise convolution, and a scan that its input steers."""
    params = {
        "in": weights(0, WIDTH, 2 * WIDTH),
        "conv": normal(1, 3, 1, WIDTH) / 3,
        "steer": weights(2, WIDTH, WIDTH + 4),
        "log_decay": normal(3, WIDTH, 2) / 4,
        "out": weights(4, WIDTH, WIDTH),
    }

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x, gate = jnp.split(batch["x"] @ params["in"], 2, -1)
        x = jax.nn.silu(
            lax.conv_general_dilated(
                x, params["conv"], (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=WIDTH,
            )
        )  # fmt: skip
        dt, b, c = jnp.split(x @ params["steer"], [WIDTH, WIDTH + 2], -1)
        dt = jax.nn.softplus(dt)
        decay = jnp.exp(-dt[..., None] * jnp.exp(params["log_decay"]))

        def turn(h: jax.Array, now: Any) -> Any:
            decay, drive, c = now
            h = decay * h + drive
            return h, jnp.einsum("bdn,bn->bd", h, c)

        drive = (dt * x)[..., None] * b[:, :, None, :]
        swap = functools.partial(jnp.swapaxes, axis1=0, axis2=1)
        start = jnp.zeros_like(drive[:, 0])
        _, y = lax.scan(turn, start, (swap(decay), swap(drive), swap(c)))
        out = (swap(y) * jax.nn.silu(gate)) @ params["out"]
        return jnp.square(out - batch["x"]).mean()

    return trained(loss, params, {"x": normal(5, BATCH, LENGTH, WIDTH)})


def complex_recurrence() -> Program:
    """S5's layer: an associative scan with complex diagonal dynamics."""
    params = {
        "log_rate": normal(0, WIDTH) / 4,
        "frequency": normal(1, WIDTH),
        "in": weights(2, WIDTH, 2 * WIDTH),
        "out": weights(3, WIDTH, 2 * WIDTH),
    }

    def loss(params: Tree, batch: Tree) -> jax.Array:
        real, imaginary = jnp.split(params["in"], 2, -1)
        step = lax.complex(-jnp.exp(params["log_rate"]), params["frequency"])
        decay = jnp.exp(0.1 * step)
        drive = (batch["x"] @ lax.complex(real, imaginary)) * ((decay - 1) / step)

        def one(drive: jax.Array) -> jax.Array:
            def combine(a: Any, b: Any) -> Any:
                return b[0] * a[0], b[0] * a[1] + b[1]

            return lax.associative_scan(combine, (jnp.broadcast_to(decay, drive.shape), drive))[1]

        h = jax.vmap(one)(drive)
        y = (h @ lax.complex(*jnp.split(params["out"], 2, -1))).real
        return jnp.square(jax.nn.gelu(y) - batch["x"]).mean() + jnp.abs(h).mean()

    return trained(loss, params, {"x": normal(4, BATCH, LENGTH, WIDTH)})


def sorted_experts() -> Program:
    """Two of four experts for every token: tokens sorted by expert, and ragged products."""
    params = {
        "router": weights(0, WIDTH, 4),
        "up": weights(1, 4, WIDTH, 12),
        "down": weights(2, 4, 12, WIDTH),
    }

    def loss(params: Tree, batch: Tree) -> jax.Array:
        scores, expert = lax.top_k(jax.nn.softmax(batch["x"] @ params["router"]), 2)
        order = jnp.argsort(expert.reshape(-1), stable=True)
        sizes = jnp.bincount(expert.reshape(-1), length=4).astype(jnp.int32)
        rows = batch["x"][order // 2]
        hidden = jax.nn.relu(lax.ragged_dot(rows, params["up"], sizes))
        made = lax.ragged_dot(hidden, params["down"], sizes)
        made = jnp.zeros_like(made).at[order].set(made).reshape(*expert.shape, WIDTH)
        balance = (sizes / expert.size * scores.mean()).sum()
        return jnp.square((made * scores[..., None]).sum(1) - batch["x"]).mean() + 0.01 * balance

    return trained(loss, params, {"x": 3 * normal(3, 2 * BATCH, WIDTH)})


def decoding() -> Program:
    """Tokens one by one with a cache of keys and values, until all sequences have ended."""
    state = {
        "embedding": normal(0, 11, WIDTH),
        "qkv": weights(1, WIDTH, 3 * WIDTH),
        "out": weights(2, WIDTH, WIDTH),
    }

    def step(state: Tree, batch: Tree) -> Any:
        rows, key = batch["first"].shape[0], jax.random.key(3)
        cache = jnp.zeros((2, rows, LENGTH, 2, WIDTH // 2), jnp.float32)
        tokens = jnp.zeros((rows, LENGTH), jnp.int32).at[:, 0].set(batch["first"])

        def turn(carry: Any) -> Any:
            at, tokens, cache, done = carry
            now = lax.dynamic_index_in_dim(tokens, at, 1, keepdims=False)
            x = state["embedding"][now]
            q, k, v = jnp.moveaxis((x @ state["qkv"]).reshape(rows, 3, 2, WIDTH // 2), 1, 0)
            zero = jnp.int32(0)
            cache = lax.dynamic_update_slice(
                cache, jnp.stack([k, v])[:, :, None], (zero, zero, at, zero, zero)
            )
            scores = jnp.einsum("bhd,bthd->bht", q, cache[0])
            scores = jnp.where(jnp.arange(LENGTH) <= at, scores, -jnp.inf)
            mixed = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), cache[1])
            logits = (x + mixed.reshape(rows, WIDTH) @ state["out"]) @ state["embedding"].T
            drawn = jax.random.categorical(jax.random.fold_in(key, at), logits)
            drawn = jnp.where(done, 0, drawn).astype(jnp.int32)
            tokens = lax.dynamic_update_slice_in_dim(tokens, drawn[:, None], at + 1, 1)
            return at + 1, tokens, cache, done | (drawn == 1)

        def go_on(carry: Any) -> jax.Array:
            return (carry[0] < LENGTH - 1) & ~carry[3].all()

        start = (jnp.int32(0), tokens, cache, jnp.zeros(rows, bool))
        at, tokens, cache, done = lax.while_loop(go_on, turn, start)
        return state, {"at": at, "tokens": tokens, "keys": cache[0], "done": done}

    return Program(step, state, {"first": integers(3, 11, BATCH)})


PROGRAMS = {
    f.__name__: f
    for f in (
        filtered_modules, state_tree, batch_statistics, gated_recurrence, selective_scan,
        complex_recurrence, sorted_experts, decoding,
    )
}  # fmt: skip
