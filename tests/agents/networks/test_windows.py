"""Networks over windows: what acting computes step by step, and critics with a memory each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from troupe.agents.networks import assembly, critics, windows
from troupe.agents.sac import SACBuilder, SACConfig
from troupe.agents.td3 import TD3Builder, TD3Config
from troupe.environments.specs import EnvironmentSpec, discount_spec, reward_spec

B, T = 2, 5
MEMORY = {"core": "gru", "core_size": 6, "burn_in": 0, "hidden_sizes": (8,)}
SEEN = specs.Array((3,), np.float32, "observation")
BOX = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")
CHOICE = specs.DiscreteArray(4, np.int32, "action")
OBSERVATION = np.random.default_rng(0).normal(size=(B, T, 3)).astype(np.float32)


def spec_of(actions):
    return EnvironmentSpec(SEEN, actions, reward_spec(None), discount_spec())


def window(first=()):
    begins = np.zeros((B, T), bool)
    for place in first:
        begins[place] = True
    return windows.ObservedWindow(
        jnp.asarray(OBSERVATION), jnp.full((B, 6), 0.3), jnp.asarray(begins)
    )


@pytest.mark.parametrize(
    ("builder", "actions"),
    [
        (SACBuilder(SACConfig(**MEMORY)), BOX),
        (SACBuilder(SACConfig(**MEMORY)), CHOICE),
        (TD3Builder(TD3Config(**MEMORY)), BOX),
    ],
)
def test_a_policys_window_is_its_steps(builder, actions):
    policy = builder.make_networks(spec_of(actions)).policy
    params = policy.init(jax.random.key(0))
    whole = policy.apply(params, window([(1, 2)]))
    assert whole.shape[0] == B * T
    for row in range(B):
        memory = jnp.full(6, 0.3)
        for t in range(T):
            if (row, t) == (1, 2):
                memory = policy.initial_state
            output, memory = policy.step(params, jnp.asarray(OBSERVATION[row, t]), memory)
            np.testing.assert_allclose(whole[row * T + t], output, rtol=1e-5, atol=1e-6)


def test_critics_remember_what_was_seen_and_judge_actions_alone():
    """Of the observations of a window those before a row count, of the actions its own."""
    config = SACConfig(**MEMORY)
    critic = critics.of_windows(spec_of(BOX), config, size=3)
    params = critic.init(jax.random.key(0))
    action = jnp.asarray(np.random.default_rng(1).normal(size=(B * T, 2)), jnp.float32)
    values = critic.apply(params, window(), action)
    assert values.shape == (3, B * T)
    assert np.abs(np.diff(values, axis=0)).min() > 0

    other = action.at[1].add(1.0)
    changed = np.abs(critic.apply(params, window(), other) - values).max(axis=0) > 1e-6
    assert np.flatnonzero(changed).tolist() == [1]

    seen = window()._replace(observation=jnp.asarray(OBSERVATION).at[0, 1].add(1.0))
    changed = np.abs(critic.apply(params, seen, action) - values).max(axis=0) > 1e-6
    assert np.flatnonzero(changed).tolist() == [1, 2, 3, 4]

    begun = window()._replace(
        observation=seen.observation, first=jnp.zeros((B, T), bool).at[0, 3].set(True)
    )
    fresh = window()._replace(first=begun.first)
    changed = critic.apply(params, begun, action) - critic.apply(params, fresh, action)
    assert np.flatnonzero(np.abs(changed).max(axis=0) > 1e-6).tolist() == [1, 2]


def test_critics_of_choices_give_the_values_of_all():
    config = SACConfig(**MEMORY)
    critic = critics.of_windows(spec_of(CHOICE), config, size=2, num_actions=4)
    params = critic.init(jax.random.key(0))
    assert critic.apply(params, window()).shape == (2, B * T, 4)
    # No memory is stored for them: the policy's is none of theirs.
    emptied = window()._replace(memory=jnp.zeros((B, 6)))
    np.testing.assert_array_equal(critic.apply(params, window()), critic.apply(params, emptied))


def test_rows_of_a_window_are_its_observations():
    rows = windows.rows_of(window())
    np.testing.assert_array_equal(rows, OBSERVATION.reshape(B * T, 3))
    assert windows.rows_of(OBSERVATION) is OBSERVATION
    core = assembly.make_core(SACConfig(**MEMORY))
    assert windows.empty(spec_of(BOX), core).first.shape == (1, 1)
