"""Levels of tests that are repeated as seeds are added: error spending (Lan and DeMets 1983).

What is spent depends on the seeds looked at and not on their greatest number, and the whole is
never spent: a maximum may be raised later, and the rates of error stay.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

_HALF = 20
"""Seeds a side after which half of a rate of error is spent."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)
_LOW, _HIGH = -8.0, 24.0
"""Normal scores beyond which there is nothing."""


def levels(looks: Sequence[int], level: float, power: int) -> tuple[float, ...]:
    """Returns the nominal one-sided level of each look.

    Args:
      looks: numbers of seeds a side, increasing. Later ones change nothing of earlier ones.
      level: rate of error of all looks together, however many there are.
      power: 1 spends early, 2 late.
    """
    shares = [n**power / (n**power + _HALF**power) for n in looks]
    return nominal(tuple(looks), tuple(level * share for share in shares))


@functools.cache
def nominal(information: tuple[float, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the nominal levels at which the errors up to each look are those spent.

    Scores at the looks are correlated as sums of independent normal increments are. The density of
    these below all bounds is integrated from look to look (Jennison and Turnbull 2000, chapter 19).

    Args:
      information: at each look, increasing, in any unit.
      spent: rate of error up to each look, increasing.
    """
    found: list[float] = []
    points, mass = np.zeros(1), np.ones(1)  # The sum so far, where it is below all bounds.
    before, used = 0.0, 0.0
    for now, allowed in zip(information, spent, strict=True):
        scale, step = np.sqrt(now), np.sqrt(now - before)

        def beyond(bound: float, *given: float, points=points, mass=mass) -> float:
            scale, step, share = given
            return float(mass @ stats.norm.sf((bound * scale - points) / step)) - share

        bound = optimize.brentq(beyond, _LOW, _HIGH, args=(scale, step, allowed - used))
        found.append(float(stats.norm.sf(bound)))
        half = (bound - _LOW) * scale / 2
        nodes = _LOW * scale + half * (_NODES + 1)
        density = stats.norm.pdf((nodes[:, None] - points) / step) @ mass / step
        points, mass = nodes, density * _WEIGHTS * half
        before, used = now, allowed
    return tuple(found)
