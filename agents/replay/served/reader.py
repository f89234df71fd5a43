"""The learner's proxy of a replay in another process."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import jax

from ..items import ReplaySpec, Rollouts, Sample
from ..nests import Nest
from ..remote import ReadingProxy
from .chunks import ReplayServer

_PATIENCE = 0.4  # How long the server may wait for the pace before both look around.
_AGAIN_SECONDS = 0.1
_AHEAD = 16
"""Batches that wait for the learner, at most: a call costs about the same for all of them."""


class ServedReader(ReadingProxy):
    """Draws from a `SharedReplay` in another process, for the learner.

    If the server does not answer, its threads try again until it does.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        environment_spec: Any,
        extras_spec: Nest,
        server: ReplayServer,
        *,
        steps_per_sample: int = 1,
        hosts: int = 1,
        rank: int = 0,
    ) -> None:
        """Begins to read.

        Args:
          spec, environment_spec, extras_spec: As the server's replay was made from, with this
            one's part of the batch.
          server: A `SharedReplay`, near or far.
          steps_per_sample: K, batches that the learner draws at once, as the server's.
          hosts: Processes of the learner, each of which draws its part.
          rank: Number of this one among them.
        """
        super().__init__(spec, environment_spec, extras_spec, steps_per_sample)
        self._server, self._rank = server, rank
        self._drawn = 0  # Of rollouts, the key after the last that was drawn.
        self._given: int | None = None  # Likewise, of those that the learner has had.
        # Items that others may have drawn between two draws here, and those that wait for them.
        self._others = 2 * (hosts - 1) * steps_per_sample * spec.batch_size
        if not isinstance(spec.item, Rollouts):
            self._ahead = max(1, _AHEAD // steps_per_sample)
        self._begin()

    def sample(self, num_batches: int | None = None) -> Sample:
        """See `ReadingProxy.sample`."""
        batches = super().sample(num_batches)
        if isinstance(self.spec.item, Rollouts):
            self._given = int(batches.info.keys.max()) + 1 + self._others
        return batches

    def on_published(self) -> Callable[[], bool] | None:
        """Makes the call for when actors can have parameters that have learned from all that was
        sampled: it tells the server, and returns whether that has heard.

        Returns:
          None: actors do not wait for parameters (`ReplaySpec.max_ahead`).
        """
        if self.spec.max_ahead is None:
            return None
        return functools.partial(self._tell, self._given)

    def _tell(self, before: int | None) -> bool:
        with contextlib.suppress(*self.failed):
            if before is not None:
                self._server.published(before)
            return True
        return False

    def _ask(self) -> tuple[int, int, int]:
        return self._server.numbers()

    def _read(self) -> None:
        while self._has_room():
            room = self._ahead - len(self._batches)
            try:
                sample = self._server.draw(
                    self.spec.batch_size, _PATIENCE, room, self._drawn, self._rank
                )
            except self.failed:
                time.sleep(_AGAIN_SECONDS)
                continue
            if sample is not None:
                if isinstance(self.spec.item, Rollouts):
                    self._drawn = int(sample.info.keys.max()) + 1
                k = self._leading[0]
                for first in range(0, len(sample.info.keys), k):
                    part = slice(first, first + k)
                    self._hand_on(jax.tree.map(lambda leaf, part=part: leaf[part], sample))

    def _write(self) -> None:
        while (update := self._updates.get()) is not None:
            with contextlib.suppress(*self.failed):
                self._server.update_priorities(*update)
