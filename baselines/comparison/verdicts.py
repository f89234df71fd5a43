"""Answers on scales, as seeds are added in batches: equivalent, different, or not enough seeds.

A scale is *equivalent* to the first one where both its final return and its area under the curve
are within the margin. That claims all of four one-sided tests at once, an intersection-union test:
each has the whole level (Berger 1982, https://doi.org/10.1080/00401706.1982.10487790). A scale is
*different* where either of the two differs, which is a claim of any of four one-sided tests: each
has a quarter of the level (Bonferroni), and the difference must be estimated beyond the margin. The
two claims exclude each other. Of several scales either claim is corrected after Holm (1979): one
that is shown leaves its share of the level to the others, as of the look at which it is shown
(Maurer and Bretz 2013, https://doi.org/10.1080/19466315.2013.807748).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from . import bounds
from .equivalence import Difference, difference, fewest, power

METRICS = ("final", "area")
"""Figures that a run is judged by: the final return, and the curve's area over its length."""
EQUIVALENT, DIFFERENT, UNDECIDED = "equivalent", "different", "not enough seeds"
LEVEL = 0.05
"""Rate of error of either claim, all scales and looks together."""
POWER = 0.8
"""The chance of an answer that the number of seeds is planned for, where returns are equal."""
_LATE, _EARLY = 2, 1
"""Equivalence takes dozens of seeds, a fault may show in ten."""
_SIDES = 2 * len(METRICS)
_MOST_LOOKS = 100


@dataclasses.dataclass(frozen=True)
class ComparisonRule:
    """The margin and the looks, named before the first run."""

    margin: float
    """The difference of returns that counts."""
    span: float
    """The range of returns, from that of a failed run to that of a good one."""
    batch: int = 10
    """Seeds between looks."""

    def looks(self, seeds: int) -> range:
        """Returns the numbers of seeds that are looked at up to a number of seeds."""
        return range(self.batch, seeds + 1, self.batch)

    @functools.cached_property
    def first(self) -> int:
        """The fewest seeds that can show equivalence: runs without spread do. Earlier looks spend
        nothing of its level."""
        return fewest(self.margin, self.span, LEVEL)

    def equivalence_level(self, looks: Sequence[int], share: int) -> float:
        """Returns the level of the last look for one of `share` claims; 0 where it is too early."""
        late = [n for n in looks if n >= self.first]
        return bounds.levels(late, LEVEL / share, _LATE)[-1] if late else 0.0

    def difference_level(self, looks: Sequence[int], share: int) -> float:
        """Returns the two-sided level of the last look of each metric."""
        return 2 * bounds.levels(looks, LEVEL / (_SIDES * share), _EARLY)[-1]


@dataclasses.dataclass(frozen=True)
class MetricDifference:
    """The difference of one metric from the first scale."""

    mean: float
    difference: float
    low: float
    high: float
    """Ends of the interval that must lie within the margins."""
    p_equivalent: float
    p_different: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer on one scale."""

    answer: str
    """`EQUIVALENT`, `DIFFERENT` or `UNDECIDED`."""
    seeds: int
    """Seeds a side at the look that answers, or at the last."""
    paired: bool
    level: float
    """One-sided, of the two tests of equivalence at that look."""
    metrics: Mapping[str, MetricDifference]
    needed: int | None = None
    """Seeds that would do if returns are equal; None: there is an answer, or no number would do."""


def judge(
    returns: Mapping[str, np.ndarray], rule: ComparisonRule, paired: Collection[str] = ()
) -> dict[str, Verdict]:
    """Compares scales with the first one, at every look that their seeds allow.

    Args:
      returns: by scale, [number of metrics, number of seeds]. One that is answered at some look may
        have no more seeds than that.
      rule: named before.
      paired: scales of which runs share the draws of the first scale's, seed by seed.

    Returns:
      By scale, the first one left out.
    """
    first, *others = returns
    found: dict[str, Verdict] = {}
    looks: list[int] = []
    for seeds in rule.looks(returns[first].shape[-1]):
        left = [name for name in others if not _is_answered(found.get(name))]
        if not left or any(returns[name].shape[-1] < seeds for name in left):
            break
        looks.append(seeds)
        pairs = {name: (returns[first][:, :seeds], returns[name][:, :seeds]) for name in left}
        apart = {
            name: difference(*pair, rule.margin, rule.span, paired=name in paired)
            for name, pair in pairs.items()
        }
        answers = _answers(apart, found, rule, looks, len(others))
        share = len(others) - _number(answers, EQUIVALENT) - _number(found, EQUIVALENT)
        level = rule.equivalence_level(looks, max(share, 1))
        for name, (_, sample) in pairs.items():
            # Until the first look that spends some of the level, intervals are those of all of it.
            metrics = _estimates(apart[name], sample, level or LEVEL)
            found[name] = Verdict(answers[name], seeds, name in paired, level, metrics)
    for name, verdict in found.items():
        if not _is_answered(verdict):
            n, share = verdict.seeds, len(others) - _number(found, EQUIVALENT)
            samples = returns[first][:, :n], returns[name][:, :n]
            would_do = needed(*samples, rule, share=share, paired=verdict.paired)
            found[name] = dataclasses.replace(verdict, needed=would_do)
    return found


def needed(
    reference: np.ndarray,
    other: np.ndarray,
    rule: ComparisonRule,
    *,
    share: int = 1,
    paired: bool = False,
) -> int | None:
    """Estimates how many seeds a side show equivalence with `POWER`, where returns are equal.

    Args:
      reference: returns [number of metrics, n], of which the spread is taken.
      other: those of another scale.
      rule: named before.
      share: scales between which the level is divided.
      paired: as of `difference`.

    Returns:
      A number of seeds that is looked at, above n; None where a hundred looks are too few.
    """
    looks = rule.looks(_MOST_LOOKS * rule.batch)
    late = [n for n in looks if n >= rule.first]
    if not late:
        return None
    seeds = np.array(late)
    level = np.array(bounds.levels(late, LEVEL / share, _LATE))
    missed = sum(
        1 - power(*samples, rule.margin, rule.span, seeds, level, paired=paired)
        for samples in zip(reference, other, strict=True)
    )
    enough = (missed <= 1 - POWER) & (seeds > reference.shape[-1])
    return int(seeds[enough.argmax()]) if enough.any() else None


def _answers(
    apart: Mapping[str, Difference],
    found: Mapping[str, Verdict],
    rule: ComparisonRule,
    looks: Sequence[int],
    total: int,
) -> dict[str, str]:
    """Answers a look, the clearest cases first."""
    answers = dict.fromkeys(apart, UNDECIDED)
    same = {name: float(one.p_equivalent.max()) for name, one in apart.items()}
    beyond = {
        name: float(np.where(np.abs(one.estimate) > rule.margin, one.p_different, 1.0).min())
        for name, one in apart.items()
    }
    for answer, chances, level in (
        (EQUIVALENT, same, rule.equivalence_level),
        (DIFFERENT, beyond, rule.difference_level),
    ):
        shown = _number(found, answer)
        for name in sorted(chances, key=chances.__getitem__):
            if chances[name] > level(looks, total - shown):
                break
            answers[name] = answer
            shown += 1
    return answers


def _estimates(apart: Difference, sample: np.ndarray, level: float) -> dict[str, MetricDifference]:
    low, high = apart.interval(level)
    columns = (sample.mean(-1), apart.estimate, low, high, apart.p_equivalent, apart.p_different)
    rows = zip(*columns, strict=True)
    return {
        name: MetricDifference(*map(float, row)) for name, row in zip(METRICS, rows, strict=True)
    }


def _is_answered(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.answer != UNDECIDED


def _number(verdicts: Mapping[str, Verdict | str], answer: str) -> int:
    return sum(answer in (one, getattr(one, "answer", None)) for one in verdicts.values())
