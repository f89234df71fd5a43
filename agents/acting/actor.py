"""Actors: a policy, the streams it acts for, and where they write what they see."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from ..interfaces import ActorCore, Adder
from ..programs.placement import Partition
from ..programs.policy import PolicyProgram
from ..variables.client import VariableClient

Nest = Any


class BaseActor(abc.ABC):
    """The part of an actor that does not depend on where the policy is computed.

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
        self._begin: Callable[[], bool] | None = getattr(adder, "begin", None)
        self._batched, self._num_envs = num_envs is not None, num_envs or 1
        self._forgets = policy.reset is not None
        self._none = np.zeros(self._num_envs, bool)
        self._first = ~self._none
        """True of streams that begin an episode with the next observation, where it matters."""
        self._extras: Nest = ()
        self._keys = jax.random.split(key, self._num_envs)

    @abc.abstractmethod
    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        """Steps the policy: from observations [N, ...] and `first` [N] to (actions, extras)."""

    @abc.abstractmethod
    def set_num_actions(self, count: int) -> None:
        """Has schedules go on as if every stream had taken `count` actions."""

    @abc.abstractmethod
    def set_streams(self, first: int) -> None:
        """Numbers the streams from `first` on, where other actors have those before."""

    @abc.abstractmethod
    def update(self, wait: bool = False) -> None:
        """Fetches newer parameters, where there are any."""

    def _catch_up(self) -> None:
        """Fetches the newest parameters, by which the replay reckons how far ahead actors are."""
        self.update()

    def select_action(self, observation: Nest) -> Nest:
        """The action [N, ...] (or without N) for this observation, as numpy arrays.

        Waits where the replay does not let another one begin yet.
        """
        if self._begin is not None and self._begin():
            self._catch_up()
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


class GenericActor(BaseActor):
    """An actor that computes the policy itself: one call to the device a step."""

    def __init__(
        self,
        policy: ActorCore,
        key: jax.Array,
        client: VariableClient,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
        device: jax.Device | Partition | None = None,
    ):
        super().__init__(policy, key, adder, num_envs)
        self._client = client
        self._program = PolicyProgram(
            policy,
            self._num_envs,
            device=device,
            has_extras=adder is not None,
            placed=client.place_by,
        )
        self._program.init(self._keys)

    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        return self._program(self._client.params, observation, first)

    def set_num_actions(self, count: int) -> None:
        change = jax.vmap(self._policy.set_num_actions, in_axes=(0, None))
        self._program.change(change, jnp.int32(count))

    def set_streams(self, first: int) -> None:
        if self._policy.set_stream is not None:
            numbers = jnp.arange(first, first + self._num_envs)
            self._program.change(jax.vmap(self._policy.set_stream), numbers)

    def update(self, wait: bool = False) -> None:
        self._client.update(wait)

    def _catch_up(self) -> None:
        self._client.ask()
        self._client.update()

    def save(self) -> Nest:
        """Returns the policy's state as numpy arrays [N, ...]: keys, counts, memory."""
        return self._program.save()

    def restore(self, state: Nest) -> None:
        """Takes back what `save` gave.

        Raises:
          ValueError: if it is the state of another policy.
        """
        self._program.restore(state)
