"""Losses of reinforcement learning as their papers' code writes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .program import Program, Tree, apply, integers, normal, perceptron, trained, weights

BATCH, FEATURES, ACTIONS, ATOMS = 16, 6, 4, 8


def _transitions(batch: int = BATCH) -> Tree:
    return {
        "x": normal(1, batch, FEATURES), "next_x": normal(2, batch, FEATURES),
        "action": integers(3, ACTIONS, batch), "reward": normal(4, batch),
        "discount": integers(5, 2, batch).astype(np.float32),
    }  # fmt: skip


def group_relative() -> Program:
    """GRPO: advantages within groups of answers, of tokens under a mask."""
    params = {"embedding": normal(0, 12, 8), "out": weights(1, 8, 12)}

    def log_probs(params: Tree, tokens: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(jnp.tanh(params["embedding"][tokens[:, :-1]]) @ params["out"])
        return jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        groups = batch["reward"].reshape(-1, 4)
        advantage = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-4)
        mask = jnp.arange(5) < batch["length"][:, None]
        now = log_probs(params, batch["tokens"])
        ratio = jnp.exp(now - lax.stop_gradient(now))
        gain = jnp.minimum(ratio, jnp.clip(ratio, 0.8, 1.2)) * advantage.reshape(-1, 1)
        far = log_probs(state["reference"], batch["tokens"]) - now
        each = jnp.where(mask, gain - 0.04 * (jnp.exp(far) - far - 1), 0).sum(1)
        return -(each / jnp.maximum(mask.sum(1), 1)).mean(), {}

    batch = {
        "tokens": integers(2, 12, BATCH, 6), "reward": normal(3, BATCH),
        "length": integers(4, 6, BATCH),
    }  # fmt: skip
    return trained(loss, params, batch, reference=jax.tree.map(np.copy, params))


def world_model() -> Program:
    """DreamerV3's model: discrete latents straight through, symlog, balanced divergences."""
    hidden, groups, classes = 8, 2, 4
    flat = groups * classes
    params = {
        "core": perceptron(0, hidden + flat + 2, hidden), "prior": perceptron(1, hidden, flat),
        "posterior": perceptron(2, hidden + FEATURES, flat),
        "decoder": perceptron(3, hidden + flat, FEATURES),
    }  # fmt: skip

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        key, drawn = jax.random.split(state["key"])
        rows, length = batch["x"].shape[:2]

        def logits(out: jax.Array) -> jax.Array:
            return jax.nn.log_softmax(out.reshape(rows, groups, classes))

        def turn(carry: Any, now: Any) -> Any:
            h, z = carry
            x, action, key = now
            h = jnp.tanh(apply(params["core"], jnp.concatenate([h, z, action], -1)))
            prior = logits(apply(params["prior"], h))
            posterior = logits(apply(params["posterior"], jnp.concatenate([h, x], -1)))
            probs = jnp.exp(posterior)
            hard = jax.nn.one_hot(jax.random.categorical(key, posterior), classes, dtype=x.dtype)
            z = (hard + probs - lax.stop_gradient(probs)).reshape(rows, flat)
            return (h, z), (prior, posterior, jnp.concatenate([h, z], -1))

        x = jnp.sign(batch["x"]) * jnp.log1p(jnp.abs(batch["x"]))
        x, action = x.swapaxes(0, 1), batch["action"].swapaxes(0, 1)
        start = jnp.zeros((rows, hidden), x.dtype), jnp.zeros((rows, flat), x.dtype)
        keys = jax.random.split(drawn, length)
        _, (prior, posterior, features) = lax.scan(turn, start, (x, action, keys))

        def divergence(p: jax.Array, q: jax.Array) -> jax.Array:
            return jnp.maximum((jnp.exp(p) * (p - q)).sum((-1, -2)), 1.0).mean()

        dynamics = divergence(lax.stop_gradient(posterior), prior)
        representation = divergence(posterior, lax.stop_gradient(prior))
        error = jnp.square(apply(params["decoder"], features) - x).sum(-1).mean()
        return error + 0.5 * dynamics + 0.1 * representation, {"key": key}

    batch = {"x": normal(4, BATCH, 3, FEATURES), "action": normal(5, BATCH, 3, 2)}
    return trained(loss, params, batch, key=jax.random.key(0))


def categorical_values() -> Program:
    """C51: the target's distribution projected onto the atoms."""
    params = perceptron(0, FEATURES, 12, ACTIONS * ATOMS)

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        atoms = jnp.linspace(-2.0, 2.0, ATOMS, dtype=jnp.float32)

        def values(params: Tree, x: jax.Array) -> jax.Array:
            return apply(params, x).reshape(-1, ACTIONS, ATOMS)

        rows = jnp.arange(batch["x"].shape[0])
        target = jax.nn.softmax(values(state["target"], batch["next_x"]))
        best = target[rows, jnp.argmax(target @ atoms, -1)]
        moved = batch["reward"][:, None] + 0.9 * batch["discount"][:, None] * atoms
        at = (jnp.clip(moved, -2, 2) + 2) / (atoms[1] - atoms[0])
        near = jnp.clip(1 - jnp.abs(at[:, None, :] - jnp.arange(ATOMS)[None, :, None]), 0, 1)
        projected = (near * best[:, None, :]).sum(-1)
        log_probs = jax.nn.log_softmax(values(params, batch["x"])[rows, batch["action"]])
        target = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state["target"], params)
        return -(projected * log_probs).sum(-1).mean(), {"target": lax.stop_gradient(target)}

    return trained(loss, params, _transitions(), target=jax.tree.map(np.copy, params))


def quantile_values() -> Program:
    """QR-DQN: the Huber loss of every pair of quantiles."""
    params = perceptron(0, FEATURES, 12, ACTIONS * ATOMS)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        def one(x: Any, next_x: Any, action: Any, reward: Any, discount: Any) -> jax.Array:
            quantiles = apply(params, x).reshape(ACTIONS, ATOMS)[action]
            following = apply(params, next_x).reshape(ACTIONS, ATOMS)
            target = reward + 0.9 * discount * following[following.mean(-1).argmax()]
            error = lax.stop_gradient(target)[None, :] - quantiles[:, None]
            at = (jnp.arange(ATOMS) + 0.5) / ATOMS
            huber = jnp.where(jnp.abs(error) < 1, 0.5 * error**2, jnp.abs(error) - 0.5)
            return (jnp.abs(at[:, None] - (error < 0)) * huber).sum(0).mean()

        names = ("x", "next_x", "action", "reward", "discount")
        return jax.vmap(one)(*(batch[n] for n in names)).mean()

    return trained(loss, params, _transitions())


def conservative() -> Program:
    """CQL: values of repeated states with drawn actions, under a logsumexp."""
    params = perceptron(0, FEATURES + 2, 12, 1)

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        key, drawn = jax.random.split(state["key"])
        rows, count = batch["x"].shape[0], 3

        def value(x: jax.Array, a: jax.Array) -> jax.Array:
            return apply(params, jnp.concatenate([x, a], -1))[:, 0]

        repeated = jnp.repeat(batch["x"], count, 0)
        actions = jax.random.uniform(drawn, (rows * count, 2), jnp.float32, -1, 1)
        some = value(repeated, actions).reshape(rows, count)
        near = value(repeated, jnp.tile(batch["a"], (count, 1))).reshape(rows, count)
        wide = jax.nn.logsumexp(jnp.concatenate([some, near], 1), 1)
        q = value(batch["x"], batch["a"])
        return (wide - q).mean() + jnp.square(q - batch["reward"]).mean(), {"key": key}

    batch = {**_transitions(), "a": np.tanh(normal(6, BATCH, 2))}
    return trained(loss, params, batch, key=jax.random.PRNGKey(1))


def upper_half() -> Program:
    """V-MPO: the better half of the advantages, weighed by a temperature that is learnt."""
    params = {"policy": perceptron(0, FEATURES, ACTIONS), "temperature": np.float32(1.0)}

    def loss(params: Tree, batch: Tree) -> jax.Array:
        best, rows = lax.top_k(batch["reward"], batch["reward"].shape[0] // 2)
        weight = jax.nn.softmax(best / lax.stop_gradient(params["temperature"]))
        log_probs = jax.nn.log_softmax(apply(params["policy"], batch["x"]))
        taken = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
        scaled = best / params["temperature"]
        dual = params["temperature"] * (0.1 + jax.nn.logsumexp(scaled) - jnp.log(len(scaled)))
        return -(weight * taken[rows]).sum() + dual

    return trained(loss, params, _transitions())


def prioritized() -> Program:
    """Draws from priorities by a search in their sums; errors are written back."""
    params = perceptron(0, FEATURES, 12, 1)

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        key, drawn = jax.random.split(state["key"])
        sums = jnp.cumsum(state["priority"])
        where = jax.random.uniform(drawn, (BATCH,), jnp.float32) * sums[-1]
        rows = jnp.clip(jnp.searchsorted(sums, where), 0, sums.shape[0] - 1)
        weight = (sums[-1] / state["priority"][rows]) ** 0.4
        error = apply(params, batch["x"][rows])[:, 0] - batch["reward"][rows]
        value = (weight / weight.max() * jnp.square(error)).mean()
        priority = state["priority"].at[rows].max(jnp.abs(lax.stop_gradient(error)))
        return value, {"key": key, "priority": priority}

    priority = integers(7, 8, 2 * BATCH).astype(np.float32) + 1  # Sums of integers are exact.
    more = {"key": jax.random.key(3), "priority": priority}
    return trained(loss, params, _transitions(2 * BATCH), **more)


def distributions() -> Program:
    """A mixture of normals squashed by tanh: drawn, scored, and its entropy guessed."""
    parts = 3
    params = {"net": perceptron(0, FEATURES, parts * 5)}

    def log_normal(x: jax.Array, mean: jax.Array, log_scale: jax.Array) -> jax.Array:
        scaled = (x - mean) * jnp.exp(-log_scale)
        return -0.5 * jnp.square(scaled) - log_scale - 0.5 * jnp.log(2 * jnp.pi)

    def loss(params: Tree, batch: Tree, state: Tree) -> Any:
        key, first, second = jax.random.split(state["key"], 3)
        out = apply(params["net"], batch["x"])
        mix, mean, log_scale = jnp.split(out, [parts, 3 * parts], -1)
        mean, log_scale = (y.reshape(-1, parts, 2) for y in (mean, jnp.tanh(log_scale)))
        part = jax.random.categorical(first, mix)[:, None, None]
        mean_of, scale_of = (jnp.take_along_axis(y, part, 1)[:, 0] for y in (mean, log_scale))
        raw = mean_of + jnp.exp(scale_of) * jax.random.normal(second, mean_of.shape, mean.dtype)
        each = log_normal(raw[:, None], mean, log_scale).sum(-1)
        log_prob = jax.nn.logsumexp(jax.nn.log_softmax(mix) + each, -1)
        log_prob -= 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw)).sum(-1)
        clipped = jnp.clip(batch["a"], -0.99, 0.99)
        scored = log_normal(jnp.arctanh(clipped)[:, None], mean, log_scale).sum((-1, -2))
        return 0.1 * log_prob.mean() - scored.mean() + jnp.tanh(raw).mean(), {"key": key}

    batch = {"x": normal(1, BATCH, FEATURES), "a": np.tanh(normal(2, BATCH, 2))}
    return trained(loss, params, batch, key=jax.random.key(4))


PROGRAMS = {
    f.__name__: f
    for f in (
        group_relative, world_model, categorical_values, quantile_values, conservative, upper_half,
        prioritized, distributions,
    )
}  # fmt: skip
