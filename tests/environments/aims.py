"""Tasks whose actions are nests: one of Gymnasium's and one in JAX, of equal rewards.

A number of 0 to 2 is shown. Of an action the choice and the first of two further ones are to be the
number, the real one is to be its place among -1, 0 and 1, and the flags its binary digits. The
reward of a step is the mean over these four, at most 1; an episode has `LENGTH` steps.
"""

import dm_env
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from gymnasium import spaces

from troupe.environments import functional
from troupe.environments.specs import discount_spec, reward_spec

LENGTH = 10
OBSERVATIONS = {"shown": specs.DiscreteArray(3, np.int32, "shown")}
ACTIONS = {
    "turn": (
        specs.DiscreteArray(3, np.int32, "choice"),
        specs.BoundedArray((1,), np.float32, -1.0, 1.0, "push"),
    ),
    "keys": specs.BoundedArray((2,), np.int32, 0, [2, 1], "keys"),
    "flags": specs.BoundedArray((2,), np.int8, 0, 1, "flags"),
}


def reward(np, shown, action):
    """By `numpy` or `jax.numpy`; [] or, of N, [N]."""
    choice, push = action["turn"]
    digits = np.stack([shown & 1, shown >> 1], axis=-1)
    scores = [
        choice == shown,
        1.0 - np.abs(push[..., 0] - (shown - 1.0)),
        action["keys"][..., 0] == shown,
        np.mean(action["flags"] == digits, axis=-1),
    ]
    return sum(scores) / 4.0


class Aim(gymnasium.Env):
    """Refuses actions that its space does not contain, types and structure included."""

    observation_space = spaces.Dict({"shown": spaces.Discrete(3, start=-1)})
    action_space = spaces.Dict(
        {
            "turn": spaces.Tuple((spaces.Discrete(3, start=4), spaces.Box(-1.0, 1.0, (1,), "f8"))),
            "keys": spaces.MultiDiscrete([3, 2]),
            "flags": spaces.MultiBinary(2),
        }
    )

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = LENGTH
        return self._look(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise RuntimeError(f"not of the space: {action}")
        choice, push = action["turn"]
        scored = reward(np, np.int64(self.shown), {**action, "turn": (choice - 4, push)})
        self.left -= 1
        return self._look(), float(scored), self.left == 0, False, {}

    def _look(self):
        self.shown = int(self.np_random.integers(3))
        return {"shown": self.shown - 1}


gymnasium.register("Aim-v0", Aim)


def aim():
    """The task in JAX."""

    def look(key):
        shown = jax.random.randint(key, (), 0, 3, jnp.int32)
        return shown, {"shown": shown}

    def reset(key):
        shown, seen = look(key)
        return (jnp.int32(LENGTH), shown), seen

    def step(state, action, key):
        left, shown = state
        scored = reward(jnp, shown, action)
        following, seen = look(key)
        over = left == 1
        output = functional.StepOutput(seen, jnp.float32(scored), over, jnp.bool_(False))
        return (left - 1, following), output

    return functional.FunctionalEnvironment(reset, step, OBSERVATIONS, ACTIONS)


class AimOfDM(dm_env.Environment):
    """The task by dm_env, with lists and 64 bits as some of its environments have."""

    def __init__(self, seed):
        self._random, self._left = np.random.default_rng(seed), 0

    def reset(self):
        self._left = LENGTH
        return dm_env.restart(self._look())

    def step(self, action):
        if self._left == 0:
            return self.reset()
        scored = reward(np, np.int64(self._shown), action)
        self._left -= 1
        make = dm_env.transition if self._left else dm_env.termination
        return make(float(scored), self._look())

    def observation_spec(self):
        return {"shown": specs.DiscreteArray(3, np.int64, "shown")}

    def action_spec(self):
        choice, push = ACTIONS["turn"]
        turn = [choice.replace(dtype=np.int64), push.replace(dtype=np.float64)]
        return {**ACTIONS, "turn": turn}

    def reward_spec(self):
        return reward_spec()

    def discount_spec(self):
        return discount_spec()

    def _look(self):
        self._shown = int(self._random.integers(3))
        return {"shown": self._shown}
