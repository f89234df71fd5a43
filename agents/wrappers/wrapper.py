"""A wrapper: a mix-in that stands before a builder's class, and changes what that one makes.

What a wrapper learns besides is in the learner's state, beside the agent's: so it is computed of
the global batch, spread over a mesh, saved, restored and published as the agent's own.

Letters: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dm_env import StepType

from ..builder import Builder
from ..interfaces import Update, UpdateOutput
from ..replay.items import Sample, Sequence, Transition

Nest = Any


class WrapperState(NamedTuple):
    """All that learning changes of a wrapped agent."""

    agent: Nest
    """The agent's own."""
    wrapper: Nest
    """State of the wrapper."""


class Wrapper(Builder[Any, Any]):
    """Base of what stands before a builder's class: `class Mine(RND, DQNBuilder)`.

    Its `config_class` is a mix-in of the fields that it adds to the agent's config.
    """


def learn_before(
    agent: Update,
    init: Callable[[jax.Array], Nest],
    before: Callable[[Nest, Sample], tuple[Nest, Sample, dict[str, jax.Array]]],
    publish: Callable[[Nest, Nest], Nest] = lambda params, state: params,
) -> Update:
    """An agent's update behind what a wrapper does in each gradient step.

    Args:
      agent: the agent's.
      init: `key -> state`, the wrapper's.
      before: `(state, sample) -> (state, sample, metrics)`: the agent learns from that sample.
      publish: `(params, state) -> params` for actors, of what the agent gives them.
    """

    def init_both(key: jax.Array) -> WrapperState:
        agent_key, key = jax.random.split(key)
        return WrapperState(agent.init(agent_key), init(key))

    def step(state: WrapperState, sample: Sample) -> tuple[WrapperState, UpdateOutput]:
        of_wrapper, sample, metrics = before(state.wrapper, sample)
        of_agent, output = agent.step(state.agent, sample)
        output = output._replace(metrics={**output.metrics, **metrics})
        return WrapperState(of_agent, of_wrapper), output

    def variables(state: WrapperState) -> dict[str, Nest]:
        found = agent.variables(state.agent)
        return {**found, "policy": publish(found["policy"], state.wrapper)}

    return Update(init_both, step, variables)


def seen(data: Transition | Sequence) -> tuple[Nest, jax.Array]:
    """Observations that were acted on, [...], and which of them count, [...].

    The last row of a sequence is left out: it is the first of the next, or behind an episode.
    """
    if isinstance(data, Transition):
        return data.observation, jnp.ones_like(data.reward)
    return jax.tree.map(lambda x: x[:, :-1], data.observation), data.mask[:, :-1]


def followed(data: Transition | Sequence) -> tuple[Nest, jax.Array]:
    """Observations that actions led to, [...], and which of them count, [...]: [B] of transitions,
    [B, T - 1] of sequences."""
    if isinstance(data, Transition):
        return data.next_observation, jnp.ones_like(data.reward)
    is_step = (data.step_type != int(StepType.LAST))[:, :-1]
    return jax.tree.map(lambda x: x[:, 1:], data.observation), data.mask[:, 1:] * is_step


def with_reward(data: Transition | Sequence, reward: jax.Array) -> Transition | Sequence:
    """With these rewards of the observations of `followed` in place of its own."""
    if isinstance(data, Sequence):
        reward = jnp.concatenate([reward, data.reward[:, -1:]], axis=1)
    return data._replace(reward=reward)
