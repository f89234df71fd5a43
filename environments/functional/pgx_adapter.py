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
from ..errors import InvalidOptionError
from . import games
from .games import Opponent
from .interface import FunctionalEnvironment, Key, StepOutput

Observe = Callable[[Any], specs.Nest]
_MINATAR = "minatar-"
_LEARNER = 0
"""The learner's number among the players; pgx draws which of them moves first."""
_OPPONENT = 7
"""Sets the key of an opponent's state apart from those of its moves."""


def make(
    id: str,
    name: str,
    *,
    opponent: str = "random",
    opponent_versions: int = 8,
    opponent_period: int = 50_000,
    **arguments: Any,
) -> FunctionalEnvironment:
    """Makes a game (Koyamada et al., 2023, https://arxiv.org/abs/2303.17503).

    In games of several players the others draw their moves uniformly from those that are legal, but
    where the learner is trained against itself. It sees the board when it is to move, and is
    rewarded for all moves since its last one. An illegal move of the learner loses at once, as pgx
    has it; which are legal is the observation's mask (`action_masks`), but in MinAtar's games,
    where all of them are.

    Args:
      id: for errors.
      name: that `pgx.make` knows.
      opponent: of a learner in training, in games of two players: one of `games.KINDS`, or the
        directory of a run.
      opponent_versions: see `games.SelfPlay`; of "pool".
      opponent_period: likewise.
      **arguments: of the game's constructor (MinAtar's games).

    Raises:
      MissingExtraError: if pgx is not installed.
      UnknownEnvironmentError: if it has no such game.
      InvalidOptionError: if the game has no such argument, or not this opponent.
    """
    pgx = registry.import_extra("pgx", "pgx", id)
    prefix = id.removesuffix(name)
    registry.check_known(id, [f"{prefix}{known}" for known in pgx.available_envs()])
    game = pgx.make(name)
    # Of a board game pgx's own name sets the size; its constructor alone would forget it.
    known = inspect.signature(type(game)).parameters if game.num_players == 1 else {}
    registry.check_arguments(id, dict(known), arguments)
    self_play = games.self_play(opponent, opponent_versions, opponent_period)
    run = games.opponent_run(opponent)
    if opponent != "random" and game.num_players != 2:
        raise InvalidOptionError(
            f"{id} is a game of {game.num_players}; a learner has an opponent ({opponent!r}) in "
            "games of two"
        )
    if arguments:
        game = type(game)(**arguments)
    begun = jax.eval_shape(game.init, jax.random.key(0))
    observations: specs.Nest = _observation_spec(begun.observation)
    num_actions: int = begun.legal_action_mask.shape[0]
    if not name.startswith(_MINATAR):
        observations = action_masks.add_to_spec(observations, num_actions)
    observe = _observed if action_masks.find(observations) is not None else _seen

    def against(opponent: Opponent) -> FunctionalEnvironment:
        return FunctionalEnvironment(
            functools.partial(_reset, game, observe, opponent),
            functools.partial(_step, game, observe, opponent),
            observations,
            specs.DiscreteArray(num_actions, np.int32, "action"),
            against=against if game.num_players == 2 else None,
            self_play=self_play,
            opponent_run=run,
        )

    return against(games.uniform())


def _seen(state: Any) -> jax.Array:
    return state.observation


def _observed(state: Any) -> specs.Nest:
    return {
        action_masks.OBSERVATION: state.observation,
        action_masks.KEY: state.legal_action_mask,
    }


def _reset(
    game: Any, observe: Observe, opponent: Opponent, key: Key
) -> tuple[tuple[Any, Any], specs.Nest]:
    first, others = jax.random.split(key)
    mind = opponent.init(jax.random.fold_in(others, _OPPONENT))
    (state, mind), _ = _let_others_move(game, observe, opponent, (game.init(first), mind), others)
    return (state, mind), observe(state)


def _step(
    game: Any,
    observe: Observe,
    opponent: Opponent,
    before: tuple[Any, Any],
    action: jax.Array,
    key: Key,
) -> tuple[tuple[Any, Any], StepOutput]:
    own, others = jax.random.split(key)
    state, mind = before
    state = game.step(state, action, own)
    reward = state.rewards[_LEARNER]
    after, more = _let_others_move(game, observe, opponent, (state, mind), others)
    state, _ = after
    output = StepOutput(observe(state), reward + more, state.terminated, state.truncated)
    return after, output


def _let_others_move(
    game: Any, observe: Observe, opponent: Opponent, before: tuple[Any, Any], key: Key
) -> tuple[tuple[Any, Any], jax.Array]:
    """Has the opponent move until the learner is to move or the game is over.

    Args:
      before: state of the game, and of the opponent.

    Returns:
      These two, and the learner's reward meanwhile, float32 [].
    """
    if game.num_players == 1:
        return before, jnp.float32(0.0)

    def others_move(carry: tuple[tuple[Any, Any], jax.Array, Key]) -> jax.Array:
        (state, _), *_ = carry
        over = state.terminated | state.truncated
        return (state.current_player != _LEARNER) & ~over

    def move(
        carry: tuple[tuple[Any, Any], jax.Array, Key],
    ) -> tuple[tuple[Any, Any], jax.Array, Key]:
        (state, mind), reward, key = carry
        key, choice, chance = jax.random.split(key, 3)
        action, mind = opponent.move(observe(state), state.legal_action_mask, mind, choice)
        state = game.step(state, action, chance)
        return (state, mind), reward + state.rewards[_LEARNER], key

    after, reward, _ = jax.lax.while_loop(others_move, move, (before, jnp.float32(0.0), key))
    return after, reward


def _observation_spec(observation: jax.ShapeDtypeStruct) -> specs.Array:
    if observation.dtype == bool:
        return specs.BoundedArray(observation.shape, bool, False, True, "observation")
    return specs.Array(observation.shape, observation.dtype, "observation")
