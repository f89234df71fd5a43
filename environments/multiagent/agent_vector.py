"""Environments of several agents as one vector of their agents' streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np

from .. import specs
from ..adapter import show
from ..errors import EnvironmentFault, InvalidOptionError
from ..vector import Vector
from .parallel import ParallelEnvironment


class AgentVector(Vector):
    """The N = M * A streams of M environments of A agents, which share one policy.

    Stream i is that of agent i mod A in environment i // A. To whom acts, stores and learns they
    are N environments; see `ParallelEnvironment` for streams that wait.
    """

    def __init__(self, environments: Sequence[ParallelEnvironment]) -> None:
        """Takes over the environments, which nothing else may step from now on.

        Raises:
          InvalidOptionError: if there are none, or their agents or specs differ.
        """
        self._parallel = list(environments)
        for i, one in enumerate(self._parallel):
            if not isinstance(one, ParallelEnvironment):
                raise InvalidOptionError(
                    f"an AgentVector is of ParallelEnvironments, got {show(one)}"
                )
            if one.agents != self._parallel[0].agents:
                raise InvalidOptionError(
                    f"environments of a vector must have the same agents: those of environment {i} "
                    f"are {_names(one)}, those of environment 0 {_names(self._parallel[0])}"
                )
        streams: Any = [one for one in self._parallel for _ in one.agents]
        super().__init__(streams)

    @property
    def num_agents(self) -> int:
        return len(self._parallel[0].agents)

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which episodes are truncated; None: no limit is known."""
        return self._parallel[0].max_episode_steps

    def episode_info(self, index: int) -> Mapping[str, float]:
        """Numbers of the newest episode of a stream that has ended, the returns among them."""
        place, agent = divmod(index, self.num_agents)
        return self._parallel[place].episode_info(agent)

    def reset(self) -> dm_env.TimeStep:
        """Begins anew in every environment, whatever it was doing."""
        timesteps: list[dm_env.TimeStep] = []
        try:
            for one in self._parallel:
                timesteps += one.reset()
        except SystemExit as end:
            raise self._exit(len(timesteps), end) from end
        return self._collect(timesteps)

    def step(self, actions: specs.Nest) -> dm_env.TimeStep:
        """Steps every environment.

        Raises:
          InvalidActionError: if the leading dimension is not N, or an action does not fit.
          InvalidRewardError, InvalidObservationError, EnvironmentExitError: as of `Vector`.
          EnvironmentFault: if an environment returned something else than it must.
        """
        rows, agents = self._rows(actions), self.num_agents
        timesteps: list[dm_env.TimeStep] = []
        try:
            for place, one in enumerate(self._parallel):
                timesteps += one.step(rows[place * agents : (place + 1) * agents])
        except EnvironmentFault as fault:
            where = f"environment {len(timesteps) // agents} of {len(self._parallel)}"
            raise type(fault)(f"{where}: {fault}") from fault
        except SystemExit as end:
            raise self._exit(len(timesteps), end) from end
        return self._collect(timesteps)

    def render_frame(self, index: int = 0) -> np.ndarray:
        """The present state of a stream's environment as an image, uint8 [height, width, 3]."""
        return self._parallel[index // self.num_agents].render_frame()

    def close(self) -> None:
        """Closes every environment."""
        for one in self._parallel:
            one.close()

    def _who(self, index: int) -> str:
        place, agent = divmod(index, self.num_agents)
        one = self._parallel[place]
        where = f"environment {place} of {len(self._parallel)}: {one.name}"
        return f"{where}: agent {one.agents[agent]}"


def _names(environment: ParallelEnvironment) -> str:
    return ", ".join(map(str, environment.agents))
