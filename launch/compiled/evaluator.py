"""Judging a policy in a program: the episodes that `evaluation.evaluator.play` would play."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...environments.functional import FunctionalVector
from ..evaluation.evaluator import LONG_EPISODE, Evaluator, Played, endless
from ..signals import Stop
from .episodes import TURNS
from .population import Play, PopulationMember


class CompiledEvaluator(Evaluator):
    """An evaluator whose environments are written in JAX."""

    def __init__(self, member: PopulationMember, *arguments: Any):
        """Takes the run whose policy is judged, and what an `Evaluator` does."""
        super().__init__(*arguments)
        self._member = member

    def _play(
        self,
        environment: Any,
        episodes: int,
        stop: Stop,
        say: Callable[[str], None],
        opponent: Any = None,
    ) -> Played | None:
        if not isinstance(environment, FunctionalVector):  # Judged in another than it learns in.
            return super()._play(environment, episodes, stop, say, opponent)
        most = -(-episodes // environment.num_envs) * LONG_EPISODE
        steps = 0

        def stopped() -> bool:
            nonlocal steps
            if steps > most and not environment.max_episode_steps:
                say(endless())
            steps += TURNS
            return stop.requested

        (params,) = self._source.get_variables(("policy",))
        asked = Play(
            environment.functions,
            episodes,
            environment.keys,
            self._key,
            params,
            stopped,
            () if opponent is None else opponent,
        )
        returns = self._member.play(asked)
        return None if returns is None else Played(returns)
