"""Environments within the step: physics, automatic resets, whole trainings, populations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .program import Program, Tree, apply, normal, perceptron, trained

ENVS = 16


def physics() -> Program:
    """A chain of springs stepped by a scan of scans; the policy's gradient goes through it."""
    links = 4

    def loss(policy: Tree, batch: Tree) -> jax.Array:
        def rollout(position: jax.Array, velocity: jax.Array) -> jax.Array:
            def control(carry: Any, _: None) -> Any:
                position, velocity = carry
                force = apply(policy, jnp.concatenate([position, velocity]).reshape(-1))

                def substep(carry: Any, _: None) -> Any:
                    position, velocity = carry
                    stretch = jnp.diff(position, axis=0)
                    length = jnp.linalg.norm(stretch, axis=-1, keepdims=True) + 1e-3
                    pull = 2 * stretch * (1 - 1 / length)
                    total = jnp.zeros_like(position).at[:-1].add(pull).at[1:].add(-pull)
                    total = total.at[0].add(force) - jnp.array([0, 0.5], position.dtype)
                    velocity = 0.99 * (velocity + 0.05 * total)
                    bounced = jnp.where(position[:, 1:] < -2, -0.5 * velocity, velocity)
                    return (position + 0.05 * bounced, bounced), None

                carry, _ = lax.scan(substep, (position, velocity), None, length=2)
                return carry, -jnp.square(carry[0]).sum()

            return lax.scan(control, (position, velocity), None, length=3)[1].sum()

        return -jax.vmap(rollout)(batch["position"], batch["velocity"]).mean()

    batch = {"position": normal(0, ENVS, links, 2), "velocity": normal(1, ENVS, links, 2)}
    return trained(loss, perceptron(2, 4 * links, 8, 2), batch)


def _reset(key: jax.Array) -> Tree:
    return {"x": jax.random.uniform(key, (3,), jnp.float32, -1, 1), "time": jnp.int32(0)}


def _step(key: jax.Array, env: Tree, action: jax.Array) -> Any:
    """A step of an environment that begins again where it is done."""
    turned = jnp.roll(env["x"], 1) * 0.9 + 0.2 * (action - 1)
    x, time = turned + 0.05 * jnp.sin(env["x"]), env["time"] + 1
    done = (jnp.abs(x) > 1.2).any() | (time >= 5)
    moved, again = {"x": x, "time": time}, _reset(key)
    env = jax.tree.map(lambda a, b: jnp.where(done, a, b), again, moved)
    return env, env["x"], 1 - jnp.square(x).sum(), done


def automatic_resets() -> Program:
    """Environments under vmap and scan that begin again by themselves, with statistics."""

    def step(state: Tree, batch: Tree) -> Any:
        def turn(carry: Any, key: jax.Array) -> Any:
            envs, returns, best = carry
            act, move = jax.random.split(key)
            action = jax.random.categorical(act, apply(state, envs["x"])).astype(jnp.int32)
            keys = jax.random.split(move, ENVS)
            envs, _, reward, done = jax.vmap(_step)(keys, envs, action)
            returns += reward
            best = jnp.where(done, jnp.maximum(best, returns), best)
            return (envs, jnp.where(done, 0, returns), best), (action, done)

        keys = jax.random.split(jax.random.key(1), 6)
        start = batch["env"], batch["returns"], jnp.full_like(batch["returns"], -jnp.inf)
        (envs, returns, best), (actions, done) = lax.scan(turn, start, keys)
        found = {"env": envs, "returns": returns, "best": best}
        return state, {**found, "actions": actions, "done": done}

    env = {"x": np.tanh(normal(0, ENVS, 3)), "time": np.arange(ENVS, dtype=np.int32) % 5}
    batch = {"env": env, "returns": np.zeros(ENVS, np.float32)}
    return Program(step, perceptron(1, 3, 8, 3), batch)


def _train(key: jax.Array, params: Tree, envs: Tree, rate: Any) -> Any:
    """Two updates of PPO: rollouts, epochs, minibatches in a shuffled order."""
    length, rows = 4, envs["time"].shape[0]
    size = length * rows

    def loss(params: Tree, part: Tree) -> jax.Array:
        out = apply(params, part["x"])
        log_probs, value = jax.nn.log_softmax(out[:, :3]), out[:, 3]
        taken = jnp.take_along_axis(log_probs, part["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(taken - part["log_prob"])
        gain = part["advantage"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-3)
        surrogate = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        return 0.5 * jnp.square(value - part["target"]).mean() - surrogate

    def update(carry: Any, key: jax.Array) -> Any:
        params, envs = carry
        play, *epochs = jax.random.split(key, 3)

        def act(envs: Tree, key: jax.Array) -> Any:
            first, second = jax.random.split(key)
            out = apply(params, envs["x"])
            action = jax.random.categorical(first, out[:, :3]).astype(jnp.int32)
            log_prob = jax.nn.log_softmax(out[:, :3])[jnp.arange(rows), action]
            moved, _, reward, done = jax.vmap(_step)(jax.random.split(second, rows), envs, action)
            row = {"x": envs["x"], "action": action, "log_prob": log_prob}
            return moved, (row, out[:, 3], reward, 1 - done.astype(reward.dtype))

        envs, (row, value, reward, go_on) = lax.scan(act, envs, jax.random.split(play, length))

        def back(following: Any, now: Any) -> Any:
            value, reward, go_on = now
            advantage, value_t = following
            advantage = reward + 0.9 * go_on * (value_t + 0.9 * advantage) - value
            return (advantage, value), advantage

        last = apply(params, envs["x"])[:, 3]
        start = jnp.zeros_like(last), last
        _, advantage = lax.scan(back, start, (value, reward, go_on), reverse=True)
        everything = {**row, "advantage": advantage, "target": advantage + value}
        flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), everything)

        def epoch(params: Tree, key: jax.Array) -> Any:
            order = jax.random.permutation(key, size)
            parts = jax.tree.map(lambda x: x[order].reshape(2, -1, *x.shape[1:]), flat)

            def minibatch(params: Tree, part: Tree) -> Any:
                value, grads = jax.value_and_grad(loss)(params, part)
                return jax.tree.map(lambda p, g: p - rate * g, params, grads), value

            return lax.scan(minibatch, params, parts)

        params, losses = lax.scan(epoch, params, jnp.stack(epochs))
        return (params, envs), (losses, reward.mean())

    return lax.scan(update, (params, envs), jax.random.split(key, 2))


def whole_training() -> Program:
    """PureJaxRL's training: updates, epochs and minibatches, scan in scan in scan."""

    def step(state: Tree, batch: Tree) -> Any:
        key, now = jax.random.split(state["key"])
        (params, envs), found = _train(now, state["params"], batch, 0.05)
        return {"params": params, "key": key}, (envs, found)

    env = {"x": np.tanh(normal(0, ENVS, 3)), "time": np.zeros(ENVS, np.int32)}
    return Program(step, {"params": perceptron(1, 3, 8, 4), "key": jax.random.key(2)}, env)


def population() -> Program:
    """Whole trainings under vmap, with seeds and learning rates of their own; the best is kept."""
    members, envs = 8, 4

    def step(state: Tree, batch: Tree) -> Any:
        def one(seed: jax.Array, rate: jax.Array) -> Any:
            first, second, third = jax.random.split(jax.random.key(seed), 3)
            params = jax.tree.map(
                lambda p: p + 0.1 * jax.random.normal(first, p.shape, p.dtype), state
            )
            env = jax.vmap(_reset)(jax.random.split(second, envs))
            (params, _), (_, rewards) = _train(third, params, env, rate)
            return params, rewards[-1]

        params, scores = jax.vmap(one)(batch["seed"], batch["rate"])
        best = jnp.argmax(scores)
        return jax.tree.map(lambda p: p[best], params), {"scores": scores, "best": best}

    batch = {
        "seed": np.arange(members, dtype=np.uint32),
        "rate": np.linspace(0.01, 0.1, members, dtype=np.float32),
    }
    return Program(step, perceptron(1, 3, 8, 4), batch)


PROGRAMS = {f.__name__: f for f in (physics, automatic_resets, whole_training, population)}
