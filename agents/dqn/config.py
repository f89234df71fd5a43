"""What can be set of DQN."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from ..bounds import MOST_STEPS, Above, AllBounds
from ..configs import (
    AdamConfig,
    EpsilonGreedyConfig,
    MLPConfig,
    PriorityConfig,
    TargetConfig,
    require_choice,
)


@dataclasses.dataclass(frozen=True)
class DQNConfig(PriorityConfig, EpsilonGreedyConfig, TargetConfig, AdamConfig, MLPConfig):
    """Settings of DQN and its well-known additions. The defaults suit small control tasks."""

    dueling: bool = False
    """Estimate state value and advantages apart (Wang et al., 2016)."""
    double: bool = True
    """Choose the bootstrapped action by the online network (van Hasselt et al., 2016)."""
    learning_rate_steps: int | None = None
    """Gradient steps in which the step size goes linearly to 0; None keeps it."""
    loss: str = "huber"
    """huber or squared."""
    huber_threshold: float = 1.0
    """Error at which the Huber loss turns linear."""

    bounds: ClassVar[AllBounds] = {
        "learning_rate_steps": (1, MOST_STEPS),
        "huber_threshold": Above(0.0, 1e6),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "loss", ("huber", "squared"))
