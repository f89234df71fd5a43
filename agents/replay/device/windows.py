"""Items in the rows of N streams, found as the rows are written.

The same items in the same order as `replay.transitions` and `replay.sequences` find. How many a row
completes depends on where episodes end, so that there is room for the most it can, and a mask.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ..items import Episodes, Item, Nest, Rollouts, Sequence, Sequences, Transition, Transitions
from .ring import Ring, RingState

_FIRST, _LAST = 0, 2  # dm_env.StepType
_FIELDS = ("observation", "action", "extras", "reward", "discount", "step_type")
_OUTCOMES = ("action", "extras", "reward", "discount")


class FoundItems(NamedTuple):
    """Places for the items that a row may complete, [M], in the order of insertion."""

    valid: jax.Array
    """bool: there is one"""
    columns: dict[str, jax.Array]
    """Columns that the table keeps of each: "row" and "stream" of its first row, int32, and more"""


class Windows(Protocol):
    """Finds the items of one kind, and gathers them again."""

    stored: tuple[str, ...]
    """Of reward, discount and step type, what rows must hold."""
    span: int
    """Rows of the longest item."""
    most_found: int
    """M, items that one row may complete."""

    def init(self) -> Nest:
        """Returns the state of windows that are not complete, of which there are none."""

    def restart(self, state: Nest, row: jax.Array) -> Nest:
        """Forgets windows that are not complete: every stream begins an episode with `row`."""

    def advance(
        self, state: Nest, row: jax.Array, reward: jax.Array, discount: jax.Array, kinds: jax.Array
    ) -> tuple[Nest, FoundItems]:
        """Finds what `row`, just begun with these step types, completes.

        Args:
          state: of windows.
          row: its number, int32 [].
          reward: that came with it, [N].
          discount: likewise.
          kinds: its step types, [N].
        """

    def gather(self, ring: Ring, rows: RingState, items: dict[str, jax.Array]) -> Any:
        """Returns items as a `Transition` or a `Sequence`; `items` are columns of any shape."""


def make(item: Item, num_streams: int) -> Windows:
    """Builds the finder of items in the rows of N streams."""
    if isinstance(item, Transitions):
        return TransitionFinder(item, num_streams)
    return SequenceFinder(item, num_streams)


class _Pending(NamedTuple):
    """Transitions in the making, by row mod n and stream."""

    returns: jax.Array
    """float32 [n, N]"""
    discounts: jax.Array
    """float32 [n, N]"""
    actions: jax.Array
    """int32 [N]: actions of the episode so far"""


class TransitionFinder:
    """Finds n-step transitions."""

    stored: tuple[str, ...] = ()

    def __init__(self, item: Transitions, num_streams: int) -> None:
        self._n, self._gamma = item.n_step, item.discount
        self._streams = jnp.arange(num_streams, dtype=jnp.int32)
        self.span = item.n_step + 1
        self.most_found = num_streams * (1 if self._n == 1 else 1 + self._n)

    def init(self) -> _Pending:
        shape = (self._n, len(self._streams))
        actions = jnp.zeros(shape[1], jnp.int32)
        return _Pending(jnp.zeros(shape), jnp.ones(shape), actions)

    def restart(self, state: _Pending, row: jax.Array) -> _Pending:
        del row
        return state._replace(actions=jnp.zeros_like(state.actions))

    def advance(
        self,
        state: _Pending,
        row: jax.Array,
        reward: jax.Array,
        discount: jax.Array,
        kinds: jax.Array,
    ) -> tuple[_Pending, FoundItems]:
        if self._n == 1:
            rows = jnp.full_like(self._streams, row - 1)
            columns = self._columns(rows, self._streams, jnp.ones_like(rows), reward, discount)
            return state, FoundItems(kinds != _FIRST, columns)
        newest = (row - 1) % self._n
        returns, discounts = state.returns.at[newest].set(0.0), state.discounts.at[newest].set(1.0)
        returns = returns + discounts * reward
        discounts = discounts * discount
        actions = jnp.where(kinds == _FIRST, 0, state.actions + 1)
        found = self._find(row, returns, discounts, actions, kinds)
        return _Pending(returns, discounts * self._gamma, actions), found

    def _find(
        self,
        row: jax.Array,
        returns: jax.Array,
        discounts: jax.Array,
        actions: jax.Array,
        kinds: jax.Array,
    ) -> FoundItems:
        """Finds the transition that is full in each stream, then those that an end cuts short."""
        n, count = self._n, len(self._streams)
        full = (actions >= n) & (kinds != _LAST)
        # Of a stream that ends, the longest comes first.
        spans = jnp.tile(jnp.arange(n, 0, -1, dtype=jnp.int32), count)
        ended = jnp.repeat(self._streams, n)
        cut = (kinds[ended] == _LAST) & (spans <= actions[ended])
        span = jnp.concatenate([jnp.full(count, n, jnp.int32), spans])
        stream = jnp.concatenate([self._streams, ended])
        begun = row - span
        place = begun % n
        columns = self._columns(
            begun, stream, span, returns[place, stream], discounts[place, stream]
        )
        return FoundItems(jnp.concatenate([full, cut]), columns)

    def _columns(self, *columns: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(("row", "stream", "span", "reward", "discount"), columns, strict=True))

    def gather(self, ring: Ring, rows: RingState, items: dict[str, jax.Array]) -> Transition:
        first, stream = items["row"], items["stream"]
        return Transition(
            observation=ring.gather(rows, "observation", first, stream),
            action=ring.gather(rows, "action", first, stream),
            reward=items["reward"],
            discount=items["discount"],
            next_observation=ring.gather(rows, "observation", first + items["span"], stream),
            extras=ring.gather(rows, "extras", first, stream),
        )


class SequenceFinder:
    """Finds sequences, episodes and rollouts. Each stream has one window that is open."""

    stored: tuple[str, ...] = ("reward", "discount", "step_type")

    def __init__(self, item: Sequences | Episodes | Rollouts, num_streams: int) -> None:
        self._is_rollout = isinstance(item, Rollouts)
        self._is_sequence = isinstance(item, Sequences)
        if isinstance(item, Sequences):
            self._length, self._period = item.length, item.period
        elif isinstance(item, Episodes):
            self._length = self._period = item.max_length
        else:
            self._length, self._period = item.length + 1, item.length
        self._streams = jnp.arange(num_streams, dtype=jnp.int32)
        self.span = self._length
        self.most_found = num_streams * (2 if self._is_sequence else 1)

    def init(self) -> jax.Array:
        """Returns the first rows of the open windows, int32 [N]."""
        return jnp.zeros_like(self._streams)

    def restart(self, state: jax.Array, row: jax.Array) -> jax.Array:
        return jnp.full_like(state, row)

    def advance(
        self,
        state: jax.Array,
        row: jax.Array,
        reward: jax.Array,
        discount: jax.Array,
        kinds: jax.Array,
    ) -> tuple[jax.Array, FoundItems]:
        del reward, discount
        spans = jnp.full_like(state, self._length)
        if self._is_rollout:
            # A window needs the observation of its last row and nothing more of it.
            full = row - state == self._period
            return jnp.where(full, row, state), self._found(full, state, spans)
        begun = jnp.where(kinds == _FIRST, row, state)
        ended = kinds == _LAST
        if not self._is_sequence:
            return begun, self._found(ended, begun, row + 1 - begun)
        # Row `row` has no action yet, so that a window is complete before it.
        full = (kinds != _FIRST) & (begun + self._length == row)
        opened = jnp.where(full, begun + self._period, begun)
        # Of each stream the full window comes first.
        pairs = ((full, ended), (begun, opened), (spans, row + 1 - opened))
        valid, starts, lengths = (jnp.stack(pair, 1).reshape(-1) for pair in pairs)
        return opened, self._found(valid, starts, lengths, jnp.repeat(self._streams, 2))

    def _found(
        self,
        valid: jax.Array,
        row: jax.Array,
        span: jax.Array,
        stream: jax.Array | None = None,
    ) -> FoundItems:
        stream = self._streams if stream is None else stream
        return FoundItems(valid, {"row": row, "stream": stream, "span": span})

    def gather(self, ring: Ring, rows: RingState, items: dict[str, jax.Array]) -> Sequence:
        spans = items["span"][..., None]
        ages = jnp.arange(self._length)
        seen = ages < spans
        steps = items["row"][..., None] + jnp.minimum(ages, spans - 1)
        streams = jnp.broadcast_to(items["stream"][..., None], steps.shape)
        fields = {name: ring.gather(rows, name, steps, streams) for name in _FIELDS}
        # What followed the last row of an episode, or follows that of a rollout, means nothing.
        acted = seen & (fields["step_type"] != _LAST)
        if self._is_rollout:
            acted &= ages < self._length - 1
        for name in _FIELDS:
            kept = acted if name in _OUTCOMES else seen
            fill = _LAST if name == "step_type" else 0
            fields[name] = jax.tree.map(
                functools.partial(_pad, kept=kept, padding=fill), fields[name]
            )
        return Sequence(**fields, mask=seen.astype(jnp.float32))


def _pad(leaf: jax.Array, kept: jax.Array, padding: int) -> jax.Array:
    """Returns a leaf [..., T, ...] with the padding where `kept` [..., T] is False."""
    mask = kept.reshape(kept.shape + (1,) * (leaf.ndim - kept.ndim))
    return jnp.where(mask, leaf, jnp.asarray(padding, leaf.dtype))
