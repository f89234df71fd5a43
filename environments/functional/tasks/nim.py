"""Nim of one heap, against an opponent that draws its moves; a mask says what is legal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ... import action_masks, specs
from ...options import integer
from ..interface import FunctionalEnvironment, Key, StepOutput


def nim(*, stones: int = 10, most: int = 3, penalty: float = -1.0) -> FunctionalEnvironment:
    """Builds Nim: the players take 1 to `most` stones in turn, and who takes the last one wins
    (Bouton, 1901, https://doi.org/10.2307/1967631; subtraction of one heap).

    Action a takes a + 1 stones. It is legal where there are so many, which the mask of the
    observation says. The learner begins and is rewarded with 1 for winning and -1 for losing; the
    opponent draws its moves uniformly. Who leaves a multiple of `most` + 1 stones wins always.

    Args:
      stones: in the heap at first.
      most: that may be taken at once.
      penalty: reward of an illegal move, which loses.

    Raises:
      InvalidOptionError: if there are no stones, or none may be taken.
    """
    integer("stones", stones, 1, 10_000)
    integer("most", most, 1, 10_000)

    def observe(left: jax.Array) -> specs.Nest:
        return {
            action_masks.OBSERVATION: jax.nn.one_hot(left, stones + 1, dtype=jnp.float32),
            action_masks.KEY: jnp.arange(most) < left,
        }

    def reset(key: Key) -> tuple[jax.Array, specs.Nest]:
        del key
        return jnp.int32(stones), observe(jnp.int32(stones))

    def step(left: jax.Array, action: jax.Array, key: Key) -> tuple[jax.Array, StepOutput]:
        taken = action + 1
        is_legal = taken <= left
        mine = jnp.maximum(left - taken, 0)
        answer = jax.random.randint(key, (), 1, jnp.minimum(most, jnp.maximum(mine, 1)) + 1)
        theirs = jnp.maximum(mine - answer, 0)
        reward = jnp.where(mine == 0, 1.0, jnp.where(theirs == 0, -1.0, 0.0))
        reward = jnp.where(is_legal, reward, penalty)
        outcome = StepOutput(observe(theirs), reward, ~is_legal | (theirs == 0), jnp.bool_(False))
        return theirs, outcome

    shown = specs.BoundedArray((stones + 1,), np.float32, 0.0, 1.0, "observation")
    return FunctionalEnvironment(
        reset,
        step,
        action_masks.add_to_spec(shown, most),
        specs.DiscreteArray(most, np.int32, "action"),
    )
