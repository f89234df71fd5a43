"""The tables of a Reverb server."""

from __future__ import annotations

from typing import Any

import reverb
import tensorflow as tf

from ..items import ReplaySpec
from ..nests import Nest
from ..pace import tolerance
from .wire import Wire

TABLE = "replay"
LARGEST = "largest_priority"


def make_tables(
    spec: ReplaySpec, environment_spec: Any, extras_spec: Nest = (), steps_per_dispatch: int = 1
) -> list[reverb.Table]:
    """The tables of a spec's replay, for a `reverb.Server`.

    Args:
      spec: What an item is, how many are held, and the pace.
      environment_spec: As `EmbeddedReplay` takes it.
      extras_spec: As `EmbeddedReplay` takes it.
      steps_per_dispatch: K, batches that the learner draws at once.

    Raises:
      ValueError: If the pace would come to a halt.
    """
    wire = Wire(spec, environment_spec, extras_spec)
    signature = {
        name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in wire.columns.items()
    }
    if wire.is_rollout:
        # The batch that is put together waits at the reader: more in the table would be older.
        return [reverb.Table.queue(TABLE, 1, signature=signature)]
    sampler = reverb.selectors.Uniform()
    if spec.priority_exponent is not None:
        sampler = reverb.selectors.Prioritized(spec.priority_exponent)
    tables = [
        reverb.Table(
            TABLE,
            sampler=sampler,
            remover=reverb.selectors.Fifo(),
            max_size=spec.max_size,
            rate_limiter=_limiter(spec, steps_per_dispatch),
            signature=signature,
        )
    ]
    if spec.priority_exponent is not None:
        # Holds one number, the largest priority, which actors give to new items.
        tables.append(
            reverb.Table(
                LARGEST,
                sampler=reverb.selectors.Uniform(),
                remover=reverb.selectors.Fifo(),
                max_size=1,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=tf.TensorSpec((), tf.float64),
            )
        )
    return tables


def _limiter(spec: ReplaySpec, steps_per_dispatch: int) -> reverb.rate_limiters.RateLimiter:
    """Reverb's pace, which as the embedded one's never lets the learner run ahead.

    The reader takes items one by one as the pace allows and waits until it has a batch. So the
    tolerance need not hold a dispatch, and by default is small enough for the ratio to be within a
    few per cent of its target from the first thousand items on.
    """
    ratio = spec.samples_per_insert
    if ratio is None:
        return reverb.rate_limiters.MinSize(spec.min_size)
    least = 2.0 * max(1.0, ratio)
    room = spec.tolerance
    if room is None:
        room = max(least, min(tolerance(spec, steps_per_dispatch), 25.0 * ratio))
    elif room < least:
        raise ValueError(
            f"tolerance is {room} drawn items at {ratio} samples per insert; Reverb needs at least "
            f"{least}, or it may come to a halt."
        )
    start = spec.min_size * ratio
    return reverb.rate_limiters.SampleToInsertRatio(ratio, spec.min_size, (start, start + room))
