"""An inference server whose actors share the slots of one continuous batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from ..acting.inference import InferenceServer
from ..acting.sessions import Request, SessionServer
from ..interfaces import ActorCore
from ..programs.placement import Partition
from ..variables.client import VariableClient
from .continuous import Answered, ContinuousBatch
from .policy import AnswerPolicy

Nest = Any


def make_server(
    policy: ActorCore,
    client: VariableClient,
    observation_spec: Nest,
    *,
    device: jax.Device | Partition | None = None,
    **options: Any,
) -> SessionServer:
    """Makes the server of a policy: one of answers batches continuously, on one device.

    Over a mesh answers are drawn batch by batch. Arguments are those of `InferenceServer`.
    """
    answers = isinstance(policy.select_action, AnswerPolicy)
    kind = GenerationServer if answers and not isinstance(device, Partition) else InferenceServer
    return kind(policy, client, observation_spec, device=device, **options)


class _Pending:
    """A request of which not all answers are drawn."""

    def __init__(self, request: Request, tokens: np.ndarray, log_probs: np.ndarray, steps: int):
        self.request, self.tokens, self.log_probs = request, tokens, log_probs
        self.steps = np.full(len(tokens), steps, np.int32)
        self.left: set[int] = set()
        """Streams, by their place in the request."""


class GenerationServer(SessionServer):
    """Answers the prompts of all actors in slots, each of which takes the next prompt when free.

    A request is answered when its last answer has ended. Newer parameters are used from the next
    turn on, see `continuous`; the steps of an action are those of its oldest parameters. Calls are
    turns.
    """

    def __init__(
        self,
        policy: ActorCore,
        client: VariableClient,
        observation_spec: Nest,
        *,
        batch_size: int,
        wait_seconds: float = 0.0,
        capacity: int | None = None,
        device: jax.Device | None = None,
    ):
        """Compiles nothing yet (see `warm_up`).

        Args:
          policy: made by `generation.policy.answering`.
          client: where its parameters come from.
          observation_spec: of one environment.
          batch_size: prompts whose G answers fill all slots.
          wait_seconds: not used, as nothing needs to come together.
          capacity: as of `SessionServer`.
          device: that computes; None: jax's default.

        Raises:
          ValueError: as of `SessionServer`.
        """
        super().__init__(observation_spec, batch_size, wait_seconds, capacity)
        assert isinstance(policy.select_action, AnswerPolicy)
        self._policy, self._client = policy.select_action, client
        answer = self._policy.answer
        self._batch = ContinuousBatch(
            self._policy.decoder,
            answer,
            self._policy.sampling,
            batch_size * answer.shape[0],
            self._observation["prompt"].shape[-1],
            device,
        )
        self._pending: dict[Request, _Pending] = {}
        self._words: dict[int, np.ndarray] = {}
        """Of the keys of streams, by their rows."""
        self._num_actions: dict[int, int] = {}
        self._keys = jax.jit(self._keys_of)

    def _keys_of(self, words: jax.Array, num_actions: jax.Array) -> jax.Array:
        keys = self._policy.keys(jax.random.wrap_key_data(words), num_actions)
        return jax.random.key_data(keys)

    def warm_up(self, while_waiting: Callable[[], None] = lambda: None) -> None:
        self._batch.warm_up(self._client.params, while_waiting)

    def serve_once(self, seconds: float) -> int:
        """Takes one turn. Waits for a request where there is nothing to be answered.

        Args:
          seconds: time to wait.

        Returns:
          Rows whose actions are complete.
        """
        with self._arrived:
            if not self._pending:
                self._arrived.wait_for(lambda: bool(self._queue), seconds)
            requests = [*self._queue]
            self._queue.clear()
        before = self.rows
        try:
            if requests:  # Replays reckon how far ahead these may be from the newest parameters.
                self._client.ask()
            self._client.update()
            self._batch.take(self._client.params)
            for request in requests:
                self._begin(request)
            self._drop_released()
            for answered in self._batch.turn():
                self._end(answered)
        except Exception as error:
            self._failed(requests, error)
        self.calls = self._batch.turns
        return self.rows - before

    def _begin(self, request: Request) -> None:
        """Puts the prompts of a request into the batch."""
        rows = request.rows.tolist()
        if request.begin is not None:
            words, _, num_actions = request.begin
            self._words.update(zip(rows, words, strict=True))
            self._num_actions.update(dict.fromkeys(rows, num_actions))
        observation = jax.tree.unflatten(jax.tree.structure(self._observation), request.leaves)
        counts = np.array([self._num_actions[row] for row in rows], np.int32)
        self._num_actions.update((row, self._num_actions[row] + 1) for row in rows)
        policy, steps = self._policy, self._batch.steps
        answer, prompts = policy.answer, np.asarray(observation["prompt"])
        shape = len(rows), *answer.shape
        pending = _Pending(
            request, np.full(shape, answer.pad, np.int32), np.zeros(shape, np.float32), steps
        )
        self._pending[request] = pending
        if steps < policy.supervised_steps:
            pending.tokens[:] = policy.given(observation).tokens
        else:
            keys = self._keys(np.stack([self._words[row] for row in rows]), counts)
            for i in np.flatnonzero((prompts != answer.pad).any(axis=1)).tolist():
                pending.left.add(i)
                self._batch.add((request, i), prompts[i], np.asarray(keys)[i])
        self._finish(pending)

    def _end(self, answered: Answered) -> None:
        """Takes the answers to one prompt."""
        request, i = cast("tuple[Request, int]", answered.name)
        pending = self._pending[request]
        pending.tokens[i], pending.log_probs[i] = answered.answers
        pending.steps[i] = answered.steps
        pending.left.remove(i)
        self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        """Answers a request where nothing is left to be drawn."""
        if pending.left:
            return
        request = pending.request
        extras = self._policy.extras(pending.log_probs, pending.steps)
        request.answer = [pending.tokens], jax.tree.leaves(extras)
        del self._pending[request]
        request.done.set()
        self.rows += len(request.first)

    def _drop_released(self) -> None:
        """Takes requests that nobody waits for out of the batch."""
        with self._arrived:
            held = {session.last for session in self._sessions.values()}
        for request in [one for one in self._pending if one not in held]:
            for i in self._pending.pop(request).left:
                self._batch.discard((request, i))
            request.fail(RuntimeError("another session has taken the place of this one."))

    def _failed(self, requests: list[Request], error: Exception) -> None:
        """Forgets clients whose answers were being drawn: the slots are in no known state."""
        lost = {*requests, *self._pending}
        self._pending.clear()
        self._batch.clear()
        with self._arrived:
            for client, held in list(self._sessions.items()):
                if held.last in lost:
                    self._release(client, f"the answers being drawn were lost: {error}")
        for request in lost:
            if not request.done.is_set():
                request.fail(error)
