"""The opponents of a learner that is trained against itself, chosen between two steps."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ...environments.functional import FunctionalVector
    from ...environments.functional.games import SelfPlay

Nest = Any


class OpponentChoice:
    """What comes between two steps of acting, and then the choice of who plays in the next.

    As `agents.acting.opponents` has it in a program; the draws are others. Each actor holds older
    versions of its own, of those that it has had.
    """

    def __init__(
        self,
        between: Callable[[], bool],
        environment: FunctionalVector,
        how: SelfPlay,
        present: Callable[[], Nest],
        seed: int,
        num_streams: int | None = None,
    ):
        """Chooses the first opponent.

        Args:
          between: returns whether there are newer parameters of the policy.
          environment: faces a policy, whose parameters are set.
          how: opponents are chosen.
          present: returns those of the present policy, which do not change later.
          seed: of the draws.
          num_streams: environments of all actors, which are taken to act at one speed; None: those
            of this one.
        """
        self._between, self._environment, self._how = between, environment, how
        self._present, self._random = present, np.random.default_rng(seed)
        self._params = present()
        self._versions: collections.deque[Nest] = collections.deque(maxlen=how.versions)
        self._num_streams = num_streams or environment.num_envs
        self._steps = self._due = 0
        self._chosen: Nest = None
        self._choose()

    def __call__(self) -> bool:
        """Returns whether there are newer parameters of the policy."""
        is_newer = self._between()
        if is_newer:
            self._params = self._present()
        self._steps += self._num_streams
        self._choose()
        return is_newer

    def _choose(self) -> None:
        chosen = self._params
        if self._how.versions:
            if self._steps >= self._due:
                self._versions.append(self._params)
                self._due = self._steps + self._how.period
            number = int(self._random.integers(2 * len(self._versions)))
            if number < len(self._versions):
                chosen = self._versions[number]
        if chosen is not self._chosen:
            self._chosen = self._environment.opponent = chosen
