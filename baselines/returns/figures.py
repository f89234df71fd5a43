"""The figures of a run that comparisons are made of, and what sets two descriptions apart."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...launch.clock import StepCount
from ...launch.errors import RequestError


@dataclasses.dataclass(frozen=True)
class Figures:
    """The outcome of one seed."""

    final: float
    """Mean return of the last evaluation."""
    area: float
    """Area under the curve of evaluations over its length, the mean return of training. Up to the
    first evaluation the curve is level: how late that is, which evaluators of their own decide,
    then matters little."""
    seconds: float
    """Of training, without evaluations and checkpoints."""

    @classmethod
    def of(cls, result: Mapping[str, Any], clock: StepCount, name: str) -> Figures:
        """Reads the figures off a `result.json`.

        Args:
          result: its content.
          clock: by which the budget was counted.
          name: of the run, for the message.

        Raises:
          RequestError: if an evaluation has no finite return.
        """
        rows = result["evaluation"]
        returns = [row["mean"] for row in rows]
        if not all(one is not None and math.isfinite(one) for one in returns):
            raise RequestError(f"{name} has an evaluation without a finite return; leave it out.")
        steps = np.diff([row[clock.name] for row in rows], prepend=0)
        middles = np.add(returns, [returns[0], *returns[:-1]]) / 2
        area = steps @ middles / steps.sum() if steps.any() else returns[-1]
        return cls(returns[-1], float(area), result["train_seconds"])


def stacked(figures: Sequence[Figures]) -> np.ndarray:
    """Returns [2, number of seeds]: the final returns and the areas."""
    return np.array([[one.final for one in figures], [one.area for one in figures]])


def first_difference(found: Any, asked: Any, name: str = "") -> str | None:
    """Names the first setting that two values of JSON differ in; None where they are equal."""
    if isinstance(found, dict) and isinstance(asked, dict):
        for key in [*asked, *(key for key in found if key not in asked)]:
            inner = f"{name}.{key}" if name else key
            different = first_difference(found.get(key), asked.get(key), inner)
            if different:
                return different
        return None
    return None if found == asked else f"{name} was {json.dumps(found)} and is {json.dumps(asked)}"
