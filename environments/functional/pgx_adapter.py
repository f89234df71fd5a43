"""Games of pgx, for one learner: "jax:pgx/minatar-breakout", "jax:pgx/tic_tac_toe"."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import action_masks, registry, specs
from .interface import FunctionalEnvironment, Key, StepOutput

Observe = Callable[[Any], specs.Nest]
_MINATAR = "minatar-"
_LEARNER = 0
"""The learner's number among the players; pgx draws which of them moves first."""


def make(id: str, name: str, **arguments: Any) -> FunctionalEnvironment:
    """Makes a game (Koyamada et al., 2023, https://arxiv.org/abs/2303.17503).

    In games of several players the others draw their moves uniformly from those that are legal. The
    learner sees the board when it is to move, and is rewarded for all moves since its last one. An
    illegal move of the learner loses at once, as pgx has it; which are legal is the observation's
    mask (`action_masks`), but in MinAtar's games, where all of them are.

    Args:
      id: for errors.
      name: that `pgx.make` knows.
      **arguments: of the game's constructor (MinAtar's games).

    Raises:
      MissingExtraError: if pgx is not installed.
      UnknownEnvironmentError: if it has no such game.
      InvalidOptionError: if the game has no such argument.
    """
    pgx = registry.import_extra("pgx", "pgx", id)
    prefix = id.removesuffix(name)
    registry.check_known(id, [f"{prefix}{known}" for known in pgx.available_envs()])
    game = pgx.make(name)
    # Of a board game pgx's own name sets the size; its constructor alone would forget it.
    known = inspect.signature(type(game)).parameters if game.num_players == 1 else {}
    registry.check_arguments(id, dict(known), arguments)
    if arguments:
        game = type(game)(**arguments)
    begun = jax.eval_shape(game.init, jax.random.key(0))
    observations: specs.Nest = _observation_spec(begun.observation)
    num_actions: int = begun.legal_action_mask.shape[0]
    if not name.startswith(_MINATAR):
        observations = action_masks.add_to_spec(observations, num_actions)
    observe = _observed if action_masks.find(observations) is not None else _seen
    return FunctionalEnvironment(
        functools.partial(_reset, game, observe),
        functools.partial(_step, game, observe),
        observations,
        specs.DiscreteArray(num_actions, np.int32, "action"),
    )


def _seen(state: Any) -> jax.Array:
    return state.observation


def _observed(state: Any) -> specs.Nest:
    return {
        action_masks.OBSERVATION: state.observation,
        action_masks.KEY: state.legal_action_mask,
    }


def _reset(game: Any, observe: Observe, key: Key) -> tuple[Any, specs.Nest]:
    first, others = jax.random.split(key)
    state = _let_others_move(game, game.init(first), others)[0]
    return state, observe(state)


def _step(
    game: Any, observe: Observe, state: Any, action: jax.Array, key: Key
) -> tuple[Any, StepOutput]:
    own, others = jax.random.split(key)
    state = game.step(state, action, own)
    reward = state.rewards[_LEARNER]
    state, more = _let_others_move(game, state, others)
    output = StepOutput(observe(state), reward + more, state.terminated, state.truncated)
    return state, output


def _let_others_move(game: Any, state: Any, key: Key) -> tuple[Any, jax.Array]:
    """Moves at random until the learner is to move or the game is over.

    Returns:
      The state, and the learner's reward meanwhile, float32 [].
    """
    if game.num_players == 1:
        return state, jnp.float32(0.0)

    def others_move(carry: tuple[Any, jax.Array, Key]) -> jax.Array:
        state, *_ = carry
        over = state.terminated | state.truncated
        return (state.current_player != _LEARNER) & ~over

    def move(carry: tuple[Any, jax.Array, Key]) -> tuple[Any, jax.Array, Key]:
        state, reward, key = carry
        key, choice, chance = jax.random.split(key, 3)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        state = game.step(state, jax.random.categorical(choice, logits), chance)
        return state, reward + state.rewards[_LEARNER], key

    state, reward, _ = jax.lax.while_loop(others_move, move, (state, jnp.float32(0.0), key))
    return state, reward


def _observation_spec(observation: jax.ShapeDtypeStruct) -> specs.Array:
    if observation.dtype == bool:
        return specs.BoundedArray(observation.shape, bool, False, True, "observation")
    return specs.Array(observation.shape, observation.dtype, "observation")
