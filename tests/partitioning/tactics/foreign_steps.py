"""Learner steps in styles that the example models do not have, to hold searches against.

Each is a step (state, batch) -> (state, metrics) and its arguments as shapes. Sizes are such that
splitting pays on an accelerator, and that plans take no time.
B: batch, T: time, D: features, E: experts, C: slots of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any


class ForeignStep(NamedTuple):
    """A step and the shapes of its arguments; the first is the state, which is donated."""

    update: Callable[..., Any]
    state: Tree
    batch: Tree


def _f(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _descend(params: Tree, moments: Tree, grads: Tree) -> tuple[Tree, Tree]:
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, moments), moments


def momentum_mlp(batch: int = 4096, width: int = 1024) -> ForeignStep:
    """Layers in a list of pairs, updated with momentum."""
    params = [(_f(width, width), _f(width)) for _ in range(3)]

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        return jnp.mean((x @ params[-1][0] + params[-1][1] - y) ** 2)

    def update(state: Tree, batch: Tree) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return _descend(params, moments, grads), value

    return ForeignStep(update, (params, params), (_f(batch, width), _f(batch, width)))


def batch_norm(batch: int = 4096, width: int = 1024) -> ForeignStep:
    """Variables in collections, with running statistics among the state, as flax has them."""
    names = ("Dense_0", "Dense_1")
    params = {n: {"kernel": _f(width, width), "bias": _f(width), "scale": _f(width)} for n in names}
    stats = {n: {"mean": _f(width), "var": _f(width)} for n in names}

    def apply(params: Tree, stats: Tree, x: jax.Array) -> tuple[jax.Array, Tree]:
        seen = {}
        for name in names:
            p, old = params[name], stats[name]
            x = x @ p["kernel"]
            mean, var = x.mean(0), x.var(0)
            seen[name] = {"mean": 0.99 * old["mean"] + 0.01 * mean,
                          "var": 0.99 * old["var"] + 0.01 * var}  # fmt: skip
            x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * p["scale"] + p["bias"])
        return x, seen

    def update(state: Tree, batch: Tree) -> Any:
        def loss(params: Tree) -> Any:
            out, seen = apply(params, state["batch_stats"], batch["image"])
            logits = jax.nn.log_softmax(out)
            return -jnp.mean(jnp.take_along_axis(logits, batch["label"][:, None], 1)), seen

        (value, seen), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        params, trace = _descend(state["params"], state["trace"], grads)
        return {"params": params, "trace": trace, "batch_stats": seen}, {"loss": value}

    state = {"params": params, "trace": params, "batch_stats": stats}
    return ForeignStep(update, state, {"image": _f(batch, width), "label": _i(batch)})


def squashed_normal(batch: int = 4096, width: int = 1024, actions: int = 8) -> ForeignStep:
    """The loss of an actor that samples from a squashed normal and asks two critics."""
    actor = {"body": _f(64, width), "inner": _f(width, width), "head": _f(width, 2 * actions)}
    critic = {"body": _f(64 + actions, width), "inner": _f(width, width), "head": _f(width, 2)}

    def net(p: Tree, x: jax.Array) -> jax.Array:
        return jax.nn.relu(jax.nn.relu(x @ p["body"]) @ p["inner"]) @ p["head"]

    def update(state: Tree, batch: Tree) -> Any:
        key, draw = jax.random.split(state["key"])

        def loss(actor: Tree) -> jax.Array:
            mean, log_std = jnp.split(net(actor, batch["obs"]), 2, -1)
            std = jnp.exp(jnp.clip(log_std, -5, 2))
            noise = jax.random.normal(draw, mean.shape)
            raw = mean + std * noise
            log_prob = jnp.sum(-0.5 * noise**2 - jnp.log(std), -1)
            log_prob -= jnp.sum(2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw)), -1)
            q = net(state["critic"], jnp.concatenate([batch["obs"], jnp.tanh(raw)], -1))
            return jnp.mean(0.1 * log_prob - q.min(-1))

        value, grads = jax.value_and_grad(loss)(state["actor"])
        actor, moments = _descend(state["actor"], state["moments"], grads)
        return {**state, "actor": actor, "moments": moments, "key": key}, value

    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    state = {"actor": actor, "moments": actor, "critic": critic, "key": key}
    return ForeignStep(update, state, {"obs": _f(batch, 64)})


def decode(batch: int = 512, width: int = 512, tokens: int = 32, heads: int = 8) -> ForeignStep:
    """Greedy decoding with a cache of keys and values: no gradients; weights are state as well."""
    size = width // heads
    cache = {n: _f(batch, tokens, heads, size) for n in ("k", "v")}
    weights = {n: _f(width, width) for n in ("q", "k", "v", "o", "up", "down")}

    def update(state: Tree, word: jax.Array) -> Any:
        w, table = state["weights"], state["table"]

        def turn(t: jax.Array, carry: Any) -> Any:
            cache, word = carry
            x = table[word]
            q, k, v = ((x @ w[n]).reshape(batch, heads, size) for n in "qkv")
            cache = {
                n: lax.dynamic_update_slice(cache[n], new[:, None], (0, t, 0, 0))
                for n, new in (("k", k), ("v", v))
            }
            scores = jnp.einsum("bhd,bthd->bht", q, cache["k"])
            scores = jnp.where(jnp.arange(tokens) <= t, scores, -jnp.inf)
            mixed = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), cache["v"])
            x = x + mixed.reshape(batch, width) @ w["o"]
            x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
            return cache, jnp.argmax(x @ table.T, -1)

        cache, word = lax.fori_loop(0, tokens, turn, (state["cache"], word))
        return {**state, "cache": cache}, word

    state = {"cache": cache, "weights": weights, "table": _f(1024, width)}
    return ForeignStep(update, state, _i(batch))


def experts(
    tokens: int = 4096, width: int = 512, hidden: int = 2048, count: int = 8
) -> ForeignStep:
    """Tokens sent to experts with a capacity, by one-hot products."""
    slots = 2 * tokens // count
    params = {"router": _f(width, count), "up": _f(count, width, hidden),
              "down": _f(count, hidden, width)}  # fmt: skip

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(x @ params["router"])
        chosen = jax.nn.one_hot(jnp.argmax(gates, -1), count)
        place = (jnp.cumsum(chosen, 0) - 1) * chosen
        sent = chosen[..., None] * jax.nn.one_hot(jnp.sum(place, -1).astype(int), slots)[:, None]
        inside = jnp.einsum("tec,td->ecd", sent, x)
        made = jnp.einsum("ech,ehd->ecd", jax.nn.relu(
            jnp.einsum("ecd,edh->ech", inside, params["up"])), params["down"])  # fmt: skip
        out = jnp.einsum("tec,ecd->td", sent * gates[..., None], made)
        return jnp.mean((x + out - y) ** 2)

    def update(state: Tree, batch: Tree) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], *batch)
        params, moments = _descend(state["params"], state["moments"], grads)
        return {"params": params, "moments": moments}, value

    state = {"params": params, "moments": params}
    return ForeignStep(update, state, (_f(tokens, width), _f(tokens, width)))


def recurrence(batch: int = 64, length: int = 64, width: int = 512, parts: int = 4) -> ForeignStep:
    """Blocks of selective recurrences, turn by turn, under a scan over the blocks."""
    blocks = {"into": _f(2, width, 2 * width), "pace": _f(2, width, width),
              "read": _f(2, width, parts), "out": _f(2, width, width)}  # fmt: skip

    def block(x: jax.Array, p: Tree) -> Any:
        z, gate = jnp.split(x @ p["into"], 2, -1)
        pace = jax.nn.softplus(z @ p["pace"])
        read = z @ p["read"]

        def turn(h: jax.Array, now: Any) -> Any:
            z, pace, read = now
            h = h * jnp.exp(-pace)[..., None] + (pace * z)[..., None]
            return h, jnp.einsum("bdp,bp->bd", h, read)

        start = jnp.zeros((batch, width, parts))
        _, y = lax.scan(turn, start, jax.tree.map(lambda a: a.swapaxes(0, 1), (z, pace, read)))
        return x + (y.swapaxes(0, 1) * jax.nn.silu(gate)) @ p["out"], None

    def update(state: Tree, batch: Tree) -> Any:
        def loss(blocks: Tree) -> jax.Array:
            return jnp.mean((lax.scan(block, batch["x"], blocks)[0] - batch["y"]) ** 2)

        value, grads = jax.value_and_grad(loss)(state["blocks"])
        blocks, moments = _descend(state["blocks"], state["moments"], grads)
        return {"blocks": blocks, "moments": moments}, value

    rows = _f(batch, length, width)
    return ForeignStep(update, {"blocks": blocks, "moments": blocks}, {"x": rows, "y": rows})


def whole_training(envs: int = 4096, steps: int = 16, width: int = 512) -> ForeignStep:
    """Environments and learner in one program: rollouts, advantages, shuffled minibatches."""
    params = {"body": _f(8, width), "inner": _f(width, width), "head": _f(width, 5)}

    def net(p: Tree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.tanh(jnp.tanh(x @ p["body"]) @ p["inner"]) @ p["head"]
        return out[..., :4], out[..., 4]

    def act(carry: Any, _: Any) -> Any:
        params, obs, key = carry
        key, draw = jax.random.split(key)
        logits, value = net(params, obs)
        action = jax.random.categorical(draw, logits)
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        following = 0.9 * obs + 0.1 * jnp.sin(obs + action[:, None])
        reward = -jnp.mean(following**2, -1)
        return (params, following, key), (obs, action, taken, value, reward)

    def loss(params: Tree, rows: Tree) -> jax.Array:
        obs, action, old, advantage, goal = rows
        logits, value = net(params, obs)
        taken = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        ratio = jnp.exp(taken - old)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        return -jnp.mean(gain) + 0.5 * jnp.mean((value - goal) ** 2)

    def update(state: Tree, obs: jax.Array) -> Any:
        carry = state["params"], obs, state["key"]
        (_, obs, key), (seen, action, taken, value, reward) = lax.scan(act, carry, None, steps)

        def back(later: jax.Array, now: Any) -> Any:
            value, reward = now
            later = reward + 0.95 * later
            return later, later - value

        _, advantage = lax.scan(back, net(state["params"], obs)[1], (value, reward), reverse=True)
        rows = (seen, action, taken, advantage, advantage + value)
        rows = jax.tree.map(lambda a: a.reshape(steps * envs, *a.shape[2:]), rows)

        def epoch(carry: Any, draw: jax.Array) -> Any:
            order = jax.random.permutation(draw, steps * envs)
            parts = jax.tree.map(lambda a: a[order].reshape(4, -1, *a.shape[1:]), rows)

            def minibatch(carry: Any, part: Any) -> Any:
                value, grads = jax.value_and_grad(loss)(carry[0], part)
                return _descend(*carry, grads), value

            return lax.scan(minibatch, carry, parts)

        key, *draws = jax.random.split(key, 3)
        start = state["params"], state["moments"]
        (params, moments), losses = lax.scan(epoch, start, jnp.stack(draws))
        return {"params": params, "moments": moments, "key": key}, (obs, losses)

    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return ForeignStep(update, {"params": params, "moments": params, "key": key}, _f(envs, 8))


STEPS: dict[str, Callable[[], ForeignStep]] = {
    step.__name__: step
    for step in (
        momentum_mlp, batch_norm, squashed_normal, decode, experts, recurrence, whole_training,
    )
}  # fmt: skip
