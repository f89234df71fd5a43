"""The policy of a token agent: a group of G answers to one prompt is one action."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..acting import policies
from ..acting.policies import StepState
from ..interfaces import ActorCore
from ..networks.decoder import Decoder
from . import masks
from .loop import Answers, generate
from .sampling import Sampling

Nest = Any


def answering(
    decoder: Decoder,
    answer: masks.AnswerSpec,
    sampling: Sampling | None = None,
    *,
    supervised_steps: int = 0,
) -> ActorCore:
    """A policy that answers prompts.

    Its parameters are `{"decoder": params, "steps": int32 []}`, the gradient steps that they have
    behind them; its extras `{"log_probs": float32 [G, T], "steps": int32 []}`. An observation has
    "prompt" int32 [P], and "solution" int32 [T] where there are supervised steps.

    Args:
      decoder: the language model.
      answer: the spec of actions, int32 [G, T].
      sampling: how tokens are chosen; None: each by its probability.
      supervised_steps: gradient steps before which the solution is the answer, of probability 1.

    Raises:
      ValueError: as of `masks.possible`.
    """
    sampling = sampling or Sampling()
    group, length = answer.shape
    masks.possible(answer, decoder.config.vocabulary)

    def drawn(params: Nest, observation: Nest, state: StepState) -> Answers:
        keys = jax.vmap(jax.random.fold_in)(state.key, state.num_actions)
        keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, jnp.arange(group))
        prompt = observation["prompt"]
        return generate(decoder, params["decoder"], prompt, keys, answer, sampling)

    def given(params: Nest, observation: Nest, state: StepState) -> Answers:
        solution = observation["solution"]
        shape = len(solution), group, length
        tokens = jnp.broadcast_to(solution[:, None], shape)
        return Answers(tokens, jnp.zeros(shape, jnp.float32))

    def select_actions(
        params: Nest, observation: Nest, state: StepState
    ) -> tuple[jax.Array, StepState]:
        steps = params["steps"]
        if supervised_steps:
            is_given = steps < supervised_steps
            answers = jax.lax.cond(is_given, given, drawn, params, observation, state)
        else:
            answers = drawn(params, observation, state)
        extras = {
            "log_probs": answers.log_probs,
            "steps": jnp.broadcast_to(steps, state.num_actions.shape),
        }
        return answers.tokens, StepState(state.key, state.num_actions + 1, extras)

    extras = {
        "log_probs": jnp.zeros((group, length), jnp.float32),
        "steps": jnp.zeros((), jnp.int32),
    }
    return ActorCore(
        lambda key: StepState(key, jnp.zeros((), jnp.int32), extras),
        policies.batched(select_actions),
        lambda before, after: after.extras,
        set_num_actions=lambda state, count: state._replace(
            num_actions=jnp.asarray(count, jnp.int32)
        ),
    )
