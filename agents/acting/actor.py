"""The actor: a policy, the parameters it runs with, and where it writes what it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np

from ..interfaces import ActorCore, Adder
from ..snapshots import from_host
from ..variables.client import VariableClient
from . import policies
from .packing import Packing

Nest = Any


class Actor:
    """Acts for one environment, or for N stepped together, in one call to the device.

    The policy is written for one observation; it is batched here. With `num_envs` None observations
    come without a leading dimension, as acme's `EnvironmentLoop` gives them; else every array is
    [N, ...].
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
        self._forgets = policy.reset is not None
        self._first = np.ones(self._num_envs, bool)
        self._extras: Nest = ()
        make_state = jax.vmap(policy.init)
        keys = jax.random.split(key, self._num_envs)
        self._state_packing = Packing(jax.eval_shape(make_state, keys))
        self._step = jax.jit(self._packed(policies.batch(policy)))
        self._chosen: Packing | None = None
        """Of the action and extras that a step gives; known with the first observation."""
        self._put(jax.jit(lambda keys: self._state_packing.pack(make_state(keys)))(keys))

    def _put(self, state: jax.Array) -> None:
        """Takes over a packed state."""
        self._words = jax.device_put(state, self._device)

    def _packed(self, step: Callable) -> Callable:
        """The step with its state, and all that it gives, in one vector (see `packing`).

        The state comes first, so that what one call gives is an argument of the next as it is.
        Which streams begin an episode is an argument only for a policy that forgets.
        """
        none_begin = np.zeros(self._num_envs, bool)

        def packed(params, observation, words, first=none_begin):
            state = self._state_packing.unpack(words[: self._state_packing.size])
            action, extras, state = step(params, observation, state, first)
            return Packing((state, action, extras)).pack((state, action, extras))

        return packed

    def _begin(self, observation: Nest) -> Packing:
        """What is done before the first step after a state was put."""
        if self._chosen is None:
            state = jax.eval_shape(self._state_packing.unpack, self._words)
            step = policies.batch(self._policy)
            args = (self._client.params, observation, state, self._first)
            action, extras, _ = jax.eval_shape(step, *args)
            self._chosen = Packing((action, extras))
            self._size = self._state_packing.size + self._chosen.size
        if self._words.shape[0] < self._size:
            self._put(jax.numpy.pad(self._words, (0, self._size - self._words.shape[0])))
        return self._chosen

    def select_action(self, observation: Nest) -> Nest:
        """The action [N, ...] (or without N) for this observation, as numpy arrays."""
        if not self._batched:
            observation = jax.tree.map(lambda x: np.asarray(x)[None], observation)
        chosen = self._chosen
        if chosen is None or self._words.shape[0] != self._size:
            chosen = self._begin(observation)
        if self._forgets:
            self._words = self._step(self._client.params, observation, self._words, self._first)
            if self._first.any():
                self._first = np.zeros(self._num_envs, bool)
        else:
            self._words = self._step(self._client.params, observation, self._words)
        action, extras = chosen.unpack_host(np.asarray(self._words)[self._state_packing.size :])
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
        like = jax.eval_shape(self._state_packing.unpack, self._words)
        self._put(self._state_packing.pack(from_host(state, like)))
