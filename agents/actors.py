"""The actor: a policy, the parameters it runs with, and where it writes what it sees."""

from __future__ import annotations

from typing import Any

import dm_env
import jax
import numpy as np

from .interfaces import ActorCore, Adder
from .packing import Packing
from .snapshots import from_host
from .variables import VariableClient

Nest = Any


class Actor:
    """Acts for one environment, or for N stepped together, in one call to the device.

    The policy is written for one observation; it is batched here. With `num_envs` None observations come without a
    leading dimension, as acme's `EnvironmentLoop` gives them; else every array is [N, ...].
    """

    def __init__(
        self,
        policy: ActorCore,
        key: jax.Array,
        client: VariableClient,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
        device: jax.Device | None = None,
    ):
        self._policy = policy
        self._client = client
        self._adder = adder
        self._batched = num_envs is not None
        self._num_envs = num_envs or 1
        self._device = device or jax.local_devices()[0]
        self._make_state = jax.vmap(policy.init)
        self._keys = jax.random.split(key, self._num_envs)
        self._forgets = policy.reset is not None
        self._first = np.ones(self._num_envs, bool)
        self._compile()
        self._extras: Nest = ()

    def _compile(self) -> None:
        """Makes the program of one call: the state goes in and out in one vector with all else."""
        policy = self._policy
        state = jax.eval_shape(self._make_state, self._keys)
        self._state_packing = state_packing = Packing(state)

        def step(params, observation, words, first):
            state = state_packing.unpack(words[: state_packing.size])
            if policy.reset is not None:
                state = _where(first, jax.vmap(policy.reset)(state), state)
            action, state = jax.vmap(policy.select_action, in_axes=(None, 0, 0))(
                params, observation, state
            )
            # The state comes first: a result is the next call's argument as it is.
            result = (state, action, jax.vmap(policy.get_extras)(state))
            self._packing = Packing(result)
            return self._packing.pack(result)

        self._act = jax.jit(step)
        self._words = jax.device_put(
            jax.jit(lambda keys: state_packing.pack(self._make_state(keys)))(self._keys),
            self._device,
        )

    def select_action(self, observation: Nest) -> Nest:
        """The action [N, ...] (or without N) for this observation, as numpy arrays."""
        if not self._batched:
            observation = jax.tree.map(lambda x: np.asarray(x)[None], observation)
        self._words = self._act(self._client.params, observation, self._words, self._first)
        if self._forgets and self._first.any():
            self._first = np.zeros(self._num_envs, bool)
        _, action, extras = self._packing.unpack_host(np.asarray(self._words))
        if not self._batched:
            action, extras = jax.tree.map(lambda x: x[0], (action, extras))
        self._extras = extras
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._first = np.ones(self._num_envs, bool)
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        if self._forgets and self._batched:
            self._first = np.asarray(next_timestep.step_type) == dm_env.StepType.FIRST
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def update(self, wait: bool = False) -> None:
        self._client.update(wait)

    def save(self) -> Nest:
        """The policy's state as numpy arrays: keys, counts, memory."""
        words = np.asarray(self._words)
        return self._state_packing.unpack_host(words[: self._state_packing.size])

    def restore(self, state: Nest) -> None:
        like = jax.eval_shape(self._make_state, self._keys)
        restored = from_host(state, like)
        self._words = jax.device_put(self._state_packing.pack(restored), self._device)


def _where(first: jax.Array, new: Nest, old: Nest) -> Nest:
    """New states where an episode begins, old ones elsewhere."""

    def choose(new, old):
        return jax.numpy.where(first.reshape(first.shape + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)
