"""The margin of a comparison, named by the user or by the range of an environment's returns."""

from __future__ import annotations

import math

from ...launch.errors import RequestError
from ...launch.specification.recipe import Recipe
from .random_return import random_return
from .request import PART
from .verdicts import ComparisonRule

_FORM = "--margin takes a return such as 20, or a part of the range such as 10%"


def make_rule(
    recipe: Recipe, margin: str | None, target: float | None, batch: int
) -> tuple[ComparisonRule, float | None]:
    """Makes the rule of a comparison before its first run.

    The range of returns goes from that of uniform actions, which is measured, to the target. Where
    there is no target it is taken to be ten margins.

    Args:
      recipe: of the environment.
      margin: in words: a return or a part of the range; None: a tenth of the range.
      target: return of a good run; None: not known.
      batch: seeds between looks.

    Returns:
      The rule, and the return of uniform actions; None where there is no target.

    Raises:
      RequestError: if there is no such margin, or neither a margin nor a target is named.
    """
    value, is_part = _parse(margin)
    if target is None:
        if is_part:
            raise RequestError(
                f"{recipe.agent} on {recipe.env} has no target return, of which a margin could be "
                "a part; name one with --target, or a --margin such as 20."
            )
        return ComparisonRule(value, value / PART, batch), None
    random = random_return(recipe)
    if target <= random:
        raise RequestError(
            f"the target return of {target:g} is not above the {random:.1f} of random actions on "
            f"{recipe.env}; name another --target, or a --margin and no target."
        )
    span = target - random
    return ComparisonRule(value * span if is_part else value, span, batch), random


def _parse(margin: str | None) -> tuple[float, bool]:
    """Returns the number that a margin is, and True if that is a part of the range."""
    if margin is None:
        return PART, True
    is_part = margin.endswith("%")
    try:
        value = float(margin.removesuffix("%")) / (100 if is_part else 1)
    except ValueError:
        raise RequestError(f"{margin!r} is no margin; {_FORM}.") from None
    if not 0 < value < math.inf:
        raise RequestError(f"a margin of {margin} is met by no number of seeds; {_FORM}, above 0.")
    return value, is_part
