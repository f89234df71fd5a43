"""Actor cores that agents share. All are written for one observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..interfaces import ActorCore

Nest = Any


def batch(policy: ActorCore) -> Callable[..., tuple[Nest, Nest, Nest]]:
    """A policy of N observations: `(params, observation, state, first) -> (action, extras, state)`.

    Every array has a leading dimension N but those of the params. `first` [N] is true where an
    episode begins, whose state the policy resets.
    """

    def act(params: Nest, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
        action, after = policy.select_action(params, observation, state)
        return action, policy.get_extras(state, after), after

    def step(params: Nest, observation: Nest, state: Nest, first: jax.Array):
        if policy.reset is not None:
            state = jax.tree.map(
                lambda new, old: jnp.where(
                    first.reshape(first.shape + (1,) * (old.ndim - 1)), new, old
                ),
                jax.vmap(policy.reset)(state),
                state,
            )
        return jax.vmap(act, in_axes=(None, 0, 0))(params, observation, state)

    return step


class StepState(NamedTuple):
    """State of a policy without memory."""

    key: jax.Array
    """Never changes: the randomness of a step is folded from it and the count."""
    num_actions: jax.Array
    """Actions taken so far, int32."""
    extras: Nest = ()


def _set_num_actions(state: StepState, count: jax.Array) -> StepState:
    return state._replace(num_actions=jnp.asarray(count, jnp.int32))


def epsilon_greedy(
    q_values: Callable[[Nest, Nest], jax.Array],
    epsilon: Callable[[jax.Array], jax.Array] | float,
) -> ActorCore:
    """The best action by its value, or with probability epsilon any.

    Args:
      q_values: `(params, observation) -> [A]`, values of the A actions.
      epsilon: a number, or a function of the count of actions taken.
    """

    def init(key):
        return StepState(key, jnp.zeros((), jnp.int32))

    def select_action(params, observation, state):
        values = q_values(params, observation)
        draw = jax.random.uniform(jax.random.fold_in(state.key, state.num_actions), (2,))
        threshold = epsilon(state.num_actions) if callable(epsilon) else epsilon
        anything = jnp.floor(draw[1] * values.shape[-1]).astype(jnp.int32)
        action = jnp.where(draw[0] < threshold, anything, jnp.argmax(values).astype(jnp.int32))
        return action, StepState(state.key, state.num_actions + 1)

    return ActorCore(init, select_action, set_num_actions=_set_num_actions)


def stochastic(
    sample: Callable[[Nest, jax.Array, Nest], tuple[Nest, Nest]], extras: Nest = ()
) -> ActorCore:
    """An action drawn from a distribution, with what the learner needs to know of the drawing.

    Args:
      sample: `(params, key, observation) -> (action, extras)`.
      extras: a nest of arrays like those `sample` returns, of any value.
    """

    def init(key):
        return StepState(key, jnp.zeros((), jnp.int32), extras)

    def select_action(params, observation, state):
        key = jax.random.fold_in(state.key, state.num_actions)
        action, extras = sample(params, key, observation)
        return action, StepState(state.key, state.num_actions + 1, extras)

    return ActorCore(
        init,
        select_action,
        lambda before, after: after.extras,
        set_num_actions=_set_num_actions,
    )


def deterministic(action: Callable[[Nest, Nest], Nest]) -> ActorCore:
    """The one action that `(params, observation) -> action` gives."""
    return ActorCore(
        lambda key: (),
        lambda params, observation, state: (action(params, observation), state),
    )
