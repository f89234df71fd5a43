"""The actor whose actions somebody else computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..interfaces import ActorCore, Adder
from ..snapshots import from_host, to_host
from .actor import BaseActor
from .inference import Answer, Leaves

Nest = Any


class RemoteActor(BaseActor):
    """An actor without parameters: an inference server chooses. The policy's state stays here."""

    def __init__(
        self,
        policy: ActorCore,
        key: jax.Array,
        infer: Callable[[Leaves, np.ndarray], Answer],
        action_spec: Nest,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
    ):
        """Makes the policy's state.

        Args:
          policy: the one that the server runs.
          key: for the state.
          infer: `InferenceServer.infer`, near or far.
          action_spec: of one environment.
          adder: what writes to the replay.
          num_envs: N; None: one environment, whose arrays have no dimension for it.
        """
        super().__init__(policy, key, adder, num_envs)
        self._infer = infer
        self._state = to_host(jax.jit(self._make_state)(self._keys))
        extras = jax.eval_shape(jax.vmap(policy.get_extras), self._like, self._like)
        self._structures = [jax.tree.structure(part) for part in (action_spec, extras, self._like)]

    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        leaves = [np.asarray(x) for x in jax.tree.leaves((observation, self._state))]
        answer = self._infer(leaves, first)
        action, extras, self._state = map(jax.tree.unflatten, self._structures, answer)
        return action, extras

    def update(self, wait: bool = False) -> None:
        """There is nothing to fetch: the server has the parameters."""

    def save(self) -> Nest:
        return self._state

    def restore(self, state: Nest) -> None:
        self._state = to_host(from_host(state, self._like))
