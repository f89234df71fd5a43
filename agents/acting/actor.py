"""Actors: a policy, the state it is in, and where it writes what it sees."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from ..interfaces import ActorCore, Adder
from ..snapshots import from_host, to_host
from ..variables.client import VariableClient
from . import policies
from ..programs.packing import Packing

Nest = Any


class BaseActor(abc.ABC):
    """What actors have in common, wherever the policy is computed.

    Acts for one environment, or for N stepped together. The policy is written for one observation
    and batched here. With `num_envs` None observations come without a leading dimension, as acme's
    `EnvironmentLoop` gives them; else every array is [N, ...].
    """

    def __init__(
        self, policy: ActorCore, key: jax.Array, adder: Adder | None, num_envs: int | None
    ):
        """Takes the policy, and the key that the states of its N streams are made from.

        The streams have the numbers 0 to N - 1; see `set_streams`.
        """
        self._policy = policy
        self._adder = adder
        self._batched, self._num_envs = num_envs is not None, num_envs or 1
        self._forgets = policy.reset is not None
        self._none = np.zeros(self._num_envs, bool)
        self._first = ~self._none
        """Which streams begin an episode with the next observation; known where it matters."""
        self._extras: Nest = ()
        self._keys = jax.random.split(key, self._num_envs)
        self._like = jax.eval_shape(jax.vmap(policy.init), self._keys)

    def _make_state(self, keys: jax.Array) -> Nest:
        """The states [N, ...] of streams that begin, to be traced."""
        state = jax.vmap(self._policy.init)(keys)
        if self._policy.set_stream is None:
            return state
        return jax.vmap(self._policy.set_stream)(state, jnp.arange(self._num_envs))

    @abc.abstractmethod
    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        """Steps the policy: from observations [N, ...] and `first` [N] to (actions, extras)."""

    @abc.abstractmethod
    def save(self) -> Nest:
        """The policy's state as numpy arrays [N, ...]: keys, counts, memory."""

    @abc.abstractmethod
    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave.

        Raises:
          ValueError: if it is the state of another policy.
        """

    def select_action(self, observation: Nest) -> Nest:
        """The action [N, ...] (or without N) for this observation, as numpy arrays."""
        if not self._batched:
            observation = jax.tree.map(lambda x: np.asarray(x)[None], observation)
        action, extras = self._choose(observation, self._first)
        if self._forgets:
            self._first = self._none
        if not self._batched:
            action, extras = jax.tree.map(lambda x: x[0], (action, extras))
        self._extras = extras
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self._first = ~self._none
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        if self._forgets and self._batched:
            self._first = np.asarray(next_timestep.step_type) == dm_env.StepType.FIRST
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def set_num_actions(self, count: int) -> None:
        """Has schedules go on as if every stream had taken `count` actions."""
        self._change(jax.vmap(self._policy.set_num_actions, in_axes=(0, None)), jnp.int32(count))

    def set_streams(self, first: int) -> None:
        """Numbers the streams from `first` on, where other actors have those before."""
        if self._policy.set_stream is not None:
            numbers = jnp.arange(first, first + self._num_envs)
            self._change(jax.vmap(self._policy.set_stream), numbers)

    def _change(self, change: Callable[[Nest, jax.Array], Nest], to: jax.Array) -> None:
        self.restore(to_host(jax.jit(change)(from_host(self.save(), self._like), to)))


class GenericActor(BaseActor):
    """An actor with parameters of its own: one call to the device a step."""

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
        super().__init__(policy, key, adder, num_envs)
        self._client = client
        self._device = device or jax.local_devices()[0]
        self._state_packing = Packing(self._like)
        self._step = jax.jit(self._packed(policies.batch(policy)))
        self._chosen: Packing | None = None
        """Of the action and extras that a step gives; known with the first observation."""
        pack = self._state_packing.pack
        self._put(jax.jit(lambda keys: pack(self._make_state(keys)))(self._keys))

    def _put(self, state: jax.Array) -> None:
        """Takes over a packed state."""
        self._words = jax.device_put(state, self._device)

    def _packed(self, step: Callable) -> Callable:
        """The step with its state, and all that it gives, in one vector (see `packing`).

        The state comes first, so that what one call gives is an argument of the next as it is.
        Which streams begin an episode is an argument only for a policy that forgets.
        """

        def packed(params, observation, words, first=self._none):
            state = self._state_packing.unpack(words[: self._state_packing.size])
            action, extras, state = step(params, observation, state, first)
            return Packing((state, action, extras)).pack((state, action, extras))

        return packed

    def _begin(self, observation: Nest) -> Packing:
        """What is done before the first step after a state was put."""
        if self._chosen is None:
            args = (self._client.params, observation, self._like, self._none)
            action, extras, _ = jax.eval_shape(policies.batch(self._policy), *args)
            self._chosen = Packing((action, extras))
            self._size = self._state_packing.size + self._chosen.size
        if self._words.shape[0] < self._size:
            self._put(jax.numpy.pad(self._words, (0, self._size - self._words.shape[0])))
        return self._chosen

    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        chosen = self._chosen
        if chosen is None or self._words.shape[0] != self._size:
            chosen = self._begin(observation)
        if self._forgets:
            self._words = self._step(self._client.params, observation, self._words, first)
        else:
            self._words = self._step(self._client.params, observation, self._words)
        return chosen.unpack_host(np.asarray(self._words)[self._state_packing.size :])

    def update(self, wait: bool = False) -> None:
        self._client.update(wait)

    def save(self) -> Nest:
        words = np.asarray(self._words)
        return self._state_packing.unpack_host(words[: self._state_packing.size])

    def restore(self, state: Nest) -> None:
        self._put(self._state_packing.pack(from_host(state, self._like)))
