"""Observations of mean 0 and deviation 1, by running statistics of what is learned from."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...environments.specs import EnvironmentSpec
from ..configs import Config
from ..interfaces import ActorCore, Update
from ..learning import normalization
from ..learning.normalization import Statistics, Variables
from ..replay.items import Sample, Transition
from .wrapper import Wrapper, learn_before, seen


@dataclasses.dataclass(frozen=True)
class NormalizedConfig(Config):
    """Nothing is to be set."""


class Normalized(Wrapper):
    """Has any agent learn and act on normalised observations.

    The statistics are those of the global batches, and go to actors with the parameters.
    """

    config_class = NormalizedConfig

    def make_policy(
        self,
        networks: Any,
        spec: EnvironmentSpec,
        *,
        evaluation: bool = False,
        num_streams: int = 1,
    ) -> ActorCore:
        core = super().make_policy(  # type: ignore[safe-super]
            networks, spec, evaluation=evaluation, num_streams=num_streams
        )

        def select_action(variables, observation, state):
            return core.select_action(variables.params, variables.observe(observation), state)

        return core._replace(select_action=select_action)

    def make_update(self, networks: Any, spec: EnvironmentSpec) -> Update:
        agent = super().make_update(networks, spec)  # type: ignore[safe-super]
        normalization.init(spec.observations)  # Raises what is to be raised before anything runs.

        def before(statistics: Statistics, sample: Sample):
            data = sample.data
            after = normalization.update(statistics, *seen(data))
            names = ["observation"]
            if isinstance(data, Transition):
                names.append("next_observation")
            normal = {name: normalization.apply(statistics, getattr(data, name)) for name in names}
            return after, sample._replace(data=data._replace(**normal)), {}

        return learn_before(
            agent, lambda key: normalization.init(spec.observations), before, Variables
        )
