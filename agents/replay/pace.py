"""The pace of a replay: how many items may be drawn for those inserted.

The rule is that of Reverb's `SampleToInsertRatio`: it limits the debt of the learner,
`(inserted - min_size) * samples_per_insert - sampled`. Here the learner never draws ahead of the
actors (the debt stays at or above 0), so that in one process a batch is drawn at the same step in
every run, and the actors are held once the debt is above the tolerance.
"""

from __future__ import annotations

import math

from .items import ReplaySpec, Rollouts


class Pace:
    """Says who may go on. It keeps no counts of its own."""

    def __init__(self, spec: ReplaySpec, steps_per_sample: int = 1) -> None:
        """Prepares the pace of `spec`, with `steps_per_sample` batches drawn at a time.

        Raises:
          ValueError: If actors would be held before the learner may draw, for ever.
        """
        self._min_size = spec.min_size
        self._ratio = spec.samples_per_insert
        dispatch = steps_per_sample * spec.batch_size
        self.tolerance = tolerance(spec, steps_per_sample)
        if self._ratio is not None and self.tolerance < dispatch:
            raise ValueError(
                f"tolerance is {self.tolerance} drawn items, and the learner draws {dispatch} at a "
                f"time ({steps_per_sample} batches of {spec.batch_size}): actors would be held "
                f"before it may draw. Make the tolerance at least {dispatch}, or draw fewer "
                "batches at a time."
            )

    def debt(self, inserted: int, sampled: int) -> float:
        """Items that the learner may draw now; negative before `min_size`."""
        return (inserted - self._min_size) * (self._ratio or 0.0) - sampled

    def can_sample(self, size: int, inserted: int, sampled: int, wanted: int) -> bool:
        """True if `wanted` items may be drawn from `size`."""
        if size < self._min_size:
            return False
        return self._ratio is None or self.debt(inserted, sampled) >= wanted

    def can_insert(self, inserted: int, sampled: int) -> bool:
        """True if actors may take another step."""
        return self._ratio is None or self.debt(inserted, sampled) <= self.tolerance


def tolerance(spec: ReplaySpec, steps_per_sample: int = 1) -> float:
    """The debt above which actors are held, in drawn items, with the default filled in."""
    if spec.tolerance is not None:
        return spec.tolerance
    # Room for a batch beside the dispatch that comes next: what one takes at once is large where
    # it holds many batches, and twice as much has actors act by parameters that are twice as old.
    least = (steps_per_sample + 1.0) * spec.batch_size
    return max(least, 0.1 * spec.min_size * (spec.samples_per_insert or 0.0))


def least_steps(spec: ReplaySpec, steps_per_sample: int = 1) -> int:
    """Actor steps before which the learner can draw nothing, where episodes are long."""
    dispatch = steps_per_sample * spec.batch_size
    if isinstance(spec.item, Rollouts):
        return dispatch * spec.item.length
    if spec.samples_per_insert is None:
        return spec.min_size
    return spec.min_size + math.ceil(dispatch / spec.samples_per_insert)
