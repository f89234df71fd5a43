"""Judging a policy in a program: the episodes that `evaluation.evaluator.play` would play."""

from __future__ import annotations

from typing import Any

from ...environments.functional import FunctionalVector
from ..evaluation.evaluator import Evaluator
from ..signals import Stop
from .population import Play, PopulationMember


class CompiledEvaluator(Evaluator):
    """An evaluator whose environments are written in JAX."""

    def __init__(self, member: PopulationMember, *arguments: Any):
        """Takes the run whose policy is judged, and what an `Evaluator` does."""
        super().__init__(*arguments)
        self._member = member

    def _play(self, environment: Any, episodes: int, stop: Stop) -> list[float] | None:
        if not isinstance(environment, FunctionalVector):  # Judged in another than it learns in.
            return super()._play(environment, episodes, stop)
        (params,) = self._source.get_variables(("policy",))
        asked = Play(
            environment.functions,
            episodes,
            environment.keys,
            self._key,
            params,
            lambda: stop.requested,
        )
        return self._member.play(asked)
