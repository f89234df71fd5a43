"""Catch, as bsuite has it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import specs
from ..interface import FunctionalEnvironment, Key, StepOutput


class Catch(NamedTuple):
    """State: column and row of the ball, and column of the paddle in the last row; int32 []."""

    column: jax.Array
    row: jax.Array
    paddle: jax.Array


def catch(*, rows: int = 10, columns: int = 5) -> FunctionalEnvironment:
    """Builds Catch: a ball falls from a random column, and a paddle that moves left, stays or moves
    right is under it in the end (reward 1) or not (-1) (Osband et al., 2020,
    https://arxiv.org/abs/1908.03568).

    Args:
      rows: of the board, at least 2; an episode has one step less.
      columns: of the board.
    """

    def observe(state: Catch) -> jax.Array:
        board = jnp.zeros((rows, columns), jnp.float32)
        return board.at[state.row, state.column].set(1.0).at[rows - 1, state.paddle].set(1.0)

    def reset(key: Key) -> tuple[Catch, jax.Array]:
        column = jax.random.randint(key, (), 0, columns)
        state = Catch(column, jnp.int32(0), jnp.int32(columns // 2))
        return state, observe(state)

    def step(state: Catch, action: jax.Array, key: Key) -> tuple[Catch, StepOutput]:
        del key
        paddle = jnp.clip(state.paddle + action - 1, 0, columns - 1)
        state = Catch(state.column, state.row + 1, paddle)
        fallen = state.row == rows - 1
        caught = jnp.where(state.column == paddle, 1.0, -1.0)
        outcome = StepOutput(
            observe(state), jnp.where(fallen, caught, 0.0), fallen, jnp.bool_(False)
        )
        return state, outcome

    return FunctionalEnvironment(
        reset,
        step,
        specs.BoundedArray((rows, columns), np.float32, 0.0, 1.0, "observation"),
        specs.DiscreteArray(3, np.int32, "action"),
    )
