"""Batches of made-up transitions of a pendulum, and many gradient steps on one of them."""

import jax
import numpy as np
from dm_env import specs

from troupe.agents.replay.items import Sample, SampleInfo, Transition
from troupe.environments.specs import EnvironmentSpec

BATCH = 64
NUMBER = specs.Array((), np.float32)
SPEC = EnvironmentSpec(
    specs.Array((3,), np.float32),
    specs.BoundedArray((1,), np.float32, -2.0, 2.0),
    NUMBER,
    NUMBER,
)


def sample(discount=1.0, reward=None, seed=0):
    """A batch; rewards are those that `reward` has for its actions [B], or any numbers."""
    rng = np.random.default_rng(seed)
    numbers = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    info = SampleInfo(None, np.full(BATCH, 0.1, np.float32), np.full(BATCH, 50, np.float32))
    observation, following, rewards = numbers(BATCH, 3), numbers(BATCH, 3), numbers(BATCH)
    action = rng.uniform(-2, 2, (BATCH, 1)).astype(np.float32)
    if reward is not None:
        rewards = reward(action[:, 0]).astype(np.float32)
    discounts = np.full(BATCH, discount, np.float32)
    return Sample(info, Transition(observation, action, rewards, discounts, following))


def learn(update, batch, steps):
    """The state after so many gradient steps on one batch, and the metrics of each."""

    def step(state, _):
        state, output = update.step(state, batch)
        return state, output.metrics

    run = jax.jit(lambda key: jax.lax.scan(step, update.init(key), length=steps))
    return run(jax.random.key(0))


def make(builder):
    """Its networks and its update."""
    networks = builder.make_networks(SPEC)
    return networks, builder.make_update(networks, SPEC)
