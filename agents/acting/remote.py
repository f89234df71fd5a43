"""The actor whose actions somebody else computes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..interfaces import ActorCore, Adder
from .actor import BaseActor
from .sessions import Answer

Nest = Any


class RemoteActor(BaseActor):
    """An actor without parameters: an inference server chooses, and keeps the policy's state.

    Where the server does not know it, as it was lost and replaced, the actor begins again: its
    counts go on, its memory is that of an episode's first step.
    """

    def __init__(
        self,
        policy: ActorCore,
        key: jax.Array,
        infer: Callable[..., Answer | None],
        action_spec: Nest,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
    ):
        """Asks for nothing yet.

        Args:
          policy: the one that the server runs.
          key: for its state.
          infer: `InferenceSource.infer`.
          action_spec: of one environment.
          adder: what writes to the replay.
          num_envs: N; None: one environment, whose arrays have no dimension for it.
        """
        super().__init__(policy, key, adder, num_envs)
        self._infer = infer
        self._words = np.asarray(jax.random.key_data(self._keys))
        self._first_stream = self._num_actions = 0
        like = jax.eval_shape(jax.vmap(policy.init), self._keys)
        extras = jax.eval_shape(jax.vmap(policy.get_extras), like, like)
        self._structures = [jax.tree.structure(part) for part in (action_spec, extras)]
        self._open()

    def _open(self) -> None:
        """Takes another session, which begins with the next step."""
        self._session, self._count = secrets.token_hex(8), 0

    def _choose(self, observation: Nest, first: np.ndarray) -> tuple[Nest, Nest]:
        leaves = [np.asarray(x) for x in jax.tree.leaves(observation)]
        begin = (self._words, self._first_stream, self._num_actions)
        answer = None
        if self._count:
            answer = self._infer(self._session, self._count, leaves, first, None)
        if answer is None:
            answer = self._infer(self._session, self._count, leaves, ~self._none, begin)
        assert answer is not None, "the server does not begin a session"
        self._count += 1
        self._num_actions += 1
        action, extras = map(jax.tree.unflatten, self._structures, answer)
        return action, extras

    def set_num_actions(self, count: int) -> None:
        self._num_actions = count
        self._open()

    def set_streams(self, first: int) -> None:
        self._first_stream = first
        self._open()

    def update(self, wait: bool = False) -> None:
        """Does nothing: the server has the parameters."""
