"""The clock that a run counts its budget in: its actor steps, or its learner steps."""

from __future__ import annotations

from typing import NamedTuple


class StepCount(NamedTuple):
    """A count of a run (`telling.metrics.COUNTS`) that its budget, its evaluations and its
    curves go by."""

    name: str
    words: str
    """The unit, as the user reads it."""


ACTOR_STEPS = StepCount("actor_steps", "actor steps")
LEARNER_STEPS = StepCount("learner_steps", "gradient steps")
"""Of runs that learn from data, in which nobody acts."""
