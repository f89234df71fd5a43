"""Chunks: rows and the items found in them, as a writer sends them to a server.

A row is sent once, however many items it is part of; of a stack of frames only the newest is sent.
A row's observation is known before its action, reward and discount (its answers). The answers in a
chunk therefore lag one row behind the observations.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..embedded.rows import Rows
from ..items import Sample

ROWS = 64
"""After how many rows a chunk is sent, at the latest."""
ALIVE_SECONDS = 5.0
"""After so many, a writer that is busy with an item says that it still is."""
_SEEN = ("observation", "step_type")
_ANSWERS = ("action", "extras", "reward", "discount")


class Chunk(NamedTuple):
    """Rows of N streams in lockstep. T: new rows, M: items."""

    row: int
    """Number of the first new row, as its writer counts."""
    seen: dict[str, list[np.ndarray]]
    """By field, of every leaf [T, N, ...]: what is known of a row when it begins."""
    answers: dict[str, list[np.ndarray]]
    """By field, of every leaf: what followed, of the rows from `row` - 1 on (from 0, if that is
    the first) to the one before the newest."""
    ages: np.ndarray
    """[T, N] uint8, see `Rows.ages`."""
    items: list[np.ndarray]
    """[M], a column each, as the windows name them; rows as their writer counts."""


class ReplayServer(Protocol):
    """The calls of writers and a reader to a `SharedReplay`, near or far."""

    def write(self, writer: str, number: int, chunk: Chunk, seconds: float) -> int | None: ...

    def hear(self, writer: str, acts: bool) -> None: ...

    def draw(
        self, batch_size: int, seconds: float, most: int = 1, drawn: int = 0, rank: int = 0
    ) -> Sample | None: ...

    def published(self, before: int) -> None: ...

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...

    def numbers(self) -> tuple[int, int, int]: ...


def take(rows: Rows, start: int, items: list[np.ndarray]) -> Chunk:
    """The rows from `start` on, which were not sent yet."""
    stop, answered = rows.written, max(0, start - 1)
    return Chunk(
        start,
        {name: rows.copy(name, start, stop) for name in _SEEN if name in rows.columns},
        {
            name: rows.copy(name, answered, max(answered, stop - 1))
            for name in _ANSWERS
            if name in rows.columns
        },
        rows.ages(start, stop),
        items,
    )


def put(chunk: Chunk, rows: Rows, follows: bool) -> None:
    """Adds a chunk's rows to others, in which there is room.

    Args:
      chunk: its rows.
      rows: where they go.
      follows: whether the row before the chunk's first is there; its answers are dropped if not.
    """
    start = rows.written
    rows.begin_copies(chunk.ages)
    for name, leaves in chunk.seen.items():
        rows.paste(name, start, leaves)
    lost = 1 if chunk.row and not follows else 0
    for name, leaves in chunk.answers.items():
        rows.paste(name, start - 1 if follows else start, [leaf[lost:] for leaf in leaves])
        # Until its answer comes, if it does: behind an episode's last row there is none.
        rows.clear(name, ...)


class Items:
    """Collects the items that windows find, until they are sent."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._dtypes = list(columns.values())
        self._columns: list[list[Any]] = [[] for _ in columns]

    def insert_one(self, values: tuple[Any, ...]) -> None:
        """See `entries.ItemSink`."""
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def insert(self, values: tuple[Any, ...], count: int) -> None:
        """See `entries.ItemSink`."""
        for column, value in zip(self._columns, values, strict=True):
            column.extend(np.broadcast_to(value, count).tolist())

    def __len__(self) -> int:
        return len(self._columns[0])

    def take(self) -> list[np.ndarray]:
        """Removes all items, and returns them as [M] for every column."""
        pairs = zip(self._columns, self._dtypes, strict=True)
        taken = [np.array(column, dtype) for column, dtype in pairs]
        self._columns = [[] for _ in self._columns]
        return taken
