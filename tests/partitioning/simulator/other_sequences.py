"""Steps as other people write them: sequences, graphs, sparse products, second-order optimizers.

Each function returns (step, arguments): the step's arguments are named, and rows of the one called
`batch` are independent wherever it has any. They need from one to a hundred MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import sparse

Step = tuple[Callable[..., Any], tuple[Any, ...]]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Momentum on a loss of parameters and a batch."""

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
        params = jax.tree.map(lambda p, m: p - 1e-3 * m, state["params"], moments)
        return {"params": params, "moments": moments}, value

    return step


def trained(loss: Callable[..., Any], params: Any, batch: Any) -> Step:
    return descent(loss), ({"params": params, "moments": params}, batch)


def cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


# -- graphs and sparse matrices -------------------------------------------------------------------


def sparse_product() -> Step:
    """A product with a sparse matrix in coordinates, and the gradient of both sides."""

    def step(values: Any, places: Any, dense: Any) -> Any:
        def loss(values: Any, dense: Any) -> Any:
            matrix = sparse.BCOO((values, places), shape=(4096, 4096))
            return jnp.square(matrix @ dense).sum()

        return jax.grad(loss, (0, 1))(values, dense)

    return step, (f32(32768), i32(32768, 2), f32(4096, 64))


def sparse_forward() -> Step:
    """Two sparse layers."""

    def step(values: Any, places: Any, x: Any, w: Any) -> Any:
        matrix = sparse.BCOO((values, places), shape=(4096, 4096))
        return matrix @ (jax.nn.relu(matrix @ (x @ w["a"])) @ w["b"])

    return step, (f32(32768), i32(32768, 2), f32(4096, 64), {"a": f32(64, 64), "b": f32(64, 32)})


def sparse_transposed() -> Step:
    """A dense matrix from the left, and a sparse one transposed."""

    def step(values: Any, places: Any, x: Any) -> Any:
        matrix = sparse.BCOO((values, places), shape=(2048, 1024))
        return (x @ matrix) @ matrix.T

    return step, (f32(16384), i32(16384, 2), f32(128, 2048))


def message_passing() -> Step:
    """Messages along edges, gathered by sender and summed by receiver, three times."""

    def loss(params: Any, batch: Any) -> Any:
        h = batch["nodes"]
        for layer in params["layers"]:
            pairs = jnp.concatenate([h[batch["senders"]], h[batch["receivers"]]], -1)
            messages = jax.nn.relu(pairs @ layer["message"])
            summed = jax.ops.segment_sum(messages, batch["receivers"], 2048)
            h = h + jnp.tanh(jnp.concatenate([h, summed], -1) @ layer["update"])
        return jnp.square(h @ params["head"] - batch["y"]).mean()

    layer = {"message": f32(128, 64), "update": f32(128, 64)}
    params = {"layers": [layer] * 3, "head": f32(64, 8)}
    batch = {"nodes": f32(2048, 64), "senders": i32(8192), "receivers": i32(8192)}
    return trained(loss, params, {**batch, "y": f32(2048, 8)})


def graph_attention() -> Step:
    """A softmax over the edges of each receiver."""

    def loss(params: Any, batch: Any) -> Any:
        h = batch["nodes"]
        senders, receivers = batch["senders"], batch["receivers"]
        for layer in params["layers"]:
            h = (h @ layer["w"]).reshape(2048, 4, 16)
            scores = (h * layer["left"]).sum(-1)[senders] + (h * layer["right"]).sum(-1)[receivers]
            scores = jax.nn.leaky_relu(scores, 0.2)
            largest = jax.ops.segment_max(scores, receivers, 2048)
            weights = jnp.exp(scores - lax.stop_gradient(largest)[receivers])
            total = jax.ops.segment_sum(weights, receivers, 2048)
            weights = weights / (total[receivers] + 1e-6)
            h = jax.ops.segment_sum(weights[..., None] * h[senders], receivers, 2048)
            h = jax.nn.elu(h.reshape(2048, 64))
        return cross_entropy(h @ params["head"], batch["labels"])

    layer = {"w": f32(64, 64), "left": f32(4, 16), "right": f32(4, 16)}
    params = {"layers": [layer] * 2, "head": f32(64, 8)}
    batch = {"nodes": f32(2048, 64), "senders": i32(8192), "receivers": i32(8192)}
    return trained(loss, params, {**batch, "labels": i32(2048)})


def many_graphs() -> Step:
    """Small graphs side by side under vmap, with the largest message and a sum over nodes."""

    def one(params: Any, nodes: Any, edges: Any) -> Any:
        h = nodes
        for w in params["layers"]:
            messages = jax.nn.gelu(h[edges[:, 0]] @ w)
            h = h + jax.ops.segment_max(messages, edges[:, 1], 32)
        return (h.sum(0) @ params["head"])[0]

    def loss(params: Any, batch: Any) -> Any:
        out = jax.vmap(one, (None, 0, 0))(params, batch["nodes"], batch["edges"])
        return jnp.square(out - batch["y"]).mean()

    params = {"layers": [f32(64, 64)] * 2, "head": f32(64, 1)}
    return trained(
        loss, params, {"nodes": f32(128, 32, 64), "edges": i32(128, 64, 2), "y": f32(128)}
    )


# -- recurrences ----------------------------------------------------------------------------------


def _combine(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def _diagonal(params: Any, x: Any) -> Any:
    """A diagonal complex recurrence of [T, features], by an associative scan."""
    decay = jnp.exp(-jnp.exp(params["nu"]) + 1j * params["theta"])
    inputs = x @ (params["b_re"] + 1j * params["b_im"])
    _, h = lax.associative_scan(_combine, (jnp.broadcast_to(decay, inputs.shape), inputs))
    return (h @ (params["c_re"] + 1j * params["c_im"])).real + x * params["d"]


def _diagonal_params(features: int, states: int) -> Any:
    return {
        "nu": f32(states), "theta": f32(states), "d": f32(features),
        **{k: f32(features, states) for k in ("b_re", "b_im")},
        **{k: f32(states, features) for k in ("c_re", "c_im")},
    }  # fmt: skip


def complex_scan(batch: int = 16, length: int = 128) -> Step:
    """Layers as of S5 and LRU, trained."""

    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"]
        for layer in params["layers"]:
            h = h + jax.nn.gelu(jax.vmap(_diagonal, (None, 0))(layer, h))
        return cross_entropy(h.mean(1) @ params["head"], batch["y"])

    params = {"layers": [_diagonal_params(32, 32)] * 2, "head": f32(32, 10)}
    return trained(loss, params, {"x": f32(batch, length, 32), "y": i32(batch)})


def complex_scan_forward() -> Step:
    """The same without a gradient."""

    def step(params: Any, batch: Any) -> Any:
        return jax.vmap(_diagonal, (None, 0))(params, batch)

    return step, (_diagonal_params(32, 64), f32(32, 256, 32))


def selective_scan(batch: int = 8, length: int = 64) -> Step:
    """A layer as of Mamba: decays that depend on the input, states for each feature."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"] @ params["in"]
        delta = jax.nn.softplus(x @ params["delta"])
        b, c = x @ params["b"], x @ params["c"]
        decay = jnp.exp(-delta[..., None] * jnp.exp(params["a"]))
        inputs = (delta * x)[..., None] * b[:, :, None]
        _, h = lax.associative_scan(_combine, (decay, inputs), axis=1)
        out = jnp.einsum("blds,bls->bld", h, c) * jax.nn.silu(batch["x"] @ params["gate"])
        return jnp.square(out @ params["out"] - batch["y"]).mean()

    params = {
        "in": f32(32, 64), "gate": f32(32, 64), "delta": f32(64, 64), "a": f32(64, 8),
        "b": f32(64, 8), "c": f32(64, 8), "out": f32(64, 32),
    }  # fmt: skip
    return trained(loss, params, {"x": f32(batch, length, 32), "y": f32(batch, length, 32)})


def selective_loop() -> Step:
    """The same recurrence step by step."""

    def one(params: Any, x: Any) -> Any:
        delta = jax.nn.softplus(x @ params["delta"])

        def turn(h: Any, now: Any) -> Any:
            x, delta, b, c = now
            h = h * jnp.exp(-delta[:, None] * jnp.exp(params["a"])) + (delta * x)[:, None] * b
            return h, h @ c

        _, y = lax.scan(turn, jnp.zeros((64, 16)), (x, delta, x @ params["b"], x @ params["c"]))
        return y

    def loss(params: Any, batch: Any) -> Any:
        return jnp.square(jax.vmap(one, (None, 0))(params, batch)).mean()

    params = {"delta": f32(64, 64), "a": f32(64, 16), "b": f32(64, 16), "c": f32(64, 16)}
    return trained(loss, params, f32(16, 64, 64))


def lstm() -> Step:
    def loss(params: Any, batch: Any) -> Any:
        def turn(carry: Any, x: Any) -> Any:
            h, c = carry
            gates = jnp.concatenate([x, h], -1) @ params["w"] + params["b"]
            i, f, g, o = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((batch["x"].shape[0], 128))
        _, h = lax.scan(turn, (zeros, zeros), jnp.swapaxes(batch["x"], 0, 1))
        return jnp.square(h @ params["head"] - jnp.swapaxes(batch["y"], 0, 1)).mean()

    params = {"w": f32(160, 512), "b": f32(512), "head": f32(128, 8)}
    return trained(loss, params, {"x": f32(64, 32, 32), "y": f32(64, 32, 8)})


def world_model() -> Step:
    """A recurrent state-space model with categorical latents, each turn computed again."""

    def loss(params: Any, batch: Any) -> Any:
        rows = batch["observation"].shape[0]
        embedded = jax.nn.silu(batch["observation"] @ params["encode"])

        @jax.checkpoint
        def turn(carry: Any, now: Any) -> Any:
            deter, stoch = carry
            embed, action, key = now
            x = jax.nn.silu(jnp.concatenate([stoch, action], -1) @ params["in"])
            reset, update, candidate = jnp.split(
                jnp.concatenate([x, deter], -1) @ params["gru"], 3, -1
            )
            candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
            update = jax.nn.sigmoid(update - 1)
            deter = update * candidate + (1 - update) * deter
            prior = (deter @ params["prior"]).reshape(rows, 16, 16)
            posterior = jnp.concatenate([deter, embed], -1) @ params["posterior"]
            posterior = posterior.reshape(rows, 16, 16)
            probs = jax.nn.softmax(posterior)
            drawn = jax.random.categorical(key, posterior)
            stoch = jax.nn.one_hot(drawn, 16) + probs - lax.stop_gradient(probs)
            stoch = stoch.reshape(rows, 256)
            return (deter, stoch), (deter, stoch, prior, posterior)

        start = jnp.zeros((rows, 256)), jnp.zeros((rows, 256))
        keys = jax.random.split(jax.random.key(0), 16)
        now = jnp.swapaxes(embedded, 0, 1), jnp.swapaxes(batch["action"], 0, 1), keys
        _, (deter, stoch, prior, posterior) = lax.scan(turn, start, now)
        decoded = jnp.concatenate([deter, stoch], -1) @ params["decode"]
        error = jnp.square(decoded - jnp.swapaxes(batch["observation"], 0, 1)).mean()
        log_p, log_q = jax.nn.log_softmax(prior), jax.nn.log_softmax(posterior)
        divergence = (jnp.exp(log_q) * (log_q - log_p)).sum((-1, -2))
        return error + jnp.maximum(divergence, 1.0).mean()

    params = {
        "encode": f32(64, 128), "in": f32(260, 256), "gru": f32(512, 768),
        "prior": f32(256, 256), "posterior": f32(384, 256), "decode": f32(512, 64),
    }  # fmt: skip
    return trained(loss, params, {"observation": f32(32, 16, 64), "action": f32(32, 16, 4)})


def kalman_filter() -> Step:
    """Batched filters with a solve each turn."""

    def one(params: Any, observed: Any) -> Any:
        def turn(carry: Any, y: Any) -> Any:
            mean, cov = carry
            mean, cov = params["a"] @ mean, params["a"] @ cov @ params["a"].T + jnp.eye(16)
            noise = params["h"] @ cov @ params["h"].T + jnp.eye(8)
            gain = jax.scipy.linalg.solve(noise, params["h"] @ cov, assume_a="pos").T
            error = y - params["h"] @ mean
            return (mean + gain @ error, cov - gain @ params["h"] @ cov), jnp.vdot(error, error)

        start = jnp.zeros(16), jnp.eye(16)
        return lax.scan(turn, start, observed)[1].mean()

    def loss(params: Any, batch: Any) -> Any:
        return jax.vmap(one, (None, 0))(params, batch).mean()

    return trained(loss, {"a": f32(16, 16), "h": f32(8, 16)}, f32(64, 16, 8))


def neural_ode() -> Step:
    """Runge-Kutta of fourth order with a network, in a loop that is differentiated."""

    def loss(params: Any, batch: Any) -> Any:
        def slope(x: Any) -> Any:
            return jnp.tanh(x @ params["a"]) @ params["b"]

        def turn(x: Any, _: Any) -> Any:
            first = slope(x)
            second = slope(x + 0.05 * first)
            third = slope(x + 0.05 * second)
            fourth = slope(x + 0.1 * third)
            return x + (first + 2 * second + 2 * third + fourth) * (0.1 / 6), None

        return jnp.square(lax.scan(turn, batch["x"], None, length=10)[0] - batch["y"]).mean()

    params = {"a": f32(64, 128), "b": f32(128, 64)}
    return trained(loss, params, {"x": f32(256, 64), "y": f32(256, 64)})


STEPS: dict[str, Callable[[], Step]] = {
    f.__name__: f
    for f in (
        sparse_product, sparse_forward, sparse_transposed, message_passing, graph_attention,
        many_graphs, complex_scan, complex_scan_forward, selective_scan, selective_loop, lstm,
        world_model, kalman_filter, neural_ode,
    )
}  # fmt: skip
