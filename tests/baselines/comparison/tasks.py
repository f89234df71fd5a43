"""Environments of a few states, in which a fault of learning changes the returns at once.

Each is a table: an action in a state leads to another state or ends the episode, with a reward.
"""

import jax.numpy as jnp
import numpy as np

from troupe.environments import specs
from troupe.environments.functional import FunctionalEnvironment, StepOutput

_ENDS = -1
_WAITING, _TEMPTING = 11, 0.85
_STAIRS, _ACTIONS = 10, 4


def patience():
    """Either 0.85 at once, or 1 after twelve steps, the last of which must be the right one.

    The reward that is waited for is worth 0.99^11 = 0.895 at a discount of 0.99, and 0.98^11 =
    0.801 at one of 0.98. Who sums two rewards of actions drawn at random takes it for 0.3.
    """
    follows = np.full((_WAITING + 1, 3), _ENDS)
    rewards = np.zeros(follows.shape)
    follows[0, 0], rewards[0, 1] = 1, _TEMPTING
    follows[1:_WAITING] = np.arange(2, _WAITING + 1)[:, None]
    rewards[_WAITING, 0] = 1.0
    return _of_tables(follows, rewards)


def stairs():
    """Ten stairs: one action of four climbs to the next, with a reward of 1, the others end.

    Only who acts by what was learned comes to the upper stairs, of which few items tell.
    """
    right = np.random.default_rng(0).integers(0, _ACTIONS, _STAIRS)
    follows = np.full((_STAIRS, _ACTIONS), _ENDS)
    rewards = np.zeros(follows.shape)
    follows[np.arange(_STAIRS - 1), right[:-1]] = np.arange(1, _STAIRS)
    rewards[np.arange(_STAIRS), right] = 1.0
    return _of_tables(follows, rewards)


def _of_tables(follows, rewards):
    """An environment that begins in state 0; tables are [states, actions]."""
    num_states, num_actions = follows.shape
    follows, rewards = jnp.asarray(follows, jnp.int32), jnp.asarray(rewards, jnp.float32)

    def reset(key):
        return jnp.int32(0), jnp.int32(0)

    def step(state, action, key):
        after = follows[state, action]
        standing = jnp.maximum(after, 0)
        outcome = StepOutput(standing, rewards[state, action], after == _ENDS, jnp.bool_(False))
        return standing, outcome

    return FunctionalEnvironment(
        reset,
        step,
        specs.DiscreteArray(num_states, np.int32, "observation"),
        specs.DiscreteArray(num_actions, np.int32, "action"),
    )
