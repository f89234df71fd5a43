"""Checkpoints that are written beside the run: it stops for a copy, and never for the disk."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from .background import Background
from .checkpoints import Store
from .frozen import Freezer

Nest = Any


@dataclasses.dataclass(frozen=True)
class Written:
    """A checkpoint that is complete."""

    path: pathlib.Path
    counters: Mapping[str, Any]


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread of its own.

    What goes wrong there is raised where the run next looks, by `take`.
    """

    def __init__(self, store: Store):
        self.store = store
        self._freezer = Freezer()
        self._thread: Background[Written] = Background("checkpoint")

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread.busy

    def freeze(self, parts: Mapping[str, Nest]) -> dict[str, Nest]:
        """A copy of parts of the run's state, for one `start`; see `frozen.Freezer`.

        The checkpoint before must have been taken: this copy lies where that one lay.
        """
        frozen = self._freezer.freeze(dict(parts))
        return {name: frozen[name] for name in parts}  # In their order.

    def start(
        self,
        parts: Mapping[str, Nest],
        counters: Mapping[str, Any],
        identity: Mapping[str, Any],
        *,
        check: Callable[[], None],
        more: Callable[[], Mapping[str, Any]] = dict,
        others: Callable[[pathlib.Path], Callable[[], None]] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Begins to write a checkpoint. The one before must have been taken.

        Args:
          parts: nests by name, which nobody changes before it is written.
          counters: numbers that the run goes on from.
          identity: whose it is.
          check: raises where the parts must not be kept; called before anything is written.
          more: gives further counters, which are not known yet.
          others: as of `Store.save`.
          then: called once it is complete.

        Every one of these functions is called in the thread.
        """

        def write() -> Written:
            check()
            everything = {**counters, **more()}
            path = self.store.save(parts, everything, identity, others)
            if then is not None:
                then()
            return Written(path, everything)

        self._thread.start(write)

    def take(self, seconds: float | None = 0.0) -> Written | None:
        """A checkpoint that is complete within so many seconds, once; None: there is none.

        Args:
          seconds: to wait; None: until what is being written is.

        Raises:
          CheckpointError, DivergedError, Exception: what kept it from being written.
        """
        return self._thread.take(seconds)

    def wait(self, seconds: float | None = None) -> None:
        """Waits until nothing is being written, whatever becomes of it, at most so long."""
        self._thread.wait(seconds)
