"""The adder of the embedded replay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
from dm_env import StepType

from ....environments import specs
from ..items import WAITING
from ..nests import Nest
from ..sequences import SequenceWindows
from ..transitions import TransitionWindows
from .rows import Rows

_FIRST, _MID, _LAST = (int(kind) for kind in StepType)


class EmbeddedAdder:
    """Writes the steps of all streams. Made by `EmbeddedReplay.adder`.

    With N environments `add_first` comes once, and the first steps of later episodes come to `add`
    as any other; with one (N None) every episode begins with `add_first`. In the middle of an
    episode, `add_first` drops what is not complete. Of streams that wait (`specs.waiting`) the rows
    are kept as `WAITING`, and are part of no item but rollouts, which mask them.
    """

    def __init__(
        self,
        rows: Rows,
        windows: TransitionWindows | SequenceWindows,
        lock: threading.RLock,
        before_row: Callable[[], None],
        oldest: Callable[[], int],
    ) -> None:
        """Writes to a replay's parts.

        Args:
          rows: Where rows go.
          windows: What finds items in them.
          lock: Held while a row is written.
          before_row: Called before a row is added; may raise.
          oldest: The first row that whatever was found still needs.
        """
        self._rows, self._windows, self._oldest = rows, windows, oldest
        self._lock, self._before_row = lock, before_row
        self._one = rows.lead == ()
        self._lead = rows.lead
        self._has_extras = bool(rows.columns["extras"])
        self._keeps_outcomes = "reward" in rows.columns
        self._safe_until = 0  # The row that must not be begun before there is room for it.
        self._checked = False
        # The step types of the row that was begun last; None: add_first must come.
        self._kinds: list[int] | None = None
        # Streams that stood at LAST in that row, or waited; None: none.
        self._ended: np.ndarray | None = None
        self._all_mid = [_MID] * rows.streams

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Begins an episode in every stream.

        Raises:
          ValueError: If the time step is not the first of an episode, or does not fit the spec.
        """
        if np.shape(timestep.step_type) != self._lead or np.any(
            np.asarray(timestep.step_type) != _FIRST
        ):
            raise ValueError(
                f"add_first got the step type {timestep.step_type}; with "
                f"{self._lead[0] if self._lead else 'one'} environment(s) it must be FIRST of "
                f"shape {self._lead}."
            )
        self._rows.structures["observation"].check(timestep.observation, self._lead)
        waits = None if self._one else specs.waiting(timestep.step_type, timestep.discount)
        with self._lock:
            row = self._begin(timestep, waits)
            if self._one and self._kinds == [_LAST]:
                self._windows.advance(row, 0.0, 0.0, [_FIRST], False)
            else:
                self._windows.restart(row)
        self._kinds = [_FIRST] * self._rows.streams
        self._ended = np.flatnonzero(waits) if waits is not None and waits.any() else None

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds an action and the time step that followed it.

        Raises:
          ValueError: If no episode was begun, values do not fit their specs, a queue of rollouts
            is full, or (vectors) episodes do not follow one another as they must.
        """
        rows = self._rows
        if not self._checked:
            self._check(action, next_timestep, extras)
        reward: Any = next_timestep.reward
        discount: Any = next_timestep.discount
        if self._one:
            kinds = [int(next_timestep.step_type)]
        else:
            kinds = next_timestep.step_type.tolist()
        mid = kinds == self._all_mid and self._kinds == kinds
        ended, waits = self._ended, None
        if not mid:
            self._check_order(kinds, next_timestep)
            if ended is not None and not self._one:
                waits = specs.waiting(next_timestep.step_type, discount)
        with self._lock:
            self._before_row()
            rows.write("action", action)
            if self._has_extras:
                rows.write("extras", extras)
            if self._keeps_outcomes:
                rows.write("reward", reward)
                rows.write("discount", discount)
            if ended is not None:
                self._clear(ended)
            row = self._begin(next_timestep, waits)
            if not self._one and len(kinds) == 1:
                reward, discount = reward.item(), discount.item()
            self._windows.advance(row, reward, discount, kinds, mid)
            self._ended = None
            if not mid and (_LAST in kinds or (waits is not None and waits.any())):
                over = np.asarray(next_timestep.step_type) == _LAST
                self._ended = np.flatnonzero(over if waits is None else over | waits)
                self._clear(... if self._one else self._ended)
        self._kinds = kinds

    def reset(self) -> None:
        """Drops what is not complete; `add_first` must come next."""
        self._kinds, self._ended, self._safe_until = None, None, 0

    def _check_order(self, kinds: list[int], timestep: dm_env.TimeStep) -> None:
        """Raises ValueError if these step types cannot follow those before."""
        before = self._kinds
        if before is None:
            raise ValueError("add_first must come before add.")
        if self._one:
            if before[0] == _LAST or kinds[0] == _FIRST:
                raise ValueError("every episode begins with add_first, and only with it.")
            return
        begun = (timestep.step_type == _FIRST).nonzero()[0]
        if begun.tolist() != ([] if self._ended is None else self._ended.tolist()):
            raise ValueError(
                f"step types {kinds} followed {before}: the step after LAST, or after FIRST of a "
                "stream that waits, must be FIRST, and no other."
            )

    def _clear(self, streams: Any) -> None:
        """Zeroes what followed the last row of an episode."""
        for name in ("action", "extras", "reward", "discount"):
            if name in self._rows.columns:
                self._rows.clear(name, streams)

    def _check(self, action: Nest, timestep: dm_env.TimeStep, extras: Nest) -> None:
        structures = self._rows.structures
        structures["action"].check(action, self._lead)
        structures["observation"].check(timestep.observation, self._lead)
        structures["extras"].check(extras, self._lead)
        for name in ("step_type", "reward", "discount"):
            shape = np.shape(getattr(timestep, name))
            if shape != self._lead:
                raise ValueError(f"{name} has the shape {shape}; it must be {self._lead}.")
        self._checked = True

    def _make_room(self) -> None:
        """Sees to it that the next row overwrites nothing that is needed."""
        rows = self._rows
        # What is being found begins at most a span earlier, and stacks reach further back.
        oldest = min(rows.written - self._windows.span, self._oldest())
        oldest = max(0, oldest - (rows.depth - 1))
        if rows.written >= oldest + rows.capacity:
            rows.grow(rows.capacity + max(64, rows.capacity // 4), oldest)
        self._safe_until = oldest + rows.capacity

    def _begin(self, timestep: dm_env.TimeStep, waits: np.ndarray | None = None) -> int:
        """Begins a row, in which some streams may wait, and returns its number."""
        rows = self._rows
        if rows.written >= self._safe_until:
            self._make_room()
        rows.begin(timestep.observation, timestep.step_type)
        if "step_type" in rows.columns:
            kinds = timestep.step_type
            rows.write("step_type", kinds if waits is None else np.where(waits, WAITING, kinds))
        return rows.written - 1
