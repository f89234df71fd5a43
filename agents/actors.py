"""The actor: a policy, the parameters it runs with, and where it writes what it sees."""

from __future__ import annotations

from typing import Any

import dm_env
import jax
import numpy as np

from . import dispatch
from .interfaces import ActorCore, Adder
from .snapshots import from_host, to_host
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
        self._state = jax.device_put(
            jax.jit(jax.vmap(policy.init))(jax.random.split(key, self._num_envs)), self._device
        )
        self._act: Any = None
        self._extras: Nest = ()
        self._first = np.ones(self._num_envs, bool)
        self._forgets = policy.reset is not None

    def _step(self, params, observation, state, first):
        if self._policy.reset is not None:
            fresh = jax.vmap(self._policy.reset)(state)
            state = jax.tree.map(
                lambda new, old: jax.numpy.where(
                    first.reshape(first.shape + (1,) * (old.ndim - 1)), new, old
                ),
                fresh,
                state,
            )
        action, state = jax.vmap(self._policy.select_action, in_axes=(None, 0, 0))(
            params, observation, state
        )
        return action, jax.vmap(self._policy.get_extras)(state), state

    def select_action(self, observation: Nest) -> Nest:
        """The action [N, ...] (or without N) for this observation, as numpy arrays."""
        if not self._batched:
            observation = jax.tree.map(lambda x: np.asarray(x)[None], observation)
        params = self._client.params
        args = (params, observation, self._state, self._first)
        if self._act is None:
            self._act = dispatch.jit_small(self._step, *args, platform=self._device.platform)
        action, extras, self._state = self._act(*args)
        if self._forgets:
            self._first = np.zeros(self._num_envs, bool)
        self._extras = extras
        if self._batched:
            return jax.tree.map(np.asarray, action)
        return jax.tree.map(lambda x: np.asarray(x)[0], action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._first = np.ones(self._num_envs, bool)
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        if self._forgets and self._batched:
            self._first = np.asarray(next_timestep.step_type) == dm_env.StepType.FIRST
        if self._adder is not None:
            extras = self._extras
            if extras != ():
                extras = jax.tree.map(
                    np.asarray if self._batched else lambda x: np.asarray(x)[0], extras
                )
            self._adder.add(action, next_timestep, extras)

    def update(self, wait: bool = False) -> None:
        self._client.update(wait)

    def save(self) -> Nest:
        """The policy's state as numpy arrays: keys, counts, memory."""
        return to_host(self._state)

    def restore(self, state: Nest) -> None:
        self._state = jax.device_put(from_host(state, self._state), self._device)
