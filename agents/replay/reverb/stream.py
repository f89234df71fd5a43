"""One environment's writer: from rows to items of a Reverb table."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import reverb
from dm_env import StepType

from ..items import ReplaySpec, Transitions
from ..sequences import SequenceWindows
from ..transitions import TransitionWindows
from .largest import LargestPriority
from .tables import TABLE
from .wire import Wire

PATIENCE_MS = 400  # How long a writer waits before it looks around.
_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)
# Items that the server has not confirmed yet. With 4 a step waited 170 us longer for the server, of
# 600 that adding took an environment of 5 ms a step (two cores).
_IN_FLIGHT = 16


class Stream:
    """One environment's writer. Its steps are rows and, behind an episode's end, a few more."""

    def __init__(
        self,
        spec: ReplaySpec,
        wire: Wire,
        client: reverb.Client,
        largest: LargestPriority | None,
    ) -> None:
        self._wire, self._client, self._largest = wire, client, largest
        self._in_flight = 0 if wire.is_rollout else _IN_FLIGHT
        self._windows: TransitionWindows | SequenceWindows
        if isinstance(spec.item, Transitions):
            self._windows = TransitionWindows(spec.item, None)
        else:
            self._windows = SequenceWindows(spec.item, None)
        self._windows.insert_into(self)
        self._zeros: dict[str, Any] = {
            leaf.name: np.zeros(leaf.kept, leaf.dtype)
            for leaves in wire.leaves.values()
            for leaf in leaves
        }
        if not wire.is_transition:
            self._zeros |= {name: np.float32(0) for name in ("reward", "discount", "mask")}
            self._zeros["step_type"] = np.int32(_LAST)
        elif wire.depth > 1:
            self._zeros["age"] = np.int32(0)
        self._writer: reverb.TrajectoryWriter | None = None
        self._steps = 0  # Steps of the writer that were begun.
        self._row = 0  # Step of the row that was begun last.
        self._kind: int | None = None  # Its step type; None: the next must be a first.
        self._is_open = False  # Whether a step waits for its other columns.
        self._age = 0  # Rows since the first of the episode.
        self._seen: list[int] = []  # The newest steps that have an observation.
        self._padding = 0  # Steps of padding behind the last row.
        self._found: list[tuple[Any, ...]] = []  # Transitions that are to be made.
        self._has_news = False  # Whether items were made that may not be confirmed.

    def first(self, observation: list[np.ndarray], follows: bool, waits: bool = False) -> None:
        """Begins an episode, or waits for one to begin.

        Args:
          observation: of the row.
          follows: whether it comes behind an episode that ended, where there was one.
          waits: whether the stream waits (`specs.waiting`), so that another first row follows.
        """
        if self._kind == _LAST and follows:
            self._begin(observation, _FIRST)
            self._windows.advance(self._row, 0.0, 0.0, [_FIRST], False)
            return
        if self._writer is None:
            # Signatures are not asked for: the server may not be there yet.
            self._writer = self._client.trajectory_writer(
                num_keep_alive_refs=self._wire.reach, get_signature_timeout_ms=None
            )
        self._close()
        if not self._steps:
            # Reverb takes runs of steps only: there must be some before the first frame.
            for _ in range(self._wire.depth - 1):
                self._pad()
        self._begin(observation, _FIRST, waits=waits)
        if waits:
            self._close()
        self._windows.restart(self._row)

    def add(
        self,
        answer: list[np.ndarray],
        reward: float,
        discount: float,
        observation: list[np.ndarray],
        kind: int,
    ) -> None:
        """Adds the step that followed the open row, and opens the next."""
        waits = kind == _FIRST and discount == 0.0
        if self._kind is None:  # The rest of an episode that was lost.
            if kind == _FIRST:
                self.first(observation, False, waits)
            return
        if self._is_open:
            self._answer(answer, reward, discount)
        if self._wire.is_transition:
            # What the row completes is found first: returns travel in a step with an observation.
            self._windows.advance(self._steps, reward, discount, [kind], False)
            found, self._found = self._found, []
            self._begin(observation, kind, found[0] if found else None, waits)
            for i, item in enumerate(found):
                self._insert_transition(i, *item)
            return
        self._begin(observation, kind, waits=waits)
        if kind == _LAST or waits:
            self._close()
        self._windows.advance(self._row, reward, discount, [kind], False)

    def insert_one(self, values: tuple[Any, ...]) -> None:
        """Makes an item; called by the windows."""
        if self._wire.is_transition:
            self._found.append(values)
        else:
            self._insert_sequence(values[0], values[2])

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        """Makes an item of the one stream; called by the windows."""
        assert count == 1
        self._insert_sequence(values[0], values[2])

    def delivered(self) -> bool:
        """True if few enough items wait to be confirmed. Waits a moment for them."""
        if not self._has_news:
            return True
        try:
            self.flush(self._in_flight, PATIENCE_MS)
        except reverb.DeadlineExceededError:
            return False
        self._has_news = False
        return True

    def flush(self, pending: int, timeout_ms: int | None) -> None:
        """Waits until at most so many items are not confirmed."""
        if self._writer is not None:
            self._writer.flush(pending, timeout_ms)

    def pause(self) -> None:
        """Lets windows that are not complete go; the stream goes on with the next first row."""
        self._kind = None

    def drop(self) -> None:
        """Forgets all that was written as well, and the writer."""
        if self._writer is not None:
            with contextlib.suppress(reverb.ReverbError, RuntimeError):
                self._writer.close()
        self._forget()

    def _forget(self) -> None:
        self._writer = None
        self._row = self._steps = self._padding = 0
        self._seen, self._kind, self._age = [], None, 0
        self._found = []
        self._is_open = self._has_news = False

    def _nothing(self) -> list[np.ndarray]:
        leaves = self._wire.leaves["action"] + self._wire.leaves["extras"]
        return [self._zeros[leaf.name] for leaf in leaves]

    def _append(self, columns: dict[str, Any], *, closes: bool) -> None:
        assert self._writer is not None
        if not self._is_open:
            self._steps += 1
        self._writer.append(columns, partial_step=not closes)
        self._is_open = not closes

    def _begin(
        self,
        observation: list[np.ndarray],
        kind: int,
        item: tuple[Any, ...] | None = None,
        waits: bool = False,
    ) -> None:
        """Begins a row, with the return of the transition that it completes.

        Of a stream that waits it is as padding: no learner takes it for a step.
        """
        leaves = self._wire.leaves["observation"]
        columns: dict[str, Any] = {
            leaf.name: part for leaf, part in zip(leaves, observation, strict=True)
        }
        self._age = 0 if kind == _FIRST else self._age + 1
        if not self._wire.is_transition:
            said = _LAST if waits else kind
            columns |= {"step_type": np.int32(said), "mask": np.float32(not waits)}
        elif self._wire.depth > 1:
            columns["age"] = np.int32(self._age)
        if item is not None:
            columns |= {"reward": np.float32(item[1]), "discount": np.float32(item[2])}
        ends = kind == _LAST or waits
        self._append(columns, closes=self._wire.is_transition and ends)
        self._row, self._kind, self._padding = self._steps - 1, kind, 0
        self._see(self._row)

    def _answer(self, answer: list[np.ndarray], reward: float, discount: float) -> None:
        leaves = self._wire.leaves["action"] + self._wire.leaves["extras"]
        columns: dict[str, Any] = {
            leaf.name: part for leaf, part in zip(leaves, answer, strict=True)
        }
        if not self._wire.is_transition:
            columns |= {"reward": np.float32(reward), "discount": np.float32(discount)}
        self._append(columns, closes=True)

    def _close(self) -> None:
        """Ends a row that no action follows."""
        if self._is_open:
            self._answer(self._nothing(), 0.0, 0.0)

    def _pad(self) -> None:
        """Adds a step of zeros."""
        self._append(self._zeros, closes=True)
        self._see(self._steps - 1)

    def _see(self, step: int) -> None:
        """Remembers a step that has an observation."""
        self._seen.append(step)
        del self._seen[: -self._wire.reach]

    def _frames(self, row: int, before: int) -> list[int]:
        """The steps of so many frames before `row`."""
        at = self._seen.index(row)
        return self._seen[at - before : at]

    def _insert_transition(
        self, index: int, row: int, reward: float, discount: float, span: int = 1
    ) -> None:
        """Makes an item. At an episode's end several come together, each in a step of its own."""
        if index:
            outcome = {"reward": np.float32(reward), "discount": np.float32(discount)}
            self._append(outcome, closes=True)
        assert self._writer is not None
        history, columns = self._writer.history, {}
        for leaf in self._wire.leaves["observation"]:
            for prefix, at in (("", row), ("next_", row + span)):
                rows: Any = at if leaf.stack == 1 else [*self._frames(at, leaf.stack - 1), at]
                columns[prefix + leaf.name] = history[leaf.name][rows]
        for leaf in self._wire.leaves["action"] + self._wire.leaves["extras"]:
            columns[leaf.name] = history[leaf.name][row]
        for name in ("reward", "discount"):
            columns[name] = history[name][self._steps - 1]
        if self._wire.depth > 1:
            columns |= {"age": history["age"][row], "next_age": history["age"][row + span]}
        self._create(columns)

    def _insert_sequence(self, row: int, span: int) -> None:
        length = self._wire.length
        for _ in range(length - span - self._padding):
            self._pad()
            self._padding += 1
        assert self._writer is not None
        history, columns = self._writer.history, {}
        rows = list(range(row, row + length))
        for leaf in self._wire.leaves["observation"]:
            columns[leaf.name] = history[leaf.name][self._frames(row, leaf.stack - 1) + rows]
        outcomes = rows[:-1] if self._wire.is_rollout else rows
        for leaf in self._wire.leaves["action"] + self._wire.leaves["extras"]:
            columns[leaf.name] = history[leaf.name][outcomes]
        for name in ("reward", "discount"):
            columns[name] = history[name][outcomes]
        columns["mask"] = history["mask"][rows]
        before = self._frames(row, self._wire.depth - 1)
        columns["step_type"] = history["step_type"][before + rows]
        self._create(columns)

    def _create(self, columns: dict[str, Any]) -> None:
        assert self._writer is not None
        priority = 1.0 if self._largest is None else self._largest.get()
        self._writer.create_item(TABLE, priority, columns)
        self._has_news = True
