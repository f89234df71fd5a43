"""Learner steps in which the batch does not stay a leading dimension: as people write them.

Micro-batches, `(T, N)` merged and split again, shuffled minibatches, rows picked by index. Each is
wide enough that an optimizer's own work is little beside that of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from troupe.agents import examples
from troupe.partitioning.models import layers, optimizers

Tree = Any


class Case(NamedTuple):
    """A step (state, batch) -> (state, metrics), what it takes, and the batch dimension."""

    update: Callable[[Tree, Tree], Any]
    state: Tree
    batch: Tree
    dim: int = 0


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _labels(seed: int, *shape: int) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), shape, 0, 4)


def _state(features: int, hidden: int, **more: Any) -> Tree:
    params = layers.mlp_init(jax.random.key(0), (features, hidden, hidden, 4))
    return {"params": params, "opt": optimizers.adam().init(params), **more}


def _apply(grads: Tree, state: Tree) -> Tree:
    params, opt = optimizers.adam().apply(grads, state["opt"], state["params"])
    return {**state, "params": params, "opt": opt}


def _cross_entropy(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(layers.mlp(params, x)) * jax.nn.one_hot(y, 4), -1))


def accumulation(parts: int, rows: int = 512) -> Case:
    """Gradients accumulated over micro-batches, in a scan."""

    def update(state: Tree, batch: Tree) -> Any:
        micro = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)

        def add(carry: Tree, part: Tree) -> Any:
            total, loss = carry
            value, grads = jax.value_and_grad(_cross_entropy)(state["params"], part["x"], part["y"])
            return (jax.tree.map(jnp.add, total, grads), loss + value), None

        zeros = jax.tree.map(jnp.zeros_like, state["params"])
        (grads, loss), _ = lax.scan(add, (zeros, 0.0), micro)
        return _apply(jax.tree.map(lambda g: g / parts, grads), state), loss / parts

    return Case(update, _state(16, 32), {"x": _normal(1, rows, 16), "y": _labels(2, rows)})


def sliced_accumulation() -> Case:
    """The same with the micro-batch cut out in every turn."""

    def update(state: Tree, batch: Tree) -> Any:
        def add(i: Any, total: Tree) -> Tree:
            part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i * 128, 128), batch)
            grads = jax.grad(_cross_entropy)(state["params"], part["x"], part["y"])
            return jax.tree.map(jnp.add, total, grads)

        zeros = jax.tree.map(jnp.zeros_like, state["params"])
        return _apply(lax.fori_loop(0, 4, add, zeros), state), {}

    return Case(update, _state(16, 32), {"x": _normal(1, 512, 16), "y": _labels(2, 512)})


def picked(how: str) -> Case:
    """Q-learning with the taken action's value picked from each row."""

    def pick(q: jax.Array, action: jax.Array) -> jax.Array:
        if how == "arange":
            return q[jnp.arange(q.shape[0]), action]
        return jax.vmap(lambda row, i: row[i])(q, action)

    def update(state: Tree, batch: Tree) -> Any:
        def loss(params: Tree) -> jax.Array:
            q = layers.mlp(params, batch["x"])
            following = layers.mlp(state["target"], batch["next_x"])
            chosen = jnp.argmax(layers.mlp(params, batch["next_x"]), -1)
            goal = batch["reward"] + 0.9 * pick(following, chosen)
            return jnp.mean((pick(q, batch["action"]) - lax.stop_gradient(goal)) ** 2)

        value, grads = jax.value_and_grad(loss)(state["params"])
        return _apply(grads, state), {"loss": value}

    target = layers.mlp_init(jax.random.key(9), (16, 32, 32, 4))
    batch = {
        "x": _normal(1, 512, 16), "next_x": _normal(2, 512, 16), "action": _labels(3, 512),
        "reward": _normal(4, 512),
    }  # fmt: skip
    return Case(update, _state(16, 32, target=target), batch)


def time_major(length: int, envs: int = 64) -> Case:
    """Proximal policy optimisation over (T, N): merged, shuffled, split, and values split back."""

    def advantages(values: jax.Array, rewards: jax.Array) -> jax.Array:
        def back(following: Any, now: Any) -> Any:
            advantage, value_t = following
            value, reward = now
            advantage = reward + 0.9 * value_t - value + 0.8 * advantage
            return (advantage, value), advantage

        start = jnp.zeros(values.shape[1]), values[-1]
        return lax.scan(back, start, (values, rewards), reverse=True)[1]

    def loss(params: Tree, rows: Tree) -> jax.Array:
        logits = jax.nn.log_softmax(layers.mlp(params, rows["x"]))
        taken = jnp.take_along_axis(logits, rows["action"][:, None], -1)[:, 0]
        ratio = jnp.exp(taken - rows["log_prob"])
        advantage = rows["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        return -jnp.mean(jnp.minimum(ratio, jnp.clip(ratio, 0.8, 1.2)) * advantage)

    def update(state: Tree, batch: Tree) -> Any:
        size = length * envs
        values = layers.mlp(state["params"], batch["x"].reshape(size, -1))[:, 0]
        advantage = advantages(values.reshape(length, envs), batch["reward"])
        rows = {**batch, "advantage": advantage}
        rows = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rows)

        def minibatch(state: Tree, rows: Tree) -> Any:
            value, grads = jax.value_and_grad(loss)(state["params"], rows)
            return _apply(grads, state), value

        def epoch(state: Tree, key: jax.Array) -> Any:
            order = jax.random.permutation(key, size)
            shuffled = jax.tree.map(lambda x: jnp.take(x, order, axis=0), rows)
            parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), shuffled)
            return lax.scan(minibatch, state, parts)

        key, *keys = jax.random.split(state["key"], 4)
        state, losses = lax.scan(epoch, state, jnp.stack(keys))
        return {**state, "key": key}, losses

    shape = (length, envs)
    batch = {
        "x": _normal(1, *shape, 16), "action": _labels(2, *shape),
        "log_prob": -jnp.abs(_normal(3, *shape)), "reward": _normal(4, *shape),
    }  # fmt: skip
    return Case(update, _state(16, 48, key=jax.random.PRNGKey(5)), batch, 1)


def recurrent() -> Case:
    """Proximal policy optimisation with an LSTM: minibatches of whole sequences, (N, T)."""
    envs, length, hidden = 128, 8, 32

    def loss(params: Tree, rows: Tree) -> jax.Array:
        start = layers.lstm_start(rows["x"].shape[0], hidden)
        _, outputs = layers.unroll(
            lambda carry, x: layers.lstm(params["core"], carry, x), start, rows["x"]
        )
        logits = jax.nn.log_softmax(layers.linear(params["policy"], outputs))
        n, t = rows["action"].shape
        taken = logits[jnp.arange(n)[:, None], jnp.arange(t), rows["action"]]
        ratio = jnp.exp(taken - rows["log_prob"])
        return -jnp.mean(jnp.minimum(ratio, jnp.clip(ratio, 0.8, 1.2)) * rows["advantage"])

    def update(state: Tree, batch: Tree) -> Any:
        def minibatch(state: Tree, rows: Tree) -> Any:
            value, grads = jax.value_and_grad(loss)(state["params"], rows)
            return _apply(grads, state), value

        def epoch(state: Tree, key: jax.Array) -> Any:
            order = jax.random.permutation(key, envs).reshape(4, -1)
            return lax.scan(minibatch, state, jax.tree.map(lambda x: x[order], batch))

        key, *keys = jax.random.split(state["key"], 3)
        state, losses = lax.scan(epoch, state, jnp.stack(keys))
        return {**state, "key": key}, losses

    keys = jax.random.split(jax.random.key(0))
    params = {
        "core": layers.lstm_init(keys[0], 16, hidden),
        "policy": layers.linear_init(keys[1], hidden, 4),
    }
    state = {"params": params, "opt": optimizers.adam().init(params), "key": jax.random.PRNGKey(5)}
    batch = {
        "x": _normal(1, envs, length, 16), "action": _labels(2, envs, length),
        "log_prob": -jnp.abs(_normal(3, envs, length)), "advantage": _normal(4, envs, length),
    }  # fmt: skip
    return Case(update, state, batch)


def example(name: str, **sizes: Any) -> Case:
    """An example of the models, or an agent's own update."""
    found = examples.make(name, **sizes)
    return Case(
        found.update, found.init(jax.random.PRNGKey(0)), found.make_batch(jax.random.PRNGKey(1))
    )


#: Every case by name.
CASES: dict[str, Callable[[], Case]] = {
    "accumulation 4": lambda: accumulation(4),
    "accumulation 8": lambda: accumulation(8),
    "accumulation 3": lambda: accumulation(3, 480),
    "accumulation by slices": sliced_accumulation,
    "picked rows": lambda: picked("arange"),
    "picked rows, vmapped": lambda: picked("vmap"),
    "time major, 16": lambda: time_major(16),
    "time major, 5": lambda: time_major(5, 128),
    "recurrent minibatches": recurrent,
    "ppo": lambda: example(
        "ppo", num_envs=64, rollout_length=16, hidden_sizes=(64, 64), num_minibatches=4
    ),
    "ppo, recurrent": lambda: example(
        "ppo",
        num_envs=64,
        rollout_length=8,
        hidden_sizes=(32,),
        core="gru",
        core_size=32,
        target_kl=0.01,
    ),
    "impala": lambda: example("impala", batch_size=64, rollout_length=8, hidden_sizes=(64, 64)),
    # An epsilon that is not below rounding: the first step of Adam is the gradient's sign, and that
    # of the positions, which matter little at first, is one of rounding in many elements.
    "impala, transformer": lambda: example(
        "impala",
        batch_size=64,
        hidden_sizes=(32,),
        core="transformer",
        memory_length=8,
        adam_epsilon=1e-5,
    ),
    "d4pg": lambda: example("d4pg", batch_size=256, hidden_sizes=(64, 64)),
    "mpo": lambda: example("mpo", batch_size=256, hidden_sizes=(64, 64), num_samples=4),
    "sac": lambda: example("sac", batch_size=256, hidden_sizes=(64, 64)),
    "td3": lambda: example("td3", batch_size=256, hidden_sizes=(64, 64)),
    "dropout": lambda: example("transformer", dropout=0.1, batch=32, length=16, width=32),
}
