"""Actor cores that agents share. All are written for one observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.custom_batching
import jax.numpy as jnp

from .. import action_spaces, legal_actions
from ..interfaces import ActorCore
from ..networks.distributions import Distribution, for_actions

Nest = Any
SelectAction = Callable[[Nest, Nest, Nest], tuple[Nest, Nest]]


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


def batched(select_actions: SelectAction) -> SelectAction:
    """Makes an `ActorCore.select_action` of a policy that acts for all streams in one computation.

    A loop that ends at different times for different streams, for one, would copy all that it
    carries in every turn if it were made for one stream and batched by `jax.vmap`.

    Args:
      select_actions: `(params, observation [N, ...], state [N, ...]) -> (action [N, ...],
        state [N, ...])`.

    Returns:
      The same of one stream. `jax.vmap` over streams makes it a call of `select_actions`.
    """

    def alone(params: Nest, observation: Nest, state: Nest) -> tuple[Nest, Nest]:
        given = jax.tree.map(lambda x: x[None], (observation, state))
        return jax.tree.map(lambda x: x[0], select_actions(params, *given))

    def rule(size: int, is_batched: Any, *given: Nest) -> tuple[Nest, Nest]:
        def spread(x: jax.Array, is_batched: bool) -> jax.Array:
            return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

        params, *rest = given
        rest = jax.tree.map(spread, rest, list(is_batched[1:]))
        if any(jax.tree.leaves(is_batched[0])):  # Each stream has parameters of its own.
            params = jax.tree.map(spread, params, is_batched[0])
            found = jax.lax.map(lambda one: alone(*one), (params, *rest))
        else:
            found = select_actions(params, *rest)
        return found, jax.tree.map(lambda _: True, found)

    select_action = jax.custom_batching.custom_vmap(alone)
    select_action.def_vmap(rule)
    return select_action


def begin(policy: ActorCore, keys: jax.Array, first_stream: Any = 0) -> Nest:
    """Returns the states [N, ...] of streams that begin, from their keys [N].

    Args:
      policy: any.
      keys: one of each stream.
      first_stream: number of the first of them among all that act.
    """
    state = jax.vmap(policy.init)(keys)
    if policy.set_stream is not None:
        state = jax.vmap(policy.set_stream)(state, first_stream + jnp.arange(len(keys)))
    return state


class StepState(NamedTuple):
    """State of a policy without memory."""

    key: jax.Array
    """Never changes: the randomness of a step is folded from it and the count."""
    num_actions: jax.Array
    """Actions taken so far, int32."""
    extras: Nest = ()
    stream: Nest = ()
    """Its number among all that act, int32; () where nothing depends on it."""


def _init(key: jax.Array) -> StepState:
    return StepState(key, jnp.zeros((), jnp.int32))


def _set_num_actions(state: StepState, count: jax.Array) -> StepState:
    return state._replace(num_actions=jnp.asarray(count, jnp.int32))


def epsilon_greedy(
    q_values: Callable[..., jax.Array],
    epsilon: Callable[..., jax.Array] | float,
    *,
    is_noisy: bool = False,
    by_stream: bool = False,
) -> ActorCore:
    """The best legal action by its value, or with probability epsilon any that is legal.

    Args:
      q_values: `(params, observation) -> [A]`, values of the A actions.
      epsilon: a number, or a function of the count of actions taken.
      is_noisy: whether `q_values` takes a key besides, another at every step.
      by_stream: whether `epsilon` takes the number of the stream besides.
    """

    def init(key):
        return _init(key)._replace(stream=jnp.zeros((), jnp.int32) if by_stream else ())

    def select_action(params, observation, state):
        key = jax.random.fold_in(state.key, state.num_actions)
        noise = (jax.random.fold_in(key, 0),) if is_noisy else ()
        values = q_values(params, observation, *noise)
        draw = jax.random.uniform(key, (2,))
        stream = (state.stream,) if by_stream else ()
        threshold = epsilon(state.num_actions, *stream) if callable(epsilon) else epsilon
        mask = legal_actions.of(observation)
        if mask is None:
            anything = jnp.floor(draw[1] * values.shape[-1]).astype(jnp.int32)
        else:
            anything = legal_actions.nth(mask, draw[1])
        greedy = legal_actions.best(values, mask).astype(jnp.int32)
        action = jnp.where(draw[0] < threshold, anything, greedy)
        return action, state._replace(num_actions=state.num_actions + 1)

    return ActorCore(
        init,
        select_action,
        set_num_actions=_set_num_actions,
        set_stream=(lambda state, number: state._replace(stream=number)) if by_stream else None,
    )


def gaussian_noise(
    action: Callable[[Nest, Nest], jax.Array],
    minimum: jax.Array,
    maximum: jax.Array,
    std: Callable[[jax.Array], jax.Array] | float,
) -> ActorCore:
    """An action with noise of a normal distribution, within its bounds.

    Args:
      action: `(params, observation) -> action`.
      minimum: the least action, of the action's shape.
      maximum: the greatest.
      std: standard deviation, where the action's range is from -1 to 1: a number, or a function of
        the count of actions taken.
    """
    half = (jnp.asarray(maximum) - minimum) / 2

    def select_action(params, observation, state):
        chosen = action(params, observation)
        key = jax.random.fold_in(state.key, state.num_actions)
        noise = jax.random.normal(key, chosen.shape, chosen.dtype)
        scale = std(state.num_actions) if callable(std) else std
        noisy = jnp.clip(chosen + scale * half * noise, minimum, maximum)
        return noisy, StepState(state.key, state.num_actions + 1)

    return ActorCore(_init, select_action, set_num_actions=_set_num_actions)


def drawn(
    choose: Callable[[Nest, Nest, jax.Array], tuple[Nest, Nest]], extras: Nest = ()
) -> ActorCore:
    """An action that a key decides, another at every step.

    Args:
      choose: `(params, observation, key) -> (action, extras)`.
      extras: zeros of what is stored beside an action.
    """

    def select_action(params, observation, state):
        key = jax.random.fold_in(state.key, state.num_actions)
        action, extras = choose(params, observation, key)
        return action, StepState(state.key, state.num_actions + 1, extras)

    return ActorCore(
        lambda key: _init(key)._replace(extras=extras),
        select_action,
        lambda before, after: after.extras,
        set_num_actions=_set_num_actions,
    )


def stochastic(
    parameters: Callable[[Nest, Nest], jax.Array],
    actions: Distribution,
    *,
    stores_log_prob: bool = False,
) -> ActorCore:
    """An action drawn from a distribution.

    Args:
      parameters: `(params, observation) -> [P]`, of the distribution.
      actions: the family.
      stores_log_prob: whether extras are `{"log_prob": []}` of the action drawn; else ().
    """

    def choose(params, observation, key):
        action, log_prob = actions.sample_and_log_prob(parameters(params, observation), key)
        return action, ({"log_prob": log_prob} if stores_log_prob else ())

    return drawn(choose, {"log_prob": jnp.zeros(())} if stores_log_prob else ())


def uniform_first(policy: ActorCore, actions: Nest, num_steps: float) -> ActorCore:
    """A policy whose first actions are drawn uniformly instead, of those that are legal.

    Args:
      policy: without memory: its state is a `StepState`.
      actions: the spec of an action; see `action_spaces.draw`.
      num_steps: actions of each stream that are drawn so.
    """
    if num_steps <= 0:
        return policy

    def draw(key, mask):
        if mask is None:
            return action_spaces.draw(actions, key)
        alike = legal_actions.restrict(jnp.zeros(mask.shape), mask)
        return for_actions("uniform_first", actions).sample(alike, key)

    def select_action(params, observation, state):
        chosen, after = policy.select_action(params, observation, state)
        # Counted from the other end, so that no draw of the policy's has the same key.
        key = jax.random.fold_in(state.key, ~state.num_actions)
        drawn, is_drawn = draw(key, legal_actions.of(observation)), state.num_actions < num_steps
        return jax.tree.map(lambda a, b: jnp.where(is_drawn, a, b), drawn, chosen), after

    return policy._replace(select_action=select_action)


def mode(parameters: Callable[[Nest, Nest], jax.Array], actions: Distribution) -> ActorCore:
    """The likeliest action of a distribution; arguments as of `stochastic`."""
    return deterministic(lambda params, observation: actions.mode(parameters(params, observation)))


def deterministic(action: Callable[[Nest, Nest], Nest]) -> ActorCore:
    """The one action that `(params, observation) -> action` gives."""
    return ActorCore(
        lambda key: (),
        lambda params, observation, state: (action(params, observation), state),
    )


class RecurrentState(NamedTuple):
    """State of a policy with a memory."""

    memory: Nest
    choice: Nest
    """Of the policy that chooses by what the network says."""


class RecurrentExtras(NamedTuple):
    """Extras of a recurrent policy."""

    memory: Nest
    """That the step began with: unrolling from it computes the step again."""
    choice: Nest
    """Extras of the policy that chooses."""


def recurrent(
    network: Callable[[Nest, Nest, Nest], tuple[Nest, Nest]],
    initial_memory: Nest,
    choose: ActorCore,
) -> ActorCore:
    """A policy whose network has a memory, which begins anew with every episode.

    Args:
      network: `(params, observation, memory) -> (output, memory)`, of one observation.
      initial_memory: what an episode begins with; where it is empty, nothing is forgotten.
      choose: a policy without memory whose observations are the network's outputs, such as
        `epsilon_greedy(lambda params, values: values, 0.1)`.
    """

    def select_action(params, observation, state):
        output, memory = network(params, observation, state.memory)
        action, choice = choose.select_action(params, output, state.choice)
        return action, RecurrentState(memory, choice)

    def set_stream(state, number):
        assert choose.set_stream is not None
        return state._replace(choice=choose.set_stream(state.choice, number))

    def forget(state):
        return state._replace(memory=initial_memory)

    return ActorCore(
        lambda key: RecurrentState(initial_memory, choose.init(key)),
        select_action,
        lambda before, after: RecurrentExtras(
            before.memory, choose.get_extras(before.choice, after.choice)
        ),
        forget if jax.tree.leaves(initial_memory) else None,
        lambda state, count: state._replace(choice=choose.set_num_actions(state.choice, count)),
        None if choose.set_stream is None else set_stream,
    )
