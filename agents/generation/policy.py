"""The policy of a token agent: a group of G answers to one prompt is one action."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...environments.specs import AnswerArray
from ..acting import policies
from ..acting.policies import StepState
from ..interfaces import ActorCore
from ..networks.decoder import Decoder
from . import masks
from .loop import Answers, generate
from .sampling import Sampling

Nest = Any


class AnswerPolicy:
    """`ActorCore.select_action` of a policy that answers prompts.

    Its parameters are `{"decoder": params, "steps": int32 []}`, the gradient steps that they have
    behind them; its extras `{"log_probs": float32 [G, T], "steps": int32 []}`. An observation has
    "prompt" int32 [P], and "solution" int32 [T] where there are supervised steps.

    Attributes:
      decoder: the language model.
      answer: the spec of actions.
      sampling: how tokens are chosen.
      supervised_steps: gradient steps before which the solution is the answer.
    """

    def __init__(
        self, decoder: Decoder, answer: AnswerArray, sampling: Sampling, supervised_steps: int
    ):
        masks.possible(answer, decoder.config.vocabulary)  # Raises what is to be raised.
        self.decoder, self.answer, self.sampling = decoder, answer, sampling
        self.supervised_steps = supervised_steps
        self._select_action = policies.batched(self._select_actions)

    def __call__(
        self, params: Nest, observation: Nest, state: StepState
    ) -> tuple[jax.Array, StepState]:
        return self._select_action(params, observation, state)

    def keys(self, keys: jax.Array, num_actions: jax.Array) -> jax.Array:
        """The keys [N, G] of the answers that streams [N] give next."""
        of_steps = jax.vmap(jax.random.fold_in)(keys, num_actions)
        of_answers = jax.vmap(jax.random.fold_in, (None, 0))
        return jax.vmap(of_answers, (0, None))(of_steps, jnp.arange(self.answer.shape[0]))

    def given(self, observation: Nest) -> Answers:
        """The solutions [N, T] as answers [N, G, T], of probability 1."""
        solution = observation["solution"]
        shape = len(solution), *self.answer.shape
        tokens = jnp.broadcast_to(solution[:, None], shape)
        return Answers(tokens, jnp.zeros(shape, jnp.float32))

    def extras(self, log_probs: Any, steps: Any) -> dict[str, Any]:
        """The extras of an action, of its parts."""
        return {"log_probs": log_probs, "steps": steps}

    def _select_actions(
        self, params: Nest, observation: Nest, state: StepState
    ) -> tuple[jax.Array, StepState]:
        """The actions [N, G, T] of all streams."""

        def drawn(params: Nest, observation: Nest, keys: jax.Array) -> Answers:
            prompt = observation["prompt"]
            return generate(
                self.decoder, params["decoder"], prompt, keys, self.answer, self.sampling
            )

        given = params, observation, self.keys(state.key, state.num_actions)
        if self.supervised_steps:
            answers = jax.lax.cond(
                params["steps"] < self.supervised_steps,
                lambda params, observation, keys: self.given(observation),
                drawn,
                *given,
            )
        else:
            answers = drawn(*given)
        steps = jnp.broadcast_to(params["steps"], state.num_actions.shape)
        extras = self.extras(answers.log_probs, steps)
        return answers.tokens, StepState(state.key, state.num_actions + 1, extras)


def answering(
    decoder: Decoder,
    answer: AnswerArray,
    sampling: Sampling | None = None,
    *,
    supervised_steps: int = 0,
) -> ActorCore:
    """A policy that answers prompts; parameters, extras and observations as of `AnswerPolicy`.

    Args:
      decoder: the language model.
      answer: the spec of actions, int32 [G, T].
      sampling: how tokens are chosen; None: each by its probability.
      supervised_steps: gradient steps before which the solution is the answer, of probability 1.

    Raises:
      ValueError: as of `masks.possible`.
    """
    policy = AnswerPolicy(decoder, answer, sampling or Sampling(), supervised_steps)
    extras = policy.extras(jnp.zeros(answer.shape, jnp.float32), jnp.zeros((), jnp.int32))
    return ActorCore(
        lambda key: StepState(key, jnp.zeros((), jnp.int32), extras),
        policy,
        lambda before, after: after.extras,
        set_num_actions=lambda state, count: state._replace(
            num_actions=jnp.asarray(count, jnp.int32)
        ),
    )
