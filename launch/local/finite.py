"""Judges a learner's metrics: numbers that are not finite, and what users should know of others.

Numbers that are not finite are a sign in the metrics, and the end of the run in the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ...agents.interfaces import ManagedLearner
from ..errors import DivergedError
from ..files.frozen import nan_at

Nest = Any


class MetricsWatch:
    """Reads a learner's metrics and judges what is not finite among them by the learner's state.

    No name decides: a loss may be undefined for one batch, and an optimizer may skip its step. The
    state is looked at once for each metric that is not finite; later saves look at it anyway.
    """

    def __init__(self, learner: ManagedLearner, warn: Callable[[str], None]):
        """Begins to watch.

        Args:
          learner: has the metrics and the state.
          warn: is told in a line of a metric that is not finite where the state is, and of what
            the learner remarks, each once.
        """
        self._learner, self._warn = learner, warn
        self._known: set[str] = set()
        self._remarked: set[str] = set()

    def __call__(self) -> Mapping[str, float]:
        """The learner's metrics of its last gradient step.

        Raises:
          DivergedError: if one of them is not finite, and a number of the state is NaN.
        """
        found: Mapping[str, float] = self._learner.metrics()
        bad = {
            name: f"{name} is {value}"
            for name, value in found.items()
            if name not in self._known and not math.isfinite(value)
        }
        if bad:
            steps = self._learner.steps
            require(self._learner.live_state(), steps, f"; {', '.join(sorted(bad.values()))}")
            self._known |= bad.keys()
            for said in bad.values():
                self._warn(
                    f"warning: the metric {said} after {steps:,} gradient steps, and the learner's "
                    "state is not; the run goes on, and this is said once"
                )
        for name, remark in self._learner.remarks(found).items():
            if name not in self._remarked:
                self._remarked.add(name)
                self._warn(f"warning: {remark}; this is said once")
        return found


def require(state: Nest, steps: int, detail: str = "") -> None:
    """Raises DivergedError where a number of a learner's state is NaN.

    Args:
      state: what the learner saves.
      steps: gradient steps that it has taken.
      detail: what else the message says.
    """
    path = nan_at(state)
    if path is not None:
        raise DivergedError(
            f"the learner's {path} holds nan after {steps:,} gradient steps{detail}"
        )
