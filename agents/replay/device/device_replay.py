"""The replay in the memory of a device: items, draws and pace, as pure functions of its state."""

from __future__ import annotations

import fractions
import math
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp

from .. import pace
from ..embedded.embedded_replay import first_capacity, row_fields, table_size
from ..items import Nest, ReplaySpec, Rollouts, Sample
from . import windows as finders
from .ring import Ring, RingState
from .table import Table, TableState

_MOST = 2**31 - 1
"""Of what is counted in 32 bits."""


class ReplayState(NamedTuple):
    """All that a replay remembers: a pytree of arrays, which a compiled program carries."""

    rows: Any
    """`RingState`; () where a program carries it apart"""
    windows: Nest
    """Of items that are not complete"""
    items: TableState
    debt: jax.Array
    """int32 []: items that may be drawn, times the denominator of the pace; negative before
    `min_size`"""


class DeviceReplay:
    """Functions of `ReplayState`, for the rows of N streams in lockstep.

    The items are those of `EmbeddedReplay`, under the same keys; so are the probabilities of draws
    and the pace. Two things differ, since nothing grows on a device. Rows are as many as `max_size`
    items of ordinary episodes take: of episodes of a few steps, whose last rows begin no item,
    fewer items are held. And who adds is trusted: `can_insert` has to be asked before, step types
    follow one another as they must.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest = (),
        *,
        num_envs: int,
        steps_per_sample: int = 1,
    ) -> None:
        """Prepares the functions; nothing is allocated.

        Args:
          spec: what an item is, how many are held, and the pace.
          environment_spec: its `observations` and `actions` say what rows hold.
          extras_spec: of what the policy stores beside an action.
          num_envs: N.
          steps_per_sample: K, batches that the learner draws at once.

        Raises:
          ValueError: if the spec does not fit the streams, its pace would come to a halt, or it
            cannot be counted in 32 bits.
        """
        self.spec, self._steps_per_sample = spec, steps_per_sample
        self._windows = finders.make(spec.item, num_envs)
        self._queued = isinstance(spec.item, Rollouts)
        size = table_size(spec, num_envs, steps_per_sample)
        if size < self._windows.most_found:
            raise ValueError(
                f"max_size is {size} (--config.max_replay_size), and one step of {num_envs} "
                f"environments may complete {self._windows.most_found} items; it must be at least "
                "as many."
            )
        fields = row_fields(self._windows.stored, environment_spec, extras_spec)
        capacity = first_capacity(spec.item, self._windows.span, size, num_envs)
        self._ring = Ring(fields, capacity, num_envs)
        names = ("row", "stream", "span", "reward", "discount")
        held = names[:3] if self._windows.stored else names
        self._table = Table(size, held, spec.priority_exponent)
        self._ratio: fractions.Fraction | None = None
        if spec.samples_per_insert is not None:
            self._ratio = fractions.Fraction(spec.samples_per_insert).limit_denominator(1000)
            tolerance = pace.Pace(spec, steps_per_sample).tolerance
            self._tolerance = math.floor(tolerance * self._ratio.denominator)
            self._first_debt = -spec.min_size * self._ratio.numerator
            if not self._ratio or max(self._tolerance, -self._first_debt) > _MOST // 2:
                raise ValueError(
                    f"samples_per_insert is {spec.samples_per_insert}, min_size {spec.min_size} "
                    f"and the tolerance {tolerance}: a replay on a device keeps such a pace in 32 "
                    "bits only with a simpler ratio (as 0.25 or 8) or a smaller min_size."
                )

    def init(self) -> ReplayState:
        """Returns an empty replay."""
        return ReplayState(
            self._ring.init(),
            self._windows.init(),
            self._table.init(),
            jnp.int32(0 if self._ratio is None else self._first_debt),
        )

    @property
    def first_sampled_at(self) -> int:
        """Items that are inserted before the first may be drawn."""
        return 0 if self._queued else self.spec.min_size

    @property
    def num_bytes(self) -> int:
        """Bytes that the state takes."""
        shapes = jax.tree.leaves(jax.eval_shape(self.init))
        return sum(math.prod(one.shape) * one.dtype.itemsize for one in shapes)

    def add_first(self, state: ReplayState, timestep: dm_env.TimeStep) -> ReplayState:
        """Begins an episode in every stream; what was not complete is dropped."""
        row = state.rows.written
        rows = self._begin(state.rows, timestep)
        return state._replace(rows=rows, windows=self._windows.restart(state.windows, row))

    def add(
        self,
        state: ReplayState,
        action: Nest,
        timestep: dm_env.TimeStep,
        extras: Nest = (),
        active: jax.Array | bool = True,
    ) -> ReplayState:
        """Adds actions [N, ...] with their extras, and the time step that followed them.

        Where that is FIRST, the stream's action began an episode and is not kept.

        Args:
          state: before.
          action: that was taken.
          timestep: what came of it.
          extras: of the policy.
          active: bool []; where it is False nothing is added. Then only the row that the next will
            overwrite is written to, and no array is copied.
        """
        ring, rows = self._ring, state.rows
        written = {"action": action, "extras": extras}
        outcomes = {"reward": timestep.reward, "discount": timestep.discount}
        written |= {name: outcomes[name] for name in outcomes if name in self._windows.stored}

        for name, value in written.items():
            rows = ring.write(rows, name, value)
        row = rows.written
        rows = self._begin(rows, timestep)
        windows, found = self._windows.advance(
            state.windows, row, timestep.reward, timestep.discount, timestep.step_type
        )
        if active is not True:
            rows = rows._replace(written=jnp.where(active, rows.written, row))
            windows = jax.tree.map(lambda a, b: jnp.where(active, a, b), windows, state.windows)
            found = found._replace(valid=found.valid & active)
        before = state.items.next
        items = self._table.insert(state.items, found)
        if not self._queued:  # The rings hold all rows of a full queue: none is overwritten.
            # Rows that the next may overwrite, or that a stack of frames reaches back to.
            oldest = rows.written + 1 - ring.capacity + (ring.depth - 1)
            items = self._table.drop_before(items, oldest)
        debt = state.debt
        if self._ratio is not None:
            debt = debt + self._ratio.numerator * (items.next - before)
        return ReplayState(rows, windows, items, debt)

    def _begin(self, rows: RingState, timestep: dm_env.TimeStep) -> RingState:
        rows = self._ring.begin(rows, timestep.observation, timestep.step_type)
        if "step_type" in self._windows.stored:
            rows = self._ring.write(rows, "step_type", timestep.step_type)
        return rows

    def size(self, state: ReplayState) -> jax.Array:
        """Returns the number of items held, int32 []."""
        return state.items.next - state.items.first

    def can_insert(self, state: ReplayState) -> jax.Array:
        """Returns bool []: the pace lets actors take another step."""
        if self._queued:
            return self.size(state) < self._steps_per_sample * self.spec.batch_size
        if self._ratio is None:
            return jnp.bool_(True)
        return state.debt <= self._tolerance

    def can_sample(self, state: ReplayState) -> jax.Array:
        """Returns bool []: the pace lets the learner draw its K batches."""
        wanted, size = self._steps_per_sample * self.spec.batch_size, self.size(state)
        if self._queued:
            return size >= wanted
        enough = size >= self.spec.min_size
        if self._ratio is None:
            return enough
        return enough & (state.debt >= wanted * self._ratio.denominator)

    def sample(self, state: ReplayState, key: jax.Array) -> tuple[ReplayState, Sample]:
        """Draws K batches, [K, B, ...]. `can_sample` has to be asked before.

        Args:
          state: of the replay.
          key: of the draws; rollouts are taken in order and need none.
        """
        leading = (self._steps_per_sample, self.spec.batch_size)
        if self._queued:
            items, columns, info = self._table.take(state.items, leading)
        else:
            items, columns, info = self._table.draw(state.items, key, leading)
        debt = state.debt
        if self._ratio is not None:
            debt = debt - math.prod(leading) * self._ratio.denominator
        data = self._windows.gather(self._ring, state.rows, columns)
        return state._replace(items=items, debt=debt), Sample(info, data)

    def update_priorities(
        self,
        state: ReplayState,
        keys: jax.Array,
        priorities: jax.Array,
        active: jax.Array | bool = True,
    ) -> ReplayState:
        """Gives items new priorities, to which the exponent is applied here; if `active`."""
        if active is not True:
            keys, priorities = jnp.where(active, keys, -1), jnp.where(active, priorities, 0.0)
        return state._replace(items=self._table.update_priorities(state.items, keys, priorities))
