"""The rows of a batch that an actor and critics learn from: transitions, or those of windows.

Letters: M rows: B transitions, or B windows of T rows each, M = B T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from .. import leading_axes
from ..configs import MemoryConfig
from ..losses import masks, returns
from ..networks.windows import ObservedWindow
from ..replay.items import Sequence, Transition

Nest = Any


class LearnedRows(NamedTuple):
    """Rows, with the functions of a batch that depend on their kind."""

    observation: Nest
    """[M, ...], or an `ObservedWindow`"""
    action: Nest
    """[M, ...]"""
    following: Nest
    """Observations that values are bootstrapped from, likewise; a window's own"""
    data: Any
    """The batch, a `Transition` or a `Sequence`"""
    mask: Any = None
    """[M] 1 for rows that are learned from; None: all are"""

    def mean(self, x: jax.Array) -> jax.Array:
        """Returns the mean [] of numbers [..., M] over the rows that are learned from."""
        return jnp.mean(x) if self.mask is None else masks.mean(x, self._as_wide(x))

    def _as_wide(self, x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(self.mask, x.shape)

    def targets(self, values: jax.Array, config: Any) -> jax.Array:
        """Returns the returns [M] that critics learn, bootstrapped from values [M] of `following`.

        Args:
          values: of single rows those of the next observations; of windows those of all rows.
          config: has `discount` and, of windows, `n_step`.
        """
        data = self.data
        if isinstance(data, Transition):
            return data.reward + config.discount * data.discount * values

        def of_window(reward, discount, values, step_type, mask):
            is_step = masks.learned_steps(step_type, mask)[:-1]
            found = returns.n_step_targets(
                reward[:-1], config.discount * discount[:-1], values, is_step, config.n_step
            )
            return jnp.append(found, 0.0)  # Of the last row nothing is learned.

        values = values.reshape(data.mask.shape)
        rows = (data.reward, data.discount, values, data.step_type, data.mask)
        return jax.vmap(of_window)(*rows).reshape(-1)


def learned_rows(data: Transition | Sequence, config: Any) -> LearnedRows:
    """Returns the rows of a batch.

    Args:
      data: the batch; of windows the extras are those of `policies.recurrent`.
      config: of windows, a `MemoryConfig`.
    """
    if isinstance(data, Transition):
        return LearnedRows(data.observation, data.action, data.next_observation, data)
    assert isinstance(config, MemoryConfig)
    memory = jax.tree.map(lambda x: x[:, 0], data.extras.memory)
    first = data.step_type == int(dm_env.StepType.FIRST)
    window = ObservedWindow(data.observation, memory, first)
    learned = jax.vmap(masks.learned_steps, in_axes=(0, 0, None))
    mask = learned(data.step_type, data.mask, config.burn_in).reshape(-1)
    return LearnedRows(window, leading_axes.merge(data.action), window, data, mask)
