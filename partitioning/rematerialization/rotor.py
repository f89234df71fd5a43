"""Optimal checkpointing of chains: the stages to keep, and those to compute again.

The dynamic program of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing
for heterogeneous chains" (https://arxiv.org/abs/1911.13214), which Rotor implements. Numbers alone:
nothing here knows of programs. Differences from the paper: the backward pass of a stage costs the
same in every plan and is left out of the times; what else lives beside the chain while a stage runs
is one number for each direction; and a stage may be closed, when its result cannot be had again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

#: Into how many slots memory is divided.
_SLOTS = 400
#: The choices besides a stage to split at.
_SAVE, _NONE = -1, -2


@dataclasses.dataclass(frozen=True)
class Stage:
    """One link of the chain.

    Attributes:
      seconds: of its forward pass.
      saved: bytes that its forward pass makes for its backward pass and for the next stage.
      result: bytes that it makes for the next stage.
      forward_beside: bytes in use beside the chain while its forward pass runs.
      backward_beside: the same while its backward pass runs.
      closed: True if its result can be made only once, as where devices exchange data for it.
    """

    seconds: float
    saved: float
    result: float
    forward_beside: float = 0.0
    backward_beside: float = 0.0
    closed: bool = False


@dataclasses.dataclass(frozen=True)
class Act:
    """One act of a plan.

    Attributes:
      what: "pass" runs a stage forward and keeps nothing but its result; "mark" is that, and keeps
        what the stage reads; "save" keeps all that its backward pass needs; "back" is that pass.
      stage: its number.
    """

    what: str
    stage: int


class Rotor:
    """The optimal plans of a chain, for every amount of memory up to all that it can use.

    Args:
      stages: the chain, first to last.

    Attributes:
      slot: bytes of one slot of memory.
      seconds: [S + 1] the least time of all forward passes within each number of slots; inf where
        nothing fits.
    """

    def __init__(self, stages: Sequence[Stage]):
        self.stages = tuple(stages)
        count = len(self.stages)
        beside = max(max(s.forward_beside, s.backward_beside) for s in self.stages)
        most = sum(max(s.saved, s.result) for s in self.stages) + 2 * beside
        self.slot = max(most, 1.0) / (_SLOTS - 2 * count)
        self._saved = [round(s.saved / self.slot) for s in self.stages]
        self._result = [round(s.result / self.slot) for s in self.stages]
        self._cost = np.full((count, count, _SLOTS + 1), np.inf)
        self._choice = np.full((count, count, _SLOTS + 1), _NONE, np.int16)
        self._solve()
        self.seconds = self._cost[0, count - 1]

    def _solve(self) -> None:
        """Fills cost[s, t][m], of stages s to t within m slots, and what to do first there."""
        stages, saved, result = self.stages, self._saved, self._result
        count = len(stages)
        ahead = [round(s.forward_beside / self.slot) for s in stages]
        back = [round(s.backward_beside / self.slot) for s in stages]
        passing = np.concatenate([[0.0], np.cumsum([s.seconds for s in stages])])
        for first in range(count - 1, -1, -1):
            need = saved[first] + back[first]
            self._cost[first, first, need:] = stages[first].seconds
            self._choice[first, first, need:] = _SAVE
            # What a closed stage hands on is kept when it is made; it cannot be passed again.
            last_split = next((k for k in range(first, count) if stages[k].closed), count) + 1
            handling = [result[k] + ahead[k] for k in range(first, count)]
            room = np.maximum.accumulate(handling).tolist()
            for last in range(first + 1, count):
                cost, choice = self._cost[first, last], self._choice[first, last]
                kept = max(saved[first], need)
                rest = self._cost[first + 1, last, kept - saved[first] : _SLOTS + 1 - saved[first]]
                cost[kept:] = stages[first].seconds + rest
                choice[kept:][np.isfinite(rest)] = _SAVE
                for split in range(first + 1, min(last, last_split) + 1):
                    held = max(result[split - 1], room[split - first - 1])
                    if held > _SLOTS:
                        continue
                    left = self._cost[split, last][held - result[split - 1] :]
                    total = (
                        passing[split]
                        - passing[first]
                        + left[: _SLOTS + 1 - held]
                        + self._cost[first, split - 1][held:]
                    )
                    better = total < cost[held:]
                    cost[held:][better] = total[better]
                    choice[held:][better] = split

    def plans(self) -> list[tuple[float, tuple[Act, ...]]]:
        """(seconds, acts) of every plan that is the best within some memory, the fastest first; of
        equally fast ones that which needs least.
        """
        fits = np.flatnonzero(np.isfinite(self.seconds))
        least = [m for m in fits if m == fits[0] or self.seconds[m] < self.seconds[m - 1] - 1e-12]
        last = len(self.stages) - 1
        return [(float(self.seconds[m]), tuple(self._acts(0, last, int(m)))) for m in least[::-1]]

    def _acts(self, first: int, last: int, slots: int) -> list[Act]:
        choice = int(self._choice[first, last, slots])
        assert choice != _NONE
        if first == last:
            return [Act("save", first), Act("back", first)]
        if choice == _SAVE:
            rest = self._acts(first + 1, last, slots - self._saved[first])
            return [Act("save", first), *rest, Act("back", first)]
        passed = [Act("mark", first), *(Act("pass", k) for k in range(first + 1, choice))]
        later = self._acts(choice, last, slots - self._result[choice - 1])
        return [*passed, *later, *self._acts(first, choice - 1, slots)]
